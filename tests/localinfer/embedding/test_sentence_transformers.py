"""Prompts, dense layers and Matryoshka dimensions of sentence-transformers."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from checkpoints import as_f32, edit_json
from sentence_transformers_files import add_dense, add_module, encoder

import localinfer
from localinfer.conversion import open_checkpoint
from localinfer.errors import UnsupportedError, UsageError

EXACT = {"threads": 1, "precision": "high"}
TEXTS = ["a bear", "a fish"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[localinfer.Model]:
    folder = tmp_path_factory.mktemp("encoder")
    with localinfer.load(as_f32(encoder(folder, default="query"), folder / "encoder.gguf"), **EXACT) as opened:
        yield opened


def test_prompts_precede_texts(model: localinfer.Model) -> None:
    expected = model.embed(["query: a bear", "query: a fish"], prompt="")
    for prompt in (None, "query: ", model.prompts.select("query")):
        np.testing.assert_array_equal(model.embed(TEXTS, prompt=prompt), expected)
    plain = model.embed(TEXTS, prompt="")
    np.testing.assert_array_equal(model.embed(TEXTS, prompt=model.prompts.select("document")), plain)
    [tokens, _] = model.embed_tokens(TEXTS)
    assert len(tokens) == len(model.tokenize("query: a bear"))


def test_prompts_do_not_precede_token_ids(model: localinfer.Model) -> None:
    ids = model.tokenize("a bear")
    np.testing.assert_array_equal(model.embed([ids]), model.embed(["a bear"], prompt=""))


def test_a_prompt_that_the_model_does_not_have(model: localinfer.Model) -> None:
    with pytest.raises(UsageError, match=r"--prompt-name\): 'passage': the model file has query, document"):
        model.prompts.select("passage")
    with pytest.raises(UsageError, match="is given, too"):
        model.prompts.select("query", "search: ")


def test_empty_prompts_are_not_written(tmp_path: Path) -> None:
    source = open_checkpoint(encoder(tmp_path, prompts={"query": "", "document": ""}))
    assert not [key for key in source.fields if "prompt" in key]


def test_prompts_without_their_tokens_in_the_pooling(tmp_path: Path) -> None:
    path = encoder(tmp_path)
    edit_json(path / "1_Pooling" / "config.json", lambda values: values.update(include_prompt=False))
    with pytest.warns(UserWarning, match="prompts are left out"):
        assert not [key for key in open_checkpoint(path).fields if "prompt" in key]


def test_dimensions_are_cut_before_normalization(model: localinfer.Model) -> None:
    whole = model.embed(TEXTS, normalize=False)
    expected = whole[:, :16] / np.linalg.norm(whole[:, :16], axis=1, keepdims=True)
    np.testing.assert_allclose(model.embed(TEXTS, dimensions=16), expected, rtol=1e-6)
    [tokens, _] = model.embed_tokens(TEXTS, dimensions=16, normalize=True)
    np.testing.assert_allclose(np.linalg.norm(tokens, axis=1), 1, rtol=1e-6)
    for dimensions in (whole.shape[1] + 1, -1):
        with pytest.raises(UsageError, match=r"--dimensions\): must be at most 96"):
            model.embed(TEXTS, dimensions=dimensions)


@pytest.mark.parametrize("name", ["bert", "gemma-embedding"])
def test_dense_layers_follow_the_pooling(name: str, tmp_path: Path) -> None:
    path = encoder(tmp_path, name, prompts={})
    with localinfer.load(as_f32(path, tmp_path / "plain.gguf"), **EXACT) as plain:
        pooled = plain.embed(TEXTS, normalize=False)
    first = add_dense(path, 2, (160, 96), activation="Tanh", bias=True)
    second = add_dense(path, 3, (64, 160))
    expected = np.tanh(pooled @ first["linear.weight"].T + first["linear.bias"]) @ second["linear.weight"].T
    source = open_checkpoint(path)
    keys = ("2_feat_in", "2_feat_out", "3_feat_in", "3_feat_out")
    lengths = [source.fields[f"{name}.dense_{key}"].value for key in keys]
    assert lengths == [96, 160, 160, 64]
    assert f"{name}.dense_3_activation" not in source.fields
    with localinfer.load(as_f32(path, tmp_path / "dense.gguf"), **EXACT) as model:
        np.testing.assert_allclose(model.embed(TEXTS, normalize=False), expected, rtol=1e-4, atol=1e-4)
        assert model.embed(TEXTS, dimensions=64).shape == (2, 64)
        with pytest.raises(UsageError, match="must be at most 64"):
            model.embed(TEXTS, dimensions=65)


@pytest.mark.parametrize(
    ("kind", "message"), [("LSTM", "module LSTM is not supported"), ("Dense", "3 modules of class Dense")]
)
def test_modules_that_are_not_supported(kind: str, message: str, tmp_path: Path) -> None:
    path = encoder(tmp_path)
    for number in (2, 3, 4):
        add_module(path, number, kind, f"{number}_{kind}", {})
    with pytest.raises(UnsupportedError, match=message):
        open_checkpoint(path)


def test_an_activation_that_is_not_supported(tmp_path: Path) -> None:
    path = encoder(tmp_path)
    add_dense(path, 2, (96, 96), activation="GELU")
    with pytest.raises(UnsupportedError, match="activation_function: 'GELU' is not supported"):
        open_checkpoint(path)
