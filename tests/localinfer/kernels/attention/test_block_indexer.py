"""The indexer of blocks, compared with float64: the largest product of each panel, and the blocks that are chosen."""

import kernels
import numpy as np
import pytest
from numpy.typing import NDArray

from localinfer.kernels.layout import PAGE_SIZE, PANEL_KEYS

PATH = "localinfer.kernels.attention.block_indexer:"
WORDS, TABLE = 8, np.array([2, 0, 3, 6, 1, 5], np.int32)  # pages that a token has memory for; those of the sequence
N, PANELS = PAGE_SIZE * len(TABLE), PAGE_SIZE // PANEL_KEYS
HIDDEN, EMPTY = -np.inf, np.iinfo(np.int32).max
Positions, Floats = NDArray[np.int64], NDArray[np.float32]


def segments(tokens: int) -> NDArray[np.int64]:
    return np.array([1, tokens, TABLE.ctypes.data, len(TABLE)])


def in_pages(positions: Positions) -> NDArray[np.int32]:
    """Return the positions of the entries of the sequence where kernels read them."""
    result = np.full((WORDS, PAGE_SIZE), EMPTY, np.int32)
    result[TABLE] = positions.reshape(len(TABLE), PAGE_SIZE)
    return result


@pytest.mark.parametrize(("heads", "dim", "size"), [(4, 32, 128), (2, 64, 24), (5, 96, 16)])
def test_the_largest_products_of_each_panel_agree_with_float64(heads: int, dim: int, size: int) -> None:
    rng, tokens, sinks = np.random.default_rng(heads), 3, 1
    q, keys = rng.standard_normal((tokens, heads, dim), np.float32), rng.standard_normal((N, dim), np.float32)
    oldest, newest = np.array([0, 5, 266], np.int32), np.array([70, 71, 330], np.int32)
    cache = np.zeros((WORDS, PANELS, dim, PANEL_KEYS), np.float32)
    cache[TABLE] = keys.reshape(len(TABLE), PANELS, PANEL_KEYS, dim).swapaxes(2, 3)
    scores = np.full((tokens, heads, PANELS * WORDS, 2), np.nan, np.float32)
    arguments = {
        "tokens": np.array([tokens]), "q": q, "heads": heads, "dim": dim, "k_cache": cache,
        "entry_positions": in_pages(np.arange(N)), "oldest": oldest, "newest": newest, "sink_pages": sinks,
        "segments": segments(tokens), "words": WORDS, "size": size, "scores": scores,
    }  # fmt: skip
    kernels.run(f"{PATH}score_panels", arguments, threads=2)
    at = np.arange(N)
    seen = (at <= newest[:, None]) & ((at >= oldest[:, None]) | (at < sinks * PAGE_SIZE))
    products = np.where(seen[:, None], np.einsum("thd,nd->thn", q.astype(np.float64), keys), HIDDEN)
    np.testing.assert_allclose(scores[:, :, : N // PANEL_KEYS], of_panels(products, at, size), rtol=0, atol=1e-4)
    assert np.isnan(scores[:, :, N // PANEL_KEYS :]).all()


def of_panels(products: Floats, positions: Positions, size: int) -> Floats:
    """Return the largest products of entries in the block of the first entry of each panel, and of the others."""
    block, panels = (positions // size).reshape(-1, PANEL_KEYS), products.reshape(*products.shape[:2], -1, PANEL_KEYS)
    is_first = block == block[:, :1]
    return np.stack([np.where(part, panels, HIDDEN).max(axis=3) for part in (is_first, ~is_first)], axis=3)


def chosen(products: Floats, positions: Positions, queries: Positions, sinks: int, **choice: int) -> NDArray[np.bool_]:
    """Return what the kernel chooses of the entries for each token and head, (tokens, heads, N), by their products."""
    tokens, heads, _ = products.shape
    scores = np.full((tokens, heads, PANELS * WORDS, 2), np.nan, np.float32)
    scores[:, :, : N // PANEL_KEYS] = of_panels(products, positions, choice["size"])
    bits, sink_blocks = np.zeros((tokens, heads, WORDS), np.uint64), -(-sinks // choice["size"])
    arguments = {
        "tokens": np.array([tokens]), "scores": scores, "heads": heads, "entry_positions": in_pages(positions),
        "query_positions": queries.astype(np.int32), "segments": segments(tokens), "words": WORDS,
        "places": sink_blocks + N // choice["size"] + 3, "sink_blocks": sink_blocks, "chosen": bits, **choice,
    }  # fmt: skip
    kernels.run(f"{PATH}choose_blocks", arguments, threads=3)
    return np.unpackbits(bits.view(np.uint8), axis=2, bitorder="little")[..., :N].astype(bool)


def expected(
    products: Floats, positions: Positions, query: int, size: int, top_k: int, local: int
) -> NDArray[np.bool_]:
    """Return the visible entries of the chosen blocks of a token, for each head."""
    result, block = np.zeros(products.shape, bool), positions // size
    for chosen, scores in zip(result, products, strict=True):
        numbers, own = np.unique(block[scores > HIDDEN]), query // size
        best = [scores[block == number].max() for number in numbers]
        best = np.where((numbers > own - local) & (numbers <= own), np.inf, best)
        chosen[:] = (scores > HIDDEN) & np.isin(block, numbers[np.argsort(-best, kind="stable")[:top_k]])
    return result


def in_ring(query: int, sinks: int) -> Positions:
    """Return the position in each entry of a ring buffer, the last one up to a query, after entries for sinks."""
    begin, entries = PAGE_SIZE * (sinks > 0), np.arange(N)
    at = sinks + entries - begin
    at += (query - at) // (N - begin) * (N - begin)
    return np.where(entries < begin, np.where(entries < sinks, entries, EMPTY), np.where(at < sinks, EMPTY, at))


@pytest.mark.parametrize("sinks", [0, 5, 48])
@pytest.mark.parametrize(("size", "top_k", "local"), [(128, 2, 1), (16, 5, 2), (41, 3, 0), (32, 1, 1), (16, 40, 1)])
def test_the_best_blocks_are_chosen_also_in_a_ring_buffer(size: int, top_k: int, local: int, sinks: int) -> None:
    rng, heads, window = np.random.default_rng(size), 3, 200
    for query in (20, 63, 64, 130, 383, 700, 801, 808):
        positions = in_ring(query, sinks)
        seen = (positions <= query) & ((positions > query - window) | (positions < sinks))
        products = np.where(seen, rng.standard_normal((1, heads, N), np.float32), HIDDEN)
        choice = {"size": size, "top_k": top_k, "local": local}
        actual = chosen(products, positions, np.array([query]), sinks, **choice)
        np.testing.assert_array_equal(actual[0] & seen, expected(products[0], positions, query, **choice))
