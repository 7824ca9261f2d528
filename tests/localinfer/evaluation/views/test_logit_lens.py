"""The logit lens: its predictions are those of the oracle's output layer for each residual stream."""

from pathlib import Path

import numpy as np
import pytest
from shown import TEXT, in_terminal

from localinfer import Model, UsageError, naive
from localinfer.gguf.reader import open_gguf


def test_predictions_are_those_of_the_oracle(model: Model, file: Path) -> None:
    lens, ids, oracle = model.lens(TEXT, top=4), model.tokenize(TEXT), naive.Model(open_gguf(file))
    builder, own = naive.run_builder(oracle, ids), naive.forward(oracle, ids).argmax(axis=1)
    assert lens.points == ["blk.0.resid_pre", *(f"blk.{number}.resid_post" for number in range(7))]
    for number, point in enumerate(lens.points):
        x = builder.norm(builder.points[point], "output_norm")
        logits = np.concatenate([*naive.output(oracle, x)], axis=1)
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        best = -np.sort(-p, axis=1)[:, :4]
        np.testing.assert_allclose(lens.probabilities[number], best, rtol=0, atol=1e-4)
        np.testing.assert_allclose(np.take_along_axis(p, lens.ids[number], axis=1), best, rtol=0, atol=1e-4)
        entropies = -(p * np.log2(np.maximum(p, 1e-300))).sum(axis=1)
        np.testing.assert_allclose(lens.entropies[number], entropies, rtol=0, atol=1e-3)
        ranks = (logits > logits[np.arange(len(ids)), own][:, None] + 1e-5).sum(axis=1)
        np.testing.assert_array_equal(lens.final_ranks[number], ranks)
    assert not lens.final_ranks[-1].any()


def test_a_lens_is_shown_as_a_table(model: Model) -> None:
    lens = model.lens(TEXT)
    assert repr(lens) == f"LogitLens(8 points, {len(model.tokenize(TEXT))} tokens)"
    page = lens._repr_html_()
    assert page.count("<tr>") == 9
    assert "<b>" not in page
    assert "blk.6.resid_post" in in_terminal(lens)


def test_a_lens_shows_what_patches_do(model: Model) -> None:
    lens = model.lens(TEXT)
    with model.patch({"blk.3.resid_post": lambda values, info: 0 * values + 1}):
        patched = model.lens(TEXT)
    np.testing.assert_array_equal(lens.probabilities[:4], patched.probabilities[:4])
    assert (lens.probabilities[4:] != patched.probabilities[4:]).any(axis=(1, 2)).all()


def test_a_lens_has_at_least_one_prediction(model: Model) -> None:
    with pytest.raises(UsageError, match=r"^top: must be at least 1, not 0$"):
        model.lens(TEXT, top=0)
