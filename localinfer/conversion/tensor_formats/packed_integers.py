"""Matrices of integers with 2, 4 or 8 bits, several in one int32, with scales per group of columns.

    compressed-tensors, `pack-quantized`               GPTQ, AWQ: a matrix is stored as (columns, rows)
    weight_packed      (rows, columns / n)             qweight   GPTQ (columns / n, rows), AWQ (columns, rows / n)
    weight_scale       (rows, groups)                  scales    (groups, rows)
    weight_zero_point  (rows / n, groups), optional    qzeros    (groups, rows / n)
    weight_g_idx       group of each column, optional  g_idx     GPTQ only: group of each column, optional
    weight_shape       rows, columns

A value is (integer - zero point) * scale.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from localinfer.conversion.tensor_formats.dequantized_matrix import Integers, decode, decode_e8m0, dequantized
from localinfer.conversion.tensor_formats.safetensors_file import StoredTensor
from localinfer.conversion.tensor_formats.values import Floats
from localinfer.errors import UnsupportedError

WORD_BITS = 32
SUPPORTED_BITS = (2, 4, 8)
AWQ_BITS = 4
AWQ_SHIFTS = np.array([0, 16, 4, 20, 8, 24, 12, 28], np.int32)  # of eight adjacent rows in an int32
COMPRESSED_PARTS = ("_packed", "_scale", "_zero_point", "_g_idx", "_shape")
TRANSPOSED_PARTS = ("qweight", "qzeros", "scales", "g_idx")
E2M1_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
MXFP4_GROUP = 32


class Widths(NamedTuple):
    """What the configuration says about the matrices of a checkpoint: the bits of an integer, and how many adjacent
    columns are a group. There may be several kinds of matrices."""

    bits: frozenset[int]
    group_sizes: frozenset[int]


class Shape(NamedTuple):
    """The shape of a matrix, its groups of columns, and the bits of an integer."""

    rows: int
    columns: int
    groups: int
    bits: int

    @property
    def per_word(self) -> int:
        return WORD_BITS // self.bits


def join_compressed(stored: Mapping[str, StoredTensor], widths: Widths) -> dict[str, StoredTensor]:
    """Return the tensors with the matrices of compressed-tensors, `<name>.weight_packed`, in F32.

    Raises LocalInferError for parts that are missing or have other shapes, UnsupportedError for other numbers of bits.
    """
    joined = dict(stored)
    for name in [name for name in stored if name.endswith(".weight_packed")]:
        weight = name.removesuffix("_packed")
        parts = {part: joined.pop(weight + part) for part in COMPRESSED_PARTS if weight + part in joined}
        is_mxfp4 = parts["_packed"].dtype == "U8"
        joined[weight] = mxfp4_matrix(weight, parts) if is_mxfp4 else compressed_matrix(weight, parts, widths)
    return joined


def compressed_matrix(name: str, parts: Mapping[str, StoredTensor], widths: Widths) -> StoredTensor:
    """Return a matrix of integers in F32. Without zero points, integers are stored with half of their range added."""
    packed, zeros, order = parts["_packed"], parts.get("_zero_point"), parts.get("_g_idx")
    for part in ("_scale", "_shape"):
        if part not in parts:
            raise packed.error(f"has no {name.rpartition('.')[2]}{part}")
    require(parts["_shape"], ("I64", "I32"), (2,))
    rows, columns = (int(n) for n in integers(parts["_shape"]))
    given = parts["_scale"].shape
    groups = given[1] if len(given) == 2 else 1
    shape = Shape(rows, columns, groups, bits_of(packed, columns, widths.bits))
    require(packed, ("I32",), (rows, -(-columns // shape.per_word)))
    require(parts["_scale"], ("F32", "F16", "BF16"), (rows, groups) if len(given) == 2 else (rows,))
    size = group_size(shape, widths, packed)
    if zeros:
        require(zeros, ("I32",), (-(-rows // shape.per_word), groups))
    if order:
        require(order, ("I32", "I64"), (columns,))

    def compute() -> Floats:
        values = unpack_last(integers(packed).reshape(packed.shape), shape.bits)[:, :columns].astype(np.float32)
        group, scales = group_of_columns(order, shape, size), decode(parts["_scale"]).reshape(rows, groups)
        if zeros:
            zero = unpack_last(integers(zeros).reshape(zeros.shape).T, shape.bits)[:, :rows].T
            values -= zero[:, group]
        else:
            values -= 1 << (shape.bits - 1)
        values *= scales[:, group]
        return values

    return dequantized(name, (rows, columns), packed, compute)


def bits_of(packed: StoredTensor, columns: int, bits: frozenset[int]) -> int:
    """Return the bits of an integer, of those that occur in the checkpoint, that the number of columns implies."""
    words = packed.shape[-1] if packed.shape else 0
    fitting = [n for n in sorted(bits.intersection(SUPPORTED_BITS)) if -(-columns // (WORD_BITS // n)) == words]
    if len(fitting) != 1:
        what = f"has {columns} columns in {words} words, which integers of {sorted(bits)} bits do not make"
        raise packed.error(what, UnsupportedError)
    return fitting[0]


def mxfp4_matrix(name: str, parts: Mapping[str, StoredTensor]) -> StoredTensor:
    """Return a matrix of E2M1 numbers with E8M0 scales in F32."""
    packed, scales = parts["_packed"], parts.get("_scale")
    if scales is None or len(packed.shape) != 2:
        raise packed.error("is no matrix with weight_scale")
    rows, columns = packed.shape[0], 2 * packed.shape[1]
    if columns % MXFP4_GROUP:
        raise packed.error(f"has {columns} columns; they must be a multiple of {MXFP4_GROUP}", UnsupportedError)
    require(scales, ("U8", "F8_E8M0"), (rows, columns // MXFP4_GROUP))

    def compute() -> Floats:
        pairs = packed.load().reshape(rows, -1, 1)
        codes = np.concatenate([pairs & 15, pairs >> 4], axis=2)
        values: Floats = E2M1_VALUES[codes].reshape(rows, -1, MXFP4_GROUP)
        with np.errstate(all="ignore"):  # values that are not finite stay so, without a warning of numpy
            values *= decode_e8m0(scales.load()).reshape(rows, -1, 1)
        return values.reshape(rows, columns)

    return dequantized(name, (rows, columns), packed, compute)


def join_transposed(
    stored: Mapping[str, StoredTensor], method: str, zero_offset: int, widths: Widths
) -> dict[str, StoredTensor]:
    """Return the tensors with the matrices of GPTQ or AWQ, `<name>.qweight`, in F32. `zero_offset` is added to zero
    points.

    Raises LocalInferError for parts that are missing or have other shapes, UnsupportedError for other numbers of bits.
    """
    joined = dict(stored)
    for name in [name for name in stored if name.endswith(".qweight")]:
        base = name.removesuffix("qweight")
        parts = {part: joined.pop(base + part) for part in TRANSPOSED_PARTS if base + part in joined}
        joined[f"{base}weight"] = transposed_matrix(f"{base}weight", parts, method, zero_offset, widths)
    return joined


def transposed_matrix(
    name: str, parts: Mapping[str, StoredTensor], method: str, zero_offset: int, widths: Widths
) -> StoredTensor:
    """Return a matrix of GPTQ or AWQ in F32."""
    packed, scales, zeros, order = (parts.get(part) for part in ("qweight", "scales", "qzeros", "g_idx"))
    assert packed
    if scales is None or zeros is None or {len(each.shape) for each in (packed, scales, zeros)} != {2}:
        raise packed.error("is no matrix with scales and qzeros")
    groups, rows = scales.shape
    bits, rest = divmod(WORD_BITS * zeros.shape[1], max(rows, 1))
    if rest or bits not in SUPPORTED_BITS or (method == "awq" and bits != AWQ_BITS):
        raise packed.error(f"has integers of {WORD_BITS * zeros.shape[1] / max(rows, 1):g} bits", UnsupportedError)
    columns = packed.shape[0] * (WORD_BITS // bits if method == "gptq" else 1)
    shape = Shape(rows, columns, groups, bits)
    require(packed, ("I32",), (columns // shape.per_word, rows) if method == "gptq" else (columns, zeros.shape[1]))
    require(zeros, ("I32",), (groups, zeros.shape[1]))
    require(scales, ("F32", "F16", "BF16"), (groups, rows))
    if order:
        require(order, ("I32", "I64"), (columns,))
    size = group_size(shape, widths, packed)

    def compute() -> Floats:
        words, zero_words = (integers(each).reshape(each.shape) for each in (packed, zeros))
        if method == "awq":
            codes, zero = unpack_last(words, bits, AWQ_SHIFTS), unpack_last(zero_words, bits, AWQ_SHIFTS)
        else:
            codes, zero = unpack_last(words.T, bits).T, unpack_last(zero_words, bits)
        group = group_of_columns(order, shape, size)
        values = (codes - (zero + np.int32(zero_offset))[group]).astype(np.float32)
        values *= decode(scales)[group]
        return values.T

    return dequantized(name, (rows, columns), packed, compute)


def require(tensor: StoredTensor, types: tuple[str, ...], shape: tuple[int, ...]) -> None:
    """Raise LocalInferError unless a tensor has one of these types, and this shape."""
    if tensor.dtype not in types or tensor.shape != shape:
        expected = f"{' or '.join(types)} {list(shape)}"
        raise tensor.error(f"is {tensor.dtype} {list(tensor.shape)}, not {expected}")


def group_size(shape: Shape, widths: Widths, packed: StoredTensor) -> int:
    """Return how many adjacent columns are a group: as configured, or all groups are equal. Raises LocalInferError if
    the columns cannot be divided into groups."""
    groups, columns = shape.groups, shape.columns
    fitting = [size for size in sorted(widths.group_sizes) if size > 0 and -(-columns // size) == groups]
    if not fitting and (not groups or columns % groups):
        raise packed.error(f"has {columns} columns, which are not {groups} groups of {sorted(widths.group_sizes)}")
    return fitting[0] if fitting else columns // groups


def group_of_columns(order: StoredTensor | None, shape: Shape, size: int) -> Integers:
    """Return the group of each column: as stored, or adjacent columns in groups of this size. Without an order,
    compressed-tensors may store groups of -1."""
    stored = None if order is None else integers(order)
    if order is None or stored is None or (stored == -1).all():
        return np.arange(shape.columns, dtype=np.int32) // np.int32(size)
    if stored.min() < 0 or stored.max() >= shape.groups:
        raise order.error(f"has a group that is not one of {shape.groups}")
    return stored.astype(np.int32)


def integers(stored: StoredTensor) -> Integers:
    """Return the integers of a tensor, flat."""
    values: Integers = stored.load().view("<i8" if stored.dtype == "I64" else "<i4")
    return values


def unpack_last(words: Integers, bits: int, shifts: Integers | None = None) -> Integers:
    """Return the integers in the words of the last dimension: the lowest bits first, or in the order of `shifts`."""
    if shifts is None:
        shifts = np.arange(0, WORD_BITS, bits, dtype=np.int32)
    values: Integers = (words[..., None] >> shifts) & np.int32((1 << bits) - 1)
    return values.reshape(*words.shape[:-1], -1)

