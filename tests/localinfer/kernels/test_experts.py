"""Sorting (token, expert) pairs by expert: experts with few rows in one group, the others in tiles."""

import kernels
import numpy as np
import pytest

N_EXPERT, USED, TILE, MAX_TILE = 9, 3, 4, 2


@pytest.mark.parametrize("share", [1, 2])  # of the ids that stand for the same expert
@pytest.mark.parametrize("tokens", [1, 2, 5, 13])
def test_each_pair_has_a_row_of_its_expert(tokens: int, share: int) -> None:
    rng = np.random.default_rng(tokens)
    ids = np.stack([rng.permutation(N_EXPERT)[:USED] for _ in range(tokens)]).astype(np.int32)
    ids[: tokens // 2, 0] = [
        next(each for each in (7, 8) if each not in remaining) for remaining in ids[: tokens // 2, 1:]
    ]
    pairs, rows, n_expert = ids.size, ids.size + N_EXPERT * (TILE - 1), -(-N_EXPERT // share)
    actual = {
        "small_rows": np.zeros(1, np.int64), "small_order": np.full(rows, -9, np.int32),
        "small_runs": np.zeros(1 + 3 * N_EXPERT, np.int64),
        "large_rows": np.zeros(1, np.int64), "large_order": np.full(rows, -9, np.int32),
        "large_runs": np.zeros(1 + 3 * N_EXPERT, np.int64), "pair_rows": np.zeros(pairs, np.int32),
    }  # fmt: skip
    arguments = {"tokens": np.array([tokens]), "ids": ids, "share": share, "n_expert": n_expert, "used": USED, **actual}
    kernels.run("localinfer.kernels.experts:sort_by_expert", arguments, 1, tile=TILE, max_small_rows=MAX_TILE)

    of_expert = {expert: np.flatnonzero(ids.ravel() // share == expert) for expert in range(n_expert)}
    for name, tile in (("small", 1), ("large", TILE)):
        runs = actual[f"{name}_runs"][1:].reshape(-1, 3)[: actual[f"{name}_runs"][0]]
        expected = [each for each, own in of_expert.items() if len(own) and (len(own) > MAX_TILE) == (tile > 1)]
        assert runs[:, 0].tolist() == expected
        row = 0
        for expert, first, count in runs:
            assert first == row
            order = actual[f"{name}_order"][first:]
            np.testing.assert_array_equal(order[:count], of_expert[expert])
            row += -(-count // tile) * tile
            assert (order[count : row - first] == -1).all()
        assert actual[f"{name}_rows"][0] == row
    for pair, position in enumerate(actual["pair_rows"]):
        order = actual["small_order"][position] if position >= 0 else actual["large_order"][-1 - position]
        assert order == pair


@pytest.mark.parametrize("has_table", [False, True])
def test_the_router_or_the_number_of_a_token_chooses_experts(has_table: bool) -> None:
    rng, tokens, n_vocab = np.random.default_rng(1), 7, 20
    logits = 4 * rng.standard_normal((tokens, N_EXPERT), np.float32)
    table = np.stack([rng.permutation(N_EXPERT)[:USED] for _ in range(n_vocab)]).astype(np.int32)
    token_ids, bias = rng.integers(0, n_vocab, tokens, np.int32), rng.standard_normal(N_EXPERT, np.float32)
    ids, weights = np.zeros((tokens, USED), np.int32), np.zeros((tokens, USED), np.float32)
    probabilities = np.sqrt(np.logaddexp(0, logits.astype(np.float64)))
    arguments = {
        "tokens": np.array([tokens]), "logits": logits, "bias": bias, "table": table if has_table else 0,
        "token_ids": token_ids, "n_expert": N_EXPERT, "groups": 1, "groups_used": 1, "used": USED, "scale": 1.5,
        "ids": ids, "weights": weights,
    }  # fmt: skip
    kernels.run("localinfer.kernels.experts:route", arguments, 2, gating="sqrt_softplus", normed=1, best=1)
    expected = table[token_ids] if has_table else np.argsort(-(probabilities + bias), axis=1)[:, :USED]
    np.testing.assert_array_equal(ids, expected)
    chosen = np.take_along_axis(probabilities, ids.astype(np.int64), axis=1)
    np.testing.assert_allclose(weights, 1.5 * chosen / chosen.sum(axis=1, keepdims=True), rtol=1e-5)
