"""The activations that products read, as the kernels have rounded them: see `quant.matmul.layout`."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from localinfer.gguf.reader import Tensor
from localinfer.graph.ops.buffers import ConvertedActivations
from localinfer.graph.ops.compute_graph import MAX_SMALL_BATCH
from localinfer.graph.ops.op import Op
from localinfer.kernels.signatures import PRODUCT
from quant import FORMATS
from quant.jit.cpu import target
from quant.matmul.layout import (
    GROUPS_PER_SUPERBLOCK,
    flat_bytes,
    n_superblocks,
    padded_group,
    record_bytes,
    record_index,
    tiled_bytes,
)

Floats = NDArray[np.float64]


def rounded_inputs(op: Op, count: int, passes: int) -> Iterator[tuple[str, Floats]]:
    """Yield the name of the matrix and its input, (count, n), if an op is a product with rounded activations. The op
    has run for `count` rows."""
    parameters = PRODUCT.parameters
    if len(op.arguments) != len(parameters):
        return
    given = dict(zip(parameters, op.arguments, strict=True))
    x, weight = given["x"], given["w"]
    if not isinstance(x, ConvertedActivations) or not isinstance(weight, Tensor) or x.region is None:
        return
    memory, n = x.region.view(np.uint8), weight.shape[-1]
    kind = FORMATS[weight.type].activation_type(passes)
    if kind == "bf16":
        bits = memory[: 2 * n * count].view(np.uint16).astype(np.uint32) << 16
        rounded = bits.view(np.float32).reshape(count, n).astype(np.float64)
    else:
        rounded = (read_flat if count <= MAX_SMALL_BATCH else read_tiled)(memory, count, n, passes)
    yield weight.name.removesuffix(".weight"), rounded


def read_flat(memory: NDArray[np.uint8], count: int, n: int, passes: int) -> Floats:
    """Return the values of `count` flat tokens with n columns."""
    columns, size = 256 * n_superblocks(n), flat_bytes(n, passes)
    tokens = memory[: count * size].reshape(count, size)
    integers = tokens[:, : passes * columns].view(np.int8).reshape(count, passes, -1, 32)
    scales = np.ascontiguousarray(tokens[:, size - columns :]).view(np.float32)[:, : columns // 32]
    order = [padded_group(group, n // 32) for group in range(n // 32)]
    return join_passes(integers[:, :, order], scales[:, order])


def read_tiled(memory: NDArray[np.uint8], count: int, n: int, passes: int) -> Floats:
    """Return the values of `count` tokens in tiles."""
    tile, depth, superblocks = target().tokens, target().depth, n_superblocks(n)
    n_tiles, size = -(-count // tile), record_bytes(tile, passes)
    records = memory[: n_tiles * tile * tiled_bytes(n, passes)].reshape(
        n_tiles, GROUPS_PER_SUPERBLOCK * superblocks, size
    )
    order = [record_index(padded_group(group, n // 32), superblocks) for group in range(n // 32)]
    records = records[:, order]
    integers = records[:, :, : 32 * passes * tile].view(np.int8).reshape(n_tiles, -1, passes, 32 // depth, tile, depth)
    scales = np.ascontiguousarray(records[:, :, 32 * passes * tile :]).view(np.float32)[:, :, :tile]
    by_token = integers.transpose(0, 4, 2, 1, 3, 5).reshape(n_tiles * tile, passes, -1, 32)
    return join_passes(by_token, scales.transpose(0, 2, 1).reshape(n_tiles * tile, -1))[:count]


def join_passes(integers: NDArray[np.int8], scales: NDArray[np.float32]) -> Floats:
    """Return the values of integers, (tokens, passes, groups, 32), and scales, (tokens, groups)."""
    high, *low = integers.astype(np.float64).transpose(1, 0, 2, 3)
    joined = 128 * high + low[0] if low else high
    values: Floats = (joined * scales[:, :, None]).reshape(len(scales), -1)
    return values
