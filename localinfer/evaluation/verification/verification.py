"""Verifies a model: runs it with a text, and checks every operation."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

from localinfer.architectures import find_build_function
from localinfer.errors import LocalInferError, NotEnoughMemoryError, UsageError
from localinfer.evaluation.verification.captured_run import CaptureGraph, capture_graph
from localinfer.evaluation.verification.operation_check import OperationCheck
from localinfer.evaluation.verification.verifier import Verifier
from localinfer.gguf.reader import GGUF
from localinfer.graph.properties.adapters import Adapters
from localinfer.machine import resources
from localinfer.options import Options
from localinfer.runtime.encoder_tokens import as_sequence
from localinfer.tokenizer import from_gguf as tokenizer_from_gguf
from quant.jit.loader import Progress

TEXT = (
    "The quick brown fox jumps over 13 lazy dogs. def mean(values): return sum(values) / len(values)\n"
    "Im Jahr 1905 schrieb Albert Einstein: E = mc². 语言模型预测下一个词。 Is 17 * 23 equal to 391?\n"
)
N_TOKENS, N_SHORT = 32, 3  # tokens of a text; an encoder evaluates so few tokens with other kernels
CAPTURED_COPIES = 3  # of the results of operations: of the batches, joined, and of the largest operation in float64

OnOperation = Callable[[int, int], None]  # the work that is done, and all of it


class Verification(NamedTuple):
    """What was found: the checks, in the order of the graph; tensors with values that are not finite; the number of
    tokens in each batch of a text, the precision of activations, and descriptions of what encoders have read."""

    checks: Sequence[OperationCheck]
    weights_not_finite: Sequence[str]
    batches: Sequence[int]
    precision: str
    inputs: Sequence[str] = ()

    @property
    def first_wrong(self) -> OperationCheck | None:
        """The first operation whose error is too large."""
        return next((check for check in self.checks if not check.is_ok), None)

    def require_correct(self, path: object) -> None:
        """Raise LocalInferError with the first operation that is wrong, if there is one."""
        if self.weights_not_finite:
            raise LocalInferError(f"{path}: tensor {self.weights_not_finite[0]}: has values that are not finite")
        if (wrong := self.first_wrong) is not None:
            what = f"the error is {wrong.error:.1e} of the largest value; rounding allows {wrong.allowed:.1e}"
            raise LocalInferError(f"{path}: {wrong.name} ({wrong.operation}): {what}")

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> "Verification":
        """Return what was found in several files. The precision is that of the first one."""
        checks, not_finite, batches, inputs = (
            [each for part in parts for each in getattr(part, name)]
            for name in ("checks", "weights_not_finite", "batches", "inputs")
        )
        return Verification(checks, not_finite, batches, parts[0].precision, inputs)


def verify(
    f: GGUF, options: Options, text: str | None = None, n_tokens: int = N_TOKENS, progress: Progress | None = None,
    on_operation: OnOperation | None = None, adapters: Adapters | None = None,
) -> Verification:  # fmt: skip
    """Evaluate the first tokens of a text, at most `n_tokens`, and check each operation; without a text, one in several
    languages. `adapters` change the model. Raises UsageError for an empty text, NotEnoughMemoryError and the errors of
    loading a model."""
    build = find_build_function(f, options.architecture)
    with capture_graph(f, options, progress, adapters) as graph:
        found = first_tokens(f, text, min(n_tokens, graph.compiled.n_ctx))
        tokens = as_sequence(found, graph.compiled.model_graph)
        require_memory(f, graph, tokens)
        texts = [tokens] if graph.is_causal else [tokens, tokens[:N_SHORT]]
        checks, not_finite, done = list[OperationCheck](), dict[str, None](), 0
        total = len(texts) * sum(map(graph.work, graph.walk()))
        for each in texts:

            def count(work: int) -> None:
                nonlocal done
                done += work
                if on_operation:
                    on_operation(done, total)

            verifier = Verifier(f, graph.run(each), count, adapters)
            checks += verifier.verify(build)
            not_finite.update(dict.fromkeys(verifier.weights_not_finite))
        batches = [size for each in texts for size in graph.batches(each)]
        return Verification(checks, [*not_finite], batches, graph.compiled.precision)


def first_tokens(f: GGUF, text: str | None, count: int) -> Sequence[int]:
    """Return the first tokens of a text. Raises UsageError if there are none."""
    tokens = tokenizer_from_gguf(f).encode(TEXT * (1 + count // 32) if text is None else text)[:count]
    if not tokens:
        raise UsageError("the text has no tokens")
    return tokens


def require_memory(f: GGUF, graph: CaptureGraph, tokens: Sequence[int]) -> None:
    """Raise NotEnoughMemoryError if what is recorded of tokens does not fit into memory."""
    count = len(tokens)
    recorded = graph.nbytes_per_token * count + graph.nbytes_per_batch * len(graph.batches(tokens))
    needed, available = CAPTURED_COPIES * recorded, resources.available_memory()
    if needed > available:
        what = f"{needed / 2**30:.1f} GiB for the results of {count} tokens, {available / 2**30:.1f} GiB are available"
        raise f.error("", what, NotEnoughMemoryError)
