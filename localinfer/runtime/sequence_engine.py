"""The interface of engines. An engine evaluates the token ids of one sequence, and returns logits."""

import threading
from abc import ABC, abstractmethod
from collections import abc

import numpy as np

from localinfer.runtime.activations.hooks import SequenceHooks
from localinfer.runtime.batch import NO_ROWS, Ids, Logits, Tokens
from localinfer.runtime.batch_division import batch_end
from localinfer.runtime.decode_loop import DecodeLoop
from localinfer.runtime.draft_head_runner import DraftHeadRunner
from localinfer.runtime.encoder_tokens import encoder_length
from localinfer.runtime.media.prompt_media import PromptMedia
from localinfer.runtime.model_runner import ModelRunner
from localinfer.runtime.modifiers import Modifiers
from localinfer.runtime.thread_pool import OnOp
from localinfer.runtime.token_checks import checked_tokens
from quant.jit.loader import Progress


class SequenceEngine(ABC):
    """An engine for one sequence, whose cached tokens are `sequence.tokens`.

    One thread at a time uses it. A caller that needs the sequence unchanged between calls holds `lock`. `draft_head`
    evaluates the draft head, if the model has one, `prompt_media` gives images and sounds token ids, and `context` is
    what the graph was built for.
    """

    def __init__(self, runner: ModelRunner, lock: "threading.RLock", draft_head: DraftHeadRunner) -> None:
        self.runner, self.compiled_graph, self.graph = runner, runner.compiled_graph, runner.graph
        self.file, self.context = runner.compiled_graph.files[0], runner.compiled_graph.context
        self.n_ctx, self.n_vocab = runner.compiled_graph.n_ctx, runner.compiled_graph.n_vocab
        self.lock, self.sequence, self.draft_head = lock, runner.new_sequence(), draft_head
        self.prompt_media = PromptMedia(runner.media_table)

    @property
    @abstractmethod
    def max_batch(self) -> int:
        """The maximum number of tokens of the next call of `_evaluate_batch`."""

    @property
    def n_past(self) -> int:
        """The number of cached tokens."""
        return len(self.sequence)

    # --- tokens in, logits out ---

    def evaluate(self, tokens: Tokens, progress: Progress | None = None, *, rewindable_suffix: int = 0) -> Logits:
        """Append `tokens` and return the logits after the last one, float32 (n_vocab,). They are valid until the next
        call.

        With `rewindable_suffix`, the sequence can later be rewound to where that many last tokens begin: models with
        recurrent state evaluate these in a batch of their own, after a checkpoint.

        Raises ContextOverflowError if the tokens do not fit and the cache is no ring buffer. After a KeyboardInterrupt
        the sequence holds the completed batches, or as many tokens as it can rewind to; see `n_past`.
        """
        with self.lock:
            self.compiled_graph.require_next_tokens()
            ids, n_done, n_ops = checked_tokens(tokens, self.runner, self.sequence), 0, len(self.graph.ops)
            needs_checkpoint = rewindable_suffix > 0 and not self.sequence.can_rewind
            table, max_prefix = self.runner.media_table, max(0, len(ids) - rewindable_suffix)
            n_prefix = batch_end(ids, 0, max_prefix, table) if needs_checkpoint else 0
            logits = np.empty((0, self.n_vocab), np.float32)
            while n_done < len(ids):
                end = batch_end(ids[: n_prefix if n_done < n_prefix else len(ids)], n_done, self.max_batch, table)
                rows = np.array([end - n_done - 1], np.int32) if end == len(ids) else NO_ROWS
                on_op = prefill_callback(progress, n_done, end - n_done, len(ids), n_ops)
                logits, n_done = self._evaluate_batch(ids[n_done:end], rows, on_op), end
                if n_done == n_prefix:
                    self.checkpoint()
            if progress:
                progress("prefill", len(ids), len(ids))
            return logits.reshape(-1)

    def evaluate_draft(self, tokens: Tokens, skip: int = 0) -> Logits:
        """Evaluate a few tokens in one pass and return the logits after each but the first `skip`.

        The logits are float32 (len(tokens) - skip, n_vocab), valid until the next call, and bit-identical to those of
        tokens that are evaluated one by one. Errors are those of `evaluate`.

        All tokens after the first `skip` + 1 are draft tokens. The caller must call `rewind` afterwards: it goes back
        to any of them, or to fewer tokens if recurrent states are too large to be stored after each, but at least to
        the tokens before the draft.
        """
        with self.lock:
            self.compiled_graph.require_next_tokens()
            ids = checked_tokens(tokens, self.runner, self.sequence)
            assert len(ids) <= self.compiled_graph.max_step_tokens
            if len(ids) > skip + 1:
                self.sequence.begin_draft(skip + 1)
            return self._evaluate_batch(ids, np.arange(skip, len(ids), dtype=np.int32))

    def run_step(self, decode_loop: DecodeLoop) -> None:
        """Run one step of a decode loop, as `evaluate_draft` does."""
        decode_loop.process_logits(self.evaluate_draft(*decode_loop.next_tokens()))

    def logits(self, tokens: Tokens) -> Logits:
        """Append `tokens` and return the logits after each, float32 (len(tokens), n_vocab). Tokens of an encoder have
        none. For a diffusion language model, see `bidirectional_logits`."""
        with self.lock:
            ids = checked_tokens(tokens, self.runner, self.sequence)
            skip = encoder_length(ids) if self.context.encoder_decoder else 0
            result = np.empty((len(ids) - skip, self.n_vocab), np.float32)
            n_done, positions = 0, np.arange(len(ids), dtype=np.int32)
            is_diffusion = self.context.diffusion
            batches = self.bidirectional_logits(ids, positions) if is_diffusion else self.logits_in_batches(ids, skip)
            for rows in batches:
                result[n_done : n_done + len(rows)] = rows
                n_done += len(rows)
            return result

    def bidirectional_logits(self, tokens: Tokens, positions: Ids) -> abc.Iterator[Logits]:
        """Evaluate a text with a diffusion language model, and yield the logits of these positions, several rows at a
        time: float32 (rows, n_vocab), valid until the next ones.

        Each position has seen the whole text. Nothing is cached. The caller must exhaust the iterator. Errors are those
        of `evaluate`.
        """
        with self.runner.lock:
            self.reset()
            self.runner.evaluate_packed(self.sequence, [checked_tokens(tokens, self.runner, self.sequence)])
            for first in range(0, len(positions), self.graph.outputs):
                yield self.runner.evaluate_output_layer(positions[first : first + self.graph.outputs])
            self.reset()

    @abstractmethod
    def logits_in_batches(self, tokens: Tokens, skip: int = 0) -> abc.Iterator[Logits]:
        """Append `tokens` and yield the logits after each but the first `skip`, several rows at a time.

        Each yielded array is valid until the next one. The caller must exhaust the iterator.
        """

    @abstractmethod
    def _evaluate_batch(self, ids: Ids, rows: Ids = NO_ROWS, on_op: OnOp | None = None) -> Logits:
        """Append a batch of tokens. Return the logits of the given rows; without rows skip the output layer."""

    # --- adapters and hooks ---

    def set_hooks(self, hooks: SequenceHooks | None, progress: Progress | None = None) -> None:
        """Replace the hooks of the sequence, whose cached tokens are not used any more. Kernels may have to be
        compiled."""
        if hooks:
            self.runner.require_open()
            self.runner.prepare_hooks(hooks, progress)
        self._replace_sequence(self.sequence.modifiers._replace(hooks=hooks))

    def use_adapters(self, scales: tuple[float, ...]) -> None:
        """Use these scales of the LoRA adapters for the sequence. If it has others, its cached tokens are not used any
        more."""
        if scales != self.sequence.modifiers.scales:
            self._replace_sequence(self.sequence.modifiers._replace(scales=scales))

    def _replace_sequence(self, modifiers: Modifiers) -> None:
        """Begin an empty sequence with these modifiers."""
        self.settle()
        with self.lock, self.runner.page_table_lock:
            self.sequence.reset()
            self.sequence = self.runner.new_sequence(modifiers)

    # --- the cache ---

    def rewind(self, n: int) -> int:
        """Discard all but the first `n` tokens and return how many remain.

        That is 0 if a sliding window no longer holds what token `n` attends to, and the position of a checkpoint before
        `n` for recurrent states.
        """
        with self.runner.page_table_lock:
            return self.sequence.rewind(n)

    @abstractmethod
    def reuse_prefix(self, tokens: abc.Sequence[int], max_tokens: int, progress: Progress | None = None) -> int:
        """Replace the cached tokens by the longest cached prefix of `tokens`, at most `max_tokens`. Return its length.

        If another sequence is about to evaluate a longer prefix, wait for that, and report to `progress` meanwhile.
        With hooks, nothing is reused: they have not seen the cached tokens.
        """

    def checkpoint(self) -> None:
        """Keep the current length as a rewind target for some time."""
        with self.lock, self.runner.page_table_lock:
            self.sequence.checkpoint()

    def reset(self) -> None:
        """Discard all cached tokens."""
        with self.runner.page_table_lock:
            self.sequence.reset()

    @abstractmethod
    def settle(self) -> bool:
        """Discard tokens that were evaluated before they were asked for, so that the sequence only changes by calls.

        Return False if the current thread cannot wait for that.
        """

    @abstractmethod
    def pause(self) -> None:
        """Announce that the next step may take a while. Batches of other sequences do not wait for it."""

    @abstractmethod
    def close(self) -> None:
        """Release what belongs to this engine."""


def prefill_callback(progress: Progress | None, n_done: int, count: int, total: int, n_ops: int) -> OnOp | None:
    """Return a callback that converts op numbers to evaluated tokens, as all layers take similar time.

    It reports to `progress` for a batch of `count` tokens after `n_done` of `total` tokens.
    """
    if progress is None:
        return None

    def report(op: int) -> None:
        progress("prefill", n_done + count * op // n_ops, total)

    report(0)
    return report
