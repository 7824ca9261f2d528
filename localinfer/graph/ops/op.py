"""An op of a compute graph, and the record of it that the executor (`localinfer.kernels.executor`) reads."""

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from localinfer.gguf.reader import Tensor
from localinfer.graph.ops.buffers import Buffer, ConvertedActivations, Region, Rows
from localinfer.graph.ops.cost import CostModel
from quant.jit.kernel import Kernel
from quant.jit.kernel_call import HEADER_WORDS, NEXT_STAGE_OFFSET, RECORD_WORDS

Argument = int | float | Region | Rows | ConvertedActivations | Buffer | Tensor
LARGE_BATCH_WORD = 1  # of a record: the address of the kernel for large batches

ChunkCounts = tuple[int, int]  # chunks per thread, for small and for large batches; 0: one thread runs the op alone


class Op(NamedTuple):
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


def encode_ops(ops: Sequence[Op], addresses: Mapping[Kernel, int]) -> NDArray[np.int64]:
    """Return the records of the ops, int64 [ops][RECORD_WORDS]. The memory of their arguments must be allocated."""
    records = np.zeros((len(ops), RECORD_WORDS), np.int64)
    for record, op in zip(records, ops, strict=True):
        record[: NEXT_STAGE_OFFSET // 8] = (
            addresses[op.small_batch],
            addresses.get(op.large_batch, 0),
            *op.chunks,
            op.rows.tokens.address,
        )
        words = [encode_argument(argument) for argument in op.arguments]
        record[HEADER_WORDS : HEADER_WORDS + len(words)] = words
    records[:, NEXT_STAGE_OFFSET // 8] = next_stages(ops)
    return records


def set_large_batch_kernels(
    records: NDArray[np.int64], ops: Sequence[Op], addresses: Mapping[Kernel, int]
) -> None:
    """Write the addresses of the kernels for large batches into the records of the ops."""
    records[:, LARGE_BATCH_WORD] = [addresses[op.large_batch] for op in ops]


def next_stages(ops: Sequence[Op]) -> NDArray[np.int64]:
    """Return, for each op, the number of the first op of the next stage: the op after the next barrier."""
    ends = [number + 1 for number, op in enumerate(ops) if op.barrier]
    return np.array(ends)[np.searchsorted(ends, np.arange(len(ops)), "right")]


def encode_argument(argument: Argument) -> int:
    """Return an argument as a 64-bit word of an op record."""
    if isinstance(argument, int):
        return argument
    if isinstance(argument, Buffer):
        return argument.floats.address
    if isinstance(argument, Region):
        return argument.address
    if isinstance(argument, Rows):
        return argument.region.address
    if isinstance(argument, ConvertedActivations):
        return argument.region.address if argument.region else 0
    if isinstance(argument, Tensor):
        address: int = argument.data.__array_interface__["data"][0]  # three times as fast as `ctypes.data`
        return address
    return int.from_bytes(struct.pack("<d", argument), "little", signed=True)
