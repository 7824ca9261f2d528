"""Records what the adapters of a model file add to its products: see `localinfer.graph.properties.embedded_adapters`.

The adapters of a matrix are two tensors, A (adapters, rank, n_in) and B (adapters, n_out, rank); adapter number 0 is
all zeros. Each token uses one adapter, so the rows are sorted by adapter and multiplied as those of experts.
"""

from collections.abc import Sequence
from typing import NamedTuple

from localinfer.errors import UnsupportedError
from localinfer.gguf.reader import Tensor
from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.ops.compute_graph import ComputeGraph
from localinfer.graph.properties.attention import VALUE_GROUP
from localinfer.graph.properties.embedded_adapters import LORA_A, LORA_B
from localinfer.graph.properties.router import Router
from localinfer.graph.recording.matrix_products import expert_matmul
from localinfer.graph.recording.model_graph import ModelGraph
from localinfer.graph.recording.operations.experts import allocate_routing, combine, gather, sort_by_expert
from localinfer.kernels.signatures import ADD


class Gathered(NamedTuple):
    """The rows of an input that are sorted by adapter, in buffers of each group, before the op `end`."""

    x: Buffer
    rows: Sequence[Buffer]
    end: int

    def is_of(self, x: Buffer, graph: ComputeGraph) -> bool:
        """Return whether they still are the rows of x: no later op has written to either."""
        written = [buffer for op in graph.ops[self.end :] for buffer in op.writes]
        return self.x is x and not any(each is buffer for each in (x, *self.rows) for buffer in written)


class EmbeddedAdapterRecorder:
    """Records the products with the matrices of each token's adapter. Raises UnsupportedError for a matrix that not all
    tokens are multiplied with, or whose rows or columns are no multiple of 32."""

    def __init__(self, model: ModelGraph) -> None:
        embedded = model.embedded_adapters
        assert embedded
        self._model, self._graph, self._rank = model, model.graph, embedded.rank
        self._router = Router(embedded.count + 1, 1)
        self._routing = allocate_routing(model.graph, self._router, model.active_adapters)
        self._gathered: Gathered | None = None
        sort_by_expert(model.graph, "adapters", model.graph.tokens, self._router, None, self._routing)

    def add(self, x: Buffer, y: Buffer, name: str) -> None:
        """Add B (A x) to y, the product of x with the matrix of this name. The inputs of adjacent matrices are sorted
        once if they are the same."""
        tensors, count, graph = self._model.tensors, self._router.count, self._graph
        if x.rows is not graph.tokens or x.n % VALUE_GROUP or y.n % VALUE_GROUP:
            what = "adapters of this matrix are not supported"
            raise tensors.f.error(f"tensor {name}{LORA_A}", what, UnsupportedError)
        a = tensors.tensor(f"{name}{LORA_A}", count, self._rank, x.n)
        b = tensors.tensor(f"{name}{LORA_B}", count, y.n, self._rank)
        if not (self._gathered and self._gathered.is_of(x, graph)):
            rows = gather(graph, f"{name}.lora", x, self._routing, self._router)
            self._gathered = Gathered(x, rows, len(graph.ops))
        outputs = self._multiply(self._multiply(self._gathered.rows, a), b)
        added = combine(graph, f"{name}.lora", outputs, x.rows, self._routing, self._router)
        graph.op(f"{name}.lora.add", ADD, y.rows, chunks=(0, 8), branch=added, factor=1.0, n=y.n, x=y)

    def _multiply(self, rows: Sequence[Buffer], matrices: Tensor) -> list[Buffer]:
        """Return the products of the rows of each group with the matrices of their adapters."""
        groups = self._routing.groups
        return [
            expert_matmul(
                self._graph, x, matrices, group.runs, 1, None, tiled=group.tile > 0, barrier=group is groups[-1]
            )
            for x, group in zip(rows, groups, strict=True)
        ]  # fmt: skip
