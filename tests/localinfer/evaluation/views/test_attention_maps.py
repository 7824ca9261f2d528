"""Attention maps: those of a trace, which architectures/test_points.py compares with the oracle."""

import base64
import io
import re

import numpy as np
import pytest
from PIL import Image
from shown import TEXT, in_terminal

from localinfer import Model, UsageError


def test_maps_have_the_weights_of_the_heads(model: Model) -> None:
    maps, ids = model.attention(TEXT), model.tokenize(TEXT)
    with model.capture("blk.*.attn_weights") as trace:
        model.logits(ids)
    assert list(maps.weights) == list(range(7))
    for layer, heads in maps.weights.items():
        np.testing.assert_array_equal(heads, trace[f"blk.{layer}.attn_weights"])
    np.testing.assert_array_equal(maps[2, 1].weights, maps.weights[2][1])
    np.testing.assert_allclose(maps.mean(2).weights, maps.weights[2].mean(axis=0))
    assert list(model.attention(ids, layers=[4, 1]).weights) == [1, 4]


def test_entropies_are_those_of_the_rows(model: Model) -> None:
    maps = model.attention(TEXT, layers=[0])
    rows = maps.weights[0].astype(float)
    expected = -(rows * np.log2(np.where(rows > 0, rows, 1))).sum(axis=2).mean(axis=1)
    np.testing.assert_allclose(maps.entropies[0], expected, rtol=1e-5)


@pytest.mark.parametrize("tokens", [20, 100])
def test_a_map_is_shown(model: Model, tokens: int) -> None:
    """A long text is a picture."""
    ids = (model.tokenize(TEXT) * 20)[:tokens]
    single = model.attention(ids, layers=[3])[3, 0]
    page = single._repr_html_()
    assert (page.count("<tr>"), page.count("<img")) == ((tokens + 1, 0) if tokens == 20 else (0, 1))
    assert "<b>" not in page
    assert repr(single) == f"AttentionMap(layer 3, head 0, {tokens} tokens)"
    shown = in_terminal(single)
    assert "100%" in shown
    assert max(map(len, shown.split("\n"))) < 300


def test_all_heads_are_shown_as_pictures(model: Model) -> None:
    maps = model.attention(TEXT, layers=[0, 5])
    pictures = re.findall(r'src="data:image/png;base64,([^"]+)"', maps._repr_html_())
    assert len(pictures) == sum(len(heads) for heads in maps.weights.values())
    with Image.open(io.BytesIO(base64.b64decode(pictures[0]))) as image:  # layer 5, head 0
        pixels = np.asarray(image)
    expected = 255 * (1 - np.sqrt(maps[5, 0].weights.clip(0, 1)))
    np.testing.assert_allclose(pixels, expected, rtol=0, atol=1)
    shown = in_terminal(maps)
    assert shown.index("layer 5") < shown.index("layer 0")


def test_what_the_model_lacks_is_an_error(model: Model) -> None:
    with pytest.raises(UsageError, match=r"^blk\.7\.attn_weights: the model has no such point"):
        model.attention(TEXT, layers=[7])
    maps = model.attention(TEXT, layers=[0])
    with pytest.raises(UsageError, match=r"^layer 0: has no head 99"):
        maps[0, 99]
    with pytest.raises(UsageError, match=r"^layer 1: not among the layers 0"):
        maps.mean(1)
