"""Records operations on the heads of a row: splitting, joining, and a matrix for each head."""

from collections.abc import Sequence

from localinfer.errors import UnsupportedError
from localinfer.graph.builder import HeadOperations
from localinfer.graph.ops.buffers import Buffer, Region, Rows
from localinfer.graph.ops.compute_graph import MAX_SMALL_BATCH, ComputeGraph
from localinfer.graph.properties.tensors import Tensors
from localinfer.graph.recording import matrix_products
from localinfer.kernels.signatures import COPY_SLICES, DOT_HEADS, GATE_HEADS, GATHER_HEADS, REPEAT, SPLIT_HALVES
from quant.jit.cpu import target
from quant.matmul.layout import RUN_WORDS


class HeadRecorder(HeadOperations[Buffer]):
    """Records operations on heads."""

    def __init__(self, graph: ComputeGraph, tensors: Tensors) -> None:
        self._graph, self._tensors = graph, tensors
        self._rows: dict[int, tuple[Rows, Region]] = {}  # by number of heads: the rows of `matmul`, and their runs

    def split(self, x: Buffer, heads: int, *sizes: int) -> Sequence[Buffer]:
        first, slices = 0, []
        for size in sizes:
            slices.append(self._graph.buffer(heads * size))
            self._copy_slices(x, first, heads, size, slices[-1], 0)
            first += size
        return slices

    def split_halves(self, x: Buffer, heads: int) -> tuple[Buffer, Buffer]:
        size = x.n // heads // 2
        first, second = self._graph.buffer(x.n // 2), self._graph.buffer(x.n // 2)
        self._graph.op(
            "halves", SPLIT_HALVES, x.rows, chunks=(1, 8), x=x, size=size, heads=heads, first=first, second=second
        )
        return first, second

    def repeat(self, x: Buffer, heads: int) -> Buffer:
        y = self._graph.buffer(heads * x.n)
        self._graph.op("repeat", REPEAT, x.rows, chunks=(1, 8), x=x, size=x.n, heads=heads, y=y)
        return y

    def join(self, heads: int, *slices: Buffer) -> Buffer:
        first, y = 0, self._graph.buffer(sum(each.n for each in slices))
        for each in slices:
            self._copy_slices(each, 0, heads, each.n // heads, y, first)
            first += each.n // heads
        return y

    def gate(self, x: Buffer, gate: Buffer, heads: int, activation: str) -> None:
        size = self._size_of_strips(x, heads)
        self._graph.op(
            "gate_heads", GATE_HEADS, x.rows, constants={"activation": activation}, chunks=(1, 8), gate=gate,
            heads=heads, size=size, x=x,
        )  # fmt: skip

    def dot(self, x: Buffer, other: Buffer, heads: int) -> Buffer:
        y, size = self._graph.buffer(heads), self._size_of_strips(x, heads)
        self._graph.op("dot_heads", DOT_HEADS, x.rows, chunks=(1, 8), x=x, other=other, size=size, heads=heads, y=y)
        return y

    def _size_of_strips(self, x: Buffer, heads: int) -> int:
        """Return the size of heads. Raises UnsupportedError unless it is a multiple of 16."""
        if x.n // heads % 16:
            what = f"makes heads of {x.n // heads} values; gated ones must have a multiple of 16"
            raise self._tensors.f.error("attention.value_length", what, UnsupportedError)
        return x.n // heads

    def _copy_slices(self, x: Buffer, x_first: int, heads: int, size: int, y: Buffer, y_first: int) -> None:
        self._graph.op(
            "copy_slices", COPY_SLICES, x.rows, chunks=(1, 8), x=x, x_first=x_first, x_step=x.n // heads, heads=heads,
            size=size,
            y=y, y_first=y_first, y_step=y.n // heads,
        )  # fmt: skip

    def matmul(self, x: Buffer, name: str, heads: int, n_out: int) -> Buffer:
        graph, size = self._graph, x.n // heads
        weight = self._tensors.matrices(f"{name}.weight", heads, n_out, size)
        if heads not in self._rows:
            padded = -(-graph.batch // target().tokens) * target().tokens
            rows = graph.rows(heads * padded, MAX_SMALL_BATCH * heads, graph.tokens)
            self._rows[heads] = rows, graph.region(8 * (1 + RUN_WORDS * heads))
        rows, runs = self._rows[heads]
        gathered = graph.buffer(size, rows)
        graph.op(
            f"{name}.gather", GATHER_HEADS, x.rows, constants=graph.layouts, chunks=(1, 8), x=x, heads=heads, size=size,
            y=gathered, q=gathered.quantized, row_count=rows.region, runs=runs,
        )  # fmt: skip
        return matrix_products.head_matmul(graph, gathered, weight, runs)
