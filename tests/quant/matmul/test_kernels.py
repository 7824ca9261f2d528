"""Tests every format's kernels against the gguf package and float64, on the instruction set of this process."""

from typing import Any

import gguf
import kernels
import numpy as np
import pytest
from kernels import NUMBERS
from numpy.typing import NDArray
from random_blocks import HALVES

from quant import FORMATS as KINDS
from quant.ggml import TYPES, nbytes
from quant.jit.cpu import target
from quant.matmul.layout import (
    MAGIC,
    MAGIC_BITS,
    MAX_QUANT,
    PANEL_ZERO_POINT,
    RECORD_ROWS,
    flat_bytes,
    record_bytes,
    starts_with_magic,
)
from quant.matmul.row_access import CANDIDATES

FORMATS = sorted(NUMBERS)
FLOATS = {"F32", "F16", "BF16"}
PRODUCTS = ["matvec", "matmul"]
BF16 = gguf.GGMLQuantizationType.BF16


@pytest.fixture(params=[1, 2], ids=["fast", "high"])
def passes(request: pytest.FixtureRequest) -> int:
    """Quantize activations to 8 bits, or to 15."""
    return int(request.param)


def shortest_row(name: str) -> int:
    """Return the length of the shortest row."""
    return max(32, TYPES[NUMBERS[name]].elements)


def same_bits(a: kernels.Floats, b: kernels.Floats) -> bool:
    """Return whether arrays are equal to the last bit. NaNs only need to be at the same positions."""
    nan = np.isnan(a)
    return bool(np.array_equal(nan, np.isnan(b)) and np.array_equal(a.view("u4")[~nan], b.view("u4")[~nan]))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("blocks", [1, 2, 7, 9])
def test_decoding_is_bit_exact(name: str, blocks: int) -> None:
    n = blocks * shortest_row(name)
    rows = kernels.random_rows(name, 3, n)
    assert same_bits(kernels.get_rows(name, rows, n), kernels.decode(name, rows))


def any_bytes(name: str, n: int, rng: np.random.Generator) -> kernels.Bytes:
    """Return 512 rows of random bytes."""
    return rng.integers(0, 256, (512, nbytes(NUMBERS[name], [n])), dtype=np.uint8)


@pytest.mark.parametrize("name", FORMATS)
def test_decoding_any_bytes_is_bit_exact(name: str) -> None:
    """4,096 random superblocks cover every value of every 6-bit scale."""
    n = 256 * 8
    random = any_bytes(name, n, np.random.default_rng(1))
    rows = np.concatenate([random, np.zeros_like(random[:1]), np.full_like(random[:1], 255)])
    assert same_bits(kernels.get_rows(name, rows, n), kernels.decode(name, rows))


@pytest.mark.parametrize("name", sorted(set(FORMATS) & set(HALVES)))
def test_decoding_extreme_scales_is_bit_exact(name: str) -> None:
    ends = [0.0, -0.0, 2.0**-24, -(2.0**-24), 1023 * 2.0**-24, 2.0**-14, 65504.0, -65504.0, np.inf, -np.inf, np.nan]
    n, rng = 256 * 8, np.random.default_rng(10)
    rows = any_bytes(name, n, rng)
    blocks = rows.reshape(-1, TYPES[NUMBERS[name]].bytes)
    for at, _ in HALVES[name]:
        blocks[:, at : at + 2] = rng.choice(np.array(ends, "<f2"), (len(blocks), 1)).view(np.uint8)
    assert same_bits(kernels.get_rows(name, rows, n), kernels.decode(name, rows))


def test_decoding_every_mxfp4_scale_is_bit_exact() -> None:
    """Scales 0 and 1 are subnormal; with 254 and 255 the larger codes are infinite."""
    rows = np.repeat(np.arange(256, dtype=np.uint8), 17).reshape(256, 17)
    rows[:, 1:] = np.arange(16) * 17
    for n in (32, 256):
        wide = np.tile(rows, n // 32)
        assert same_bits(kernels.get_rows("MXFP4", wide, n), kernels.decode("MXFP4", wide))


@pytest.mark.parametrize("name", ["Q4_K", "Q5_K"])
def test_every_pair_of_a_six_bit_scale_and_min_unpacks(name: str) -> None:
    for pair in range(4):
        rows = kernels.random_rows(name, 1 << 12, 256)
        value = np.arange(1 << 12)
        rows[:, 4 + pair] = value & 0xFF
        rows[:, 8 + pair] = value >> 4
        assert same_bits(kernels.get_rows(name, rows, 256), kernels.decode(name, rows))


def as_multiplied(name: str, x: kernels.Floats, passes: int) -> NDArray[np.float64]:
    """Return activations in float64 as the kernel multiplies them: rounded to bfloat16, but not to integers."""
    takes = KINDS[NUMBERS[name]].activation_type(passes)
    return (bf16(x) if takes == "bf16" else x).astype(np.float64)


def bf16(x: kernels.Floats) -> kernels.Floats:
    """Round to the nearest bfloat16, ties to even."""
    return gguf.dequantize(gguf.quantize(x, BF16), BF16)


@pytest.mark.parametrize("function", PRODUCTS)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    ("n_out", "blocks", "tokens"),
    [(1, 1, 1), (3, 2, 2), (5, 3, 3), (17, 9, 7), (63, 5, 8), (64, 1, 9), (65, 2, 13), (2, 18, 33)],
)
def test_products_are_within_the_rounding_of_activations(
    function: str, name: str, n_out: int, blocks: int, tokens: int, passes: int
) -> None:
    n = blocks * shortest_row(name)
    rows = kernels.random_rows(name, n_out, n)
    x = np.random.default_rng(2).standard_normal((tokens, n)).astype(np.float32)
    weights = kernels.decode(name, rows).astype(np.float64)
    exact = as_multiplied(name, x, passes) @ weights.T
    computed = kernels.matrix_product(name, function, x, rows, passes, threads=2)
    size = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(weights, axis=1)[None, :]
    rounding = 0.0 if name in FLOATS else 3 / MAX_QUANT[passes]
    assert (abs(computed - exact) <= (rounding + 4 * 2**-23 * np.sqrt(n)) * size).all()


@pytest.mark.parametrize("function", PRODUCTS)
@pytest.mark.parametrize("name", FORMATS)
def test_products_of_integers_are_exact(name: str, function: str, passes: int) -> None:
    """Activations that are multiples of the scale are quantized without error, so only the rounding of float32 sums
    remains.
    """
    n = 2 * shortest_row(name)
    rows = kernels.random_rows(name, 9, n)
    x = np.random.default_rng(3).integers(-MAX_QUANT[passes], MAX_QUANT[passes] + 1, (5, n)).astype(np.float32)
    x[:, ::32] = MAX_QUANT[passes]
    weights = kernels.decode(name, rows).astype(np.float64)
    size = abs(x).astype(np.float64) @ abs(weights).T
    error = abs(kernels.matrix_product(name, function, x, rows, passes) - x.astype(np.float64) @ weights.T)
    assert (error <= 16 * 2**-24 * np.sqrt(n) * size).all()


@pytest.mark.parametrize("function", PRODUCTS)
@pytest.mark.parametrize("name", FORMATS)
def test_threads_do_not_change_a_bit(name: str, function: str, passes: int) -> None:
    n = shortest_row(name) * 2
    rows = kernels.random_rows(name, 70, n)
    x = np.random.default_rng(4).standard_normal((14, n)).astype(np.float32)
    alone = kernels.matrix_product(name, function, x, rows, passes)
    for threads in (2, 3, 7):
        assert same_bits(kernels.matrix_product(name, function, x, rows, passes, threads=threads), alone)


@pytest.mark.parametrize("name", ["Q4_K", "Q8_0", "F16", "BF16"])
@pytest.mark.parametrize("threads", [2, 3, 7])
def test_divided_tokens_do_not_change_a_bit(name: str, threads: int, passes: int) -> None:
    """Threads divide many tokens, if there are few rows. A chunk may have rows of two parts of the tokens."""
    tokens, n = 4 * threads * target().tokens + 3, shortest_row(name)
    rows = kernels.random_rows(name, 35, n)
    x, there = (np.random.default_rng(4).standard_normal((tokens, size)).astype(np.float32) for size in (n, 35))
    alone, divided = (
        kernels.matrix_product(name, "matmul", x, rows, passes, threads=each, add_to=there) for each in (1, threads)
    )
    assert same_bits(divided, alone)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("n_out", "blocks", "tokens"), [(1, 1, 1), (17, 9, 7), (65, 2, 13), (35, 18, 26)])
def test_token_alone_and_in_a_batch_is_bit_exact(name: str, n_out: int, blocks: int, tokens: int, passes: int) -> None:
    n = blocks * shortest_row(name)
    rows = kernels.random_rows(name, n_out, n)
    x = np.random.default_rng(9).standard_normal((tokens, n)).astype(np.float32)
    batch = kernels.matrix_product(name, "matmul", x, rows, passes)
    alone = [kernels.matrix_product(name, "matvec", x[token : token + 1], rows, passes) for token in range(tokens)]
    assert same_bits(np.concatenate(alone), batch)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("n_out", "blocks", "tokens"), [(1, 1, 1), (67, 9, 1), (70, 8, 2), (70, 3, 3), (9, 17, 7)])
def test_row_access_does_not_change_a_bit(name: str, n_out: int, blocks: int, tokens: int, passes: int) -> None:
    n = blocks * shortest_row(name)
    rows = kernels.copy_before_guard_page(kernels.random_rows(name, n_out, n))
    x = np.random.default_rng(12).standard_normal((tokens, n)).astype(np.float32)
    y = [kernels.matrix_product(name, "matvec", x, rows, passes, threads=2, access=each) for each in CANDIDATES]
    assert all(same_bits(each, y[0]) for each in y)


@pytest.mark.parametrize("name", FORMATS)
def test_subtracting_the_magic_number_does_not_change_a_bit(name: str, passes: int) -> None:
    """A tile and a part of one, with results of all magnitudes."""
    n = 3 * shortest_row(name)
    rows, tokens = kernels.random_rows(name, 35, n), target().tokens + 1
    scales = np.logspace(-20, 20, tokens, dtype=np.float32)[:, None]
    x = scales * np.random.default_rng(13).standard_normal((tokens, n)).astype(np.float32)
    ways = [kernels.matrix_product(name, "matmul", x, rows, passes, subtract=each) for each in (False, True)]
    assert same_bits(*ways)


@pytest.mark.parametrize("function", PRODUCTS)
@pytest.mark.parametrize("name", FORMATS)
def test_products_are_added_to_base(name: str, function: str, passes: int) -> None:
    n = shortest_row(name)
    rows = kernels.random_rows(name, 11, n)
    x = np.random.default_rng(5).standard_normal((13, n)).astype(np.float32)
    there = np.random.default_rng(6).standard_normal((13, 11)).astype(np.float32)
    alone = kernels.matrix_product(name, function, x, rows, passes)
    assert same_bits(kernels.matrix_product(name, function, x, rows, passes, add_to=there), there + alone)


@pytest.mark.parametrize("name", FORMATS)
def test_nothing_is_read_past_the_last_row(name: str, passes: int) -> None:
    """The rows end at a guard page: reading past them would end this process."""
    n = shortest_row(name) * 3
    rows = kernels.copy_before_guard_page(kernels.random_rows(name, 5, n))
    x = np.ones((6, n), np.float32)
    kernels.get_rows(name, rows, n)
    for function in PRODUCTS:
        kernels.matrix_product(name, function, x, rows, passes)


@pytest.mark.parametrize("function", PRODUCTS)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_activations_give_non_finite_results(name: str, function: str, bad: float, passes: int) -> None:
    n = shortest_row(name)
    rows = kernels.random_rows(name, 4, n)
    x = np.ones((6, n), np.float32)
    x[2, 3] = bad
    y = kernels.matrix_product(name, function, x, rows, passes)
    assert not np.isfinite(y[2]).any()
    assert np.isfinite(np.delete(y, 2, axis=0)).all()


@pytest.mark.parametrize("name", sorted(FLOATS))
@pytest.mark.parametrize(("n_out", "n", "tokens"), [(1, 1, 1), (5, 31, 6), (6, 33, 7), (3, 2047, 5), (9, 4133, 11)])
def test_float_products_for_any_row_length(name: str, n_out: int, n: int, tokens: int, passes: int) -> None:
    """Rows of any length, including a short last column chunk, end at guard pages."""
    rows = kernels.copy_before_guard_page(kernels.random_rows(name, n_out, n))
    x = np.random.default_rng(11).standard_normal((tokens, n)).astype(np.float32)
    weights = kernels.decode(name, rows).astype(np.float64)
    batch = kernels.matrix_product(name, "matmul", x, rows, passes, threads=2)
    alone = [kernels.matrix_product(name, "matvec", x[token : token + 1], rows, passes) for token in range(tokens)]
    assert same_bits(np.concatenate(alone), batch)
    size = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(weights, axis=1)[None, :]
    assert (abs(batch - as_multiplied(name, x, passes) @ weights.T) <= 4 * 2**-23 * np.sqrt(n) * size).all()


def test_floats_are_rounded_to_the_nearest_bfloat16() -> None:
    """Ties go to even, the largest numbers to infinity, subnormal numbers round like all others, and a NaN
    stays a NaN.
    """
    bits = np.arange(0, 1 << 32, 65_521, dtype=np.uint64).astype(np.uint32)
    halves = np.arange(0x8000, 1 << 32, 1 << 16, dtype=np.uint64).astype(np.uint32)
    x = np.concatenate([bits, halves]).view(np.float32)
    x = np.resize(x, (7, len(x) // 7 + 1))
    actual = (kernels.to_bf16(x).astype(np.uint32) << 16).view(np.float32)
    assert same_bits(actual, bf16(x))


@pytest.mark.parametrize("function", PRODUCTS)
@pytest.mark.parametrize("tiny", ["weights", "activations", "products"])
def test_bf16_products_may_flush_subnormals(function: str, tiny: str) -> None:
    """The dot product instruction treats subnormal numbers as 0. Nothing else is lost, and nothing becomes a NaN."""
    small, one = np.float32(2.0**-130), np.float32(1.0)
    w, a = {"weights": (small, one), "activations": (one, small), "products": (np.float32(2.0**-70),) * 2}[tiny]
    weights, x = np.full((5, 64), w, np.float32), np.full((6, 64), a, np.float32)
    weights[:, 7], x[:, 7] = 3.0, 5.0
    rows = gguf.quantize(weights, BF16).view(np.uint8).reshape(5, -1)
    assert (kernels.matrix_product("BF16", function, x, rows, 1) == 15.0).all()


@pytest.mark.parametrize("function", PRODUCTS)
@pytest.mark.parametrize("name", sorted(set(FORMATS) - FLOATS))
def test_large_small_and_zero_activations(name: str, function: str, passes: int) -> None:
    n = shortest_row(name)
    rows = kernels.random_rows(name, 4, n)
    x = np.random.default_rng(7).standard_normal((6, n)).astype(np.float32)
    plain = kernels.matrix_product(name, function, x, rows, passes)
    for factor in (2.0**60, 2.0**-60):
        scaled = kernels.matrix_product(name, function, x * np.float32(factor), rows, passes)
        assert np.allclose(scaled / factor, plain, rtol=1e-6, atol=1e-6 * abs(plain).max())
    assert not kernels.matrix_product(name, function, 0 * x, rows, passes).any()


def read_group(packed: kernels.Bytes, token: int, group: int, n: int, tile: int, passes: int) -> dict[str, Any]:
    """Read a group of a token from quantized activations."""
    size, n_superblocks = record_bytes(1, passes), -(-n // 256)
    group += -n % 256 // 32 if group >= n // 256 * 8 else 0
    if tile:
        number = token // tile * 8 * n_superblocks + group % 8 * n_superblocks + group // 8
        record = packed[number * tile * size :][: tile * size]
        by_depth = record[: 32 * passes * tile].view(np.int8).reshape(passes, -1, tile, target().depth)
        bytes_ = by_depth[:, :, token % tile]
        rows = record[32 * passes * tile :].view(np.float32).reshape(RECORD_ROWS, tile)[:, token % tile]
        scale, shift, sums32, sums16 = rows[0], rows[1], rows[2], rows[3:5]
        starts = rows[5:8].copy().view(np.int32)
        origin = MAGIC_BITS if starts_with_magic(passes) else 0
        totals32, *totals16 = (origin - starts) / PANEL_ZERO_POINT if target().has_exact_u8_dot else starts
    else:
        position = packed[token * flat_bytes(n, passes) :][: flat_bytes(n, passes)]
        columns = 256 * n_superblocks
        bytes_ = position[: passes * columns].view(np.int8).reshape(passes, columns)[:, 32 * group :][:, :32]
        floats = position[-columns:].view(np.float32)
        groups = columns // 32
        scale, sums32 = floats[group], floats[groups + group]
        shift = np.float64(-MAGIC) * scale
        sums16 = floats[2 * groups + 2 * group :][:2]
        whole = floats.view(np.int32)
        totals32, totals16 = whole[4 * groups + group], whole[5 * groups + 2 * group :][:2]
    by_pass = bytes_.reshape(passes, 32).astype(int)
    q = by_pass[0] if passes == 1 else 128 * by_pass[0] + by_pass[1]
    return {"q": q, "scale": scale, "shift": shift, "sums": [sums32, *sums16], "totals": [totals32, *totals16]}


def best_rounding(x: NDArray[np.float64], largest: int) -> tuple[NDArray[np.int64], float]:
    """Return a group's integers and scale, computed in float64.

    The peak becomes `largest`, or in 8 bits 126 or 125 if the error is smaller. The scale minimizes the squared error.
    """
    best = (np.zeros(32, np.int64), 0.0, np.inf)
    for top in (127, 126, 125) if largest == 127 else (largest,):
        q = np.rint(x * (top / abs(x).max()))
        scale = (q @ x) / (q @ q)
        best = min(best, (q.astype(np.int64), scale, ((q * scale - x) ** 2).sum()), key=lambda one: one[2])
    return best[:2]


@pytest.mark.parametrize("tile", [0, 5])
@pytest.mark.parametrize("groups", [1, 2, 3, 4, 5, 6, 7, 8, 9])
def test_quantized_activations(tile: int, passes: int, groups: int) -> None:
    n, count = 32 * groups, 7
    x = np.random.default_rng(8).standard_normal((count, n)).astype(np.float32)
    packed = kernels.quantize_activations(x, tile, passes)
    for token in range(count):
        for group in range(groups):
            actual, desired = read_group(packed, token, group, n, tile, passes), x[token, 32 * group :][:32]
            q, scale = actual["q"], float(actual["scale"])
            expected, best_scale = best_rounding(desired.astype(np.float64), MAX_QUANT[passes])
            assert (q == expected).all()
            assert scale == pytest.approx(best_scale, rel=2**-20)
            assert float(actual["shift"]) == -MAGIC * scale, "exact"
            sums = [q.sum(), q[:16].sum(), q[16:].sum()]
            assert actual["totals"] == sums
            assert actual["sums"] == pytest.approx(np.array(sums) * scale, rel=1e-6, abs=1e-6)


def test_quantized_activations_of_any_magnitude(passes: int) -> None:
    sizes = np.float32([1e-45, 1e-39, 1e-30, 1e30, 3e38])
    x = sizes[:, None] * np.random.default_rng(9).uniform(-1, 1, (5, 32)).astype(np.float32)
    packed = kernels.quantize_activations(x, 0, passes)
    for token in range(5):
        actual = read_group(packed, token, 0, 32, 0, passes)
        assert (
            abs(actual["q"] * float(actual["scale"]) - x[token]).max()
            <= float(sizes[token]) / MAX_QUANT[passes] + 1e-38
        )
