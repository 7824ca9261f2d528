"""Converted checkpoints of all architectures, compared with llama.cpp's own conversion: data/conversion.json.xz.

benchmarks/checks/conversion.py compares what the files compute.
"""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import draft_head_models
import gguf
import numpy as np
import pytest
import recorded
import reference_models
import separate_heads
from checkpoints import edit_json
from safetensors.numpy import load_file, save_file

from localinfer.conversion import architectures, open_checkpoint
from localinfer.conversion.architecture import Architecture
from localinfer.errors import LocalInferError, UnsupportedError, UsageError
from localinfer.gguf.source import Field, Source
from localinfer.graph.properties.recurrence import RECURRENT_KEYS
from quant.ggml import TYPE_NUMBERS

CONVERSION: dict[str, Any] = recorded.read("conversion")
STACKED = re.compile(  # parts of one tensor of a GGUF file
    r"\.norms\.|\.(chunk_)?experts\.|altup\w*_projections|\.(attn|time_mixer)\.x_"
    r"|\.(attention|self_attn)\.time_maa_[rwkvg]$"
)
IDLE = {"gemma3n-25": re.compile(r"\.self_attn\.(k_|v_)")}  # of layers that use the keys and values of other layers
each = pytest.mark.parametrize("name", reference_models.NAMES)
one_of_each_architecture = pytest.mark.parametrize("name", reference_models.one_of_each_architecture())
each_head = pytest.mark.parametrize("name", separate_heads.NAMES)

# Keys that are always written here but that llama.cpp omits if they have default values, and keys unknown to it.
MORE = {
    "attention.layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon",
    "attention.causal",
    "attention.key_length",
    "attention.value_length",
    "attention.head_count_kv",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "attention.temperature_length",
    "attention.temperature_scale",
    "embedding_scale",
    "expert_gating_func",
    "logit_scale",
    "residual_scale",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.attn_factor",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "vocab_size",
}
NO_EXPERTS = {"expert_count", "expert_used_count"}  # which are 0
NO_ROPE = {"rope.dimension_count", "rope.scaling.finetuned"}
LESS = {
    **{name: {"rope.scaling.type", "rope.scaling.factor"} for name in ("codeshell", "codeshell-mqa")},  # a factor of 1
    **{key: {"attention.layer_norm_epsilon"} for key in ("qwen", "qwen-narrow", "cohere2moe-rms")},  # of other norms
    "modern-bert": {"attention.layer_norm_rms_epsilon", "rope.scaling.type"},  # that of LayerNorms; none
    "nemotron": {"attention.layer_norm_rms_epsilon"},  # the architecture has no such norms
    "granitehybrid": NO_EXPERTS,
    **dict.fromkeys(("nemotron_h", "nemotron_h_moe", "nemotron_h_moe-latent"), NO_ROPE),
    "granite4": {*NO_EXPERTS, "expert_shared_feed_forward_length", *RECURRENT_KEYS},
}
INDEXER_ROWS = {  # which llama.cpp's converter does not sort for the halves that readers rotate
    "blk.{}.indexer.attn_q_b.weight", "blk.{}.indexer.attn_k.weight", "blk.{}.indexer.k_norm.weight",
    "blk.{}.indexer.k_norm.bias",
}  # fmt: skip
OTHER = {
    # llama.cpp takes the embedding length, and the usual values of an older format
    "chatglm": {"context_length", "attention.layer_norm_rms_epsilon"},
    "chatglm-mha": {"context_length", "attention.layer_norm_rms_epsilon", "rope.freq_base"},
    "falcon": {"context_length"},  # config.json has it now
    "falcon-40b": {"context_length"},
    "cogvlm": {f"blk.{{}}.vis_{name}.weight" for name in ("attn_qkv", "attn_output", "gate", "up", "down")},  # left out
    "deepseek2-ocr": {"rope.dimension_count"},  # 0, which stands for all
    "gemma-embedding": {"token_embd.weight"},  # the same as for gemma3
    "gemma3": {"token_embd.weight"},  # rows without a token stay
    "gemma3-vision": {"token_embd.weight"},
    "gemma4": {"token_embd.weight"},
    "gemma4-dense": {"token_embd.weight"},
    **{name: {"token_embd.weight"} for name in separate_heads.ASSISTANTS},
    "gemma4-experts": {"token_embd.weight"},
    "llama-longrope": {"rope_factors_long.weight", "rope_factors_short.weight"},  # llama.cpp leaves them out
    # llama.cpp takes the rows q1 k1 v1 q2 k2 v2 of heads for q1 q2 k1 k2 v1 v2
    "neo-bert": {"blk.{}.attn_qkv.weight"},
    "neo-bert-narrow": {"blk.{}.attn_qkv.weight"},
    "phimoe": {"rope.scaling.attn_factor"},  # config.json has it
    "bitnet": {f"blk.{{}}.{kind}.weight" for kind in ("attn_output", "attn_k", "ffn_up")},  # a mean in float32
    "falcon-h1": {"blk.{}.ssm_a"},  # a power of e in float32
    "falcon-h1-normed": {"blk.{}.ssm_a"},  # the same
    "granite4": {"attention.head_count_kv"},  # one number for all blocks
    "deepseek4; head": {"blk.{}.nextn.eh_proj.weight"},  # Q8_0
    **dict.fromkeys(("dots3note", "dots3note-narrow"), INDEXER_ROWS),
    "jamba": {"blk.{}.ssm_a"},
    "jamba-dense": {"blk.{}.ssm_a"},
    "granitehybrid": {"blk.{}.ssm_a"},
    "granitehybrid-experts": {"blk.{}.ssm_a"},
    "falcon-mamba": {"blk.{}.ssm_a"},
    "mamba": {"blk.{}.ssm_a"},
    "mamba2": {"blk.{}.ssm_a"},
    "nemotron_h": {"blk.{}.ssm_a"},
    "nemotron_h_moe": {"blk.{}.ssm_a"},
    "nemotron_h_moe-latent": {"blk.{}.ssm_a"},
    # llama.cpp has 0 heads of queries in Mamba layers, too, and then rotates nothing
    **{name: {"blk.{}.ssm_a", "attention.head_count"} for name in ("plamo2", "plamo2-narrow")},
    "qwen35": {"blk.{}.ssm_a"},
    "qwen35-vision": {"blk.{}.ssm_a"},
    "qwen35moe": {"blk.{}.ssm_a"},
    "qwen3next": {"blk.{}.ssm_a"},
    "qwen4exp": {"blk.{}.ssm_a"},
    "qwen4exp-wide": {"blk.{}.ssm_a"},
    **{name: {"blk.{}.ssm_a"} for name in (
        "kimi-linear", "kimi-linear-wide", "kimi-k3", "kimi-k3-wide", "bailingmoe3", "glm5-next", "glm5-next-wide",
    )},
}


def keys_of(source: Source) -> dict[str, Any]:
    """Return the metadata keys of the architecture, without its prefix."""
    prefix = f"{text(source.fields['general.architecture'])}."
    return {key.removeprefix(prefix): plain(field) for key, field in source.fields.items() if key.startswith(prefix)}


def plain(field: Field) -> Any:
    if isinstance(field.value, np.ndarray):
        return field.value.tolist()
    if field.value is None:
        return [bool(flag) for flag in field.data[-(field.length or 0) :]]
    if isinstance(field.value, np.ndarray):
        return field.value.tolist()
    return field.value.decode() if isinstance(field.value, bytes) else field.value


def text(field: Field) -> str:
    assert isinstance(field.value, bytes)
    return field.value.decode()


@pytest.mark.parametrize("name", reference_models.ALL)
def test_keys_and_tensors_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    converted = CONVERSION.get(name, "it has no class for it")
    if isinstance(converted, str):
        pytest.skip(f"llama.cpp does not convert it: {converted}")
    source = open_checkpoint(reference_models.checkpoint(name, tmp_path))
    assert_equal(name, source, converted, reference_models.architecture(name))


def converted_from_f16(name: str, folder: Path) -> Source:
    """Return the conversion of a checkpoint whose tensors are all F16."""
    checkpoint = reference_models.checkpoint(name, folder)
    tensors = load_file(checkpoint / "model.safetensors")
    save_file({name: values.astype(np.float16) for name, values in tensors.items()}, checkpoint / "model.safetensors")
    return open_checkpoint(checkpoint)


def test_vectors_with_dimensions_of_1_are_f32(tmp_path: Path) -> None:
    tensors = converted_from_f16("rwkv6", tmp_path).tensors.values()
    assert {each.type for each in tensors if len(each.shape) == 1} == {TYPE_NUMBERS["F32"]}


def test_matrices_that_weigh_streams_and_positions_are_f32(tmp_path: Path) -> None:
    """As in llama.cpp's conversion of GLM-5-Next."""
    tensors = converted_from_f16("glm5-next", tmp_path).tensors.values()
    f32 = {each.name for each in tensors if each.type == TYPE_NUMBERS["F32"] and len(each.shape) == 2}
    compressor = {f"blk.1.indexer_compressor_{kind}.weight" for kind in ("gate", "ape")}
    streams = {f"blk.{layer}.hc_{branch}_fn.weight" for layer in range(3) for branch in ("attn", "ffn")}
    routers = {f"blk.{layer}.ffn_gate_inp.weight" for layer in (1, 2)}
    assert f32 == compressor | streams | routers | {"blk.1.indexer.proj.weight"}


@each_head
def test_draft_heads_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    model = reference_models.checkpoint(separate_heads.read_description(name)["model"], tmp_path)
    source = open_checkpoint(separate_heads.checkpoint(name, tmp_path), model)
    assert_equal(name, source, CONVERSION[name], source.fields["general.architecture"].value.decode())


def test_tensors_that_arwkv7_does_not_use_are_ignored(tmp_path: Path) -> None:
    def contents() -> dict[str, bytes]:
        return {name: each.load().tobytes() for name, each in open_checkpoint(folder).tensors.items()}

    folder = reference_models.checkpoint("arwkv7-plain", tmp_path)
    expected, tensors = contents(), load_file(folder / "model.safetensors")
    prefix = "model.layers.{}.self_attn.time_mixer."
    for number in range(3):  # shares of the first layer's values, in the first layer
        tensors[f"{prefix.format(0)}v{number}"] = tensors[f"{prefix.format(1)}v{number}"]
    for layer in range(2):  # shares of the gate's input without a gate
        tensors[f"{prefix.format(layer)}x_g"] = tensors[f"{prefix.format(layer)}x_a"]
    save_file(tensors, folder / "model.safetensors")
    assert contents() == expected


def test_the_text_model_of_dots_ocr_is_qwen2(tmp_path: Path) -> None:
    plain = open_checkpoint(reference_models.checkpoint("qwen2", tmp_path))
    folder = reference_models.checkpoint("qwen2", tmp_path / "dots")
    edit_json(folder / "config.json", lambda config: config.update(architectures=["DotsOCRForCausalLM"]))
    tensors = load_file(folder / "model.safetensors")
    vision = {"vision_tower.post_trunk_norm.weight": np.ones(8, np.float32)}
    save_file(tensors | vision, folder / "model.safetensors")
    found = open_checkpoint(folder)
    assert found.fields["general.architecture"].value == b"qwen2"
    assert keys_of(found) == keys_of(plain)
    assert found.tensors.keys() == plain.tensors.keys()


@pytest.mark.parametrize("name", [each for each in draft_head_models.NAMES if each not in draft_head_models.DROPPED])
def test_mtp_layers_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    expected, compared = CONVERSION[f"{name}; head"], name
    if name == "deepseek3":  # llama.cpp omits the key and the block
        expected["keys"]["deepseek2.nextn_predict_layers"] = 1
    source = open_checkpoint(draft_head_models.checkpoint(name, tmp_path, has_embeddings=True))
    if name in draft_head_models.ALONE:
        source, compared = mtp_layer_alone(source, keys_of(source)["block_count"] - 1), f"{name}; head"
    assert_equal(compared, source, expected, reference_models.architecture(name))


def mtp_layer_alone(source: Source, layer: int) -> Source:
    """Return the MTP layer without the model, whose sum of residual streams is that of the head in such a file."""
    prefix, own = f"blk.{layer}.", "nextn.output_hc"
    tensors = {name: each for name, each in source.tensors.items() if not name.startswith(("blk.", "output_hc"))}
    for name, each in source.tensors.items():
        if name.startswith(prefix):
            alone = name.replace(f"{prefix}{own}", "output_hc")
            tensors[alone] = replace(each, name=alone)
    return replace(source, tensors=tensors)


def assert_equal(name: str, source: Source, converted: dict[str, Any], architecture: str) -> None:
    """Check that keys and tensors equal those of llama.cpp's conversion."""
    ours, other = keys_of(source), OTHER.get(name, set())
    reference = {key.removeprefix(f"{architecture}."): value for key, value in converted["keys"].items()}
    assert ours.keys() - reference.keys() <= MORE
    assert reference.keys() - ours.keys() == LESS.get(name, set())
    for key in ours.keys() & reference.keys() - other:
        assert ours[key] == (pytest.approx(reference[key]) if isinstance(ours[key], float) else reference[key]), key
    tensors = reference_models.summary(
        {tensor.name: (tensor.shape, tensor.load()) for tensor in source.tensors.values()}
    )
    expected = converted["tensors"]
    different = {key for key in tensors.keys() | expected.keys() if tensors.get(key) != expected.get(key)}
    assert different == other - reference.keys()


def without(path: Path, kind: str) -> Path:
    """Remove the tensors whose names contain `kind` from the checkpoint, and return its path."""
    altered(path, lambda tensors: [tensors.pop(name) for name in list(tensors) if kind in name])
    return path


@pytest.mark.parametrize(
    ("name", "lacking"), [("glm4moe", "layers.3."), ("glm4moe", "eh_proj"), ("qwen35", "mtp."), ("qwen35", "mtp.fc")]
)
def test_mtp_layer_of_config_may_be_missing(name: str, lacking: str, tmp_path: Path) -> None:
    """The MTP layer is omitted if its weights or its input projection are missing."""
    plain = open_checkpoint(reference_models.checkpoint(name, tmp_path / "plain"))
    source = open_checkpoint(without(draft_head_models.checkpoint(name, tmp_path), lacking))
    assert keys_of(source) == keys_of(plain)
    assert source.tensors.keys() == plain.tensors.keys()


@pytest.mark.parametrize("lacking", ["enorm", "layers.3.self_attn.o_proj"])
def test_mtp_layer_must_be_complete(lacking: str, tmp_path: Path) -> None:
    path = without(draft_head_models.checkpoint("glm4moe", tmp_path), lacking)
    assert f"{lacking.removeprefix('layers.3.')}.weight: is missing" in str(refusal(path))


def test_mtp_layer_of_deepseek4_has_no_runs(tmp_path: Path) -> None:
    path = draft_head_models.checkpoint("deepseek4", tmp_path)
    edit_json(path / "config.json", lambda config: config["compress_ratios"].__setitem__(-1, 4))
    assert "compress_ratios: other than 0 for an MTP layer is not supported" in str(refusal(path))


@pytest.mark.parametrize("name", ["e_proj", "h_proj"])
def test_halves_of_the_projection_of_deepseek4_have_one_shape(name: str, tmp_path: Path) -> None:
    path = draft_head_models.checkpoint("deepseek4", tmp_path)
    altered(path, lambda tensors: tensors.update({f"mtp.0.{name}.weight": np.zeros((96, 64), np.float32)}))
    assert f"mtp.0.{name}.weight: has shape [96, 64], not [96, 96]" in str(refusal(path))


def test_reference_model_of_each_architecture() -> None:
    candidates = (each for kin in architectures.FAMILIES for each in vars(kin).values())
    known = {each.name for each in candidates if isinstance(each, Architecture)}
    heads = {"dflash", "eagle3", "gemma4-assistant"}  # `separate_heads` has models with these
    assert known - heads == {reference_models.architecture(name) for name in reference_models.ALL}


# ----------------------------------------------------------------------------------------- older configurations


def older_rope(config: dict[str, Any]) -> None:
    """Convert a configuration to the keys before transformers 5: rope_theta, rope_scaling and some others."""
    rope = dict(config.pop("rope_parameters"))
    windows = rope.get("sliding_attention", {})
    rope = dict(rope.get("full_attention", rope))
    config["rope_theta"] = rope.pop("rope_theta")
    fraction = rope.pop("partial_rotary_factor", None)
    if fraction is not None:
        config[{"gpt_neox": "rotary_pct"}.get(config["model_type"], "partial_rotary_factor")] = fraction
    if windows:
        config["rope_local_base_freq"] = windows["rope_theta"]
    config["rope_scaling"] = (rope | {"type": rope.pop("rope_type")}) if len(rope) > 1 else None


def architecture_is_younger(name: str) -> bool:
    return name in ("ministral3", "mistral4") or reference_models.architecture(name) in ("gemma4", "laguna", "spark2_5")


@each
def test_older_configurations(name: str, tmp_path: Path) -> None:
    folder = reference_models.checkpoint(name, tmp_path)
    before = open_checkpoint(folder)
    config = json.loads((folder / "config.json").read_text())
    text_config = config.get("text_config", config)
    if "rope_parameters" not in text_config or architecture_is_younger(name):
        pytest.skip("has no older format")
    older_rope(text_config)
    (folder / "config.json").write_text(json.dumps(config))
    after = open_checkpoint(folder)
    assert keys_of(after) == keys_of(before)
    assert after.tensors.keys() == before.tensors.keys()


# ------------------------------------------------------------------------------------------------ packed matrices


def pack(matrix: Any) -> Any:
    """Pack a matrix of 0, 1 and 2 as transformers does: each byte has one value from each quarter of the rows."""
    quarters = matrix.astype(np.uint8).reshape(4, -1, matrix.shape[1])
    return quarters[0] | quarters[1] << 2 | quarters[2] << 4 | quarters[3] << 6


def packed(folder: Path, name: str, linear_class: str) -> Path:
    """Write a packed BitNet checkpoint with the same values; one of the linear classes has inverted scales."""
    path = reference_models.checkpoint(name, folder)

    def change(tensors: dict[str, Any]) -> None:
        for key in [key for key in tensors if "_proj" in key]:
            mean = np.abs(tensors[key]).mean(dtype=np.float64).astype(np.float32)
            signs = np.clip(np.round(tensors[key] / mean), -1, 1)
            scale = mean if linear_class == "autobitlinear" else np.float32(1) / mean
            tensors |= {key: pack(signs + 1), f"{key}_scale": np.array([scale])}

    altered(path, change)
    quantization = {"quant_method": "bitnet", "linear_class": linear_class, "quantization_mode": "offline"}
    edit_json(path / "config.json", lambda config: config.update(quantization_config=quantization))
    return path


@pytest.mark.parametrize("linear_class", ["autobitlinear", "bitlinear"])
def test_packed_matrices(linear_class: str, tmp_path: Path) -> None:
    name = "bitnet-b1.58"
    plain = open_checkpoint(reference_models.checkpoint(name, tmp_path / "plain")).tensors
    tensors = open_checkpoint(packed(tmp_path, name, linear_class)).tensors
    assert tensors.keys() == plain.keys()
    for key, tensor in tensors.items():
        assert (tensor.shape, tensor.type) == (plain[key].shape, plain[key].type)
        actual, expected = tensor.load().view(np.float32), plain[key].load().view(np.float32)
        np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_invalid_packed_matrices(tmp_path: Path) -> None:
    folder, key = packed(tmp_path, "bitnet-b1.58", "autobitlinear"), "model.layers.1.mlp.up_proj.weight"
    whole = load_file(folder / "model.safetensors")
    unusual = {
        f"tensor {key}: is U8 [39, 96], not U8 [40, 96]": {key: whole[key][1:]},
        f"tensor {key}: is F32 [40, 96], not U8": {key: whole[key].astype(np.float32)},
        f"tensor {key}: has no scale": {f"{key}_scale": np.ones(2, np.float32)},
    }
    for line, changes in unusual.items():
        save_file(whole | changes, folder / "model.safetensors")
        assert line in str(refusal(folder))
    save_file({name: values for name, values in whole.items() if name != f"{key}_scale"}, folder / "model.safetensors")
    assert f"tensor {key}: has no scale" in str(refusal(folder))


FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
FP4 = np.concatenate([FP4, -FP4])


def in_mxfp4(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Write a gpt-oss checkpoint with random MXFP4 blocks as experts; return it and the values of the blocks."""
    path, values = reference_models.checkpoint("gpt-oss", folder), {}

    def change(tensors: dict[str, Any]) -> None:
        for key in [key for key in tensors if key.endswith("_proj") and ".experts." in key]:
            n_expert, n_in, n_out = tensors.pop(key).shape
            random = np.random.default_rng(len(key))
            blocks = random.integers(256, size=(n_expert, n_out, n_in // 32, 16), dtype=np.uint8)
            scales = random.integers(110, 130, size=blocks.shape[:-1], dtype=np.uint8)
            tensors |= {f"{key}_blocks": blocks, f"{key}_scales": scales}
            pairs = FP4[np.stack([blocks & 15, blocks >> 4], axis=-1)]
            scaled = pairs.reshape(*scales.shape, 32) * np.exp2(scales.astype(np.float32) - 127)[..., None]
            values[key] = scaled.reshape(n_expert, n_out, n_in)

    altered(path, change)
    edit_json(path / "config.json", lambda config: config.update(quantization_config={"quant_method": "mxfp4"}))
    return path, values


def test_mxfp4_blocks_are_preserved(tmp_path: Path) -> None:
    path, values = in_mxfp4(tmp_path)
    tensors = open_checkpoint(path).tensors
    for key, rows in (("gate_up_proj", "gate"), ("gate_up_proj", "up"), ("down_proj", "down")):
        tensor, whole = tensors[f"blk.1.ffn_{rows}_exps.weight"], values[f"model.layers.1.mlp.experts.{key}"]
        expected = {"gate": whole[:, ::2], "up": whole[:, 1::2], "down": whole}[rows]
        assert (tensor.type_name, tensor.shape) == ("MXFP4", expected.shape)
        blocks = tensor.load().reshape(*tensor.shape[:-1], -1)
        np.testing.assert_array_equal(gguf.dequantize(blocks, gguf.GGMLQuantizationType.MXFP4), expected)


def test_invalid_mxfp4_blocks(tmp_path: Path) -> None:
    path, _ = in_mxfp4(tmp_path)
    key = "model.layers.0.mlp.experts.down_proj_scales"
    whole = load_file(path / "model.safetensors")
    save_file(whole | {key: whole[key][1:]}, path / "model.safetensors")
    assert f"tensor {key}: is U8 [5, 96, 5], not U8 [6, 96, 5]" in str(refusal(path))
    save_file({name: values for name, values in whole.items() if name != key}, path / "model.safetensors")
    assert "is missing" in str(refusal(path))


# ------------------------------------------------------------------------------------------------ errors


def refusal(folder: Path) -> LocalInferError:
    with pytest.raises(LocalInferError) as caught:
        open_checkpoint(folder)
    assert str(caught.value).isprintable()
    return caught.value


def altered(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the tensors in place."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


@one_of_each_architecture
def test_missing_tensor(name: str, tmp_path: Path) -> None:
    """The tensor is missing in the last block; its name is known from the other blocks."""
    folder = reference_models.checkpoint(name, tmp_path)
    last = reference_models.read_description(name)["n_layer"] - 1
    whole = load_file(folder / "model.safetensors")
    idle = IDLE.get(name, STACKED)
    of_last = [key for key in whole if f".{last}." in f".{key}" and not (STACKED.search(key) or idle.search(key))]
    for missing in of_last:
        save_file({key: values for key, values in whole.items() if key != missing}, folder / "model.safetensors")
        assert str(refusal(folder)).endswith(f"tensor {missing}: is missing")


@one_of_each_architecture
def test_wrong_shape_names_the_tensor(name: str, tmp_path: Path) -> None:
    folder = reference_models.checkpoint(name, tmp_path)
    whole = load_file(folder / "model.safetensors")
    first = {key: values for key, values in whole.items() if ".0." in f".{key}" and not STACKED.search(key)}
    for key, values in first.items():
        unusual = np.zeros((*values.shape[:-1], (values.shape or (1,))[-1] + 1), np.float32)
        save_file(whole | {key: unusual}, folder / "model.safetensors")
        assert f"tensor {key}: has " in str(refusal(folder))


@one_of_each_architecture
def test_unexpected_tensor(name: str, tmp_path: Path) -> None:
    folder = reference_models.checkpoint(name, tmp_path)
    tensors = reference_models.read_description(name)["tensors"]
    more = next((key for key in tensors if "{}" in key), [*tensors][1]).replace("{}", "0")
    for extra in (more.removesuffix(".weight") + "_of_another.weight", "model.layers.0.mlp.lookup.weight"):
        altered(folder, lambda tensors, extra=extra: tensors.update({extra: np.ones(3, np.float32)}))
        error = refusal(folder)
        assert isinstance(error, UnsupportedError)
        expected = f"is not part of the supported {reference_models.architecture(name)} architecture"
        assert f"tensor {extra}: {expected}" in str(error)
        altered(folder, lambda tensors, extra=extra: tensors.pop(extra))


def test_both_modules_of_hrm_text_have_as_many_layers(tmp_path: Path) -> None:
    folder = reference_models.checkpoint("hrm-text", tmp_path)
    tensors, name = load_file(folder / "model.safetensors"), "model.L_module.layers.{}.attn.o_proj.weight"
    save_file(tensors | {name.format(2): tensors[name.format(0)]}, folder / "model.safetensors")
    assert f"{name.format(2)}: is not part of the supported hrm_text architecture" in str(refusal(folder))


def test_the_unused_bias_of_grovemoe_is_ignored(tmp_path: Path) -> None:
    folder = reference_models.checkpoint("grovemoe", tmp_path)
    plain = open_checkpoint(folder).tensors.keys()
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"model.layers.0.mlp.expert_bias": np.ones(8, np.float32)}, folder / "model.safetensors")
    assert open_checkpoint(folder).tensors.keys() == plain


@pytest.mark.parametrize(("key", "value"), [("layer_rope_theta", [5e5] * 4), ("layer_types", None)])
def test_muse_glimmer_rotates_heads_with_a_window_only(key: str, value: Any, tmp_path: Path) -> None:
    folder = reference_models.checkpoint("muse-glimmer", tmp_path)
    edit_json(folder / "config.json", lambda config: config["text_config"].update({key: value}))
    assert key in str(refusal(folder))


def test_biases_of_all_layers_are_converted(tmp_path: Path) -> None:
    """Some checkpoints of cohere2 have biases, in all layers."""
    folder, bias = reference_models.checkpoint("cohere2", tmp_path), "model.layers.{}.self_attn.q_proj.bias"
    altered(folder, lambda tensors: tensors.update({bias.format(0): np.ones(96, np.float32)}))
    assert f"tensor {bias.format(1)}: is missing" in str(refusal(folder))
    altered(folder, lambda tensors: tensors.update({bias.format(n): np.ones(96, np.float32) for n in range(5)}))
    assert "blk.4.attn_q.bias" in open_checkpoint(folder).tensors


@pytest.mark.parametrize(
    ("name", "changes", "line"),
    [
        ("falcon", {"alibi": True}, "alibi: True is not supported"),
        ("falcon", {"parallel_attn": False}, "parallel_attn: False is not supported"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx: True is not"),
        ("gpt2", {"n_embd": -1}, "n_embd: is -1; it must be 1"),
        ("gpt2", {"activation_function": "relu"}, "activation_function: 'relu' is not supported"),
        ("phi2", {"qk_layernorm": True}, "qk_layernorm: True is not supported"),
        ("smollm3", {"no_rope_layers": [1, 1, 1, 1, 1]}, "no_rope_layers: only every fourth layer without rope is"),
        ("smollm3", {"no_rope_layers": None, "no_rope_layer_interval": 3}, "no_rope_layers: only every fourth layer"),
        ("llama2", {"logits_scaling": 2.0}, "logits_scaling: 2.0 is not supported"),
        ("llama2", {"partial_rotary_factor": 0.5}, "partial_rotary_factor: is not supported"),
        ("glm4", {"rope_parameters": {"partial_rotary_factor": 0.04}}, "rotates 1 values of a head"),
        ("glm4", {"rope_parameters": {"partial_rotary_factor": 1.5}}, "partial_rotary_factor: is 1.5; it must be"),
        ("llama-yarn", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "truncate": False}}, "truncate: false"),
        ("phi3-long", {"rope_parameters": {"rope_type": "longrope", "long_factor": [1.0]}}, "long_factor: must be 16"),
        ("phi3-long", {"rope_parameters": {"rope_type": "longrope", "long_factor": ["1"] * 16}}, "long_factor: must"),
        ("granite", {"attention_multiplier": 0}, "attention_multiplier: is 0; it must be above 0"),
        ("minicpm", {"scale_emb": None}, "scale_emb: is missing"),
        ("afmoe", {"mup_enabled": False}, "mup_enabled: False is not supported"),
        ("afmoe", {"route_norm": False}, "route_norm: False is not supported"),
        ("bailingmoe2", {"norm_head": True}, "norm_head: True is not supported"),
        ("granite-swa", {"layer_rope_theta": [1e4] * 5}, "layer_rope_theta: other than 0 or 1e+06 is not supported"),
        ("granite-swa", {"no_rope_layers": [1, 0]}, "no_rope_layers: must be 5 numbers"),
        ("graniteswitch", {"ms_code_m": 6}, "ms_code_m: a model whose last control token counts alone is"),
        ("graniteswitch", {"num_hidden_layers": 1}, "num_hidden_layers: is 1; there must be 2 at least"),
        ("graniteswitch", {"adapter_token_ids": [44]}, "adapter_token_ids: must be 4 tokens of the vocabulary"),
        ("graniteswitch", {"adapter_substitute_token_ids": [1, 2, 3, 264]}, "adapter_substitute_token_ids: must be 4"),
        ("mellum", {"norm_topk_prob": False}, "norm_topk_prob: False is not supported"),
        ("smallthinker", {"rope_layout": [1] * 5}, "rope_layout: other than the layers with a sliding window is not"),
        ("smallthinker", {"sliding_window_layout": [0]}, "sliding_window_layout: must be 5 numbers"),
        ("cohere2moe", {"mlp_layer_types": ["sparse", "dense"]}, "mlp_layer_types: other than dense and then sparse"),
        ("cohere2moe", {"expert_selection_fn": "top"}, "expert_selection_fn: must be softmax or sigmoid"),
        ("laguna", {"gating": "none"}, "gating: must be true, per-head or per-element"),
        ("laguna", {"num_attention_heads_per_layer": [5] * 5}, "num_attention_heads_per_layer: must be multiples of 2"),
        ("mimo2", {"swa_head_dim": 32}, "swa_head_dim: is 32; other than head_dim is not supported"),
        ("mimo2", {"hybrid_layer_pattern": [0, 2, 0, 0]}, "hybrid_layer_pattern: must be 4 numbers from 0 to 1"),
        ("mimo2", {"moe_layer_freq": [1, 0, 1, 1]}, "moe_layer_freq: must be 0 and then 1"),
        ("mimo2", {"swa_num_key_value_heads": 4}, "swa_num_key_value_heads: is 4; it must divide 6"),
        ("openelm", {"num_kv_heads": [1, 1]}, "num_kv_heads: must be 4 numbers from 0 to"),
        ("plamo2", {"mamba_enabled": False}, "mamba_enabled: False is not supported"),
        ("plamo2", {"rms_norm_eps": 1e-5}, "rms_norm_eps: 1e-05 is not supported"),
        ("plamo", {"n_shared_head": 4}, "n_shared_head: is 4; it must divide 6"),
        ("jais", {"mup_scale_qk_dot_by_d": False}, "mup_scale_qk_dot_by_d: must be true"),
        ("openelm", {"ffn_multipliers": [1.0]}, "ffn_multipliers: must be 4 numbers"),
        ("openelm", {"ffn_multipliers": [-1.0]}, "ffn_multipliers: must be positive numbers"),
        ("deci", {"block_configs": [{}]}, "block_configs: must be 6 objects"),
        ("dbrx", {"ffn_config": {"ffn_act_fn": {"name": "gelu"}}}, "ffn_act_fn: {'name': 'gelu'} is not supported"),
        ("step35", {"moe_layers_enum": "0,2"}, "moe_layers_enum: must be the numbers of all layers from one on"),
        ("step35", {"partial_rotary_factors": [1.0, 1.0, 1.0]}, "partial_rotary_factors: other than 0.5 with full"),
        ("step35", {"rope_theta": [1e4]}, "layer_types: must be 3 kinds, as many as numbers in rope_theta"),
        ("step35", {"swiglu_limits": [7.0]}, "swiglu_limits: must be 3 numbers, none below 0"),
        ("step35", {"attention_other_setting": {"num_attention_heads": 3, "num_attention_groups": 2}}, "must divide 3"),
        ("dots3note", {"swa_q_lora_rank": 32}, "swa_q_lora_rank: other than q_lora_rank is not supported"),
        ("dots3note", {"swa_kv_lora_rank": 0}, "swa_kv_lora_rank: is 0; it must be 1"),
        ("dots3note", {"layer_types": ["sliding_attention"]}, "layer_types: must be full_attention or sliding_attenti"),
        ("dbrx", {"moe_normalize_expert_weights": 2}, "moe_normalize_expert_weights: 2 is not supported"),
        ("muse-glimmer", {"text_config": {"post_norm_eps": 1e-5}}, "post_norm_eps: 1e-05 is not supported"),
        ("nanbeige", {"num_loops": 342}, "num_loops: is 342; it must be 1 to 341"),
        ("hrm-text", {"H_cycles": 171}, "H_cycles: makes more than 1024 layers"),
        ("hrm-text", {"L_cycles": 0}, "L_cycles: is 0; it must be 1 to 1024"),
        ("grovemoe", {"num_experts": 7}, "num_experts: is 7; it must be even"),
        ("grovemoe", {"mlp_only_layers": [1]}, "mlp_only_layers: [1] is not supported"),
        ("exaone4", {"sliding_window": 9, "layer_types": None, "sliding_window_pattern": "LGG"}, "'LGG' is not"),
        ("gemma", {"query_pre_attn_scalar": 24}, "query_pre_attn_scalar: 24 is not supported"),
        ("cohere2", {"layer_types": ["global"] * 5}, "layer_types: must be full_attention or sliding_attention 5 t"),
    ],
)
def test_unsupported_config_values(name: str, changes: dict[str, Any], line: str, tmp_path: Path) -> None:
    folder = reference_models.checkpoint(name, tmp_path)
    edit_json(folder / "config.json", lambda config: config.update(changes))
    assert line in str(refusal(folder))


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"index_kpool": 1}, "index_kpool: is 1; it must be at least 2, and divide 16, the index_topk"),
        ({"index_topk": 18}, "index_kpool: is 4; it must be at least 2, and divide 18, the index_topk"),
        ({"indexer_types": ["full"]}, "indexer_types: must be full or shared, 3 in all"),
        ({"index_kpool_always_select_tail": False}, "index_kpool_always_select_tail: False is not supported"),
        ({"qk_rope_head_dim": 32}, "qk_rope_head_dim: 32 is not supported"),
        ({"linear_attn_config": {"gate_lower_bound": 1.0}}, "linear_lower_bound: is 1; it must be below 0, and at"),
    ],
)
def test_unsupported_config_values_of_glm5_next(changes: dict[str, Any], line: str, tmp_path: Path) -> None:
    folder = reference_models.checkpoint("glm5-next", tmp_path)
    edit_json(folder / "config.json", lambda config: merge(config["text_config"], changes))
    assert line in str(refusal(folder))


def merge(values: dict[str, Any], changes: dict[str, Any]) -> None:
    """Change values, and those of objects in them."""
    for key, value in changes.items():
        values[key] = values[key] | value if isinstance(value, dict) else value


@pytest.mark.parametrize(
    ("kda", "bound"),
    [({"gate_lower_bound": -3.0}, -3.0), ({"gate_lower_bound": None}, -5.0),
     ({"gate_lower_bound": None, "safe_gate": False}, None)],
)  # fmt: skip
def test_decays_of_glm5_next_have_a_limit_unless_it_says_that_they_have_none(
    kda: dict[str, Any], bound: float | None, tmp_path: Path
) -> None:
    folder = reference_models.checkpoint("glm5-next", tmp_path)
    edit_json(folder / "config.json", lambda config: merge(config["text_config"], {"linear_attn_config": kda}))
    assert keys_of(open_checkpoint(folder)).get("kda.gate_lower_bound") == bound


@pytest.mark.parametrize("infinity", [float("inf"), {"__float__": "Infinity"}, {"__float__": float("inf")}])
def test_time_step_limit(infinity: Any, tmp_path: Path) -> None:
    """Infinity is not valid JSON, but configurations use it; other numbers must be finite. Limits are unsupported."""
    folder = reference_models.checkpoint("mamba2", tmp_path)
    edit_json(folder / "config.json", lambda config: config.update(time_step_limit=[0.0, infinity]))
    assert "blk.0.ssm_a" in open_checkpoint(folder).tensors
    edit_json(folder / "config.json", lambda config: config.update(time_step_limit=[0.0, 0.1]))
    assert "time_step_limit: [0.0, 0.1] is not supported" in str(refusal(folder))
    edit_json(folder / "config.json", lambda config: config.update(time_step_limit=None, layer_norm_epsilon=infinity))
    assert str(refusal(folder)).endswith("layer_norm_epsilon: is inf; it must be finite")


def test_dynamic_rope_is_unscaled_within_the_context(tmp_path: Path) -> None:
    """Checkpoints of internlm2 have dynamic rope scaling."""
    folder = reference_models.checkpoint("internlm2", tmp_path)
    before = keys_of(open_checkpoint(folder))
    growing = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e6}
    edit_json(folder / "config.json", lambda config: config.update(rope_parameters=growing))
    assert keys_of(open_checkpoint(folder)) == before


def test_window_pattern_string(tmp_path: Path) -> None:
    folder = reference_models.checkpoint("exaone4-windows", tmp_path)
    before = keys_of(open_checkpoint(folder))
    edit_json(folder / "config.json", lambda config: config.update(layer_types=None, sliding_window_pattern="LLLG"))
    assert keys_of(open_checkpoint(folder)) == before


def test_context_length_of_command_r(tmp_path: Path) -> None:
    folder = reference_models.checkpoint("command-r", tmp_path)
    edit_json(folder / "config.json", lambda config: config.update(model_max_length=131_072))
    assert keys_of(open_checkpoint(folder))["context_length"] == 131_072


# ----------------------------------------------------------------------------------------- EAGLE-3 heads


def head_and_model(folder: Path) -> tuple[Path, Path]:
    return separate_heads.checkpoint("eagle3", folder), reference_models.checkpoint("llama3", folder)


def test_draft_head_has_its_targets_tokenizer(tmp_path: Path) -> None:
    head, model = head_and_model(tmp_path)
    source, whole = open_checkpoint(head, model), open_checkpoint(model)
    for key, field in whole.fields.items():
        if key.startswith("tokenizer."):
            assert source.fields[key] == field
    assert {*whole.files} & {*source.files}


def test_draft_head_without_target(tmp_path: Path) -> None:
    head, _ = head_and_model(tmp_path)
    with pytest.raises(UsageError, match=r"config\.json: is an EAGLE-3 draft head: --target-model-dir must name"):
        open_checkpoint(head)


def test_assistants_share_all_keys(tmp_path: Path) -> None:
    """config.json may leave out that all layers use the keys of the model. Tensors that choose some rows of the output
    layer, whose other logits are not computed then, are not needed."""
    folder = separate_heads.checkpoint("gemma4-assistant", tmp_path)
    expected = open_checkpoint(folder)
    edit_json(folder / "config.json", lambda config: config["text_config"].update(num_kv_shared_layers=0))
    tensors = load_file(folder / "model.safetensors")
    ordering = {"masked_embedding.token_ordering": np.arange(reference_models.N_VOCAB)}
    centroids = {"masked_embedding.centroids.weight": np.zeros((8, 64), np.float32)}
    save_file({**tensors, **ordering, **centroids}, folder / "model.safetensors")
    found = open_checkpoint(folder)
    assert keys_of(found) == keys_of(expected)
    assert found.tensors.keys() == expected.tensors.keys()
    edit_json(folder / "config.json", lambda config: config["text_config"].update(num_kv_shared_layers=1))
    with pytest.raises(LocalInferError, match="num_kv_shared_layers: is 1"):
        open_checkpoint(folder)


def test_names_of_older_and_newer_draft_heads(tmp_path: Path) -> None:
    """A layer may be named `layers.0`, and its configuration may be a nested table."""
    head, model = head_and_model(tmp_path)
    before = open_checkpoint(head, model)
    tensors = load_file(head / "model.safetensors")
    renamed = {name.replace("midlayer.", "layers.0."): value for name, value in tensors.items()}
    save_file(renamed, head / "model.safetensors")
    nested = ("hidden_size", "num_hidden_layers", "head_dim", "num_attention_heads", "rope_parameters")

    def nest(config: dict[str, Any]) -> None:
        config["transformer_layer_config"] = {key: config.pop(key) for key in nested}

    edit_json(head / "config.json", nest)
    after = open_checkpoint(head, model)
    assert keys_of(after) == keys_of(before)
    assert {*after.tensors} == {*before.tensors}


@pytest.mark.parametrize(
    ("first", "second", "problem"),
    [(-1, 0, "beyond the vocabulary"), (264, 0, "beyond the vocabulary"), (1, 0, "twice to the same token")],
)
def test_invalid_draft_vocabulary(first: int, second: int, problem: str, tmp_path: Path) -> None:
    head, model = head_and_model(tmp_path)
    tensors = load_file(head / "model.safetensors")
    tensors["d2t"][:2] = first, second
    save_file(tensors, head / "model.safetensors")
    with pytest.raises(LocalInferError, match=f"tensor d2t: maps {problem}"):
        open_checkpoint(head, model)


def test_draft_vocabulary_of_other_types(tmp_path: Path) -> None:
    head, model = head_and_model(tmp_path)
    tensors, expected = load_file(head / "model.safetensors"), open_checkpoint(head, model).tensors["d2t"]
    save_file({**tensors, "d2t": tensors["d2t"].astype(np.int32)}, head / "model.safetensors")
    actual = open_checkpoint(head, model).tensors["d2t"]
    np.testing.assert_array_equal(actual.load(), expected.load())
    assert actual.type == expected.type
    save_file({**tensors, "d2t": tensors["d2t"].astype(np.float32)}, head / "model.safetensors")
    with pytest.raises(LocalInferError, match="tensor d2t: has type F32 and shape"):
        open_checkpoint(head, model)


@pytest.mark.parametrize("layers", [[1, 2], [1, 2, 3], [1, 2, "1"]])
def test_nonexistent_target_layers(layers: list[object], tmp_path: Path) -> None:
    head, model = head_and_model(tmp_path)
    edit_json(head / "config.json", lambda config: config.update(eagle_aux_hidden_state_layer_ids=layers))
    with pytest.raises(LocalInferError, match="eagle_aux_hidden_state_layer_ids: is "):
        open_checkpoint(head, model)


def test_default_target_layers(tmp_path: Path) -> None:
    head, model = (
        separate_heads.checkpoint("eagle3-borrowing", tmp_path),
        reference_models.checkpoint("smollm3", tmp_path),
    )
    edit_json(head / "config.json", lambda config: config.pop("eagle_aux_hidden_state_layer_ids"))
    assert keys_of(open_checkpoint(head, model))["target_layers"] == [2, 2, 2]  # the model has five layers


@pytest.mark.parametrize("has_adapter", [False, True])
def test_the_text_model_of_granite_speech(has_adapter: bool, tmp_path: Path) -> None:
    plain, folder = (reference_models.checkpoint("granite", tmp_path / each) for each in ("plain", "speech"))
    config, tensors = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    speech = {"architectures": ["GraniteSpeechForConditionalGeneration"], "model_type": "granite_speech"}
    speech |= {"text_config": config, "has_lora_adapter": has_adapter}
    (folder / "config.json").write_text(json.dumps(speech))
    others = ("encoder.layers.0.attn.to_kv.weight", "encoder.out_mid.bias", "projector.qformer.layernorm.weight")
    renamed = {f"language_model.{name}": tensor for name, tensor in tensors.items()}
    save_file({**renamed, **{name: np.zeros(1, np.float32) for name in others}}, folder / "model.safetensors")
    if has_adapter:
        with pytest.raises(UnsupportedError, match="has_lora_adapter: is true: the model needs its LoRA adapter"):
            open_checkpoint(folder)
        return
    expected, found = open_checkpoint(plain), open_checkpoint(folder)
    assert found.tensors.keys() == expected.tensors.keys()
    assert keys_of(found) == keys_of(expected)


def test_the_text_model_of_qwen25_omni(tmp_path: Path) -> None:
    plain, folder = (reference_models.checkpoint("qwen2vl", tmp_path / each) for each in ("plain", "omni"))
    config, tensors = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    text_model = config.get("text_config", config)
    omni = {"architectures": ["Qwen2_5OmniModel"], "model_type": "qwen2_5_omni"}
    omni |= {"thinker_config": {"text_config": text_model, "model_type": "qwen2_5_omni_thinker"}}
    (folder / "config.json").write_text(json.dumps(omni))
    others = ("thinker.visual.x.weight", "thinker.audio_tower.proj.bias", "talker.model.norm.weight", "token2wav.x")
    plain_names = {name: name.replace("model.language_model.", "model.") for name in tensors}
    renamed = {f"thinker.{plain_names[name]}": tensor for name, tensor in tensors.items() if "visual" not in name}
    save_file({**renamed, **{name: np.zeros(1, np.float32) for name in others}}, folder / "model.safetensors")
    expected, found = open_checkpoint(plain), open_checkpoint(folder)
    assert found.tensors.keys() == expected.tensors.keys()
    assert keys_of(found) == keys_of(expected)


@pytest.mark.parametrize("kind", ["audio", "vl"])
def test_text_models_of_lfm2_audio_and_lfm2_vl(kind: str, tmp_path: Path) -> None:
    plain, folder = (reference_models.checkpoint("lfm2", tmp_path / each) for each in ("plain", kind))
    config, tensors = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    key, prefix, name = {
        "audio": ("lfm", "lfm.", "Lfm2AudioForConditionalGeneration"),
        "vl": ("text_config", "model.language_model.", "Lfm2VlForConditionalGeneration"),
    }[kind]
    (folder / "config.json").write_text(json.dumps({"architectures": [name], "model_type": kind, key: config}))
    others = ("conformer.layers.0.norm_out.weight", "audio_embedding.to_logits.weight", "codebook_offsets",
              "depth_linear.bias", "model.vision_tower.x.weight")  # fmt: skip
    renamed = {prefix + name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    save_file({**renamed, **{name: np.zeros(1, np.float32) for name in others}}, folder / "model.safetensors")
    expected, found = open_checkpoint(plain), open_checkpoint(folder)
    assert found.tensors.keys() == expected.tensors.keys()
    assert keys_of(found) == keys_of(expected)


VISION = ("model.vision_embedder.pos_embedding", "model.embed_vision.x.weight", "model.embed_audio.x.weight")


@pytest.mark.parametrize(
    ("name", "kind", "key", "prefix", "others"),
    [
        ("gemma4-dense", "Gemma4UnifiedForConditionalGeneration", "text_config", "model.language_model.", VISION),
        ("nemotron_h", "NemotronH_Nano_VL_V2", "llm_config", "language_model.model.", ("vision_model.x", "mlp1.1.x")),
        ("nemotron_h_moe", "NemotronH_Nano_VL_V2", "llm_config", "language_model.model.", ("sound_encoder.x.weight",)),
        (
            "exaone4-windows", "Exaone4_5_ForConditionalGeneration", "text_config", "model.language_model.",
            ("model.visual.blocks.0.x", "mtp.fc.weight", "mtp.layers.0.x"),
        ),
        (
            "qwen35", "MiniCPMV4_6ForConditionalGeneration", "text_config", "model.language_model.",
            ("model.vision_tower.vit_merger.x", "model.merger.mlp.0.linear_1.weight"),
        ),
        ("deepseek2-ocr", "DeepseekOCR2ForCausalLM", "language_config", "model.", ("model.qwen2_model.x",)),
        *(
            ("deepseek3", f"{name}ForConditionalGeneration", "text_config", "language_model.model.", others)
            for name, others in (("KimiVL", ("vision_tower.x",)), ("KimiK25", ("vision_tower.x", "mm_projector.x")))
        ),
    ],
)
def test_text_models_of_models_that_see(
    name: str, kind: str, key: str, prefix: str, others: tuple[str, ...], tmp_path: Path
) -> None:
    plain, folder = (reference_models.checkpoint(name, tmp_path / each) for each in ("plain", "sees"))
    config, tensors = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    text = config.get(key, config)
    (folder / "config.json").write_text(json.dumps({"architectures": [kind], "model_type": kind, key: text}))
    renamed = {re.sub(r"^model\.(language_model\.)?", prefix, each): tensor for each, tensor in tensors.items()}
    save_file({**renamed, **{each: np.zeros(1, np.float32) for each in others}}, folder / "model.safetensors")
    expected, found = open_checkpoint(plain), open_checkpoint(folder)
    assert found.tensors.keys() == expected.tensors.keys()
    assert keys_of(found) == keys_of(expected)
