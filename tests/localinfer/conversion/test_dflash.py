"""Conversion of DFlash and DSpark heads: what their config.json may say, and what is refused."""

from collections.abc import Mapping
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
from localinfer.gguf.source import Field


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


@pytest.mark.parametrize(("own", "window"), [({"use_swa": True}, 20), ({"use_swa": True, "swa_window_size": 32}, 32)])
def test_windows_of_all_layers(own: dict[str, Any], window: int, head: Path, model: Path) -> None:
    edit(head, own, sliding_window=20)
    assert open_checkpoint(head, model).fields["dflash.attention.sliding_window"].value == window


def test_embedding_that_config_json_denies_is_left_out(head: Path, model: Path) -> None:
    tensors, embedding = load_file(head / "model.safetensors"), np.zeros((reference_models.N_VOCAB, 96), np.float32)
    save_file({**tensors, "embed_tokens.weight": embedding}, head / "model.safetensors")
    assert "token_embd.weight" in open_checkpoint(head, model).tensors
    edit(head, {}, has_embed_tokens=False)
    assert "token_embd.weight" not in open_checkpoint(head, model).tensors


def test_logits_of_dflash_are_scaled_and_capped(head: Path, model: Path) -> None:
    edit(head, {"output_multiplier": 0.5, "final_logit_softcapping": 20.0})
    fields = open_checkpoint(head, model).fields
    assert fields["dflash.logit_scale"].value == np.float32(0.5)
    assert fields["dflash.final_logit_softcapping"].value == np.float32(20)


def test_assistant_of_muse_glimmer_is_a_dflash_head(head: Path, model: Path) -> None:
    """Its keys are not nested, all its layers have a window, and two of its tensors have other names."""
    expected = open_checkpoint(head, model)
    names = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}
    tensors = load_file(head / "model.safetensors")
    save_file({names.get(name, name): values for name, values in tensors.items()}, head / "model.safetensors")

    def change(config: dict[str, Any]) -> None:
        config |= {"architectures": ["MuseGlimmerAssistantModel"], "sliding_window": 24, **config.pop("dflash_config")}
        config["layer_types"] = ["sliding_attention"] * 2
        del config["vocab_size"]  # is that of the model

    edit_json(head / "config.json", change)
    actual = open_checkpoint(head, model)
    for name, tensor in expected.tensors.items():
        np.testing.assert_array_equal(actual.tensors[name].load(), tensor.load(), err_msg=name)
    assert actual.fields["dflash.attention.sliding_window"].value == 24
    for key in ("dflash.target_layers", "dflash.block_size", "tokenizer.ggml.mask_token_id"):
        assert actual.fields[key] == expected.fields[key]


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


def test_head_in_the_checkpoint_of_its_model(tmp_path: Path) -> None:
    """With a target, the head is converted; without one, the model is. Routers of layers may have biases for rows of
    images, which are left out."""
    head, model = dspark("dspark-deepseek4", tmp_path)
    alone, plain = open_checkpoint(head, model), open_checkpoint(model)
    both = separate_heads.checkpoint_with_model("dspark-deepseek4", tmp_path / "both")
    tensors = load_file(both / "model.safetensors")
    further = {f"mtp.{layer}.ffn.gate.bias_vl": np.ones(8, np.float32) for layer in range(2)}
    save_file(tensors | further, both / "model.safetensors")
    for found, expected in ((open_checkpoint(both, both), alone), (open_checkpoint(both), plain)):
        assert without_general(found.fields) == without_general(expected.fields)
        assert found.tensors.keys() == expected.tensors.keys()
        for name, tensor in found.tensors.items():
            np.testing.assert_array_equal(tensor.load(), expected.tensors[name].load(), err_msg=name)


def without_general(fields: Mapping[str, Field]) -> dict[str, Field]:
    """Return the fields without the description of the model, which contains its name and size."""
    return {key: field for key, field in fields.items() if not key.startswith("general.")}


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
        ({"conv_kernel_size": 2, "conv_group_size": 36}, {}, "conv_group_size: is 36; it must divide "),
        ({"conv_kernel_size": 2, "conv_group_size": 32}, {}, "selector_rank"),
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
        ({"markov_head_type": "gated"}, {}),
        ({}, {"markov_head_type": "gated"}),
    ],
)
def test_unsupported_configuration(own: dict[str, Any], values: dict[str, Any], head: Path, model: Path) -> None:
    edit(head, own, **values)
    with pytest.raises(UnsupportedError, match="is not supported"):
        open_checkpoint(head, model)
