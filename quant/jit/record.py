"""The op record: how a kernel is called. A row of 8-byte words; the kernel's own arguments follow the header.

In the header, at these bytes: the kernels for few tokens and for many, into how many parts for each thread either is
cut, the address of the number of tokens, and the op that begins the next stage (see `localinfer.ops.execute`).
"""

import ctypes

RUN = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)  # a kernel by its address: op record, part, parts, scratch
KERNELS, ROUNDS, TOKENS, NEXT = 0, 16, 32, 40
HEADER_WORDS = 6
RECORD_WORDS = 32
