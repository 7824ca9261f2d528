"""How a block-quantized format describes itself: a handful of words, from which `quant.rows` makes its kernels."""

from dataclasses import dataclass
from typing import Any

from numba import float32

from quant.vectors import f32x8, f32x16, inline, splat


def below(scales: Any, broadcast: Any, factor: float) -> Any:
    """The word for a fixed multiple of the scales."""

    @inline
    def least(block: int) -> Any:
        return scales(block) * broadcast(float32(factor))

    return least


def splat_of(kind: Any) -> Any:
    """The word that puts a number in every lane of such a vector."""

    @inline
    def broadcast(x: float) -> Any:
        return splat(kind, x)

    return broadcast


@dataclass(frozen=True)
class Words:
    """A weight is scale * (code - zero) + min: a code below 2**bits, one scale and min for every `group` columns.

    A format with a zero has no mins, and one with mins has zero 0.

    256 columns are a superblock: one block of a k-quant, or eight blocks of 32. It is given by its address.

    codes64(superblock, j)                      u8x64: the codes of columns 64j .. 64j+63
    scales(superblock), mins(superblock)        f32x8 (group 32) or f32x16 (group 16)
    codes32(block), scale(block), least(block)  u8x32, float32, float32 of one block of 32; absent in k-quants

    In a format with a zero, `mins` and `least` follow from the scales: they are what scale * code lacks.
    """

    bits: int
    group: int
    superblock_bytes: int
    codes64: Any
    scales: Any
    mins: Any = None
    codes32: Any = None
    scale: Any = None
    least: Any = None
    zero: int = 0

    def __post_init__(self) -> None:
        if self.mins is None:
            object.__setattr__(self, "mins", below(self.scales, splat_of(self.kind), -float(self.zero)))
        if self.least is None and self.scale is not None:
            object.__setattr__(self, "least", below(self.scale, float32, -float(self.zero)))

    @property
    def block_bytes(self) -> int:
        """The bytes of 32 columns, where they are a block."""
        return self.superblock_bytes // 8

    @property
    def kind(self) -> Any:
        """The vector that holds the scales of a superblock."""
        return f32x8 if self.group == 32 else f32x16
