"""The builder of encoders: records operations on rows, which stand for the patches of an image, as ops.

A graph is built for one grid of patches, so index tables, position embeddings and rotation angles are constants of the
graph. All rows of a graph belong to one image, and attend to each other, or to the rows of their window.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from localinfer.gguf.reader import Tensor
from localinfer.graph.ops.buffers import Buffer, Rows
from localinfer.graph.properties.attention import AttentionHeads
from localinfer.graph.recording import matrix_products
from localinfer.graph.recording.graph_builder import GraphBuilder
from localinfer.graph.recording.model_graph import ModelGraph
from localinfer.kernels.signatures import ADD, ADD_BIAS, AVERAGE_ROWS, COPY, GATED_ACTIVATION, GATHER_ROWS, LAYER_NORM
from localinfer.multimodal.encoder_graph import positions
from localinfer.multimodal.encoder_graph.bounds import (
    CLASS,
    check_columns,
    check_gathered,
    check_positions,
    check_product,
    check_row_numbers,
)
from localinfer.multimodal.encoder_graph.constants import Constants
from localinfer.multimodal.encoder_graph.encoder_tensors import EncoderTensors, Floats
from localinfer.multimodal.encoder_graph.row_attention import RowAttention
from localinfer.multimodal.encoder_graph.row_order import Indices
from localinfer.multimodal.preprocessing.image_parameters import MAX_PATCH_SIZE

CHANNELS = 3
PATCH_EMBEDDING, PATCH_BIAS = "v.patch_embd.weight", "v.patch_embd.bias"
FRAMES = (PATCH_EMBEDDING, f"{PATCH_EMBEDDING}.1")  # of encoders of pairs of frames: an image is two equal frames
DEFAULT_EPSILON = 1e-5
NO_ROWS: Floats = np.zeros((0, 1), np.float32)


class PatchInput(NamedTuple):
    """Where patches enter the graph: row `first` + i of `patches` is patch `order[i]` of the image; other rows are
    zeros. The residual stream begins as `initial`."""

    patches: Buffer
    first: int
    order: Indices
    residual: Buffer
    initial: Floats


class Resampled(NamedTuple):
    """Position embeddings `rows`, (rows * columns, n), that were resampled for a grid. The arguments are those of
    `positions.resample`."""

    table: Floats
    grid: tuple[int, int]
    kind: str
    align_corners: bool
    antialias: bool
    zeros_beyond: bool
    rows: Floats


class EncoderBuilder(GraphBuilder):
    """Records the operations of an encoder for a `grid` of patches: rows and columns. A patch shows one frame, or
    `n_frames` frames of a video. `class_rows` are rows beside those of the patches, (count, n)."""

    tensors: EncoderTensors
    layer_prefix = "v.blk."

    def __init__(
        self, model: ModelGraph, grid: tuple[int, int], heads: AttentionHeads, n_frames: int = 1,
        class_rows: Floats = NO_ROWS,
    ) -> None:  # fmt: skip
        super().__init__(model)
        self.n_frames, self.class_rows = n_frames, class_rows
        self.graph, self.grid, self.heads = model.graph, grid, heads
        self.n_patches = grid[0] * grid[1]
        self.constants = Constants(model.graph)
        self.attention = RowAttention(model, heads, self.constants)
        self.row_counts: list[Rows] = [model.graph.tokens]
        self.input: PatchInput | None = None
        self.resampled: list[Resampled] = []  # for verification

    # --- sizes ---

    @property
    def input_size(self) -> str:
        """The size of the input, for messages."""
        return f"an image of {self.grid[0]} x {self.grid[1]} patches"

    @property
    def patch_size(self) -> int:
        """The number of pixels on each side of a patch."""
        return self.hparams.count("patch_size", maximum=MAX_PATCH_SIZE)

    @property
    def output_length(self) -> int:
        """The number of values of an output row: the embedding length of the language model."""
        return self.hparams.count("projection_dim", maximum=1 << 17)

    def merge_size(self, key: str, default: int | None = None) -> int:
        """Return the number of patches on each side of a square that becomes one row. Raises LocalInferError unless the
        grid consists of such squares."""
        size = self.hparams.count(key, default, maximum=64)
        if any(n % size for n in self.grid):
            rows, columns = self.grid
            raise self.hparams.error(key, f"is {size}; it must divide the {rows} x {columns} patches of an image")
        return size

    def layers(self, x: Buffer, count: int = 0, first: int = 0) -> Iterator[str]:
        """Iterate over the prefixes of the names of the layers from `first` on, below `count` or to the last, which
        change the residual stream x. Activations that one layer creates must not be used in the next."""
        for number in range(first, count or self.block_count):
            blk = f"{self.layer_prefix}{number}."
            self.model.start_block(number, blk)
            with self.graph.reuse_buffers():
                self.point(x, f"{blk}resid_pre")
                yield blk
                self.point(x, f"{blk}resid_post")

    # --- input ---

    def resample(
        self, table: Floats, kind: str, grid: tuple[int, int] | None = None, *, align_corners: bool = False,
        antialias: bool = False, zeros_beyond: bool = False,
    ) -> Floats:  # fmt: skip
        """Return position embeddings for the grid of patches, or for another one: see `positions.resample`."""
        size = grid or self.grid
        rows = positions.resample(
            table, size, kind, align_corners=align_corners, antialias=antialias, zeros_beyond=zeros_beyond
        )
        if table.shape[:2] != size:
            self.resampled.append(Resampled(table, size, kind, align_corners, antialias, zeros_beyond, rows))
        return rows

    def embed_patches(
        self, positions: Floats | None = None, *, order: Indices | None = None, convolutions: Sequence[str] = (),
        class_last: bool = False, point: str = "v.patch_embd",
    ) -> Buffer:  # fmt: skip
        """Return the residual stream: the product of each patch and the patch embedding, the sum of `convolutions`, of
        which each belongs to one frame if patches show as many.

        `positions` are the position embeddings of the class rows and the patches, in this order (patches first with
        `class_last`), as are the rows. Patches are in the given `order` of rows, positions in that of the grid. `point`
        names the result.
        """
        n, names = self.embedding_length, tuple(convolutions) or (PATCH_EMBEDDING,)
        side_by_side = self.n_frames == len(names) > 1
        weight = self.tensors.patch_matrix(names, n, CHANNELS, self.patch_size, side_by_side=side_by_side)
        initial, count = np.zeros((self.graph.batch, n), np.float32), len(self.class_rows)
        first = 0 if class_last else count
        if positions is not None:
            check_positions(self.f, len(positions), len(initial))
            initial[:] = positions
        if self.tensors.has(PATCH_BIAS):
            initial[first : first + self.n_patches] += self.tensors.values(PATCH_BIAS, n)
        initial[self.n_patches if class_last else 0 :][:count] += self.class_rows
        if order is not None:
            initial[first : first + self.n_patches] = initial[first + order.reshape(-1)]
        return self.enter_patches(weight, initial, self.graph.tokens, point, first=first, order=order)

    def enter_patches(
        self, weight: Tensor, initial: Floats, rows: Rows, point: str, *, first: int = 0, order: Indices | None = None
    ) -> Buffer:
        """Return the residual stream, which begins as `initial`: the products of the matrix and each patch are added to
        the rows from `first` on, in the given `order` or in that of the grid. `point` names the result."""
        x, patches = self.graph.buffer(weight.shape[0], rows), self.graph.buffer(weight.shape[1], rows)
        numbers = np.arange(self.n_patches, dtype=np.int32) if order is None else order.reshape(-1)
        self.input = PatchInput(patches, first, numbers, x, initial)
        self.begin_stream(x, patches, weight, point)
        return x

    def begin_stream(
        self, x: Buffer, patches: Buffer, weight: Tensor, point: str, rows: Rows | None = None
    ) -> None:
        """Add the products of a matrix and the input to x, which has initial values. `point` names the sums, in the
        first `rows` of x."""
        check_product(self.f, patches, weight, x, None)
        matrix_products.matmul(self.graph, patches, weight, add_to=x)
        self.model.points.add(point, x, rows=rows)

    def patch_rows(self) -> Indices:
        """Return the numbers of the rows of patches, behind the class rows."""
        return np.arange(self.graph.batch - self.n_patches, self.graph.batch, dtype=np.int32)

    # --- matrices ---

    def product(
        self, x: Buffer, weight: Tensor, *, bias: Tensor | None = None, add_to: Buffer | None = None,
        out: Buffer | None = None,
    ) -> Buffer:  # fmt: skip
        """Return weight . x (+ bias), or add it to `add_to`, for a matrix that the host has converted, or whose result
        has a place: the first rows and columns of `out`. Raises LocalInferError unless the matrix fits them."""
        name = weight.name.removesuffix(".weight")
        check_product(self.f, x, weight, add_to, out)
        if add_to is not None and not self.asks_for(name):
            if bias is not None:
                self.graph.op(bias.name, ADD_BIAS, x.rows, bias=bias, n=add_to.n, x=add_to)
            return matrix_products.matmul(self.graph, x, weight, add_to=add_to)
        y = matrix_products.matmul(self.graph, x, weight, out=out, bias=bias)
        self.model.points.add(name, y, size=weight.shape[0], rows=x.rows)
        if add_to is None:
            return y
        self.add(add_to, y)
        return add_to

    def norm_groups(
        self, x: Buffer, size: int, tensor: str = "", *, per_group_weight: bool = False, eps: float | None = None,
        out: Buffer | None = None,
    ) -> Buffer:  # fmt: skip
        y = super().norm_groups(x, size, tensor, per_group_weight=per_group_weight, eps=eps, out=out)
        if tensor:
            self.point(y, tensor.removesuffix(".weight"))
        return y

    def scale_columns(self, x: Buffer, tensor: str) -> None:
        """Multiply each row of x by a tensor of shape (n,)."""
        self.scale_by(x, self.tensors.vector(tensor, x.n))

    def scale_by(self, x: Buffer, factors: Tensor) -> None:
        """Multiply each row of x by n values in float32."""
        assert factors.shape == (x.n,)
        small, large = ({**layout, "activation": "none"} for layout in self.graph.layouts)
        self.graph.op(
            factors.name, GATED_ACTIVATION, x.rows, constants=(small, large), chunks=(1, 16), up=factors, up_n=0,
            up_first=0, n=x.n, gate=x, q=x.quantized,
        )  # fmt: skip

    # --- rows ---

    def default_layer_norm(self, x: Buffer, name: str, eps: float = DEFAULT_EPSILON) -> Buffer:
        """Return LayerNorm(x), with PyTorch's default for `eps` unless it is given."""
        y, weight = self.graph.buffer(x.n, x.rows), self.tensors.vector(f"{name}.weight", x.n)
        self.graph.op(
            name, LAYER_NORM, x.rows, constants=self.graph.layouts, x=x, weight=weight,
            bias=self.tensors.bias(name, x.n) or 0, n=x.n, eps=eps, y=y, q=y.quantized,
        )  # fmt: skip
        self.point(y, name)
        return y

    def rows(self, count: int) -> Rows:
        """Return a number of rows that differs from that of the patches."""
        self.row_counts.append(self.graph.rows(count))
        return self.row_counts[-1]

    def gather(self, x: Buffer, numbers: Indices, *, out: Buffer | None = None) -> Buffer:
        """Return rows of x side by side: row i is the rows `numbers[i]` of x, one after the other; in the first rows of
        `out` if it is given."""
        numbers = np.ascontiguousarray(numbers if numbers.ndim == 2 else numbers[:, None], np.int32)
        check_row_numbers(self.f, x, numbers)
        count, width = numbers.shape
        y = out or self.graph.buffer(width * x.n, self.rows(count))
        check_gathered(self.f, y, count, width * x.n)
        rows = self.rows(count * width)
        self.graph.op("gather", GATHER_ROWS, rows, x=x, numbers=self.constants.region(numbers), n=x.n, y=y)
        return y

    def average(self, x: Buffer, numbers: Indices) -> Buffer:
        """Return the means of rows of x: row i is the mean of its rows `numbers[i]`."""
        check_row_numbers(self.f, x, numbers)
        count, width = numbers.shape
        y = self.graph.buffer(x.n, self.rows(count))
        self.graph.op(
            "average", AVERAGE_ROWS, y.rows, x=x, numbers=self.constants.region(numbers), count=width, n=x.n, y=y
        )  # fmt: skip
        return y

    def copy_columns(self, x: Buffer, y: Buffer, first: int) -> None:
        """Copy the rows of x to the columns of y from `first` on. Raises LocalInferError unless y has them."""
        check_columns(self.f, x, y, first)
        self.graph.op("copy", COPY, x.rows, x=x, x_n=x.n, x_first=0, n=x.n, y=y, y_n=y.n, y_first=first)

    def add_constant(self, x: Buffer, values: Floats) -> None:
        """Add these values to x, a row for each row of x. Raises LocalInferError unless there are as many."""
        check_positions(self.f, len(values), x.rows.capacity)
        branch = self.constants.region(values)
        self.graph.op("add_constant", ADD, x.rows, chunks=(0, 8), branch=branch, factor=1.0, n=x.n, x=x)


def read_class_rows(tensors: EncoderTensors, n: int) -> Floats:
    """Return the embeddings that are rows beside those of the patches, (count, n); none if the file has none."""
    tensor = tensors.f.tensors.get(CLASS)
    if tensor is None:
        return np.zeros((0, n), np.float32)
    return tensors.values(CLASS, *tensor.shape[:-1], n).reshape(-1, n)
