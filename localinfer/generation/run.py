"""A run: the tokens that it continues, its options and statistics, and the texts of its pieces."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING

from localinfer.errors import ContextOverflowError, LocalInferError
from localinfer.generation.pieces import Piece, Stats, StopStringFilter
from localinfer.generation.sampling import resolve_seed
from localinfer.generation.token_selection import SamplerFunction, TokenSelector
from localinfer.options import Options
from localinfer.runtime.sequence_engine import SequenceEngine
from localinfer.tokenizer import Tokenizer
from quant.jit.loader import Progress

if TYPE_CHECKING:
    from localinfer.generation.structured.constraint import Constraint

CONTEXT_HINT = "ctx_size (--ctx-size) sets a larger one, ctx_policy (--ctx-policy) ring overwrites the oldest tokens"


class Run:
    """A run of an engine. Its session sets `has_ended` when another run begins.

    `answer_prefix` are the first tokens of the text; they count as part of the prompt. `stats` are updated while the
    run generates, and `options` have the seed that was chosen.
    """

    def __init__(
        self, engine: SequenceEngine, tokenizer: Tokenizer, prompt: Sequence[int], answer_prefix: Sequence[int],
        options: Options, constraint: "Constraint | None" = None, progress: Progress | None = None,
    ) -> None:  # fmt: skip
        self.engine, self.tokenizer, self.constraint, self.progress = engine, tokenizer, constraint, progress
        self.prompt, self.answer_prefix = prompt, answer_prefix
        self.stats = Stats(prompt_tokens=len(prompt) + len(answer_prefix), seed=resolve_seed(options.seed))
        self.options = replace(options, seed=self.stats.seed)
        self.has_ended = False

    def require_current(self) -> None:
        """Raise LocalInferError if the run has ended, or its model is closed."""
        self.engine.runner.require_open()
        if self.has_ended:
            raise LocalInferError("this run has ended: another one was started with the same model")

    def selector(self, sampler: SamplerFunction, *, runs_in_scheduler_thread: bool = False) -> TokenSelector:
        """Return the selector of the run's tokens, with its constraint."""
        return TokenSelector(
            sampler, self.constraint, self.options.logprobs, self.tokenizer.token_text,
            runs_in_scheduler_thread=runs_in_scheduler_thread,
        )  # fmt: skip

    def with_texts(self, tokens: Iterator[Piece]) -> Iterator[Piece]:
        """Yield pieces with their texts, up to a stop string."""
        stop_filter, decoder = StopStringFilter(self.options.stop), self.tokenizer.stream()
        for piece in tokens:
            text = decoder.push(piece.id)
            yield from stop_filter.push(replace(piece, text=text), is_incomplete=decoder.has_pending_bytes)
            if stop_filter.found:
                self.stats.finish_reason, self.stats.stop_string = "stop", stop_filter.found
                return
        yield from stop_filter.flush(decoder.flush())

    def check(self, text: str) -> None:
        """Raise what is wrong with the complete text of the run."""
        stats = self.stats
        if stats.finish_reason == "context":
            raise ContextOverflowError(
                f"the context is full: {stats.prompt_tokens} tokens of prompt and {stats.generated_tokens} of "
                f"text, it holds {self.engine.n_ctx}; {CONTEXT_HINT}"
            )
        if self.constraint is not None:
            self.constraint.require_complete(text, is_truncated=stats.finish_reason == "length")


@contextmanager
def add_generate_seconds(stats: Stats) -> Iterator[None]:
    """Add the time within the context to `stats.generate_seconds`."""
    start = perf_counter()
    yield
    stats.generate_seconds += perf_counter() - start
