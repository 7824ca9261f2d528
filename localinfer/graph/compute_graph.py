"""A compute graph: a flat list of ops over memory that is allocated once, before the first token.

Building a graph allocates no memory and compiles no kernel, so it can also be used to estimate what a model needs.
`ComputeGraph.finalize` allocates the memory and writes the op records that the executor (`localinfer.kernels.executor`)
runs. The graph refers to kernels by name only and knows nothing of models, tokens or threads.
"""

import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from localinfer.gguf.reader import Tensor
from localinfer.graph.buffers import ALIGNMENT, Buffer, ConvertedActivations, Region, Rows
from localinfer.graph.cost import NO_COST, Cost, CostModel
from localinfer.kernels.signatures import EXPERTS, PRODUCT, QUANTIZE, TO_BF16, KernelSignature
from quant import FORMATS
from quant.jit.cpu import target
from quant.jit.kernel import Constants, Kernel, make_kernel
from quant.jit.kernel_call import HEADER_WORDS, NEXT_STAGE_OFFSET, RECORD_WORDS
from quant.matmul.layout import flat_bytes, matmul_scratch_bytes, tiled_bytes

MAX_CHUNKS_PER_THREAD = 8  # bounds the wait for the last chunk of a slow thread
MIN_CHUNK_BYTES = 1 << 16  # of a matrix chunk in a small batch: about 3 us
MIN_CHUNK_PANELS = 2  # panels of rows of a matrix chunk in a large batch: about 10 us
MAX_SMALL_BATCH = 4  # tokens; larger batches amortise unpacking the weights into tiles

# The field of `Cost` that counts products, by the representation of their activations.
COST_FIELD = {"quantized": "dots", "f32": "fmas", "bf16": "bf16_pairs"}

NOTHING: Constants = {}
Argument = int | float | Region | Rows | ConvertedActivations | Buffer | Tensor
ChunkCounts = tuple[int, int]  # chunks per thread, for small and for large batches; 0: one thread runs the op alone


@dataclass(frozen=True)
class Op:
    """A graph node: one kernel call, with a kernel for small and one for large batches. `writes` lists its output
    arguments."""

    name: str
    small_batch: Kernel
    large_batch: Kernel
    rows: Rows
    arguments: tuple[Argument, ...]
    writes: tuple[Argument, ...]
    chunks: ChunkCounts
    barrier: bool  # the next op needs this one to be finished
    cost: CostModel


@dataclass(frozen=True)
class Product:
    """A matrix product: the weight, its input `x` and the number of the first op of its stage. If each
    row uses one of several matrices, `runs` has the rows that use each (`quant.matmul.experts`)."""

    first_op: int
    weight: Tensor
    x: Buffer
    runs: Region | None = None


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
    scratch_bytes: int = 0

    def __post_init__(self) -> None:
        self.tokens, self.output_rows = self.rows(self.batch), self.rows(self.outputs)
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
        chunks: ChunkCounts = (0, 1),
        barrier: bool = True,
        cost: CostModel | None = None,
        **arguments: Argument,
    ) -> None:
        """Add a kernel call with these arguments; `tokens` is passed as the number of rows.

        `constants` are compiled into the kernel; a pair gives those for small and for large batches. `chunks` are the
        chunks per thread that the op is divided into for small and for large batches; 0 means that one thread runs it
        alone. Ops without a `barrier` run side by side with the next op and must have the same number of chunks, or 0.
        By default, the cost is reading the tensors among the arguments.
        """
        given = {"tokens": rows, **arguments}
        assert given.keys() == set(signature.parameters), f"{name}: {set(signature.parameters) ^ given.keys()}"
        pair = (constants, constants) if isinstance(constants, Mapping) else constants
        few, many = (
            make_kernel(path, signature.parameters, signature.floats, each)
            for path, each in zip((signature.small_batch, signature.large_batch), pair, strict=True)
        )
        nbytes_read = sum(argument.nbytes for argument in arguments.values() if isinstance(argument, Tensor))
        ordered, written = (tuple(given[key] for key in keys) for keys in (signature.parameters, signature.writes))
        self.ops.append(
            Op(name, few, many, rows, ordered, written, chunks, barrier, cost or CostModel(Cost(nbytes_read)))
        )
        for buffer in written:
            if isinstance(buffer, Buffer):
                buffer.quantized.is_written = buffer.bf16.is_written = False
        for converted in written:
            if isinstance(converted, ConvertedActivations):
                converted.is_written = True

    def matmul(
        self,
        x: Buffer,
        weight: Tensor,
        *,
        add_to: Buffer | None = None,
        bias: Tensor | None = None,
        barrier: bool = True,
    ) -> Buffer:
        """Add y = weight . x (+ bias), or add_to += weight . x. `weight` is (n_out, n_in), `bias` (n_out,)."""
        assert not (add_to and bias)
        n_out, n_in = weight.shape
        fmt, base = FORMATS[weight.type], add_to or bias
        y = add_to or self.buffer(n_out, x.rows)
        activation_type = fmt.activation_type(self.passes)
        self.need_scratch(matmul_scratch_bytes(n_in))
        work = CostModel(Cost(weight.nbytes), Cost(**{COST_FIELD[activation_type]: weight.n_elements}))
        few, many = MIN_CHUNK_BYTES * self.threads, MIN_CHUNK_PANELS * target().rows * self.threads_batch
        source = self._converted(x, weight, activation_type)
        self.products.append(Product(self._stage, weight, x))
        self.op(
            weight.name,
            PRODUCT.with_kernels(*fmt.matmul_kernels),
            x.rows,
            constants=fmt.matmul_constants(self.passes),
            chunks=(
                chunks_per_thread(weight.nbytes // few, self.threads),
                chunks_per_thread(n_out // many, self.threads_batch),
            ),
            barrier=barrier,
            cost=work,
            x=source,
            w=weight,
            row_bytes=weight.nbytes // n_out,
            n_in=n_in,
            n_out=n_out,
            base=base or 0,
            base_stride=4 * y.n if add_to else 0,
            y=y,
            y_stride=4 * y.n,
            stop=self.stop,
        )
        return y

    def expert_matmul(
        self, x: Buffer, weights: Tensor, runs: Region, used: int, bias: Tensor | None, *, tiled: bool, barrier: bool
    ) -> Buffer:
        """Add y[row] = weights[expert of the row] . x[row] (+ bias[expert]); weights are (n_expert, n_out, n_in).

        Each token is routed to `used` experts. Rows are `tiled` for any number of tokens, or flat. A tensor can have
        one op of each kind; the cost of the flat one accounts for both.
        """
        fmt, y, row = FORMATS[weights.type], self.buffer(weights.shape[1], x.rows), 4 * weights.shape[1]
        kernel = fmt.expert_matmul_kernels[tiled]
        strides = {"y_row": row, "y_matrix": 0, "y_stride": row}
        self._batched_product(
            x, weights, runs, used, bias, y, strides, (kernel, kernel), counted=not tiled, barrier=barrier
        )
        return y

    def head_matmul(self, x: Buffer, weights: Tensor, runs: Region) -> Buffer:
        """Add y[token][head] = weights[head] . x[head rows]; weights are (heads, n_out, n_in)."""
        fmt, (heads, n_out, _) = FORMATS[weights.type], weights.shape
        y = self.buffer(heads * n_out)
        strides = {"y_row": 0, "y_matrix": 4 * n_out, "y_stride": 4 * y.n}
        self._batched_product(
            x, weights, runs, heads, None, y, strides, fmt.expert_matmul_kernels, counted=True, barrier=True
        )
        return y

    def _batched_product(
        self, x: Buffer, weights: Tensor, runs: Region, used: int, bias: Tensor | None, y: Buffer,
        strides: Mapping[str, int], kernels: tuple[str, str], *, counted: bool, barrier: bool,
    ) -> None:  # fmt: skip
        """Add a product in which each row of x uses one of many matrices, `used` per token. `strides` are the keyword
        arguments of the output's strides."""
        n_expert, n_out, n_in = weights.shape
        fmt = FORMATS[weights.type]
        activation_type, each = fmt.activation_type(self.passes), weights.nbytes // n_expert
        self.need_scratch(matmul_scratch_bytes(n_in))
        few, many = MIN_CHUNK_BYTES * self.threads, MIN_CHUNK_PANELS * target().rows * self.threads_batch
        chunks = (
            chunks_per_thread(used * each // few, self.threads),
            chunks_per_thread(n_out // many, self.threads_batch),
        )
        amount = Cost(used * each, **{COST_FIELD[activation_type]: used * n_out * n_in})
        work = CostModel(token=amount, max_bytes=weights.nbytes) if counted else CostModel()
        source = self._converted(x, weights, activation_type)
        self.products.append(Product(self._stage, weights, x, runs))
        self.op(
            weights.name,
            EXPERTS.with_kernels(*kernels),
            x.rows,
            constants=fmt.expert_matmul_constants(self.passes),
            chunks=chunks,
            barrier=barrier,
            cost=work,
            runs=runs,
            x=source,
            w=weights,
            row_bytes=each // n_out,
            n_in=n_in,
            n_out=n_out,
            bias=bias or 0,
            y=y,
            stop=self.stop,
            **strides,
        )

    @property
    def _stage(self) -> int:
        """The number of the first op of the stage to which the next op belongs."""
        return next((number for number in range(len(self.ops), 0, -1) if self.ops[number - 1].barrier), 0)

    def _converted(self, x: Buffer, weight: Tensor, activation_type: str) -> Argument:
        """Return x in the representation that a product with this weight reads, converting it first if necessary."""
        if activation_type == "f32":
            return x
        converted = x.quantized if activation_type == "quantized" else x.bf16
        converted.region = converted.region or self.region(converted.nbytes)
        if not converted.is_written:
            self._convert(x, activation_type, weight.name.rpartition(".")[0])
        return converted

    def _convert(self, x: Buffer, activation_type: str, product: str) -> None:
        """Add the op that converts x for a product and those after it.

        For small batches one thread converts alone, unless the op runs between products without a barrier, which need
        equal chunks.
        """
        before = self.ops[-1]
        few = 0 if before.barrier else min(before.chunks[0], 1)
        if activation_type == "bf16":
            self.op(f"{product}.to_bf16", TO_BF16, x.rows, chunks=(few, 4), x=x, n=x.n, y=x.bf16)
        else:
            self.op(
                f"{product}.quantized", QUANTIZE, x.rows, constants=self.layouts, chunks=(few, 4), x=x, n=x.n,
                out=x.quantized,
            )  # fmt: skip

    # --- after building ---

    @property
    def kernels(self) -> list[Kernel]:
        """All kernels to compile. Kernels for large batches are left out if no batch can be large."""
        return [
            kernel
            for op in self.ops
            for kernel in ((op.small_batch, op.large_batch) if self.batch > MAX_SMALL_BATCH else (op.small_batch,))
        ]

    @property
    def nbytes(self) -> int:
        """The memory of everything but the weights, in bytes."""
        return sum(region.nbytes for region in self.regions) + self.scratch_bytes * self.n_threads

    def op_costs(self, tokens: int, past: int, outputs: int) -> list[Cost]:
        """Return the cost of each op for a batch of `tokens` tokens after `past` others, with logits for `outputs` of
        them."""
        return [op.cost.cost(outputs if op.rows is self.output_rows else tokens, past) for op in self.ops]

    def cost(self, tokens: int, past: int, outputs: int) -> Cost:
        """Return the cost of all ops together, with the arguments of `op_costs`."""
        return sum(self.op_costs(tokens, past, outputs), NO_COST)

    @property
    def n_threads(self) -> int:
        """The number of threads that the graph needs."""
        return max(self.threads, self.threads_batch)

    @property
    def scratch_addresses(self) -> list[int]:
        """The address of each thread's scratch memory."""
        return [self.scratch.address + self.scratch_bytes * thread for thread in range(self.n_threads)]

    def finalize(self, addresses: Mapping[Kernel, int]) -> NDArray[np.int64]:
        """Allocate the memory and return the op records, int64 [ops][RECORD_WORDS]."""
        self.scratch.nbytes = self.scratch_bytes * self.n_threads
        for region in [*self.regions, self.scratch]:
            region.allocate()
        records = np.zeros((len(self.ops), RECORD_WORDS), np.int64)
        for record, op in zip(records, self.ops, strict=True):
            record[: NEXT_STAGE_OFFSET // 8] = (
                addresses[op.small_batch],
                addresses.get(op.large_batch, 0),
                *op.chunks,
                op.rows.tokens.address,
            )
            words = [self._encode_argument(argument) for argument in op.arguments]
            record[HEADER_WORDS : HEADER_WORDS + len(words)] = words
        records[:, NEXT_STAGE_OFFSET // 8] = self._next_stages()
        return records

    def _next_stages(self) -> NDArray[np.int64]:
        """Return, for each op, the number of the first op of the next stage: the op after the next barrier."""
        ends = [number + 1 for number, op in enumerate(self.ops) if op.barrier]
        return np.array(ends)[np.searchsorted(ends, np.arange(len(self.ops)), "right")]

    def _encode_argument(self, argument: Argument) -> int:
        """Return an argument as a 64-bit word of an op record."""
        if isinstance(argument, float):
            return int.from_bytes(struct.pack("<d", argument), "little", signed=True)
        if isinstance(argument, Region):
            return argument.address
        if isinstance(argument, Rows):
            return argument.region.address
        if isinstance(argument, ConvertedActivations):
            return argument.region.address if argument.region else 0
        if isinstance(argument, Buffer):
            return argument.floats.address
        if isinstance(argument, Tensor):
            return argument.data.ctypes.data
        return argument


def chunks_per_thread(n_chunks: int, threads: int) -> int:
    """Return the number of chunks per thread, at most `n_chunks`. Several chunks allow
    other threads to steal work from a slow one."""
    return max(1, min(n_chunks, MAX_CHUNKS_PER_THREAD)) if threads > 1 else 1
