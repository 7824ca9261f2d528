"""Token probabilities: those of the oracle's logits."""

from pathlib import Path

import numpy as np
import pytest
from shown import TEXT, in_terminal

from localinfer import Model, UsageError, naive
from localinfer.gguf.reader import open_gguf


def test_probabilities_are_those_of_the_oracle(model: Model, file: Path) -> None:
    found, ids = model.token_probabilities(TEXT, top=3), model.tokenize(TEXT)
    logits = naive.forward(naive.Model(open_gguf(file)), ids)[:-1]
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    own = p[np.arange(len(p)), ids[1:]]
    assert found.ids.tolist() == list(ids)
    np.testing.assert_allclose(found.probabilities[1:], own, rtol=0, atol=1e-5)
    np.testing.assert_allclose(found.predicted_probabilities[1:], -np.sort(-p, axis=1)[:, :3], rtol=0, atol=1e-5)
    entropies = -(p * np.log2(np.maximum(p, 1e-300))).sum(axis=1)
    np.testing.assert_allclose(found.entropies[1:], entropies, rtol=0, atol=1e-3)
    np.testing.assert_array_equal(found.ranks[1:], (p > own[:, None] * (1 + 1e-5)).sum(axis=1))
    assert found.perplexity == pytest.approx(np.exp(-np.log(own).mean()), rel=1e-4)
    assert (found.ranks[0], np.isnan(found.probabilities[0])) == (-1, True)


def test_a_text_is_shown_with_its_probabilities(model: Model) -> None:
    found = model.token_probabilities(TEXT)
    page = found._repr_html_()
    assert page.count("<span") == len(found.tokens)
    assert "<b>" not in page
    shown = in_terminal(found)
    assert "[red]" in shown.replace("\n", "")
    assert shown.count("\n") == 1 + TEXT.count("\n")
    assert repr(found) == f"TokenProbabilities({len(found.tokens)} tokens, perplexity {found.perplexity:.2f})"


def test_patches_change_probabilities(model: Model) -> None:
    with model.patch({"logits": lambda values, info: 0 * values}):
        found = model.token_probabilities(TEXT)
    np.testing.assert_allclose(found.probabilities[1:], 1 / model.n_vocab, rtol=1e-4)
    np.testing.assert_allclose(found.entropies[1:], np.log2(model.n_vocab), rtol=1e-4)


def test_a_single_token_has_no_probability(model: Model) -> None:
    with pytest.raises(UsageError, match="at least two tokens are required"):
        model.token_probabilities([5])
