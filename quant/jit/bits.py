"""Bits of integers as bytes, and bit fields of bytes."""

from typing import Any

from numba import types

from quant.jit.emit_numeric import LLVM_TYPES
from quant.jit.simd import emit_shift_insert, emit_spread_bits
from quant.jit.vectors import Vector, intrinsic, lowering


def make_shift_insert(name: str, shift: int) -> Any:
    """Return the inlined function insert(into, source), which shifts the bytes of `source` left (`name` = "sli") or
    right ("sri"): see `quant.jit.simd.emit_shift_insert`.
    """

    @intrinsic
    def shift_insert(typingctx: Any, into: Any, source: Any) -> Any:
        return lowering(into, [into, source], lambda b, args: emit_shift_insert(b, name, args[0], args[1], shift))

    return shift_insert


def make_spread_bits(target_bit: int) -> Any:
    """Return an inlined function for a byte for each bit of an integer, lowest bit first: the bit moved to
    `target_bit`.
    """

    @intrinsic
    def spread_bits(typingctx: Any, bits: Any) -> Any:
        kind = Vector(types.uint8, LLVM_TYPES[bits].width)
        return lowering(kind, [bits], lambda b, args: emit_spread_bits(b, args[0], target_bit))

    return spread_bits
