"""One sequence of tokens in an engine, and the runs that make it longer.

A prompt that begins with the tokens that are in the engine's cache goes on from there; only the rest is computed. Knows
neither files nor templates nor messages.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from localinfer.engine.engine import Engine
from localinfer.errors import ContextOverflow, LocalInferError, UsageError
from localinfer.generation.pieces import Outlet, Piece, Stats
from localinfer.generation.sampling import Sampler, chosen_seed
from localinfer.generation.thoughts import Thoughts
from localinfer.options import Options
from localinfer.tokenizer import Tokenizer

Progress = Callable[[str, int, int], None]  # (stage, done, total)
Logits = NDArray[np.float32]

WAYS_OUT = "--ctx-size sets a larger one, --ctx-policy ring forgets the oldest tokens"


class Session:
    """Runs of one engine, one at a time."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer, progress: Progress | None = None) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._progress = progress
        self._current: Stats | None = None  # of the run that owns the cache

    def logits(self, tokens: Sequence[int]) -> Logits:
        """The logits after each token, float32 (len(tokens), n_vocab); every one is computed anew."""
        with self._engine.turn:
            self._engine.require_open()
            self._current = None
            self._engine.reset()
            return self._engine.logits(tokens)

    @property
    def tokens(self) -> list[int]:
        """What is in the engine's cache."""
        return self._engine.sequence.tokens

    def run(self, prompt: Sequence[int], options: Options) -> tuple[Stats, Iterator[Piece]]:
        """Begin a run, which ends the one before: its statistics, kept up to date, and its pieces.

        UsageError for a prompt of no tokens, ContextOverflow for one that does not fit; the latter also comes
        after the last piece when the context is full and the policy is to stop.
        """
        self._engine.require_open()
        if not prompt:
            raise UsageError("the prompt is empty, and this model puts no token in front of it")
        if len(prompt) > self._engine.n_ctx and self._engine.policy == "stop":
            raise ContextOverflow(
                f"the prompt has {len(prompt)} tokens, the context holds {self._engine.n_ctx}; {WAYS_OUT}")
        stats = self._current = Stats(prompt_tokens=len(prompt), seed=chosen_seed(options.seed))
        return stats, self._pieces(prompt, options, stats)

    def end(self) -> None:
        """End the run that is going on, if any."""
        self._current = None

    # --- from tokens to pieces of text ---

    def _pieces(self, prompt: Sequence[int], options: Options, stats: Stats) -> Iterator[Piece]:
        outlet, decoder = Outlet(options.stop), self._tokenizer.stream()
        thoughts = Thoughts(self._tokenizer, prompt, options.reasoning_budget)
        for id in self._ids(prompt, options, stats, thoughts):
            text = decoder.push(id)
            yield from outlet.push(Piece(text, id, thoughts.kind), unfinished=decoder.unfinished)
            if outlet.stopped:
                stats.finish_reason = "stop"
                return
        yield from outlet.flush(decoder.flush())
        if stats.finish_reason == "context":
            raise ContextOverflow(
                f"the context is full: {stats.prompt_tokens} tokens of prompt and {stats.generated_tokens} of "
                f"text, it holds {self._engine.n_ctx}; {WAYS_OUT}")

    def _ids(self, prompt: Sequence[int], options: Options, stats: Stats, thoughts: Thoughts) -> Iterator[int]:
        """The tokens one by one; at the end, `stats.finish_reason` says why it is the end."""
        sampler = self._sampler(replace(options, seed=stats.seed))
        with self._engine.turn:
            logits = self._read(prompt, stats)
            id = thoughts.follow(self._sample(sampler, logits, stats, perf_counter()))
        while id not in self._tokenizer.eog:
            stats.generated_tokens += 1
            yield id
            with self._engine.turn:
                began = perf_counter()
                self._check_current(stats)
                if stats.generated_tokens == options.n_predict:
                    stats.finish_reason = "length"
                    return
                if self._is_full:
                    stats.finish_reason = "context"
                    return
                id = thoughts.follow(self._sample(sampler, self._engine.evaluate([id]), stats, began))
        stats.finish_reason = "stop"

    def _sample(self, sampler: Sampler, logits: Logits, stats: Stats, began: float) -> int:
        """The next token: its time is all that has passed since it `began`."""
        id = sampler.sample(logits, self.tokens)
        stats.generate_seconds += perf_counter() - began
        return id

    def _sampler(self, options: Options) -> Sampler:
        if options.repeat_last_n < 0:
            options = replace(options, repeat_last_n=self._engine.n_ctx)
        banned = self._tokenizer.eog if options.ignore_eos else ()
        return Sampler(options, self._engine.n_vocab, banned)

    def _check_current(self, stats: Stats) -> None:
        self._engine.require_open()
        if self._current is not stats:
            raise LocalInferError("this run has ended: another one was started on the same model")

    # --- the cache ---

    @property
    def _is_full(self) -> bool:
        return self._engine.policy == "stop" and len(self.tokens) >= self._engine.n_ctx

    def _read(self, prompt: Sequence[int], stats: Stats) -> Logits:
        """The logits after the prompt; what the cache holds of it is not computed again."""
        self._check_current(stats)
        began = perf_counter()
        stats.reused_tokens = self._engine.rewind(min(common_prefix(self.tokens, prompt), len(prompt) - 1))
        logits = self._engine.evaluate(prompt[stats.reused_tokens :], self._progress)
        stats.prompt_seconds = perf_counter() - began
        return logits


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two sequences have in common at their beginning."""
    pairs = zip(a, b, strict=False)
    return next((n for n, (left, right) in enumerate(pairs) if left != right), min(len(a), len(b)))
