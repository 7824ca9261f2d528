"""Every format's kernels against the gguf package and float64, on the instruction set of this process."""

from typing import Any

import gguf
import kernels
import numpy as np
import pytest
from kernels import NUMBERS
from numpy.typing import NDArray
from random_blocks import HALVES

from quant import FORMATS as KINDS
from quant.ggml import TYPES
from quant.jit.cpu import target
from quant.products.layout import LARGEST, MAGIC, MAGIC_BITS, ROWS, ZERO, flat_bytes, record_bytes, starts_with_magic

FORMATS = sorted(NUMBERS)
FLOATS = {"F32", "F16", "BF16"}
PRODUCTS = ["matvec", "matmul"]
BF16 = gguf.GGMLQuantizationType.BF16


@pytest.fixture(params=[1, 2], ids=["fast", "high"])
def passes(request: pytest.FixtureRequest) -> int:
    """8 bits of activations, or 15."""
    return int(request.param)


def columns(name: str) -> int:
    """The shortest row."""
    return max(32, TYPES[NUMBERS[name]].elements)


def same_bits(a: kernels.Floats, b: kernels.Floats) -> bool:
    """Equal to the last bit; NaNs need only be in the same places."""
    nan = np.isnan(a)
    return bool(np.array_equal(nan, np.isnan(b)) and np.array_equal(a.view("u4")[~nan], b.view("u4")[~nan]))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("blocks", [1, 2, 7, 9])
def test_weights_decode_to_the_last_bit(name: str, blocks: int) -> None:
    n = blocks * columns(name)
    rows = kernels.random_rows(name, 3, n)
    assert same_bits(kernels.get_rows(name, rows, n), kernels.decoded(name, rows))


def any_bytes(name: str, n: int, rng: np.random.Generator) -> kernels.Bytes:
    """512 rows of random bytes."""
    kind = TYPES[NUMBERS[name]]
    return rng.integers(0, 256, (512, n // kind.elements * kind.bytes), dtype=np.uint8)


@pytest.mark.parametrize("name", FORMATS)
def test_any_bytes_decode_to_the_last_bit(name: str) -> None:
    """In 4,096 superblocks every scale of six bits has had every value."""
    n = 256 * 8
    random = any_bytes(name, n, np.random.default_rng(1))
    rows = np.concatenate([random, np.zeros_like(random[:1]), np.full_like(random[:1], 255)])
    assert same_bits(kernels.get_rows(name, rows, n), kernels.decoded(name, rows))


@pytest.mark.parametrize("name", sorted(set(FORMATS) & set(HALVES)))
def test_scales_at_the_ends_of_half_precision_decode_to_the_last_bit(name: str) -> None:
    ends = [0.0, -0.0, 2.0**-24, -(2.0**-24), 1023 * 2.0**-24, 2.0**-14, 65504.0, -65504.0, np.inf, -np.inf, np.nan]
    n, rng = 256 * 8, np.random.default_rng(10)
    rows = any_bytes(name, n, rng)
    blocks = rows.reshape(-1, TYPES[NUMBERS[name]].bytes)
    for at, _ in HALVES[name]:
        blocks[:, at : at + 2] = rng.choice(np.array(ends, "<f2"), (len(blocks), 1)).view(np.uint8)
    assert same_bits(kernels.get_rows(name, rows, n), kernels.decoded(name, rows))


def test_every_scale_of_mxfp4_decodes_to_the_last_bit() -> None:
    """0 and 1 are subnormal; of 254 and 255 the larger codes are infinite."""
    rows = np.repeat(np.arange(256, dtype=np.uint8), 17).reshape(256, 17)
    rows[:, 1:] = np.arange(16) * 17
    for n in (32, 256):
        wide = np.tile(rows, n // 32)
        assert same_bits(kernels.get_rows("MXFP4", wide, n), kernels.decoded("MXFP4", wide))


@pytest.mark.parametrize("name", ["Q4_K", "Q5_K"])
def test_every_pair_of_a_six_bit_scale_and_min_unpacks(name: str) -> None:
    for pair in range(4):
        rows = kernels.random_rows(name, 1 << 12, 256)
        value = np.arange(1 << 12)
        rows[:, 4 + pair] = value & 0xFF
        rows[:, 8 + pair] = value >> 4
        assert same_bits(kernels.get_rows(name, rows, 256), kernels.decoded(name, rows))


def seen(name: str, x: kernels.Floats, passes: int) -> NDArray[np.float64]:
    """Activations as products of floats take them, in float64; of whole numbers, as they are before that rounding."""
    takes = KINDS[NUMBERS[name]].takes(passes)
    return (bf16(x) if takes == "bf16" else x).astype(np.float64)


def bf16(x: kernels.Floats) -> kernels.Floats:
    """The nearest bfloat16, of two that are equally near the even one."""
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
    n = blocks * columns(name)
    rows = kernels.random_rows(name, n_out, n)
    x = np.random.default_rng(2).standard_normal((tokens, n)).astype(np.float32)
    weights = kernels.decoded(name, rows).astype(np.float64)
    exact = seen(name, x, passes) @ weights.T
    computed = kernels.product(name, function, x, rows, passes, threads=2)
    size = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(weights, axis=1)[None, :]
    rounding = 0.0 if name in FLOATS else 3 / LARGEST[passes]
    assert (abs(computed - exact) <= (rounding + 4 * 2**-23 * np.sqrt(n)) * size).all()


@pytest.mark.parametrize("function", PRODUCTS)
@pytest.mark.parametrize("name", FORMATS)
def test_products_of_integers_are_exact(name: str, function: str, passes: int) -> None:
    """Activations that are multiples of the scale lose nothing in rounding, so only float32 sums remain."""
    n = 2 * columns(name)
    rows = kernels.random_rows(name, 9, n)
    x = np.random.default_rng(3).integers(-LARGEST[passes], LARGEST[passes] + 1, (5, n)).astype(np.float32)
    x[:, ::32] = LARGEST[passes]
    weights = kernels.decoded(name, rows).astype(np.float64)
    size = abs(x).astype(np.float64) @ abs(weights).T
    error = abs(kernels.product(name, function, x, rows, passes) - x.astype(np.float64) @ weights.T)
    assert (error <= 16 * 2**-24 * np.sqrt(n) * size).all()


@pytest.mark.parametrize("function", PRODUCTS)
@pytest.mark.parametrize("name", FORMATS)
def test_threads_do_not_change_a_bit(name: str, function: str, passes: int) -> None:
    n = columns(name) * 2
    rows = kernels.random_rows(name, 70, n)
    x = np.random.default_rng(4).standard_normal((14, n)).astype(np.float32)
    alone = kernels.product(name, function, x, rows, passes)
    for threads in (2, 3, 7):
        assert same_bits(kernels.product(name, function, x, rows, passes, threads=threads), alone)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("n_out", "blocks", "tokens"), [(1, 1, 1), (17, 9, 7), (65, 2, 13), (35, 18, 26)])
def test_a_token_alone_and_in_a_batch_are_the_same_to_the_last_bit(
    name: str, n_out: int, blocks: int, tokens: int, passes: int
) -> None:
    n = blocks * columns(name)
    rows = kernels.random_rows(name, n_out, n)
    x = np.random.default_rng(9).standard_normal((tokens, n)).astype(np.float32)
    batch = kernels.product(name, "matmul", x, rows, passes)
    alone = [kernels.product(name, "matvec", x[token : token + 1], rows, passes) for token in range(tokens)]
    assert same_bits(np.concatenate(alone), batch)


@pytest.mark.parametrize("function", PRODUCTS)
@pytest.mark.parametrize("name", FORMATS)
def test_products_are_added_to_what_is_there(name: str, function: str, passes: int) -> None:
    n = columns(name)
    rows = kernels.random_rows(name, 11, n)
    x = np.random.default_rng(5).standard_normal((13, n)).astype(np.float32)
    there = np.random.default_rng(6).standard_normal((13, 11)).astype(np.float32)
    alone = kernels.product(name, function, x, rows, passes)
    assert same_bits(kernels.product(name, function, x, rows, passes, add_to=there), there + alone)


@pytest.mark.parametrize("name", FORMATS)
def test_nothing_is_read_past_the_last_row(name: str, passes: int) -> None:
    """Beyond the rows lies a page that may not be touched: reading it would end this process."""
    n = columns(name) * 3
    rows = kernels.before_a_guard_page(kernels.random_rows(name, 5, n))
    x = np.ones((6, n), np.float32)
    kernels.get_rows(name, rows, n)
    for function in PRODUCTS:
        kernels.product(name, function, x, rows, passes)


@pytest.mark.parametrize("function", PRODUCTS)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_so(name: str, function: str, bad: float, passes: int) -> None:
    n = columns(name)
    rows = kernels.random_rows(name, 4, n)
    x = np.ones((6, n), np.float32)
    x[2, 3] = bad
    y = kernels.product(name, function, x, rows, passes)
    assert not np.isfinite(y[2]).any()
    assert np.isfinite(np.delete(y, 2, axis=0)).all()


@pytest.mark.parametrize("name", sorted(FLOATS))
@pytest.mark.parametrize(("n_out", "n", "tokens"), [(1, 1, 1), (5, 31, 6), (6, 33, 7), (3, 2047, 5), (9, 4133, 11)])
def test_numbers_need_no_blocks(name: str, n_out: int, n: int, tokens: int, passes: int) -> None:
    """Rows of any length, in stretches whose last one is short, before pages that may not be touched."""
    rows = kernels.before_a_guard_page(kernels.random_rows(name, n_out, n))
    x = np.random.default_rng(11).standard_normal((tokens, n)).astype(np.float32)
    weights = kernels.decoded(name, rows).astype(np.float64)
    batch = kernels.product(name, "matmul", x, rows, passes, threads=2)
    alone = [kernels.product(name, "matvec", x[token : token + 1], rows, passes) for token in range(tokens)]
    assert same_bits(np.concatenate(alone), batch)
    size = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(weights, axis=1)[None, :]
    assert (abs(batch - seen(name, x, passes) @ weights.T) <= 4 * 2**-23 * np.sqrt(n) * size).all()


def test_floats_are_rounded_to_the_nearest_bfloat16() -> None:
    """Halves to the even one, the largest to infinity, subnormal numbers as all others; a NaN stays one."""
    bits = np.arange(0, 1 << 32, 65_521, dtype=np.uint64).astype(np.uint32)
    halves = np.arange(0x8000, 1 << 32, 1 << 16, dtype=np.uint64).astype(np.uint32)
    x = np.concatenate([bits, halves]).view(np.float32)
    x = np.resize(x, (7, len(x) // 7 + 1))
    found = (kernels.in_bf16(x).astype(np.uint32) << 16).view(np.float32)
    assert same_bits(found, bf16(x))


@pytest.mark.parametrize("function", PRODUCTS)
@pytest.mark.parametrize("tiny", ["weights", "activations", "products"])
def test_products_of_bf16_may_lose_what_is_subnormal(function: str, tiny: str) -> None:
    """An instruction takes it for 0; nothing else is lost, and nothing becomes a NaN."""
    small, one = np.float32(2.0**-130), np.float32(1.0)
    w, a = {"weights": (small, one), "activations": (one, small), "products": (np.float32(2.0**-70),) * 2}[tiny]
    weights, x = np.full((5, 64), w, np.float32), np.full((6, 64), a, np.float32)
    weights[:, 7], x[:, 7] = 3.0, 5.0
    rows = gguf.quantize(weights, BF16).view(np.uint8).reshape(5, -1)
    assert (kernels.product("BF16", function, x, rows, 1) == 15.0).all()


@pytest.mark.parametrize("function", PRODUCTS)
@pytest.mark.parametrize("name", sorted(set(FORMATS) - FLOATS))
def test_large_small_and_zero_activations(name: str, function: str, passes: int) -> None:
    n = columns(name)
    rows = kernels.random_rows(name, 4, n)
    x = np.random.default_rng(7).standard_normal((6, n)).astype(np.float32)
    plain = kernels.product(name, function, x, rows, passes)
    for factor in (2.0**60, 2.0**-60):
        scaled = kernels.product(name, function, x * np.float32(factor), rows, passes)
        assert np.allclose(scaled / factor, plain, rtol=1e-6, atol=1e-6 * abs(plain).max())
    assert not kernels.product(name, function, 0 * x, rows, passes).any()


def numbers_of(packed: kernels.Bytes, token: int, group: int, n: int, tile: int, passes: int) -> dict[str, Any]:
    """What lies in memory for a group of a token."""
    size, room = record_bytes(1, passes), -(-n // 256)
    group += -n % 256 // 32 if group >= n // 256 * 8 else 0
    if tile:
        number = token // tile * 8 * room + group % 8 * room + group // 8
        record = packed[number * tile * size :][: tile * size]
        by_depth = record[: 32 * passes * tile].view(np.int8).reshape(passes, -1, tile, target().depth)
        bytes_ = by_depth[:, :, token % tile]
        rows = record[32 * passes * tile :].view(np.float32).reshape(ROWS, tile)[:, token % tile]
        scale, shift, sums32, sums16 = rows[0], rows[1], rows[2], rows[3:5]
        starts = rows[5:8].copy().view(np.int32)
        origin = MAGIC_BITS if starts_with_magic(passes) else 0
        totals32, *totals16 = (origin - starts) / ZERO if target().takes_any_byte else starts
    else:
        place = packed[token * flat_bytes(n, passes) :][: flat_bytes(n, passes)]
        columns = 256 * room
        bytes_ = place[: passes * columns].view(np.int8).reshape(passes, columns)[:, 32 * group :][:, :32]
        floats = place[-columns:].view(np.float32)
        groups = columns // 32
        scale, sums32 = floats[group], floats[groups + group]
        shift = np.float64(-MAGIC) * scale
        sums16 = floats[2 * groups + 2 * group :][:2]
        whole = floats.view(np.int32)
        totals32, totals16 = whole[4 * groups + group], whole[5 * groups + 2 * group :][:2]
    parts = bytes_.reshape(passes, 32).astype(int)
    q = parts[0] if passes == 1 else 128 * parts[0] + parts[1]
    return {"q": q, "scale": scale, "shift": shift, "sums": [sums32, *sums16], "totals": [totals32, *totals16]}


def best_rounding(x: NDArray[np.float64], largest: int) -> tuple[NDArray[np.int64], float]:
    """A group as whole numbers and their scale, in float64: the largest is `largest`, or in 8 bits 126 or 125 if that
    comes nearer, and the scale is the best one for them in the sum of squares."""
    best = (np.zeros(32, np.int64), 0.0, np.inf)
    for top in (127, 126, 125) if largest == 127 else (largest,):
        q = np.rint(x * (top / abs(x).max()))
        scale = (q @ x) / (q @ q)
        best = min(best, (q.astype(np.int64), scale, ((q * scale - x) ** 2).sum()), key=lambda one: one[2])
    return best[:2]


@pytest.mark.parametrize("tile", [0, 5])
@pytest.mark.parametrize("groups", [1, 2, 3, 4, 5, 6, 7, 8, 9])
def test_activations_are_rounded_to_multiples_of_a_scale(tile: int, passes: int, groups: int) -> None:
    n, count = 32 * groups, 7
    x = np.random.default_rng(8).standard_normal((count, n)).astype(np.float32)
    packed = kernels.quantized(x, tile, passes)
    for token in range(count):
        for group in range(groups):
            found, wanted = numbers_of(packed, token, group, n, tile, passes), x[token, 32 * group :][:32]
            q, scale = found["q"], float(found["scale"])
            expected, best_scale = best_rounding(wanted.astype(np.float64), LARGEST[passes])
            assert (q == expected).all()
            assert scale == pytest.approx(best_scale, rel=2**-20)
            assert float(found["shift"]) == -MAGIC * scale, "exact"
            sums = [q.sum(), q[:16].sum(), q[16:].sum()]
            assert found["totals"] == sums
            assert found["sums"] == pytest.approx(np.array(sums) * scale, rel=1e-6, abs=1e-6)


def test_activations_of_any_size_are_rounded(passes: int) -> None:
    sizes = np.float32([1e-45, 1e-39, 1e-30, 1e30, 3e38])
    x = sizes[:, None] * np.random.default_rng(9).uniform(-1, 1, (5, 32)).astype(np.float32)
    packed = kernels.quantized(x, 0, passes)
    for token in range(5):
        found = numbers_of(packed, token, 0, 32, 0, passes)
        assert abs(found["q"] * float(found["scale"]) - x[token]).max() <= float(sizes[token]) / LARGEST[passes] + 1e-38
