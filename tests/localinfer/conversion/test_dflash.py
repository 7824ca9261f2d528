"""Conversion of DFlash heads: what their config.json may say, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference_models
import separate_heads
from checkpoints import edit_json

from localinfer.conversion import open_checkpoint
from localinfer.errors import LocalInferError, UnsupportedError, UsageError


@pytest.fixture
def head(tmp_path: Path) -> Path:
    return separate_heads.checkpoint("dflash", tmp_path)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return reference_models.checkpoint("qwen35", tmp_path)


def edit(head: Path, own: dict[str, Any], **values: Any) -> None:
    """Change values of config.json, and of its nested `dflash_config`."""
    edit_json(head / "config.json", lambda config: config.update(values))
    edit_json(head / "config.json", lambda config: config["dflash_config"].update(own))


def test_tokenizer_is_the_targets(head: Path, model: Path) -> None:
    found, whole = open_checkpoint(head, model), open_checkpoint(model)
    tokens = {key: field for key, field in found.fields.items() if key.startswith("tokenizer.")}
    assert tokens.pop("tokenizer.ggml.mask_token_id").value == 200
    assert tokens == {key: field for key, field in whole.fields.items() if key.startswith("tokenizer.")}


def test_windows_and_scale_of_the_nested_configuration(head: Path, model: Path) -> None:
    edit(head, {"use_swa": True, "swa_window_size": 32, "input_embedding_scale": 2.5, "block_size": 8})
    fields = open_checkpoint(head, model).fields
    assert fields["dflash.attention.sliding_window"].value == 32
    assert fields["dflash.attention.sliding_window_pattern"].data[-2:] == bytes([True, True])
    assert fields["dflash.embedding_scale"].value == np.float32(2.5)
    assert fields["dflash.block_size"].value == 8


def test_head_without_target(head: Path) -> None:
    with pytest.raises(UsageError, match=r"config\.json: is a DFlash draft head: --target-model-dir must name"):
        open_checkpoint(head)


@pytest.mark.parametrize(
    ("own", "values", "problem"),
    [
        ({"target_layer_ids": [0, 4]}, {}, r"target_layer_ids: is \[0, 4\]; it must be some of the model's 4 layers"),
        ({"target_layer_ids": []}, {}, "target_layer_ids: is "),
        ({"mask_token_id": 264}, {}, "mask_token_id: is 264; it must be a token of the vocabulary"),
        ({}, {"hidden_size": 64}, "hidden_size: is 64; it must be 96, that of its target model"),
        ({"block_size": 300}, {}, "block_size: "),
    ],
)
def test_invalid_configuration(
    own: dict[str, Any], values: dict[str, Any], problem: str, head: Path, model: Path
) -> None:
    edit(head, own, **values)
    with pytest.raises(LocalInferError, match=problem):
        open_checkpoint(head, model)


@pytest.mark.parametrize(
    ("own", "values"),
    [
        ({"selector_rank": 4}, {}),
        ({"causal": True}, {}),
        ({}, {"is_causal": True}),
        ({}, {"rope_is_neox_style": False}),
    ],
)
def test_unsupported_configuration(own: dict[str, Any], values: dict[str, Any], head: Path, model: Path) -> None:
    edit(head, own, **values)
    with pytest.raises(UnsupportedError, match="is not supported"):
        open_checkpoint(head, model)
