"""The description of a block format, from which `quant.matmul` builds its kernels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from quant.jit.vectors import f32x8, f32x16, inline, splat

KernelBody = Callable[..., None]
InlinedFunction = Any
Block = np.dtype[np.void]  # a numpy record type with the fields of a block


def field_offset(block: Block, field: str) -> int:
    """Return the offset of a field in a block, in bytes."""
    assert block.fields is not None
    return int(block.fields[field][1])


@dataclass(frozen=True)
class BitField:
    """Sixteen codes' bits as a field in each of sixteen consecutive bytes.

    The bytes begin `offset` bytes after the start of a run of columns. The field's `bits` bits from bit `shift` on
    become bits `target_bit` and up of the codes of sixteen columns.
    """

    offset: int
    shift: int = 0
    bits: int = 4
    target_bit: int = 0


@dataclass(frozen=True)
class BitPlaneField:
    """One bit for each of sixteen columns, as sixteen consecutive bits.

    They begin at bit `shift` of the 32-bit integer that lies `offset` bytes after the start of a run of columns. Each
    becomes bit `target_bit` of its column's code.
    """

    offset: int
    shift: int
    target_bit: int


@dataclass(frozen=True)
class CodeLayout:
    """The location of the codes in a superblock.

    `columns16` has the fields that make up the codes of each sixteen columns of a run. The distance between runs is
    `run_bytes` bytes, and a superblock has a whole number of runs. The bits plus `code_offset` are the code, or they
    index `table` if it is not empty. `leading_halves` is 1 if each run begins with its scale, 2 if it begins with its
    scale and min (half precision), and 0 if scales are stored elsewhere.
    """

    columns16: tuple[tuple[BitField | BitPlaneField, ...], ...]
    run_bytes: int
    code_offset: int = 0
    table: tuple[int, ...] = ()
    leading_halves: int = 0

    @property
    def columns(self) -> int:
        """The number of columns in a run."""
        return 16 * len(self.columns16)


@dataclass(frozen=True)
class ScaleLayout:
    """The location of the scales, or the mins, of a superblock that are integers times one half precision number.

    `quads` has the fields, each in four consecutive bytes, that make up each four integers. The half lies `half_offset`
    bytes after the start of the superblock; if `negated`, its negative is the factor. The integers of scales and
    mins lie within the same sixteen bytes, and their halves are adjacent.
    """

    quads: tuple[tuple[BitField, ...], ...]
    half_offset: int
    signed: bool = False
    negated: bool = False


@dataclass(frozen=True)
class FormatSpec:
    """A block format: a weight is scale * (code - zero_point) + min.

    Codes are below 2**bits. Every `group_size` columns share a scale and a min. A format with a zero point has no mins.
    If blocks store indices into a `table` of numbers, the codes are these numbers plus the zero point.

    A superblock has 256 columns: one block of a k-quant, or several smaller blocks. The functions take the address of a
    superblock or of a row. Rows of a format with smaller blocks may end within a superblock.

      codes64(superblock, j)                u8x64: the codes of columns 64j .. 64j+63
      scales(superblock), mins(superblock)  f32x8 (group_size 32) or f32x16 (group_size 16)
      ordered_codes(superblock, j)          u8x64: quarter j of the codes in `order` (quant.matmul.layout.ORDERS)
      signed_codes(superblock, j)           u8x64: the same minus the zero point, as signed bytes. CPUs that multiply
                                            signed bytes then need no zero point; absent where it would cost more
      codes32(row, k)                       u8x32: the codes of columns 32k .. 32k+31; absent in k-quants
      group_scale(row, g), group_min(row, g)  float32 of group g; absent in k-quants
      row_scale(row)                        float32: a factor of all scales of a row, stored in the `header_bytes` bytes
                                            in front of its superblocks. Only formats without mins and smaller blocks
                                            have it; their `scales` do not contain it

    If codes are bit fields of bytes in column order, `code_layout` describes them. `scale_layouts` does the same for
    scales and mins.
    """

    bits: int
    group_size: int
    superblock_bytes: int
    codes64: Any
    scales: Any
    mins: Any = None
    codes32: Any = None
    group_scale: Any = None
    group_min: Any = None
    zero_point: int = 0
    order: str = "columns"
    ordered_codes: Any = None
    signed_codes: Any = None
    table: Sequence[int] = ()
    code_layout: CodeLayout | None = None
    scale_layouts: tuple[ScaleLayout, ...] = ()
    header_bytes: int = 0
    row_scale: Any = None

    @property
    def scales_type(self) -> Any:
        """The vector type that holds the scales of a superblock."""
        return f32x8 if self.group_size == 32 else f32x16

    @property
    def n_groups(self) -> int:
        """The number of groups in a superblock."""
        return 256 // self.group_size


def make_scales(spec: FormatSpec) -> Any:
    """Return the inlined function scales(superblock, number): the scales of superblock `number` of a row, times the
    scale of the row.
    """
    scales, row_scale, kind, header, size = (
        spec.scales, spec.row_scale, spec.scales_type, spec.header_bytes, spec.superblock_bytes
    )  # fmt: skip

    @inline
    def of_superblock(superblock: int, number: int) -> Any:
        return scales(superblock)

    @inline
    def of_row(superblock: int, number: int) -> Any:
        return scales(superblock) * splat(kind, row_scale(superblock - number * size - header))

    return of_row if row_scale else of_superblock


def load_spec(format_module: str) -> FormatSpec:
    """Return the specification of a format, given its module name such as "q4_1"."""
    spec: FormatSpec = import_module(f"quant.formats.{format_module}").SPEC
    return spec
