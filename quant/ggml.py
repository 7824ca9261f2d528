"""The tensor types of GGUF files: type numbers, names and block sizes.

This table also lists types without kernels. `quant.FORMATS` lists the types that can be computed with. Source: the GGUF
specification and the block structures of ggml; numbers from 137 on are ik_llama.cpp's.
"""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple


class BlockType(NamedTuple):
    """A tensor type: `elements` consecutive values of a row are stored in a block of `bytes` bytes.

    A row begins with `header` bytes that its blocks share.
    """

    name: str
    elements: int
    bytes: int
    header: int = 0


TYPES = {
    0: BlockType("F32", 1, 4),
    1: BlockType("F16", 1, 2),
    2: BlockType("Q4_0", 32, 18),
    3: BlockType("Q4_1", 32, 20),
    6: BlockType("Q5_0", 32, 22),
    7: BlockType("Q5_1", 32, 24),
    8: BlockType("Q8_0", 32, 34),
    10: BlockType("Q2_K", 256, 84),
    11: BlockType("Q3_K", 256, 110),
    12: BlockType("Q4_K", 256, 144),
    13: BlockType("Q5_K", 256, 176),
    14: BlockType("Q6_K", 256, 210),
    16: BlockType("IQ2_XXS", 256, 66),
    17: BlockType("IQ2_XS", 256, 74),
    18: BlockType("IQ3_XXS", 256, 98),
    19: BlockType("IQ1_S", 256, 50),
    20: BlockType("IQ4_NL", 32, 18),
    21: BlockType("IQ3_S", 256, 110),
    22: BlockType("IQ2_S", 256, 82),
    23: BlockType("IQ4_XS", 256, 136),
    24: BlockType("I8", 1, 1),
    25: BlockType("I16", 1, 2),
    26: BlockType("I32", 1, 4),
    27: BlockType("I64", 1, 8),
    28: BlockType("F64", 1, 8),
    29: BlockType("IQ1_M", 256, 56),
    30: BlockType("BF16", 1, 2),
    34: BlockType("TQ1_0", 256, 54),
    35: BlockType("TQ2_0", 256, 66),
    39: BlockType("MXFP4", 32, 17),
    40: BlockType("NVFP4", 64, 36),
    41: BlockType("Q1_0", 128, 18),
    42: BlockType("Q2_0", 64, 18),
    137: BlockType("IQ2_K", 256, 76),
    138: BlockType("IQ3_K", 256, 110),
    139: BlockType("IQ4_K", 256, 144),
    140: BlockType("IQ5_K", 256, 176),
    141: BlockType("IQ6_K", 256, 212),
    144: BlockType("IQ4_KS", 256, 136, header=4),
    145: BlockType("IQ2_KS", 256, 70, header=2),
    146: BlockType("IQ4_KSS", 256, 128, header=4),
    152: BlockType("IQ5_KS", 256, 168, header=4),
    153: BlockType("IQ2_KT", 256, 68, header=4),
    154: BlockType("IQ3_KT", 256, 100, header=4),
    155: BlockType("IQ4_KT", 256, 128, header=4),
    156: BlockType("IQ3_KS", 256, 102, header=2),
    157: BlockType("IQ2_KL", 256, 86, header=2),
    158: BlockType("IQ1_KT", 256, 56, header=4),
}

TYPE_NUMBERS = {block.name: number for number, block in TYPES.items()}

# Type numbers that no tensor of a file may have, with the reason.
NON_STORAGE_TYPES = {
    4: "Q4_2 was removed from the format",
    5: "Q4_3 was removed from the format",
    9: "Q8_1 is not a storage type",
    15: "Q8_K is not a storage type",
    31: "Q4_0_4_4 was removed from the format",
    32: "Q4_0_4_8 was removed from the format",
    33: "Q4_0_8_8 was removed from the format",
    36: "IQ4_NL_4_4 was removed from the format",
    37: "IQ4_NL_4_8 was removed from the format",
    38: "IQ4_NL_8_8 was removed from the format",
}


def nbytes(type_number: int, shape: Sequence[int]) -> int:
    """Return the size in bytes of a tensor of a type and a shape, rows first: (..., columns).

    Columns are a multiple of the block size.
    """
    block, (*rows, columns) = TYPES[type_number], shape
    return prod(rows) * (block.header + columns // block.elements * block.bytes)
