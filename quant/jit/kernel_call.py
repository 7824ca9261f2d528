"""The op record: the arguments of a kernel call, as a row of 8-byte words. The kernel's arguments follow the header.

The header contains, at the byte offsets below, the addresses of the kernels for few and for many tokens, the number of
chunks per thread for each, the address of the number of tokens, and the op that begins the next stage (see
`localinfer.kernels.executor`).
"""

import ctypes
from collections.abc import Callable, Sequence

import numpy as np

# A kernel's entry point; its arguments are the op record's address, chunk_index, n_chunks and scratch.
KernelFunction = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)
KERNELS_OFFSET, CHUNKS_OFFSET, TOKENS_OFFSET, NEXT_STAGE_OFFSET = 0, 16, 32, 40
HEADER_WORDS = 6
RECORD_WORDS = 40


def call_kernel(kernel: Callable[[int, int, int, int], None], arguments: Sequence[int], scratch: int = 0) -> None:
    """Run all of a kernel's work in this thread.

    `arguments` are int64 numbers or addresses. `scratch` is the address of scratch memory, if the kernel needs any.
    """
    record = np.zeros(RECORD_WORDS, np.int64)
    record[HEADER_WORDS : HEADER_WORDS + len(arguments)] = arguments
    kernel(record.ctypes.data, 0, 1, scratch)
