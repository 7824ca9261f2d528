"""The indexer of sparse attention, compared with float64: scores, and the positions that are chosen by them."""

import kernels
import numpy as np
import pytest
from numpy.typing import NDArray

from localinfer.kernels.layout import PAGE_SIZE, PANEL_KEYS

PATH = "localinfer.kernels.attention.indexer:"
WORDS = 4  # pages that a token has memory for
TABLE = np.array([2, 0, 3], np.int32)  # the pages of the sequence
HIDDEN = -np.inf


def segments(tokens: int, pages: int) -> NDArray[np.int64]:
    return np.array([1, tokens, TABLE.ctypes.data, pages])


@pytest.mark.parametrize(("heads", "dim", "weighted"), [(4, 32, True), (6, 64, False), (9, 96, True)])
def test_scores_agree_with_float64(heads: int, dim: int, weighted: bool) -> None:
    rng, tokens, n = np.random.default_rng(heads), 3, PAGE_SIZE * len(TABLE)
    q, weights = rng.standard_normal((tokens, heads, dim), np.float32), rng.standard_normal((tokens, heads), np.float32)
    keys, newest = rng.standard_normal((n, dim), np.float32), np.array([70, 71, 130], np.int32)
    oldest, sinks = np.array([0, 5, 66], np.int32), 1
    cache = np.zeros((WORDS, PAGE_SIZE // PANEL_KEYS, dim, PANEL_KEYS), np.float32)
    cache[TABLE] = keys.reshape(len(TABLE), PAGE_SIZE // PANEL_KEYS, PANEL_KEYS, dim).swapaxes(2, 3)
    positions = np.full((WORDS, PAGE_SIZE), 1 << 30, np.int32)
    positions[TABLE] = np.arange(n).reshape(len(TABLE), PAGE_SIZE)
    scores = np.full((tokens, WORDS * PAGE_SIZE), np.nan, np.float32)
    arguments = {
        "tokens": np.array([tokens]), "q": q, "weights": weights, "weight_stride": weights.strides[0] * weighted,
        "heads": heads, "dim": dim, "k_cache": cache, "entry_positions": positions, "oldest": oldest, "newest": newest,
        "sink_pages": sinks, "compressed_page": 0, "segments": segments(tokens, len(TABLE)), "words": WORDS,
        "scores": scores,
    }  # fmt: skip
    kernels.run(f"{PATH}score_positions", arguments, threads=2)
    products = np.maximum(np.einsum("thd,nd->thn", q.astype(np.float64), keys), 0)
    expected = np.einsum("thn,th->tn", products, weights if weighted else weights[:1].repeat(tokens, axis=0))
    at = np.arange(n)
    seen = (at <= newest[:, None]) & ((at >= oldest[:, None]) | (at < sinks * PAGE_SIZE))
    np.testing.assert_allclose(scores[:, :n], np.where(seen, expected, HIDDEN), rtol=0, atol=1e-4)
    assert np.isnan(scores[:, n:]).all()


def chosen(scores: NDArray[np.float32], top_k: int, threads: int, compressed_page: int = 0) -> NDArray[np.bool_]:
    """Return what the kernel chooses of the entries of each token, (tokens, entries)."""
    tokens, pages = len(scores), scores.shape[1] // PAGE_SIZE
    given = np.full((tokens, WORDS * PAGE_SIZE), np.nan, np.float32)
    given[:, : scores.shape[1]] = scores
    bits = np.zeros((tokens, WORDS), np.uint64)
    arguments = {
        "tokens": np.array([tokens]), "scores": given, "segments": segments(tokens, pages), "words": WORDS,
        "compressed_page": compressed_page, "top_k": top_k, "chosen": bits,
    }  # fmt: skip
    kernels.run(f"{PATH}choose_positions", arguments, threads)
    return np.unpackbits(bits.view(np.uint8), axis=1, bitorder="little")[:, : scores.shape[1]].astype(bool)


@pytest.mark.parametrize("top_k", [1, 7, 64, 150])
@pytest.mark.parametrize("kind", ["different", "equal", "often 0"])
def test_the_largest_scores_are_chosen_and_the_first_of_equal_ones(kind: str, top_k: int) -> None:
    rng, shape = np.random.default_rng(top_k), (5, PAGE_SIZE * len(TABLE))
    scores = rng.standard_normal(shape, np.float32) * np.float32(10) ** rng.integers(-20, 20, shape).astype(np.float32)
    scores = {"different": scores, "equal": np.full_like(scores, -2.5), "often 0": np.maximum(scores, 0)}[kind]
    for token, seen in enumerate((3, 64, 65, 130, shape[1])):
        scores[token, seen:] = HIDDEN
    order = np.argsort(-scores, axis=1, kind="stable")[:, :top_k]
    expected = np.zeros(shape, bool)
    np.put_along_axis(expected, order, True, axis=1)
    np.testing.assert_array_equal(chosen(scores, top_k, 3), expected & (scores > HIDDEN))


def test_only_compressed_entries_are_chosen_by_their_scores() -> None:
    rng, tokens, dim = np.random.default_rng(3), 2, 32
    q, weights = rng.standard_normal((tokens, 4, dim), np.float32), rng.standard_normal((tokens, 4), np.float32)
    cache = rng.standard_normal((WORDS, PAGE_SIZE // PANEL_KEYS, dim, PANEL_KEYS), np.float32)
    positions = np.full((WORDS, PAGE_SIZE), 1 << 30, np.int32)
    positions[TABLE] = 4 * np.arange(len(TABLE) * PAGE_SIZE).reshape(len(TABLE), PAGE_SIZE)
    scores, newest = np.full((tokens, WORDS * PAGE_SIZE), np.nan, np.float32), np.array([300, 700], np.int32)
    arguments = {
        "tokens": np.array([tokens]), "q": q, "weights": weights, "weight_stride": weights.strides[0], "heads": 4,
        "dim": dim, "k_cache": cache, "entry_positions": positions, "oldest": newest - 9, "newest": newest,
        "sink_pages": 0, "compressed_page": 1, "segments": segments(tokens, len(TABLE)), "words": WORDS,
        "scores": scores,
    }  # fmt: skip
    kernels.run(f"{PATH}score_positions", arguments, threads=3)
    n = PAGE_SIZE * len(TABLE)
    keys = cache[TABLE].swapaxes(2, 3).reshape(n, dim).astype(np.float64)
    products = np.maximum(np.einsum("thd,nd->thn", q.astype(np.float64), keys), 0)
    expected = np.where(4 * np.arange(n) <= newest[:, None], np.einsum("thn,th->tn", products, weights), HIDDEN)
    assert np.isnan(scores[:, :PAGE_SIZE]).all()
    np.testing.assert_allclose(scores[:, PAGE_SIZE:n], expected[:, PAGE_SIZE:], rtol=0, atol=1e-4)

    bits = chosen(scores[:, :n], 5, 2, compressed_page=1)
    best = np.argsort(-expected[:, PAGE_SIZE:], axis=1, kind="stable")[:, :5]
    of_runs = np.zeros((tokens, n - PAGE_SIZE), bool)
    np.put_along_axis(of_runs, best, True, axis=1)
    np.testing.assert_array_equal(bits[:, PAGE_SIZE:], of_runs & np.isfinite(expected[:, PAGE_SIZE:]))
    assert bits[:, :PAGE_SIZE].all()


@pytest.mark.parametrize(("size", "top_k"), [(2, 3), (4, 16), (7, 5), (64, 1), (100, 2)])
@pytest.mark.parametrize("kind", ["different", "often 0"])
def test_the_positions_of_the_best_runs_are_chosen_and_those_after_the_last_one(
    kind: str, size: int, top_k: int
) -> None:
    rng, positions = np.random.default_rng(size), np.array([0, 1, 62, 63, 64, 129, 300, 319], np.int32)
    runs, tokens, words = 320 // size, len(positions), 6
    scores = np.full((tokens, WORDS * PAGE_SIZE), np.nan, np.float32)
    of_runs = rng.standard_normal((tokens, runs), np.float32)
    of_runs = np.maximum(of_runs, 0) if kind == "often 0" else of_runs
    ends = size * np.arange(1, runs + 1) - 1
    of_runs[ends > positions[:, None]] = HIDDEN
    scores[:, :runs] = of_runs
    bits = np.full((tokens, words), ~np.uint64(0), np.uint64)
    arguments = {
        "tokens": np.array([tokens]), "scores": scores, "query_positions": positions, "run_words": WORDS, "size": size,
        "top_k": top_k, "words": words, "chosen": bits,
    }  # fmt: skip
    kernels.run(f"{PATH}choose_runs", arguments, threads=3)
    actual = np.unpackbits(bits.view(np.uint8), axis=1, bitorder="little").astype(bool)
    at = np.arange(words * PAGE_SIZE)
    for token, position in enumerate(positions):
        best = np.argsort(-of_runs[token], kind="stable")[:top_k]
        chosen = np.isin(at // size, best[of_runs[token, best] > HIDDEN]) | (at >= (position + 1) // size * size)
        np.testing.assert_array_equal(actual[token, : position + 1], chosen[: position + 1])
        page_end = -(-(position + 1) // PAGE_SIZE) * PAGE_SIZE
        assert not actual[token, position + 1 : page_end].any()
        assert actual[token, page_end:].all()  # not written
