"""The op record: how a kernel is called. A row of 8-byte words; the kernel's own arguments follow the header.

The header: the kernel for a few tokens, the kernel for many, the address of the number of tokens, and whether the
threads meet after it.
"""

HEADER_WORDS = 4
RECORD_WORDS = 32
