"""The engine of a loaded model: evaluates the token ids of one sequence in the calling thread."""

from collections import abc

from localinfer.gguf.reader import GGUF
from localinfer.options import Options
from localinfer.runtime.batch import NO_ROWS, Ids, Logits, Segment, Tokens, output_row_batches
from localinfer.runtime.batch_division import split_batches
from localinfer.runtime.compiled_graph import CompiledGraph
from localinfer.runtime.draft_head_runner import DraftHeadRunner
from localinfer.runtime.graph_building import NO_EXTENSIONS, Extensions
from localinfer.runtime.memory_limit import with_memory_limit
from localinfer.runtime.model_runner import ModelRunner
from localinfer.runtime.row_access.tuning import recheck, tune
from localinfer.runtime.sequence_engine import SequenceEngine
from localinfer.runtime.thread_pool import OnOp
from localinfer.runtime.token_checks import checked_tokens
from localinfer.runtime.weight_loading import check_weights, load_weights, lock_in_memory
from quant.jit.loader import Progress


class Engine(SequenceEngine):
    """A loaded model and its default sequence. `runner` evaluates batches of further sequences.

    `warnings` are messages for the user from loading.
    """

    def __init__(self, runner: ModelRunner, warnings: abc.Sequence[str] = (), *, is_tuned: bool = False) -> None:
        super().__init__(runner, runner.lock, DraftHeadRunner(runner))
        self.warnings, self._is_tuned = warnings, is_tuned

    @classmethod
    def load(
        cls,
        f: GGUF,
        options: Options,
        progress: Progress | None = None,
        extensions: Extensions = NO_EXTENSIONS,
        *,
        at_once: bool = True,
    ) -> "Engine":
        """Load the weights of a model, and compile its graph.

        Unless all kernels are wanted `at_once`, missing ones may be compiled in the background; the model is then tuned
        when it is loaded the next time. Raises the errors of `CompiledGraph` and `load_weights`.
        """
        f = load_weights(f, options, progress)
        check_weights(f, options, progress)
        options = with_memory_limit(f, options)
        if extensions.draft_head:
            extensions = extensions._replace(draft_head=load_weights(extensions.draft_head, options, progress))
        compiled_graph = CompiledGraph(f, options, progress, extensions, at_once=at_once)
        warnings = [*compiled_graph.warnings, *(lock_in_memory(compiled_graph.files) if options.mlock else ())]
        runner = ModelRunner(compiled_graph, uses_ring_buffer=options.ctx_policy == "ring")
        if options.tune:
            tune(runner, progress, may_measure=compiled_graph.max_batch == runner.graph.batch)
        return cls(runner, warnings, is_tuned=options.tune)

    @property
    def max_batch(self) -> int:
        return self.compiled_graph.max_batch

    def logits_in_batches(self, tokens: Tokens, skip: int = 0) -> abc.Iterator[Logits]:
        self.compiled_graph.require_next_tokens()
        ids = checked_tokens(tokens, self.runner, self.sequence)
        for batch in split_batches(ids, self.max_batch, self.runner.media_table):
            self._evaluate_batch(batch)
            for rows in output_row_batches(len(batch), self.graph.outputs, skip):
                yield self.runner.evaluate_output_layer(rows)
            skip = max(0, skip - len(batch))

    def _evaluate_batch(self, ids: Ids, rows: Ids = NO_ROWS, on_op: OnOp | None = None) -> Logits:
        return self.runner.evaluate_segments([Segment(self.sequence, ids)], rows, on_op)

    def reuse_prefix(
        self,
        tokens: abc.Sequence[int],
        max_tokens: int,
        progress: Progress | None = None,  # noqa: ARG002 (no other sequence is evaluated)
    ) -> int:
        if self.sequence.modifiers.hooks:
            self.reset()
            return 0
        return self.rewind(min(self.sequence.common_prefix(tokens), max_tokens))

    def settle(self) -> bool:
        return True

    def pause(self) -> None:
        """Do nothing: no batch waits for this sequence."""

    def close(self) -> None:
        """End the threads. A batch of another thread is completed first; later calls raise LocalInferError."""
        self.runner.close()
        if self._is_tuned:
            recheck(self.runner)
