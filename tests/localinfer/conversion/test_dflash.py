"""Conversion of DFlash and DSpark heads: what their config.json may say, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference_models
import separate_heads
from checkpoints import edit_json
from safetensors.numpy import load_file, save_file

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


def test_embedding_of_the_mask_token_is_refused(head: Path, model: Path) -> None:
    (head / "mask_embedding.pt").touch()
    with pytest.raises(UnsupportedError, match=r"mask_embedding\.pt: an embedding of the mask token"):
        open_checkpoint(head, model)


def test_head_without_target(head: Path) -> None:
    with pytest.raises(UsageError, match=r"config\.json: is a DFlash draft head: --target-model-dir must name"):
        open_checkpoint(head)


@pytest.mark.parametrize(
    ("own", "values", "is_causal"),
    [({"causal": True}, {}, True), ({"causal": True}, {"is_causal": False}, False), ({}, {"is_causal": True}, True)],
)
def test_causal_attention(
    own: dict[str, Any], values: dict[str, Any], is_causal: bool, head: Path, model: Path
) -> None:
    edit(head, {"attention_value_scale": 0.5, **own}, **values)
    fields = open_checkpoint(head, model).fields
    assert fields["dflash.attention.causal"].value == is_causal
    assert fields["dflash.attention.value_scale"].value == np.float32(0.5)


def test_pairs_of_adjacent_values_become_halves(head: Path, model: Path) -> None:
    tensors, expected = load_file(head / "model.safetensors"), open_checkpoint(head, model)
    for name, values in tensors.items():
        if ".q_" in name or ".k_" in name:  # heads of 32 values
            halves = values.reshape(-1, 2, 16, *values.shape[1:])
            tensors[name] = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)
    save_file(tensors, head / "model.safetensors")
    edit(head, {}, rope_is_neox_style=False)
    actual = open_checkpoint(head, model)
    for name, tensor in expected.tensors.items():
        np.testing.assert_array_equal(actual.tensors[name].load(), tensor.load(), err_msg=name)


def dspark(name: str, folder: Path) -> tuple[Path, Path]:
    """Write the checkpoints of a DSpark head and of its model."""
    head = separate_heads.checkpoint(name, folder)
    return head, reference_models.checkpoint(separate_heads.read_description(name)["model"], folder)


@pytest.mark.parametrize(
    ("given", "has_layers", "from_anchor"), [(None, False, True), (None, True, False), (True, True, True)]
)
def test_first_draft_token(given: bool | None, has_layers: bool, from_anchor: bool, tmp_path: Path) -> None:
    head, model = dspark("dspark", tmp_path)
    values = {"sample_from_anchor": given, **({"aux_hidden_state_layer_ids": [1]} if has_layers else {})}
    edit_json(head / "config.json", lambda config: config.update(values))
    fields = open_checkpoint(head, model).fields
    assert fields["dflash.sample_from_anchor"].value == from_anchor
    assert np.frombuffer(fields["dflash.target_layers"].data[-4:], "<i4")[0] == 1


def test_output_layer_is_the_models_without_an_own_embedding(tmp_path: Path) -> None:
    """llama.cpp never writes it, and would take the embedding for it."""
    head, model = dspark("dspark", tmp_path)
    tensors, matrix = load_file(head / "model.safetensors"), np.zeros((reference_models.N_VOCAB, 96), np.float32)
    save_file({**tensors, "lm_head.weight": matrix}, head / "model.safetensors")
    assert not {"output.weight", "token_embd.weight"} & {*open_checkpoint(head, model).tensors}
    save_file({**tensors, "lm_head.weight": matrix, "embed_tokens.weight": matrix}, head / "model.safetensors")
    assert {"output.weight", "token_embd.weight"} <= {*open_checkpoint(head, model).tensors}


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types: must be full_attention"),
        ({"attention_k_eq_v": None}, "attention_k_eq_v: False is not supported"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping: 30.0 is not supported"),
    ],
)
def test_other_heads_for_gemma4(values: dict[str, Any], problem: str, tmp_path: Path) -> None:
    head, model = dspark("dspark-gemma4", tmp_path)
    edit_json(head / "config.json", lambda config: config.update(values))
    with pytest.raises(UnsupportedError, match=problem):
        open_checkpoint(head, model)


@pytest.mark.parametrize(
    ("lacking", "problem"),
    [
        ("d2t", "draft_vocab_size: is 160 of 264 tokens; there is no tensor d2t that maps them"),
        ("markov_head.markov_w2.weight", r"tensor markov_w2\.weight: is missing"),
        ("markov_head.markov_w1.weight", r"tensor markov_w1\.weight: is missing"),
    ],
)
def test_missing_tensors(lacking: str, problem: str, tmp_path: Path) -> None:
    head, model = dspark("dspark-reduced", tmp_path)
    tensors = load_file(head / "model.safetensors")
    del tensors[lacking]
    save_file(tensors, head / "model.safetensors")
    with pytest.raises(LocalInferError, match=problem):
        open_checkpoint(head, model)


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
        ({}, {"markov_head_type": "gated"}),
        ({}, {"output_multiplier": 2.0}),
    ],
)
def test_unsupported_configuration(own: dict[str, Any], values: dict[str, Any], head: Path, model: Path) -> None:
    edit(head, own, **values)
    with pytest.raises(UnsupportedError, match="is not supported"):
        open_checkpoint(head, model)
