"""Matrix products of a compute graph, and the conversion of their input to the representation that the kernels read.

`matmul` multiplies all rows with one matrix. `expert_matmul` and `head_matmul` are grouped products: the rows of the
input are sorted into runs, and each run is multiplied with one of several matrices (`quant.matmul.experts`).
"""

from collections.abc import Mapping
from typing import NamedTuple

from localinfer.gguf.reader import Tensor
from localinfer.graph.ops.buffers import Buffer, Region
from localinfer.graph.ops.compute_graph import ComputeGraph, Product
from localinfer.graph.ops.cost import Cost, CostModel
from localinfer.graph.ops.op import Argument, ChunkCounts
from localinfer.kernels.signatures import EXPERTS, PRODUCT, QUANTIZE, TO_BF16
from quant import FORMATS
from quant.jit.cpu import target
from quant.matmul.layout import matmul_scratch_bytes

# Of a small batch: a chunk takes 4 us or more, because memory is read more slowly where a chunk begins.
MAX_SMALL_CHUNKS, MIN_CHUNK_BYTES = 12, 1 << 17
MAX_LARGE_CHUNKS = 32  # of a large batch; bounds the wait for the last chunk of a slow thread
CHUNK_PANELS = 2  # panels of rows of a chunk in a large batch
SHORT_ROW, SHORT_CHUNK_PANELS = 1024, 8  # a tile of tokens with few columns stays in the nearest cache for more panels
ENOUGH_CHUNKS = 16  # per thread: chunks have fewer panels if there would be less than this
MAX_TOKEN_PARTS = 8  # more parts cost more than they save, because a panel is unpacked for each of them

# The field of `Cost` that counts products, by the representation of their activations.
COST_FIELD = {"quantized": "dots", "f32": "fmas", "bf16": "bf16_pairs"}


def matmul(
    graph: ComputeGraph,
    x: Buffer,
    weight: Tensor,
    *,
    add_to: Buffer | None = None,
    out: Buffer | None = None,
    bias: Tensor | None = None,
    barrier: bool = True,
    is_part_of_model: bool = True,
) -> Buffer:
    """Add y = weight . x (+ bias), or add_to += weight . x. `weight` is (n_out, n_in), `bias` (n_out,). The columns and
    rows of `out` beyond those of the product are not written. A product that is not part of the model's definition is
    not in `graph.products`."""
    assert not (add_to and (bias or out))
    n_out, n_in = weight.shape
    fmt = FORMATS[weight.type]
    y = out or add_to or graph.buffer(n_out, x.rows)
    activation_type = fmt.activation_type(graph.passes)
    graph.need_scratch(matmul_scratch_bytes(n_in))
    source = converted(graph, x, weight, activation_type)
    if is_part_of_model:
        graph.products.append(Product(graph.stage, weight, x, y))
    graph.op(
        weight.name,
        PRODUCT.with_kernels(*fmt.matmul_kernels),
        x.rows,
        constants=fmt.matmul_constants(graph.passes),
        chunks=chunk_counts(graph, weight.nbytes, n_out, n_in),
        barrier=barrier,
        cost=CostModel(Cost(weight.nbytes), Cost(**{COST_FIELD[activation_type]: weight.n_elements})),
        x=source,
        w=weight,
        row_bytes=weight.nbytes // n_out,
        n_in=n_in,
        n_out=n_out,
        base=add_to or bias or 0,
        base_stride=4 * y.n if add_to else 0,
        y=y,
        y_stride=4 * y.n,
        token_parts=token_parts(graph, n_out, n_in),
        access=graph.row_access(weight),
        stop=graph.stop,
    )
    return y


class GroupedProduct(NamedTuple):
    """A product in which each token uses `used` of several matrices: `weights` are (count, n_out, n_in), and `runs` has
    the rows of x that use each. `strides` are the kernel's arguments for the rows of the output y."""

    x: Buffer
    weights: Tensor
    runs: Region
    used: int
    y: Buffer
    strides: Mapping[str, int]

    @property
    def matrix_bytes(self) -> int:
        """The size of one matrix."""
        return self.weights.nbytes // self.weights.shape[0]

    def cost(self, activation_type: str) -> CostModel:
        """Return the cost. Tokens that use the same matrix share its bytes."""
        _, n_out, n_in = self.weights.shape
        per_token = Cost(self.used * self.matrix_bytes, **{COST_FIELD[activation_type]: self.used * n_out * n_in})
        return CostModel(token=per_token, max_bytes=self.weights.nbytes)


def expert_matmul(
    graph: ComputeGraph, x: Buffer, weights: Tensor, runs: Region, used: int, bias: Tensor | None, *, tiled: bool,
    barrier: bool,
) -> Buffer:  # fmt: skip
    """Add y[row] = weights[expert of the row] . x[row] (+ bias[expert]); weights are (n_expert, n_out, n_in).

    Each token is routed to `used` experts. Rows are `tiled` for any number of tokens, or flat. A tensor can have
    one op of each kind; the cost of the flat one accounts for both.
    """
    y, row_bytes = graph.buffer(weights.shape[1], x.rows), 4 * weights.shape[1]
    kernel = FORMATS[weights.type].expert_matmul_kernels[tiled]
    strides = {"y_row": row_bytes, "y_matrix": 0, "y_stride": row_bytes}
    product = GroupedProduct(x, weights, runs, used, y, strides)
    add_grouped_product(graph, product, (kernel, kernel), bias, has_cost=not tiled, barrier=barrier)
    return y


def head_matmul(graph: ComputeGraph, x: Buffer, weights: Tensor, runs: Region) -> Buffer:
    """Add y[token][head] = weights[head] . x[head rows]; weights are (heads, n_out, n_in)."""
    heads, n_out, _ = weights.shape
    y = graph.buffer(heads * n_out)
    strides = {"y_row": 0, "y_matrix": 4 * n_out, "y_stride": 4 * y.n}
    product = GroupedProduct(x, weights, runs, heads, y, strides)
    add_grouped_product(graph, product, FORMATS[weights.type].expert_matmul_kernels)
    return y


def add_grouped_product(
    graph: ComputeGraph,
    product: GroupedProduct,
    kernels: tuple[str, str],
    bias: Tensor | None = None,
    *,
    has_cost: bool = True,
    barrier: bool = True,
) -> None:
    """Add the op of a grouped product, with or without its cost."""
    x, weights, (_, n_out, n_in) = product.x, product.weights, product.weights.shape
    fmt = FORMATS[weights.type]
    activation_type = fmt.activation_type(graph.passes)
    graph.need_scratch(matmul_scratch_bytes(n_in))
    source = converted(graph, x, weights, activation_type)
    graph.products.append(Product(graph.stage, weights, x, product.y, product.runs))
    graph.op(
        weights.name,
        EXPERTS.with_kernels(*kernels),
        x.rows,
        constants=fmt.expert_matmul_constants(graph.passes),
        chunks=chunk_counts(graph, product.used * product.matrix_bytes, n_out, n_in),
        barrier=barrier,
        cost=product.cost(activation_type) if has_cost else CostModel(),
        runs=product.runs,
        x=source,
        matrices=graph.matrix_addresses(weights),
        row_bytes=product.matrix_bytes // n_out,
        n_in=n_in,
        n_out=n_out,
        bias=bias or 0,
        y=product.y,
        token_parts=token_parts(graph, n_out, n_in),
        access=graph.row_access(weights),
        stop=graph.stop,
        **product.strides,
    )


def chunk_counts(graph: ComputeGraph, nbytes: int, n_out: int, n_in: int) -> ChunkCounts:
    """Return the chunks per thread of a product that reads `nbytes` of weights, and has `n_in` inputs and `n_out`
    outputs."""
    panels = token_parts(graph, n_out, n_in) * n_panels(n_out)
    large = chunks_per_thread(panels // chunk_panels(n_in), graph.threads_batch, MAX_LARGE_CHUNKS)
    if large < ENOUGH_CHUNKS:
        large = chunks_per_thread(panels, graph.threads_batch, ENOUGH_CHUNKS)
    return chunks_per_thread(nbytes // MIN_CHUNK_BYTES, graph.threads, MAX_SMALL_CHUNKS), large


def token_parts(graph: ComputeGraph, n_out: int, n_in: int) -> int:
    """Return the number of parts into which a product with `n_out` outputs divides the tokens of a large batch: as many
    as give all threads enough chunks."""
    wanted = ENOUGH_CHUNKS * chunk_panels(n_in) * graph.threads_batch if graph.threads_batch > 1 else 1
    return min(-(-wanted // n_panels(n_out)), MAX_TOKEN_PARTS)


def chunk_panels(n_in: int) -> int:
    """Return the number of panels that a chunk in a large batch should have."""
    return SHORT_CHUNK_PANELS if n_in <= SHORT_ROW else CHUNK_PANELS


def n_panels(n_out: int) -> int:
    """Return the number of panels of `n_out` rows."""
    return -(-n_out // target().rows)


def chunks_per_thread(n_chunks: int, threads: int, most: int) -> int:
    """Return the chunks per thread if the work can be divided into `n_chunks` chunks that are worth their overhead: at
    least 1, at most `most`. With several chunks, other threads can steal work from a slow one."""
    return max(1, min(n_chunks // threads, most)) if threads > 1 else 1


def converted(graph: ComputeGraph, x: Buffer, weight: Tensor, activation_type: str) -> Argument:
    """Return x in the representation that a product with this weight reads, converting it first if necessary."""
    if activation_type == "f32":
        return x
    result = x.quantized if activation_type == "quantized" else x.bf16
    result.region = result.region or graph.region(result.nbytes)
    if not result.is_written:
        convert(graph, x, activation_type, weight.name.rpartition(".")[0])
    return result


def convert(graph: ComputeGraph, x: Buffer, activation_type: str, product: str) -> None:
    """Add the op that converts x for a product and those after it.

    For small batches one thread converts alone, unless the op runs between products without a barrier, which need
    equal chunks.
    """
    previous = graph.ops[-1]
    chunks = 0 if previous.barrier else min(previous.chunks[0], 1), 8
    if activation_type == "bf16":
        graph.op(f"{product}.to_bf16", TO_BF16, x.rows, chunks=chunks, x=x, n=x.n, y=x.bf16)
    else:
        graph.op(
            f"{product}.quantized", QUANTIZE, x.rows, constants=graph.layouts, chunks=chunks, x=x, n=x.n,
            out=x.quantized,
        )  # fmt: skip
