"""The recurrences of RWKV-6 and of gated linear attention, compared with float64: slow and fast decays, any split into
batches, any number of threads."""

import kernels
import numpy as np
import pytest

from localinfer.kernels.layout import state_strip

TOKENS = 13
WKV = "localinfer.kernels.recurrent.wkv"


def decays(w: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Return what the kernel `decay` makes of w, (tokens, n)."""
    result = w.copy()
    arguments = {"tokens": np.array([len(w)]), "w": result, "bias": bias, "n": w.shape[1]}
    kernels.run(f"{WKV}:decay", arguments, 2)
    return result


def test_decays_agree_with_float64() -> None:
    w, bias = np.linspace(-12, 6, TOKENS * 32, dtype=np.float32).reshape(TOKENS, 32), np.full(32, -0.5, np.float32)
    np.testing.assert_allclose(decays(w, bias), np.exp(-np.exp(w.astype(np.float64) + bias)), rtol=0, atol=2e-7)
    assert decays(np.full((1, 32), 90, np.float32), bias).max() == 0


@pytest.mark.parametrize(
    ("rule", "heads", "groups", "size"),
    [("decayed", 3, 3, 32), ("decayed", 2, 2, 64), ("gated", 4, 2, 32), ("gated", 3, 1, 64)],
)
def test_recurrence_agrees_with_float64(rule: str, heads: int, groups: int, size: int) -> None:
    rng, n = np.random.default_rng(size), heads * size
    r = rng.standard_normal((TOKENS, n), np.float32)
    k, v = rng.standard_normal((2, TOKENS, groups * size), np.float32)
    w = np.exp(-np.exp(rng.uniform(-9, 1, (TOKENS, n)))).astype(np.float32)
    first, strip = rng.standard_normal((heads, size), np.float32), state_strip(size)
    state = np.zeros((heads, size // strip, size, strip), np.float32)

    def run(begin: int, end: int, threads: int) -> np.ndarray:
        y = np.full((end - begin, n), np.nan, np.float32)
        arguments = {
            "tokens": np.array([end - begin]), "r": r[begin:end], "w": w[begin:end], "k": k[begin:end],
            "v": v[begin:end], "first": first, "heads": heads, "groups": groups,
            "segments": np.array([1, end - begin, 0, 0]), "state": state, "y": y,
        }  # fmt: skip
        kernels.run(f"{WKV}:recur_{rule}", arguments, threads, size=size)
        return y

    whole, end_state = run(0, TOKENS, 1), state.copy()
    each = (values.astype(np.float64).reshape(TOKENS, -1, size) for values in (r, w, k, v))
    expected, states = [], np.zeros((heads, size, size))
    for r_t, w_t, k_t, v_t in zip(*each, strict=True):
        k_t, v_t = (np.repeat(values, heads // groups, axis=0) for values in (k_t, v_t))
        added = k_t[:, :, None] * v_t[:, None]
        if rule == "gated":
            states = w_t[:, :, None] * states + (1 - w_t)[:, :, None] * added
            expected.append(np.einsum("hk,hkv->hv", r_t, states).ravel() * size**-0.5)
        else:
            expected.append(np.einsum("hk,hkv->hv", r_t, states + first[:, :, None] * added).ravel())
            states = w_t[:, :, None] * states + added
    np.testing.assert_allclose(whole, expected, rtol=0, atol=1e-5 * np.abs(whole).max())
    state[:] = 0
    chunks = [run(begin, end, 3) for begin, end in ((0, 1), (1, 2), (2, 9), (9, TOKENS))]
    np.testing.assert_array_equal(np.concatenate(chunks), whole)
    np.testing.assert_array_equal(state, end_state)
