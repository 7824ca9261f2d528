"""Register ggml's newest types with the `gguf` package, which cannot decode them yet: Q1_0, and Q2_0, whose number it
lacks.

Importing this module is enough. Plain numpy, written after ggml's definitions.
"""

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import _type_traits
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


def decoded(blocks: Bytes, bits: int, values: tuple[int, ...]) -> NDArray[np.float32]:
    """Decode blocks of a float16 scale followed by codes of `bits` bits, lowest bits first; `values` maps codes to
    values.
    """
    d = np.ascontiguousarray(blocks[..., :2]).view("<f2").astype(np.float32)
    steps = np.arange(0, 8, bits, dtype=np.uint8)
    codes = blocks[..., 2:, None] >> steps & ((1 << bits) - 1)
    return d * np.array(values, np.float32)[codes.reshape(*blocks.shape[:-1], -1)]


def register(name: str, number: int, columns: int, bits: int, values: tuple[int, ...]) -> None:
    """Register a type that the package can decode. Encoding raises NotImplementedError, as for its other decode-only
    types.
    """
    if name not in GGMLQuantizationType.__members__:
        member = int.__new__(GGMLQuantizationType, number)
        member._name_, member._value_ = name, number
        GGMLQuantizationType._member_map_[name] = GGMLQuantizationType._value2member_map_[number] = member
    kind, nbytes = GGMLQuantizationType[name], 2 + columns * bits // 8
    GGML_QUANT_SIZES[kind] = columns, nbytes

    class Decoder:
        @staticmethod
        def dequantize(rows: Bytes) -> NDArray[np.float32]:
            blocks = rows.reshape(*rows.shape[:-1], -1, nbytes)
            return decoded(blocks, bits, values).reshape(*rows.shape[:-1], -1)

        @staticmethod
        def quantize(rows: NDArray[np.float32]) -> Bytes:
            raise NotImplementedError

    _type_traits.setdefault(kind, Decoder)


register("Q1_0", 41, 128, 1, (-1, 1))
register("Q2_0", 42, 64, 2, (-1, 0, 1, 2))
