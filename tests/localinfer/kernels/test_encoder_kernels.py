"""Kernels that only encoders of images and sounds use, compared with float64."""

import encoder_formulas
import kernels
import numpy as np
import pytest
from numpy.typing import NDArray

from localinfer.graph.properties.rope import Rope
from localinfer.naive import formulas
from localinfer.naive.encoders import gathered_rows
from localinfer.naive.encoders.cumulative_norm import cumulative_norm
from localinfer.naive.encoders.relative_positions import with_positions
from localinfer.naive.encoders.span_attention import attend_with_distances

Floats = NDArray[np.float32]


def random(*shape: int) -> Floats:
    return np.random.default_rng(len(shape)).standard_normal(shape, np.float32)


@pytest.mark.parametrize("threads", [1, 3])
def test_rows_are_averaged(threads: int) -> None:
    x, y = random(12, 48), np.empty((5, 48), np.float32)
    numbers = np.random.default_rng(1).integers(0, 12, (5, 3), np.int32)
    arguments = {"tokens": np.array([5]), "x": x, "numbers": numbers, "count": 3, "n": 48, "y": y}
    kernels.run("localinfer.kernels.residual:average_rows", arguments, threads)
    expected = gathered_rows.means(x.astype(np.float64), numbers)
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("threads", [1, 3])
def test_values_are_clipped(threads: int) -> None:
    x = random(7, 48)
    y, bounds = x.copy(), {"low": -0.25, "high": float("inf")}
    run = {"tokens": np.array([6]), "x": y, **bounds, "n": 48, "y": y}
    kernels.run("localinfer.kernels.residual:clip", run, threads)
    assert np.array_equal(y[:6], np.clip(x[:6], -0.25, np.inf))
    assert np.array_equal(y[6], x[6])


@pytest.mark.parametrize("pairs", ["quarters", "sixths"])
def test_heads_are_rotated_in_parts(pairs: str) -> None:
    rope = Rope(pairs, np.array([1.0, 0.5, 0.25, 2.0, 0.125, 3.0]))
    x, angles = random(5, 3, 14), np.arange(5)[:, None] * rope.frequencies
    y, table = np.empty((5, 3, 32), np.float32), np.concatenate([np.cos(angles), np.sin(angles)], 1, dtype=np.float32)
    arguments = {
        "tokens": np.array([5]), "x": x, "heads": 3, "size": 14, "dim": 32, "n_rot": 12, "table": table, "weight": 0,
        "eps": 1e-6, "y": y,
    }  # fmt: skip
    kernels.run("localinfer.kernels.rope:rope", arguments, 2, pairs=pairs, norm="none")
    expected = formulas.rotate(x.astype(np.float64).transpose(1, 0, 2), np.arange(5), rope).transpose(1, 0, 2)
    np.testing.assert_allclose(y[..., :14], expected, rtol=0, atol=1e-6)
    assert not y[..., 14:].any()


def test_gelu_quick() -> None:
    x = np.concatenate([random(3, 48) * 4, np.full((1, 48), -200, np.float32), np.full((1, 48), 200, np.float32)])
    gate = x.copy()
    arguments = {"tokens": np.array([5]), "up": 0, "up_n": 0, "up_first": 0, "n": 48, "gate": gate, "q": 0}
    constants = {"activation": "gelu_quick", "tile": 0, "passes": 1}
    kernels.run("localinfer.kernels.activations:gated_activation", arguments, 2, **constants)
    np.testing.assert_allclose(gate, formulas.gelu_quick(x.astype(np.float64)), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("beta", "linear_beta"), [(4.0, 25.0), (0.5, 2.0)])
def test_situ_is_as_exact_near_0_as_elsewhere(beta: float, linear_beta: float) -> None:
    sizes = np.geomspace(1e-6, 40, 48, dtype=np.float32)
    gate, up = np.repeat([sizes, -sizes], 2, axis=0), np.tile(np.array([sizes[::-1], -sizes]), (2, 1))
    activation = f"situ:{beta}:{linear_beta}"
    expected = formulas.gated_activation(activation, gate.astype(np.float64), up.astype(np.float64))
    arguments = {"tokens": np.array([4]), "up": up, "up_n": 48, "up_first": 0, "n": 48, "gate": gate, "q": 0}
    kernels.run(
        "localinfer.kernels.activations:gated_activation", arguments, 2, activation=activation, tile=0, passes=1
    )
    np.testing.assert_allclose(gate, expected, rtol=2e-6, atol=1e-20)


@pytest.mark.parametrize("has_bias", [False, True])
def test_rows_are_weighed(has_bias: bool) -> None:
    x, weight, bias, y = random(12, 48), random(3, 48), random(48), np.empty((5, 48), np.float32)
    numbers = np.random.default_rng(1).integers(-1, 12, (5, 3), np.int32)
    assert (numbers == -1).any()
    arguments = {"tokens": np.array([5]), "x": x, "numbers": numbers, "weight": weight, "bias": bias if has_bias else 0,
                 "count": 3, "n": 48, "y": y}  # fmt: skip
    kernels.run("localinfer.kernels.residual:weigh_rows", arguments, 2)
    expected = gathered_rows.weighted_sums(x.astype(np.float64), numbers, weight, bias * has_bias)
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("size", "n"), [(3, 48), (1, 16)])
def test_groups_of_rows_are_normalized_with_those_before_them(size: int, n: int) -> None:
    x, weight = 3 * random(5 * size, n) + 2, random(n)
    y, arguments = x.copy(), {"tokens": np.array([4 * size]), "weight": weight, "size": size, "n": n, "eps": 1e-3}
    kernels.run("localinfer.kernels.norm:cumulative_norm", {**arguments, "x": y}, 1)
    expected = cumulative_norm(x[: 4 * size].astype(np.float64), size, weight, 1e-3)
    np.testing.assert_allclose(y[: 4 * size], expected, rtol=0, atol=2e-6)
    assert np.array_equal(y[4 * size :], x[4 * size :])


@pytest.mark.parametrize(("n", "stride"), [(42, 48), (48, 48), (5, 32), (1, 16)])
def test_softmax_of_columns(n: int, stride: int) -> None:
    x = 20 * random(7, stride)
    y = x.copy()
    kernels.run("localinfer.kernels.residual:softmax", {"tokens": np.array([7]), "n": n, "stride": stride, "x": y}, 2)
    np.testing.assert_allclose(y[:, :n], formulas.softmax(x[:, :n].astype(np.float64)), rtol=0, atol=1e-6)
    assert not y[:, n:].any()


def transposed(x: Floats, first: int, n: int) -> Floats:
    """Return the transpose of x as the kernel computes it, rows of `n` values of which those outside are NaN."""
    y = np.full((x.shape[1], n), np.nan, np.float32)
    arguments = {"tokens": np.array([len(x)]), "x": x, "n": x.shape[1], "first": first, "y": y, "y_n": n}
    kernels.run("localinfer.kernels.relative_attention:transpose", arguments, 3)
    return y


@pytest.mark.parametrize("rows", [5, 16, 37])
def test_matrices_are_transposed(rows: int) -> None:
    x = random(rows, 32)
    y = transposed(x, 3, 64)
    assert np.array_equal(y[:, 3 : 3 + rows], x.T)
    assert np.isnan(y[:, :3]).all()
    assert np.isnan(y[:, 3 + rows :]).all()


@pytest.mark.parametrize(("rows", "window"), [(1, 40), (5, 3), (37, 40), (37, 12)])
@pytest.mark.parametrize("shared", [False, True])
def test_attention_with_relative_positions(rows: int, window: int, shared: bool) -> None:
    heads, size, cap, scale = 3, 32, 4.0 if shared else 0.0, 0.3
    q, k, v, biases = (random(n, heads * size) for n in (rows, rows, rows, 2))
    p = random(2 * rows - 1, (1 if shared else heads) * size)
    spans = [(max(0, row - window), min(rows - 1, row + window // 2)) for row in range(rows)]
    oldest, newest = (np.array(each, np.int32) for each in zip(*spans, strict=True))
    y, k_n, p_n = np.empty_like(q), -(-rows // 16) * 16, -(-(2 * rows + 40) // 16) * 16
    arguments = {
        "tokens": np.array([rows]), "q": q, "bias_u": 0 if shared else biases[0], "bias_v": 0 if shared else biases[1],
        "k": transposed(k, 0, k_n), "k_stride": k_n, "v": v, "p": transposed(p, 16, p_n), "p_stride": p_n,
        "p_step": 0 if shared else size, "first": 16 + rows - 1, "oldest": oldest, "newest": newest, "heads": heads,
        "size": size, "scale": scale, "cap": cap, "y": y,
    }  # fmt: skip
    kernels.run("localinfer.kernels.relative_attention:relative_attention", arguments, 2)
    for head in range(heads):
        part = slice(size * head, size * (head + 1))
        doubles = [each[:, part].astype(np.float64) for each in (q, k, v, biases)]
        queries = tuple(scale * (doubles[0] + (0 if shared else bias)) for bias in doubles[3])
        vectors = (p[:, :size] if shared else p[:, part]).astype(np.float64)
        expected = attend_with_distances(queries, *doubles[1:3], vectors, rows - 1, spans, cap)
        np.testing.assert_allclose(y[:, part], expected, rtol=0, atol=1e-5)


def test_attention_to_spans_of_other_rows() -> None:
    heads, size, rows, count = 2, 16, 6, 21
    q, k, v = random(rows, 32), random(count, 32), random(count, 32) + 1
    spans = [(7 * (row // 2), 7 * (row // 2) + 6) for row in range(rows)]
    oldest, newest = (np.array(each, np.int32) for each in zip(*spans, strict=True))
    y = np.empty_like(q)
    arguments = {
        "tokens": np.array([rows]), "q": q, "bias_u": 0, "bias_v": 0, "k": transposed(k, 0, 32), "k_stride": 32, "v": v,
        "p": 0, "p_stride": 0, "p_step": 0, "first": 0, "oldest": oldest, "newest": newest, "heads": heads,
        "size": size, "scale": 0.25, "cap": 0.0, "y": y,
    }  # fmt: skip
    kernels.run("localinfer.kernels.relative_attention:relative_attention", arguments, 2)
    for part in (slice(0, 16), slice(16, 32)):
        for row, (first, last) in enumerate(spans):
            keys, values = (each[first : last + 1, part].astype(np.float64) for each in (k, v))
            expected = formulas.softmax(0.25 * keys @ q[row, part]) @ values
            np.testing.assert_allclose(y[row, part], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("height", "width"), [(3, 5), (4, 2)])
def test_relative_positions_are_part_of_scores(height: int, width: int) -> None:
    """The rows of two grids: the second one repeats the places of the first."""
    heads, size, dim, n = 2, 16, 32, 2 * height * width
    q, k = random(n, heads, size), random(n + 1, heads, size)[:n].copy()
    by_row, by_column = random(2 * height - 1, size), random(2 * width, size)[: 2 * width - 1].copy()
    q_out, k_out = (np.full((n, heads, dim), np.nan, np.float32) for _ in "qk")
    arguments = {
        "tokens": np.array([n]), "q": q, "k": k, "heads": heads, "size": size, "height": height, "width": width,
        "dim": dim, "by_row": by_row, "by_column": by_column, "factor": 0.5, "q_out": q_out, "k_out": k_out,
    }  # fmt: skip
    kernels.run("localinfer.kernels.attention.relative_positions:add_dimensions", arguments, 3)
    actual = np.einsum("qhc,khc->hqk", q_out.astype(np.float64), k_out)
    tables = by_row.astype(np.float64), by_column.astype(np.float64)
    q, k = q.astype(np.float64), k.astype(np.float64)
    expected = encoder_formulas.relative_scores(q, k, tables, (height, width), 0.5)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)
    longer, keys = with_positions(q, k, tables, (height, width), 0.5)
    np.testing.assert_allclose(np.einsum("qhc,khc->hqk", longer, keys), expected, rtol=0, atol=1e-12)
    assert not q_out[:, :, size + height + width :].any()
