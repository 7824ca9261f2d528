"""Prefill: the evaluation of a run's prompt, of which cached and stored tokens are reused."""

from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING

from localinfer.generation.run import Run
from localinfer.options import scales_of_run
from localinfer.runtime.batch import Logits
from localinfer.runtime.batch_division import bidirectional_span
from localinfer.runtime.sequence_engine import SequenceEngine
from quant.jit.loader import Progress

if TYPE_CHECKING:
    from localinfer.prefix_store.store import PrefixStore

ANSWER_HEADER_TOKENS = 8  # tokens with which a chat template begins an answer; later prompts may lack them


class Prefill:
    """The prefill of an engine's runs. `prefix_store` has evaluated prompts of other programs; those of this engine are
    saved there."""

    def __init__(self, engine: SequenceEngine, prefix_store: "PrefixStore | None") -> None:
        self._engine = engine
        # The tokens of an encoder cannot be divided into pages.
        self._prefix_store = None if engine.context.encoder_decoder else prefix_store

    def evaluate(self, run: Run, tokens: Sequence[int]) -> Logits:
        """Evaluate the tokens before those that a run generates, and return the logits after them. Cached tokens are
        reused, unless the options forbid it."""
        run.require_current()
        start = perf_counter()
        engine, options, stats = self._engine, run.options, run.stats
        store = self._prefix_store if options.cache_prompt and not self._has_hooks else None
        engine.use_adapters(scales_of_run(options, engine.runner.default_scales))
        stats.reused_tokens = engine.reuse_prefix(tokens, len(tokens) - 1 if options.cache_prompt else 0, run.progress)
        if store:
            stats.reused_tokens = store.restore(engine, tokens, stats.reused_tokens)
        engine.checkpoint()
        if store:
            for stop in store.state_positions(engine, stats.reused_tokens, len(tokens) - ANSWER_HEADER_TOKENS):
                end, _ = bidirectional_span(tokens, stop, engine.runner.media_table)  # which cannot be divided
                if end > engine.n_past:
                    engine.evaluate(tokens[engine.n_past : end], self._progress_of_rest(run))
                    store.save(engine)
        logits = engine.evaluate(
            tokens[engine.n_past :], self._progress_of_rest(run), rewindable_suffix=ANSWER_HEADER_TOKENS
        )
        stats.prompt_seconds = perf_counter() - start
        if store:
            store.save(engine, rewound=ANSWER_HEADER_TOKENS)
        return logits

    def save_answer(self, run: Run) -> None:
        """Save the tokens of a run that generates no more, unless another one has begun."""
        if self._prefix_store and not self._has_hooks and not run.has_ended and self._engine.settle():
            with self._engine.lock:
                self._prefix_store.save(self._engine, after_answer=True)

    @property
    def _has_hooks(self) -> bool:
        return self._engine.sequence.modifiers.hooks is not None

    def _progress_of_rest(self, run: Run) -> Progress | None:
        """Return the progress of evaluating the rest of a prompt, counted from its first token that was not reused."""
        progress, n_done = run.progress, self._engine.n_past - run.stats.reused_tokens
        total = run.stats.prompt_tokens - run.stats.reused_tokens
        return progress and (lambda stage, done, _: progress(stage, n_done + done, total))
