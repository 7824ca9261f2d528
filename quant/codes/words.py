"""How a block-quantized format describes itself: a handful of words, from which `quant.products.rows` makes its
kernels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from quant.jit.vectors import f32x8, f32x16

Body = Callable[..., None]


@dataclass(frozen=True)
class Field:
    """So many bits, from bit `shift` on, of each of sixteen bytes that begin `at` bytes behind a run of columns. They
    become bits `to` and up of the codes of sixteen columns."""

    at: int
    shift: int = 0
    bits: int = 4
    to: int = 0


@dataclass(frozen=True)
class Spread:
    """Sixteen bits, from bit `shift` on, of the 32 that begin `at` bytes behind a run: one for each of sixteen columns,
    bit `to` of its code."""

    at: int
    shift: int
    to: int


@dataclass(frozen=True)
class Runs:
    """Where codes lie: the fields that make up those of sixteen columns after the other, and the bytes from one run of
    columns to the next, of which a superblock has a whole number. What the fields say, plus `zero`, is a code; or it is
    a place in the `table`, unless there is none. Where so many `halves`, a scale or a scale and a min, begin a run,
    nothing else tells them."""

    sixteens: tuple[tuple[Field | Spread, ...], ...]
    step: int
    zero: int = 0
    table: tuple[int, ...] = ()
    halves: int = 0

    @property
    def columns(self) -> int:
        """The columns of a run."""
        return 16 * len(self.sixteens)


@dataclass(frozen=True)
class Multiples:
    """Scales or mins of a superblock that are whole numbers times the half that lies `of` bytes behind its beginning,
    or times that one's negative: the fields, each of four bytes, that make up four whole numbers after the other. Those
    of scales and of mins lie within the same sixteen bytes, and their halves side by side."""

    fours: tuple[tuple[Field, ...], ...]
    of: int
    signed: bool = False
    negative: bool = False


@dataclass(frozen=True)
class Words:
    """A weight is scale * (code - zero) + min: a code below 2**bits, one scale and min for every `group` columns.

    A format with a zero has no mins. Where blocks hold places in a `table` of numbers, codes are these, plus zero.

    256 columns are a superblock: one block of a k-quant, or as many smaller ones as it takes. It is given by its
    address, and so is a row, which smaller blocks may end within a superblock.

    codes64(superblock, j)                u8x64: the codes of columns 64j .. 64j+63
    scales(superblock), mins(superblock)  f32x8 (group 32) or f32x16 (group 16)
    ordered(superblock, j)                u8x64: part j of the codes in `order` (quant.products.layout.ORDERS)
    codes32(row, k)                       u8x32: the codes of columns 32k .. 32k+31; absent in k-quants
    scale(row, g), least(row, g)          float32 of group g; likewise

    Where the bits of a code are those of some bytes in their order, `runs` says which; and `multiples` the same of
    scales and of mins.
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
    order: str = "columns"
    ordered: Any = None
    table: Sequence[int] = ()
    runs: Runs | None = None
    multiples: tuple[Multiples, ...] = ()

    @property
    def kind(self) -> Any:
        """The vector that holds the scales of a superblock."""
        return f32x8 if self.group == 32 else f32x16

    @property
    def groups(self) -> int:
        """The groups of a superblock."""
        return 256 // self.group


def words_of(room: str) -> Words:
    """The words of a format, from its room: "q4_1"."""
    words: Words = import_module(f"quant.formats.{room}").WORDS
    return words
