"""Register the tensor types of `localinfer.naive.tensor_types` with the `gguf` package, which cannot decode them.

Importing this module is enough.
"""

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import _type_traits
from numpy.typing import NDArray

from localinfer.naive.tensor_types import DECODERS, ROW_DECODERS, Bytes, decode
from quant.ggml import TYPE_NUMBERS, TYPES


def register(name: str) -> None:
    """Register a type that the package can decode. Encoding raises NotImplementedError, as for its other decode-only
    types.
    """
    number = TYPE_NUMBERS[name]
    if name not in GGMLQuantizationType.__members__:
        member = int.__new__(GGMLQuantizationType, number)
        member._name_, member._value_ = name, number
        GGMLQuantizationType._member_map_[name] = GGMLQuantizationType._value2member_map_[number] = member
    kind = GGMLQuantizationType[name]
    GGML_QUANT_SIZES[kind] = TYPES[number].elements, TYPES[number].bytes

    class Decoder:
        @staticmethod
        def dequantize(rows: Bytes) -> NDArray[np.float32]:
            return decode(rows, number)

        @staticmethod
        def quantize(rows: NDArray[np.float32]) -> Bytes:
            raise NotImplementedError

    _type_traits.setdefault(kind, Decoder)


for type_name in (*DECODERS, *ROW_DECODERS):
    register(type_name)
