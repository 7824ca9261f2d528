"""One sequence of tokens in an engine, and the runs that make it longer.

A prompt that begins with the tokens that are in the engine's cache goes on from there; only the rest is computed. Knows
neither files nor templates nor messages.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from localinfer.engine.engine import Engine
from localinfer.errors import ContextOverflow, LocalInferError, UsageError
from localinfer.generation.beams import BeamSearch
from localinfer.generation.choosing import Chooser, SamplerFunction, checked, with_logprobs
from localinfer.generation.pieces import FinishReason, Outlet, Piece, Stats
from localinfer.generation.sampling import Breakers, Sampler, chosen_seed
from localinfer.generation.sampling.logprobs import log_probabilities
from localinfer.generation.steps import Steps
from localinfer.generation.thoughts import Thoughts
from localinfer.options import Options, guessers_named
from localinfer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from localinfer.generation.constraint import Constraint
    from localinfer.generation.speculation.speculation import Guessing, Speculation

Progress = Callable[[str, int, int], None]  # (stage, done, total)
Logits = NDArray[np.float32]

BEGINNING = 8  # tokens at the end of a prompt with which a template begins an answer: later prompts may lack them
WAYS_OUT = "--ctx-size sets a larger one, --ctx-policy ring forgets the oldest tokens"


class Session:
    """Runs of one engine, one at a time."""

    def __init__(
        self, engine: Engine, tokenizer: Tokenizer, progress: Progress | None = None, draft: Engine | None = None
    ) -> None:
        """`draft` is the engine of a model that guesses tokens."""
        self._engine = engine
        self._tokenizer = tokenizer
        self._progress = progress
        self._current: Stats | None = None  # of the run that owns the cache
        self._draft = draft
        self._guessing: Guessing | None = None  # once tokens are guessed

    def logits(self, tokens: Sequence[int]) -> Logits:
        """The logits after each token, float32 (len(tokens), n_vocab); every one is computed anew."""
        self._engine.require_open()
        with self._engine.lock:
            self._current = None
            self._engine.reset()
            return self._engine.logits(tokens)

    def score(self, prompt: Sequence[int], ids: Sequence[int], n: int) -> list[Piece]:
        """The pieces of a text that could have been generated, each with its probability and `n` alternatives.

        What the cache holds of the prompt is not computed again; afterwards it holds prompt and text.
        """
        thoughts, stream = Thoughts(self._tokenizer, prompt), self._tokenizer.stream()
        pieces = []
        self._engine.require_open()
        with self._engine.lock:
            self._current = None
            tokens = [*prompt, *ids[:-1]]  # nothing is asked of what comes behind the last one
            kept = self._engine.recall(tokens, len(prompt) - 1)
            rows = chain.from_iterable(self._engine.logits_in_parts(tokens[kept:], skip=len(prompt) - 1 - kept))
            for id, logits in zip(ids, rows, strict=True):
                thoughts.follow(id)
                piece = with_logprobs(logits, id, n, self._shown)
                pieces.append(replace(piece, text=stream.push(id), kind=thoughts.kind))
        pieces[-1] = replace(pieces[-1], text=pieces[-1].text + stream.flush())
        return pieces

    @property
    def tokens(self) -> list[int]:
        """What is in the engine's cache."""
        return self._engine.sequence.tokens

    def run(
        self,
        prompt: Sequence[int],
        options: Options,
        sampler: SamplerFunction | None = None,
        constraint: "Constraint | None" = None,
        begun: Sequence[int] = (),
    ) -> tuple[Stats, Iterator[Piece]]:
        """Begin a run, which ends the one before: its statistics, kept up to date, and its pieces.

        `sampler` takes the place of the one that the options describe. The text begins with the tokens `begun`, which
        nobody chooses; they count as a part of the prompt, and are the first pieces. UsageError for an empty prompt,
        ContextOverflow for one that does not fit; the latter also comes after the last piece when the context is full
        and the policy is to stop. So does Incomplete for a text that ends before it has the form of the constraint.
        """
        self._engine.require_open()
        if not prompt:
            raise UsageError("the prompt is empty, and this model puts no token in front of it")
        length = len(prompt) + len(begun)
        if length > self._engine.n_ctx and not self._engine.wraps:
            raise ContextOverflow(
                f"the prompt has {length} tokens, the context holds {self._engine.n_ctx}; {WAYS_OUT}")
        if options.beams > 1 and (sampler or constraint or options.logprobs or begun):
            raise UsageError("--beams: a search samples nothing, and tells no probabilities; it knows no forms")
        stats = Stats(prompt_tokens=length, seed=chosen_seed(options.seed))
        options = replace(options, seed=stats.seed)
        if options.beams > 1:
            tokens = self._searched(prompt, options, stats)
        else:
            chain = checked(sampler, self._engine.n_vocab) if sampler else self.sampler(options)
            chooser = Chooser(chain, constraint, options.logprobs, self._shown, is_quick=sampler is None)
            tokens = self._sampled(prompt, begun, options, stats, chooser)
        self._current = stats
        return stats, self._pieces(tokens, options, stats, constraint)

    def end(self) -> None:
        """End the run that is going on, if any."""
        self._current = None

    # --- from tokens to pieces of text ---

    def _pieces(
        self, tokens: Iterator[Piece], options: Options, stats: Stats, constraint: "Constraint | None"
    ) -> Iterator[Piece]:
        text = ""
        for piece in self._with_texts(tokens, options, stats):
            text += piece.text
            yield piece
        if stats.finish_reason == "context":
            raise ContextOverflow(
                f"the context is full: {stats.prompt_tokens} tokens of prompt and {stats.generated_tokens} of "
                f"text, it holds {self._engine.n_ctx}; {WAYS_OUT}")
        if constraint is not None:
            constraint.require_whole(text, cut_off=stats.finish_reason == "length")

    def _with_texts(self, tokens: Iterator[Piece], options: Options, stats: Stats) -> Iterator[Piece]:
        outlet, decoder = Outlet(options.stop), self._tokenizer.stream()
        for piece in tokens:
            text = decoder.push(piece.id)
            yield from outlet.push(replace(piece, text=text), unfinished=decoder.unfinished)
            if outlet.stopped:
                stats.finish_reason = "stop"
                return
        yield from outlet.flush(decoder.flush())

    def _sampled(
        self, prompt: Sequence[int], begun: Sequence[int], options: Options, stats: Stats, chooser: Chooser
    ) -> Iterator[Piece]:
        """The tokens one by one, without texts; at the end, `stats.finish_reason` says why it is the end."""
        thoughts = Thoughts(self._tokenizer, prompt, options.reasoning_budget)
        given = []
        for id in begun:
            thoughts.follow(id)
            chooser.follow(id)
            given.append(Piece("", id, thoughts.kind))

        def choose(logits: Logits, tokens: Sequence[int]) -> Piece:
            piece = chooser(logits, tokens, thoughts.forced)
            thoughts.follow(piece.id)
            return replace(piece, kind=thoughts.kind) if thoughts.kind != "text" else piece

        def is_last(piece: Piece) -> bool:
            return piece.id in self._tokenizer.eog or chooser.is_complete

        def room(count: int) -> int:
            return self._room(options, stats.prompt_tokens, count)

        steps = Steps(self._engine, choose, is_last, room, alone=not chooser.is_quick)
        with self._engine.lock:
            logits = self._read([*prompt, *begun], stats)
            with timed(stats):
                steps.speculation = speculation = self._speculation(options, stats)
                pieces = [steps.first(logits)]
        yield from given  # not before all is read: whoever shows them shows how far that is, too
        while True:
            piece = pieces.pop(0)
            if speculation is not None:
                speculation.give(guessed=bool(pieces))
            if piece.id in self._tokenizer.eog:
                break
            stats.generated_tokens += 1
            yield piece
            with self._engine.lock:
                self._check_current(stats)
                if pieces:
                    continue
                if chooser.is_complete:
                    break
                if stats.generated_tokens == options.n_predict:
                    stats.finish_reason = "length"
                    return
                if not room(stats.generated_tokens):
                    stats.finish_reason = "context"
                    return
                with timed(stats):
                    pieces = steps.pieces()
        stats.finish_reason = "stop"

    def _speculation(self, options: Options, stats: Stats) -> "Speculation | None":
        """Who guesses tokens, where the options want it."""
        there = {"ngram", *(["draft"] if self._draft else []), *(["ahead"] if self._engine.looks_further else [])}
        names = guessers_named(options.spec_type) & there
        if not names or not options.spec_draft_n_max:
            return None
        from localinfer.generation.speculation.speculation import Guessing

        self._guessing = self._guessing or Guessing(self._engine, self._draft)
        return self._guessing.begin(self.tokens, names, options, stats)

    def _room(self, options: Options, prompt_tokens: int, generated_tokens: int) -> int:
        """How many tokens there may be yet, when all but the last one have been computed."""
        length = prompt_tokens + generated_tokens - 1
        context = self._engine.n_ctx - length if not self._engine.wraps else self._engine.n_ctx
        wanted = options.n_predict - generated_tokens if options.n_predict > 0 else context
        return min(context, wanted)

    def _searched(self, prompt: Sequence[int], options: Options, stats: Stats) -> Iterator[Piece]:
        """The tokens of the text that beam search finds. The cache holds one hypothesis at a time: for another one
        it forgets what they do not share, and computes the rest again.
        """
        scores = self.sampler(replace(options, samplers="penalties;dry", sampler_seq="", mirostat=0))
        room = max(1, self._engine.n_ctx - len(prompt) + 1)
        limit = min(room, options.n_predict) if options.n_predict > 0 else room
        with self._engine.lock:
            self._read(prompt, stats)

        def logprobs_after(ids: Sequence[int]) -> NDArray[np.floating]:
            with self._engine.lock:
                began = perf_counter()
                self._check_current(stats)
                tokens = [*prompt, *ids]
                kept = self._engine.recall(tokens, len(tokens) - 1)
                left = scores.candidates(self._engine.evaluate(tokens[kept:]), self.tokens)
                stats.generate_seconds += perf_counter() - began
                return log_probabilities(left.logits)

        search = BeamSearch(logprobs_after, options.beams, self._tokenizer.eog, limit)
        for id in search:
            stats.generated_tokens += 1
            yield Piece("", id)
        unfinished: FinishReason = "context" if limit == room else "length"
        stats.finish_reason = "stop" if search.best_has_ended else unfinished

    def sampler(self, options: Options) -> Sampler:
        """The chain of samplers that the options describe, for the vocabulary of this model."""
        n_ctx, tokenizer = self._engine.n_ctx, self._tokenizer
        options = replace(
            options,
            repeat_last_n=n_ctx if options.repeat_last_n < 0 else options.repeat_last_n,
            dry_penalty_last_n=n_ctx if options.dry_penalty_last_n < 0 else options.dry_penalty_last_n,
        )
        bias = dict.fromkeys(tokenizer.eog, -np.inf) if options.ignore_eos else {}
        texts = () if "none" in options.dry_sequence_breaker else options.dry_sequence_breaker
        breakers = Breakers(texts, tokenizer.token_bytes, lambda text: tokenizer.encode(text, add_special=False))
        return Sampler(options, self._engine.n_vocab, bias, breakers)

    def _shown(self, id: int) -> str:
        return self._tokenizer.token_bytes(id, special=True).decode("utf-8", "replace")

    def _check_current(self, stats: Stats) -> None:
        self._engine.require_open()
        if self._current is not stats:
            raise LocalInferError("this run has ended: another one was started on the same model")

    # --- the cache ---

    def _read(self, prompt: Sequence[int], stats: Stats) -> Logits:
        """The logits after the prompt; what the cache holds of it is not computed again."""
        self._check_current(stats)
        began = perf_counter()
        stats.reused_tokens = self._engine.recall(prompt, len(prompt) - 1, self._progress)
        self._engine.keep()
        logits = self._engine.evaluate(prompt[stats.reused_tokens :], self._progress, keep=BEGINNING)
        stats.prompt_seconds = perf_counter() - began
        return logits


@contextmanager
def timed(stats: Stats) -> Iterator[None]:
    """What is done inside makes the text."""
    began = perf_counter()
    yield
    stats.generate_seconds += perf_counter() - began
