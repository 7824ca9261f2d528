"""The sampler chain, with llama.cpp's order and semantics.

    logit bias -> penalties -> DRY -> top-n-sigma -> top-k -> typical -> top-p -> min-p -> XTC -> temperature -> draw

`--samplers` selects and orders the samplers after the bias. Mirostat only follows the temperature. A temperature of 0
takes the most probable token.
"""

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import UsageError
from localinfer.options import RANDOM_SEED, Options, chosen_samplers, parse_logit_bias

from .candidates import Candidates, Floats, Ids, sanitize_logits
from .final_samplers import AdaptiveP, DistributionSampler, Mirostat, MirostatV2
from .repetition import NO_SEQUENCE_BREAKERS, SequenceBreakers, apply_penalties, dry, last_tokens
from .temperature import dynamic_temperature, temperature
from .truncation import min_p, top_k, top_n_sigma, top_p, typical, xtc


class SamplingContext(NamedTuple):
    """The inputs of a sampler in addition to the candidates and the options."""

    recent: Sequence[int]  # the tokens so far
    sequence_breakers: SequenceBreakers
    random: np.random.Generator


def penalties(c: Candidates, o: Options, context: SamplingContext) -> Candidates:
    recent = last_tokens(context.recent, o.repeat_last_n)
    return apply_penalties(c, recent, o.repeat_penalty, o.frequency_penalty, o.presence_penalty)


def dry_penalties(c: Candidates, o: Options, context: SamplingContext) -> Candidates:
    window = last_tokens(context.recent, o.dry_penalty_last_n)
    return dry(c, window, context.sequence_breakers, o.dry_multiplier, o.dry_base, o.dry_allowed_length)


def xtc_stage(c: Candidates, o: Options, context: SamplingContext) -> Candidates:
    if c.ids.size < 2 or context.random.random() > o.xtc_probability:
        return c
    return xtc(c, o.xtc_threshold, o.min_keep)


def temperature_stage(c: Candidates, o: Options, _: SamplingContext) -> Candidates:
    if o.dynatemp_range > 0:
        return dynamic_temperature(c, o.temp, o.dynatemp_range, o.dynatemp_exp)
    return temperature(c, o.temp)


class SamplerStage(NamedTuple):
    """A sampler of the chain: when it is enabled, and its function.

    `keeps_best`: it never drops the best token.
    """

    is_enabled: Callable[[Options], bool]
    apply: Callable[[Candidates, Options, SamplingContext], Candidates]
    keeps_best: bool = False


STAGES = {
    "penalties": SamplerStage(
        lambda o: o.repeat_last_n != 0 and (o.repeat_penalty, o.frequency_penalty, o.presence_penalty) != (1, 0, 0),
        penalties),
    "dry": SamplerStage(lambda o: o.dry_multiplier != 0 and o.dry_penalty_last_n != 0, dry_penalties),
    "top_n_sigma": SamplerStage(
        lambda o: o.top_n_sigma > 0, lambda c, o, _: top_n_sigma(c, o.top_n_sigma), keeps_best=True),
    "top_k": SamplerStage(lambda o: o.top_k > 0, lambda c, o, _: top_k(c, o.top_k), keeps_best=True),
    "typ_p": SamplerStage(lambda o: o.typical_p < 1, lambda c, o, _: typical(c, o.typical_p, o.min_keep)),
    "top_p": SamplerStage(lambda o: o.top_p < 1, lambda c, o, _: top_p(c, o.top_p, o.min_keep), keeps_best=True),
    "min_p": SamplerStage(lambda o: o.min_p > 0, lambda c, o, _: min_p(c, o.min_p, o.min_keep), keeps_best=True),
    "xtc": SamplerStage(lambda o: o.xtc_probability > 0 and o.xtc_threshold <= 0.5, xtc_stage),
    "temperature": SamplerStage(lambda o: o.temp != 1 or o.dynatemp_range > 0, temperature_stage, keeps_best=True),
}  # fmt: skip


class SamplerChain:
    """A sampler chain with the given options, and a random generator with its own seed.

    It is a function of the logits and the ids so far, like a user's sampler. `bias` is added to the logits of these
    tokens, in addition to the options' logit bias; -inf excludes a token. Raises UsageError for a token that is not in
    the vocabulary.
    """

    def __init__(
        self,
        options: Options,
        n_vocab: int,
        bias: Mapping[int, float] | None = None,
        sequence_breakers: SequenceBreakers = NO_SEQUENCE_BREAKERS,
    ) -> None:
        if options.mirostat:
            options = replace(options, samplers="temperature", sampler_seq="", dynatemp_range=0.0)
        self.options = options
        self.seed = resolve_seed(options.seed)
        self._random = np.random.Generator(np.random.PCG64(self.seed))
        self._sequence_breakers = sequence_breakers
        self._vocabulary = np.arange(n_vocab)
        self._bias_ids, self._bias = combined_bias(options, bias or {}, n_vocab)
        self._stages = active_stages(options)
        self.final_sampler = new_final_sampler(options, n_vocab)
        takes_argmax = (
            self._stages == [STAGES["temperature"]]
            and is_greedy(options)
            and type(self.final_sampler) is DistributionSampler
        )
        self._is_greedy = takes_argmax and bool((self._bias <= 0).all())
        self._biased_ids = frozenset(self._bias_ids.tolist())

    def __call__(self, logits: NDArray[np.float32], ids: Sequence[int]) -> int:
        """Return the next token for the logits (n_vocab,) after `ids`. The logits are not changed."""
        if self._is_greedy:  # argmax is enough, unless the bias lowers that token
            best = int(logits.argmax())  # the first NaN, if there is one
            if best not in self._biased_ids and math.isfinite(logits[best]):
                return best
        return self.draw(self.candidates(logits, ids))

    def draw(self, candidates: Candidates) -> int:
        """Return one of the candidates that the chain has left."""
        return self.final_sampler(candidates, self._random.random())

    def candidates(self, logits: NDArray[np.float32], ids: Sequence[int]) -> Candidates:
        """Return the candidates that the chain leaves to draw from."""
        remaining = Candidates(self._vocabulary, sanitize_logits(self._biased(logits)))
        context = SamplingContext(ids, self._sequence_breakers, self._random)
        for stage in self._stages:
            remaining = stage.apply(remaining, self.options, context)
        return remaining

    def _biased(self, logits: Floats) -> Floats:
        if not self._bias_ids.size:
            return logits
        logits = logits.copy()
        with np.errstate(invalid="ignore"):  # inf - inf
            logits[self._bias_ids] += self._bias
        return logits


def active_stages(options: Options) -> list[SamplerStage]:
    """Return the samplers between the bias and the draw, without those that have no effect."""
    named = [STAGES[name] for name in chosen_samplers(options) if name in STAGES]
    active = [stage for stage in named if stage.is_enabled(options)]
    temperature_sampler = STAGES["temperature"]
    if temperature_sampler in active and is_greedy(options):
        active = active[: active.index(temperature_sampler)]
        while active and active[-1].keeps_best:  # the sampler does not change the most probable token
            active.pop()
        active.append(temperature_sampler)
    return active


def is_greedy(options: Options) -> bool:
    """Return whether the temperature leaves only the most probable token."""
    return options.temp <= 0 and options.dynatemp_range <= 0


def new_final_sampler(options: Options, n_vocab: int) -> DistributionSampler:
    """Return the final sampler that the options select."""
    if options.mirostat:
        version = Mirostat if options.mirostat == 1 else MirostatV2
        return version(options.mirostat_ent, options.mirostat_lr, n_vocab)
    if "adaptive_p" in chosen_samplers(options):
        return AdaptiveP(options.adaptive_target, options.adaptive_decay)
    return DistributionSampler()


def combined_bias(options: Options, extra_bias: Mapping[int, float], n_vocab: int) -> tuple[Ids, Floats]:
    """Return the tokens with a bias, and the biases."""
    bias = dict(extra_bias)
    for text in options.logit_bias:
        id, amount = parse_logit_bias(text)
        if id >= n_vocab:
            raise UsageError(f"logit_bias: there is no token {id}, the vocabulary has {n_vocab}")
        bias[id] = bias.get(id, 0.0) + amount
    if len(bias) == n_vocab and all(amount == -math.inf for amount in bias.values()):
        raise UsageError("logit_bias: no token is left to choose")
    return np.fromiter(bias, np.intp), np.fromiter(bias.values(), np.float64)


def resolve_seed(seed: int) -> int:
    """Return the seed, or a random one if none is set."""
    return secrets.randbits(32) if seed == RANDOM_SEED else seed
