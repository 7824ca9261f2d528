"""The op record: how a kernel is called. A row of 8-byte words; the kernel's own arguments follow the header.

In the header, at these bytes: the kernels for few tokens and for many, into how many parts for each thread either is
cut, the address of the number of tokens, and the op that begins the next stage (see `localinfer.ops.execute`).
"""

import ctypes
from collections.abc import Callable, Sequence

import numpy as np

RUN = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)  # a kernel by its address: op record, part, parts, scratch
KERNELS, ROUNDS, TOKENS, NEXT = 0, 16, 32, 40
HEADER_WORDS = 6
RECORD_WORDS = 32


def call(kernel: Callable[[int, int, int, int], None], arguments: Sequence[int], scratch: int = 0) -> None:
    """Have a kernel, a RUN, do all of its work in this thread; `scratch` is the address of memory for it, if it needs
    some."""
    record = np.zeros(RECORD_WORDS, np.int64)
    record[HEADER_WORDS : HEADER_WORDS + len(arguments)] = arguments
    kernel(record.ctypes.data, 0, 1, scratch)
