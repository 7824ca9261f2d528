"""llama.cpp's chain of samplers, in its order and with its meanings.

    logit bias -> penalties -> DRY -> top-n-sigma -> top-k -> typical -> top-p -> min-p -> XTC -> temperature -> draw

`--samplers` chooses which links stand behind the bias, and their order. Mirostat has only the temperature before it.
A temperature of 0 takes the most probable token.
"""

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import UsageError
from localinfer.options import RANDOM_SEED, Options, bias_of, chosen_samplers

from .candidates import Candidates, Floats, Ids, possible
from .choice import AdaptiveP, Choice, Mirostat, MirostatV2
from .repetition import NO_BREAKERS, Breakers, dry, last, penalized
from .temperature import dynamic_temperature, temperature
from .truncation import min_p, top_k, top_n_sigma, top_p, typical, without_top_choices


class Moment(NamedTuple):
    """What a link may look at besides the candidates and the options."""

    recent: Sequence[int]  # tokens, the last one at the end
    breakers: Breakers
    random: np.random.Generator


def penalties(c: Candidates, o: Options, now: Moment) -> Candidates:
    recent = last(now.recent, o.repeat_last_n)
    return penalized(c, recent, o.repeat_penalty, o.frequency_penalty, o.presence_penalty)


def repetitions(c: Candidates, o: Options, now: Moment) -> Candidates:
    window = last(now.recent, o.dry_penalty_last_n)
    return dry(c, window, now.breakers, o.dry_multiplier, o.dry_base, o.dry_allowed_length)


def xtc(c: Candidates, o: Options, now: Moment) -> Candidates:
    if c.ids.size < 2 or now.random.random() > o.xtc_probability:
        return c
    return without_top_choices(c, o.xtc_threshold, o.min_keep)


def heat(c: Candidates, o: Options, _: Moment) -> Candidates:
    if o.dynatemp_range > 0:
        return dynamic_temperature(c, o.temp, o.dynatemp_range, o.dynatemp_exp)
    return temperature(c, o.temp)


class Link(NamedTuple):
    is_on: Callable[[Options], bool]
    apply: Callable[[Candidates, Options, Moment], Candidates]
    keeps_best: bool = False  # whatever else it drops


LINKS = {
    "penalties": Link(
        lambda o: o.repeat_last_n != 0 and (o.repeat_penalty, o.frequency_penalty, o.presence_penalty) != (1, 0, 0),
        penalties),
    "dry": Link(lambda o: o.dry_multiplier != 0 and o.dry_penalty_last_n != 0, repetitions),
    "top_n_sigma": Link(lambda o: o.top_n_sigma > 0, lambda c, o, _: top_n_sigma(c, o.top_n_sigma), keeps_best=True),
    "top_k": Link(lambda o: o.top_k > 0, lambda c, o, _: top_k(c, o.top_k), keeps_best=True),
    "typ_p": Link(lambda o: o.typical_p < 1, lambda c, o, _: typical(c, o.typical_p, o.min_keep)),
    "top_p": Link(lambda o: o.top_p < 1, lambda c, o, _: top_p(c, o.top_p, o.min_keep), keeps_best=True),
    "min_p": Link(lambda o: o.min_p > 0, lambda c, o, _: min_p(c, o.min_p, o.min_keep), keeps_best=True),
    "xtc": Link(lambda o: o.xtc_probability > 0 and o.xtc_threshold <= 0.5, xtc),
    "temperature": Link(lambda o: o.temp != 1 or o.dynatemp_range > 0, heat, keeps_best=True),
}  # fmt: skip


class Sampler:
    """Chooses tokens by `options`, with random numbers of its own that begin at `seed`.

    It is a function of the logits and the ids so far, as a sampler that a user writes. `bias` is added to the logits of
    these tokens, beside what the options add: -inf is never chosen. UsageError for a token that is not in the
    vocabulary.
    """

    def __init__(
        self,
        options: Options,
        n_vocab: int,
        bias: Mapping[int, float] | None = None,
        breakers: Breakers = NO_BREAKERS,
    ) -> None:
        if options.mirostat:
            options = replace(options, samplers="temperature", sampler_seq="", dynatemp_range=0.0)
        self.options = options
        self.seed = chosen_seed(options.seed)
        self._random = np.random.Generator(np.random.PCG64(self.seed))
        self._breakers = breakers
        self._vocabulary = np.arange(n_vocab)
        self._bias_ids, self._bias = summed(options, bias or {}, n_vocab)
        self._links = links(options)
        self.choice = choice(options, n_vocab)
        only_takes_best = self._links == [LINKS["temperature"]] and is_cold(options) and type(self.choice) is Choice
        self._is_greedy = only_takes_best and bool((self._bias <= 0).all())
        self._biased_ids = frozenset(self._bias_ids.tolist())

    def __call__(self, logits: NDArray[np.float32], ids: Sequence[int]) -> int:
        """The next token, by the logits (n_vocab,) after the `ids`; `logits` stay as they are."""
        if self._is_greedy:  # a look is enough, unless it falls on a token that the bias lowers
            best = int(logits.argmax())  # or where the first NaN is
            if best not in self._biased_ids and math.isfinite(logits[best]):
                return best
        return self.choice(self.candidates(logits, ids), self._random.random())

    def candidates(self, logits: NDArray[np.float32], ids: Sequence[int]) -> Candidates:
        """What the chain leaves to choose from."""
        left = Candidates(self._vocabulary, possible(self._biased(logits)))
        now = Moment(ids, self._breakers, self._random)
        for link in self._links:
            left = link.apply(left, self.options, now)
        return left

    def _biased(self, logits: Floats) -> Floats:
        if not self._bias_ids.size:
            return logits
        logits = logits.copy()
        with np.errstate(invalid="ignore"):  # of infinite ones
            logits[self._bias_ids] += self._bias
        return logits


def links(options: Options) -> list[Link]:
    """What stands between the bias and the draw; not what would do nothing."""
    named = [LINKS[name] for name in chosen_samplers(options) if name in LINKS]
    working = [link for link in named if link.is_on(options)]
    cold = LINKS["temperature"]
    if cold in working and is_cold(options):
        working = working[: working.index(cold)]
        while working and working[-1].keeps_best:  # it has no say in which token is the most probable one
            working.pop()
        working.append(cold)
    return working


def is_cold(options: Options) -> bool:
    """Whether the temperature leaves only the most probable token."""
    return options.temp <= 0 and options.dynatemp_range <= 0


def choice(options: Options, n_vocab: int) -> Choice:
    if options.mirostat:
        version = Mirostat if options.mirostat == 1 else MirostatV2
        return version(options.mirostat_ent, options.mirostat_lr, n_vocab)
    if "adaptive_p" in chosen_samplers(options):
        return AdaptiveP(options.adaptive_target, options.adaptive_decay)
    return Choice()


def summed(options: Options, more: Mapping[int, float], n_vocab: int) -> tuple[Ids, Floats]:
    """The tokens that have a bias, and how large it is."""
    bias = dict(more)
    for text in options.logit_bias:
        id, amount = bias_of(text)
        if id >= n_vocab:
            raise UsageError(f"--logit-bias: there is no token {id}, the vocabulary has {n_vocab}")
        bias[id] = bias.get(id, 0.0) + amount
    if len(bias) == n_vocab and all(amount == -math.inf for amount in bias.values()):
        raise UsageError("--logit-bias: no token is left to choose")
    return np.fromiter(bias, np.intp), np.fromiter(bias.values(), np.float64)


def chosen_seed(seed: int) -> int:
    """The seed itself, or a new one each time where none was chosen."""
    return secrets.randbits(32) if seed == RANDOM_SEED else seed
