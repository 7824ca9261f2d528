"""A compute graph: a flat list of ops over memory that is allocated once, before the first token.

Building a graph allocates no memory and compiles no kernel, so it can also be used to estimate what a model needs.
`ComputeGraph.finalize` allocates the memory and writes the op records that the executor (`localinfer.kernels.executor`)
runs (`localinfer.graph.ops.op`). The graph refers to kernels by name only and does not depend on models, tokens or
threads.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from localinfer.gguf.reader import Tensor
from localinfer.graph.ops.buffers import ALIGNMENT, Buffer, ConvertedActivations, Region, Rows
from localinfer.graph.ops.cost import NO_COST, Cost, CostModel
from localinfer.graph.ops.op import Argument, ChunkCounts, Op, encode_argument, encode_ops
from localinfer.graph.ops.product_choices import ProductChoices, ProductShape
from localinfer.kernels.signatures import KernelSignature
from quant.jit.cpu import target
from quant.jit.kernel import Constants, Kernel, make_kernel
from quant.matmul.layout import flat_bytes, tiled_bytes
from quant.matmul.row_access import PRODUCT_CHOICE_WORDS

MAX_SMALL_BATCH = 4  # tokens; larger batches amortise unpacking the weights into tiles

NOTHING: Constants = {}


class Product(NamedTuple):
    """A matrix product: the weight, its input `x`, its result `y` and the number of the first op of its stage. If each
    row uses one of several matrices, `runs` has the rows that use each (`quant.matmul.experts`)."""

    first_op: int
    weight: Tensor
    x: Buffer
    y: Buffer
    runs: Region | None = None


class MatrixTable(NamedTuple):
    """The address of each matrix of a tensor (count, n_out, n_in), int64 [count], where grouped products read them:
    those of the model file, or of copies of the matrices."""

    weights: Tensor
    addresses: Region

    def reset(self, matrices: slice | int = slice(None)) -> None:
        """Set the addresses of some matrices to those in the file."""
        count = self.weights.shape[0]
        offsets = np.arange(count)[matrices] * (self.weights.nbytes // count)
        self.addresses.view(np.int64)[matrices] = encode_argument(self.weights) + offsets


@dataclass(eq=False)
class ComputeGraph:
    """A list of ops and the memory they use.

    A batch has at most `batch` tokens of at most `sequences` sequences, and `outputs` rows of logits. `threads` threads
    execute small batches, `threads_batch` threads large ones. For quantized weights, activations are rounded to 8 bits
    (`passes` = 1) or to 15 bits and multiplied in two passes (`passes` = 2).
    """

    batch: int
    outputs: int
    threads: int
    threads_batch: int
    passes: int
    sequences: int = 1
    ops: list[Op] = field(default_factory=list)
    products: list[Product] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)
    product_choices: ProductChoices = field(default_factory=ProductChoices)
    matrix_tables: dict[int, MatrixTable] = field(default_factory=dict)  # by the address of the tensor in the file
    scratch_bytes: int = 0

    def __post_init__(self) -> None:
        self.tokens, self.output_rows = self.rows(self.batch), self.rows(self.outputs)
        self.rare_rows: Rows | None = None  # rows that most batches have none of
        self.stop, self.scratch = self.region(8), Region(0)
        self._live_buffers: list[Buffer] = []
        self._free_buffers: dict[tuple[int, Rows], list[Buffer]] = defaultdict(list)

    def region(self, nbytes: int) -> Region:
        """Reserve memory that lives as long as the graph."""
        self.regions.append(Region(nbytes))
        return self.regions[-1]

    def rows(self, capacity: int, small_batch_capacity: int = MAX_SMALL_BATCH, tokens: Rows | None = None) -> Rows:
        """Return a row count that is set before each run.

        It is at most `capacity`, and at most `small_batch_capacity` if the number of `tokens` makes a small batch.
        Without `tokens`, the rows themselves are counted.
        """
        region = self.region(8)
        return Rows(region, capacity, min(small_batch_capacity, capacity), tokens.region if tokens else region)

    def buffer(self, n: int, rows: Rows | None = None) -> Buffer:
        """Return a buffer of n activations for each of `rows` (default: all tokens of the batch)."""
        counted = rows or self.tokens
        spare = self._free_buffers[n, counted]
        self._live_buffers.append(spare.pop(0) if spare else self._new_buffer(n, counted))
        return self._live_buffers[-1]

    def _new_buffer(self, n: int, rows: Rows) -> Buffer:
        padded = -(-rows.capacity // target().tokens) * target().tokens
        quantized = max(padded * tiled_bytes(n, self.passes), rows.small_batch_capacity * flat_bytes(n, self.passes))
        return Buffer(
            self.region(4 * n * rows.capacity),
            n,
            rows,
            ConvertedActivations(quantized),
            ConvertedActivations(2 * n * rows.capacity),
        )

    def row_access(self, weight: Tensor) -> Region:
        """Return the memory of the choices for products with a weight, PRODUCT_CHOICE_WORDS numbers. Products of the
        same shape share it."""
        shape, regions = ProductShape(weight.type, weight.shape[-1], self.passes), self.product_choices.regions
        if shape not in regions:
            regions[shape] = self.region(8 * PRODUCT_CHOICE_WORDS)
        return regions[shape]

    def matrix_addresses(self, weights: Tensor) -> Region:
        """Return the memory that has the addresses of the matrices of a tensor: see `MatrixTable`."""
        key = encode_argument(weights)
        if key not in self.matrix_tables:
            self.matrix_tables[key] = MatrixTable(weights, self.region(8 * weights.shape[0]))
        return self.matrix_tables[key].addresses

    @property
    def layouts(self) -> tuple[Constants, Constants]:
        """The constants of a kernel that writes quantized activations: flat for small batches, tiled for large ones."""
        return {"tile": 0, "passes": self.passes}, {"tile": target().tokens, "passes": self.passes}

    @contextmanager
    def reuse_buffers(self) -> Iterator[None]:
        """Make the buffers created in this context available to later ops when it ends."""
        before, self._live_buffers = self._live_buffers, []
        yield
        for buffer in self._live_buffers:
            self._free_buffers[buffer.n, buffer.rows].append(buffer)
        self._live_buffers = before

    def need_scratch(self, nbytes: int) -> None:
        """Ensure that every thread has at least this many bytes of scratch memory."""
        self.scratch_bytes = max(self.scratch_bytes, -(-nbytes // ALIGNMENT) * ALIGNMENT)

    def op(
        self,
        name: str,
        signature: KernelSignature,
        rows: Rows,
        *,
        constants: Constants | tuple[Constants, Constants] = NOTHING,
        chunks: ChunkCounts = (0, 8),
        barrier: bool = True,
        cost: CostModel | None = None,
        **arguments: Argument,
    ) -> None:
        """Add a kernel call with these arguments; `tokens` is passed as the number of rows.

        `constants` are compiled into the kernel; a pair gives those for small and for large batches. `chunks` are the
        chunks per thread that the op is divided into for small and for large batches; 0 means that one thread runs it
        alone. Ops without a `barrier` run side by side with the next op: either all of them have chunks, or none has.
        By default, the cost is reading the tensors among the arguments.
        """
        given = {"tokens": rows, **arguments}
        assert given.keys() == set(signature.parameters), f"{name}: {set(signature.parameters) ^ given.keys()}"
        pair = (constants, constants) if isinstance(constants, Mapping) else constants
        small, large = (
            make_kernel(path, signature.parameters, signature.floats, each)
            for path, each in zip((signature.small_batch, signature.large_batch), pair, strict=True)
        )
        nbytes_read = sum(argument.nbytes for argument in arguments.values() if isinstance(argument, Tensor))
        ordered, written = (tuple(given[key] for key in keys) for keys in (signature.parameters, signature.writes))
        self.ops.append(
            Op(name, small, large, rows, ordered, written, chunks, barrier, cost or CostModel(Cost(nbytes_read)))
        )
        for buffer in written:
            if isinstance(buffer, Buffer):
                buffer.quantized.is_written = buffer.bf16.is_written = False
        for converted in written:
            if isinstance(converted, ConvertedActivations):
                converted.is_written = True

    @property
    def stage(self) -> int:
        """The number of the first op of the stage to which the next op belongs."""
        return next((number for number in range(len(self.ops), 0, -1) if self.ops[number - 1].barrier), 0)

    def weight_of(self, y: Buffer) -> Tensor | None:
        """Return the weight whose product the last op that wrote `y` computes; None if that op is another one."""
        last = next((op for op in reversed(self.ops) if any(each is y for each in op.writes)), None)
        weight = next((product.weight for product in reversed(self.products) if product.y is y), None)
        return weight if last and weight and last.name == weight.name else None

    # --- when the graph is complete ---

    def kernels(self, *, large_batch: bool) -> list[Kernel]:
        """Return the kernels of all ops for batches of at most MAX_SMALL_BATCH tokens, or for larger ones: none if no
        batch can be larger. In a large batch, ops with few rows use the kernels for small ones.
        """
        if large_batch:
            return [op.large_batch for op in self.ops] if self.batch > MAX_SMALL_BATCH else []
        return [op.small_batch for op in self.ops]

    @property
    def nbytes(self) -> int:
        """The memory of everything but the weights, in bytes."""
        return sum(region.nbytes for region in self.regions) + self.scratch_bytes * self.n_threads

    def op_costs(self, tokens: int, n_past: int, outputs: int) -> list[Cost]:
        """Return the cost of each op for a batch of `tokens` tokens after `n_past` others, with logits for `outputs` of
        them, and without rare rows."""

        def cost(op: Op) -> Cost:
            if op.rows is self.rare_rows:
                return NO_COST
            return op.cost.cost(outputs if op.rows is self.output_rows else tokens, n_past)

        return [cost(op) for op in self.ops]

    def cost(self, tokens: int, n_past: int, outputs: int) -> Cost:
        """Return the cost of all ops together, with the arguments of `op_costs`."""
        return sum(self.op_costs(tokens, n_past, outputs), NO_COST)

    @property
    def n_threads(self) -> int:
        """The number of threads that the graph needs."""
        return max(self.threads, self.threads_batch)

    @property
    def scratch_addresses(self) -> list[int]:
        """The address of each thread's scratch memory."""
        return [self.scratch.address + self.scratch_bytes * thread for thread in range(self.n_threads)]

    def separate_ops(self) -> None:
        """Let no two ops of a complete graph run side by side, so that a run can stop after each of them."""
        self.ops[:] = [op._replace(barrier=True) for op in self.ops]

    def finalize(self, addresses: Mapping[Kernel, int]) -> NDArray[np.int64]:
        """Allocate the memory and return the op records, int64 [ops][RECORD_WORDS]."""
        self.allocate()
        return encode_ops(self.ops, addresses)

    def allocate(self) -> None:
        """Allocate the memory."""
        self.scratch.nbytes = self.scratch_bytes * self.n_threads
        new_tables = [table for table in self.matrix_tables.values() if table.addresses.array is None]
        for region in [*self.regions, self.scratch]:
            region.allocate()
        for table in new_tables:
            table.reset()
        self.product_choices.reset()


def product_ops(graph: ComputeGraph) -> dict[int, ProductShape]:
    """Return the shapes of the ops that multiply by weights, by op number."""
    shapes = {region: shape for shape, region in graph.product_choices.regions.items()}
    return {
        number: shapes[argument]
        for number, op in enumerate(graph.ops)
        for argument in op.arguments
        if isinstance(argument, Region) and argument in shapes
    }
