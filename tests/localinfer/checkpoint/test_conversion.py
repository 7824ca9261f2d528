"""Checkpoints of all architectures, beside what llama.cpp's own conversion makes of them: data/conversion.json.

What its files compute is another question, which benchmarks/checks/proving.py answers.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import eagle3_heads
import gguf
import heads
import numpy as np
import proofs
import pytest
from checkpoints import changed
from safetensors.numpy import load_file, save_file

from localinfer.checkpoint import architectures, open_checkpoint
from localinfer.checkpoint.architecture import Architecture
from localinfer.errors import LocalInferError, Unsupported, UsageError
from localinfer.files.source import Field, Source
from localinfer.plan.recurrence import SHAPE_OF_STATES

CONVERSION: dict[str, Any] = json.loads((proofs.DATA.parent / "conversion.json").read_text(encoding="utf-8"))
STACKED = re.compile(r"\.norms\.|\.experts\.|altup\w*_projections|\.attn\.x_")  # parts of one tensor of a GGUF file
IDLE = {"gemma3n-25": re.compile(r"\.self_attn\.(k_|v_)")}  # of layers that look at the keys of others
each = pytest.mark.parametrize("name", proofs.NAMES)
each_head = pytest.mark.parametrize("name", eagle3_heads.NAMES)

# Keys that are always written here, where llama.cpp leaves out what is usual, and keys that it does not know.
MORE = {
    "attention.key_length",
    "attention.value_length",
    "attention.head_count_kv",
    "attention.sliding_window",
    "attention.temperature_length",
    "attention.temperature_scale",
    "expert_gating_func",
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
    "nemotron": {"attention.layer_norm_rms_epsilon"},  # it has no such norms
    "granitehybrid": NO_EXPERTS,
    **dict.fromkeys(("nemotron_h", "nemotron_h_moe", "nemotron_h_moe-latent"), NO_ROPE),
    "granite4": {*NO_EXPERTS, "expert_shared_feed_forward_length", *SHAPE_OF_STATES},
}
OTHER = {
    "falcon": {"context_length"},  # config.json has it now
    "falcon-40b": {"context_length"},
    "gemma3": {"token_embd.weight"},  # rows without a token are kept
    "gemma4": {"token_embd.weight"},
    "gemma4-dense": {"token_embd.weight"},
    "gemma4-experts": {"token_embd.weight"},
    "llama-longrope": {"rope_factors_long.weight", "rope_factors_short.weight"},  # llama.cpp leaves them out
    "phimoe": {"rope.scaling.attn_factor"},  # which config.json says outright
    "bitnet": {f"blk.{{}}.{kind}.weight" for kind in ("attn_output", "attn_k", "ffn_up")},  # a mean in float32
    "falcon-h1": {"blk.{}.ssm_a"},  # a power of e in float32
    "falcon-h1-normed": {"blk.{}.ssm_a"},  # the same
    "granite4": {"attention.head_count_kv"},  # the same for all blocks
    "granitehybrid": {"blk.{}.ssm_a"},
    "granitehybrid-experts": {"blk.{}.ssm_a"},
    "falcon-mamba": {"blk.{}.ssm_a"},
    "mamba": {"blk.{}.ssm_a"},
    "mamba2": {"blk.{}.ssm_a"},
    "nemotron_h": {"blk.{}.ssm_a"},
    "nemotron_h_moe": {"blk.{}.ssm_a"},
    "nemotron_h_moe-latent": {"blk.{}.ssm_a"},
    "qwen35": {"blk.{}.ssm_a"},
    "qwen35moe": {"blk.{}.ssm_a"},
    "qwen3next": {"blk.{}.ssm_a"},
}


def keys_of(source: Source) -> dict[str, Any]:
    """The keys of its architecture, without its name."""
    mine = f"{text(source.fields['general.architecture'])}."
    return {key.removeprefix(mine): plain(field) for key, field in source.fields.items() if key.startswith(mine)}


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


@each
def test_keys_and_tensors_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    if isinstance(CONVERSION[name], str):
        pytest.skip(f"llama.cpp does not convert it: {CONVERSION[name]}")
    are_alike(name, open_checkpoint(proofs.checkpoint(name, tmp_path)), CONVERSION[name], proofs.architecture(name))


@each_head
def test_heads_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    model = proofs.checkpoint(eagle3_heads.described(name)["model"], tmp_path)
    are_alike(name, open_checkpoint(eagle3_heads.checkpoint(name, tmp_path), model), CONVERSION[name], "eagle3")


@pytest.mark.parametrize("name", heads.NAMES)
def test_blocks_that_predict_further_tokens_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    expected = CONVERSION[f"{name}; head"]
    if name == "deepseek3":  # whose key llama.cpp leaves out, as it does the block
        expected["keys"]["deepseek2.nextn_predict_layers"] = 1
    source = open_checkpoint(heads.checkpoint(name, tmp_path, own=True))
    are_alike(name, source, expected, proofs.architecture(name))


def are_alike(name: str, source: Source, converted: dict[str, Any], architecture: str) -> None:
    """Keys and tensors of a checkpoint are those that llama.cpp's conversion made of it."""
    ours, other = keys_of(source), OTHER.get(name, set())
    theirs = {key.removeprefix(f"{architecture}."): value for key, value in converted["keys"].items()}
    assert ours.keys() - theirs.keys() <= MORE
    assert theirs.keys() - ours.keys() == LESS.get(name, set())
    for key in ours.keys() & theirs.keys() - other:
        assert ours[key] == (pytest.approx(theirs[key]) if isinstance(ours[key], float) else theirs[key]), key
    tensors = proofs.summary({tensor.name: (tensor.shape, tensor.load()) for tensor in source.tensors.values()})
    expected = converted["tensors"]
    different = {key for key in tensors.keys() | expected.keys() if tensors.get(key) != expected.get(key)}
    assert different == other - theirs.keys()


def without(path: Path, kind: str) -> Path:
    """The checkpoint less the tensors that have this in their names."""
    altered(path, lambda tensors: [tensors.pop(name) for name in list(tensors) if kind in name])
    return path


@pytest.mark.parametrize(
    ("name", "lacking"), [("glm4moe", "layers.3."), ("glm4moe", "eh_proj"), ("qwen35", "mtp."), ("qwen35", "mtp.fc")]
)
def test_a_checkpoint_may_lack_a_block_that_its_configuration_tells_of(name: str, lacking: str, tmp_path: Path) -> None:
    """Or what is in front of it, without which it is of no use."""
    plain = open_checkpoint(proofs.checkpoint(name, tmp_path / "plain"))
    source = open_checkpoint(without(heads.checkpoint(name, tmp_path), lacking))
    assert keys_of(source) == keys_of(plain)
    assert source.tensors.keys() == plain.tensors.keys()


@pytest.mark.parametrize("lacking", ["enorm", "layers.3.self_attn.o_proj"])
def test_a_block_that_predicts_further_tokens_is_whole(lacking: str, tmp_path: Path) -> None:
    path = without(heads.checkpoint("glm4moe", tmp_path), lacking)
    assert f"{lacking.removeprefix('layers.3.')}.weight: is missing" in str(refusal(path))


def test_there_is_a_proof_of_each_architecture() -> None:
    told = (each for kin in architectures.KINS for each in vars(kin).values())
    known = {each.name for each in told if isinstance(each, Architecture)}
    assert known == {proofs.architecture(name) for name in [*proofs.NAMES, *proofs.ENCODERS]}


# ----------------------------------------------------------------------------------------- the same in other words


def older_rope(config: dict[str, Any]) -> None:
    """As before transformers 5: rope_theta and rope_scaling, and some words that only one architecture has."""
    rope = dict(config.pop("rope_parameters"))
    windows = rope.get("sliding_attention", {})
    rope = dict(rope.get("full_attention", rope))
    config["rope_theta"] = rope.pop("rope_theta")
    share = rope.pop("partial_rotary_factor", None)
    if share is not None:
        config[{"gpt_neox": "rotary_pct"}.get(config["model_type"], "partial_rotary_factor")] = share
    if windows:
        config["rope_local_base_freq"] = windows["rope_theta"]
    config["rope_scaling"] = (rope | {"type": rope.pop("rope_type")}) if len(rope) > 1 else None


def architecture_is_younger(name: str) -> bool:
    return name in ("ministral3", "mistral4") or proofs.architecture(name) == "gemma4"


@each
def test_older_configurations(name: str, tmp_path: Path) -> None:
    folder = proofs.checkpoint(name, tmp_path)
    before = open_checkpoint(folder)
    config = json.loads((folder / "config.json").read_text())
    text_config = config.get("text_config", config)
    if "rope_parameters" not in text_config or architecture_is_younger(name):
        pytest.skip("has no older spelling")
    older_rope(text_config)
    (folder / "config.json").write_text(json.dumps(config))
    after = open_checkpoint(folder)
    assert keys_of(after) == keys_of(before)
    assert after.tensors.keys() == before.tensors.keys()


# ------------------------------------------------------------------------------------------------ packed matrices


def pack(matrix: Any) -> Any:
    """As transformers packs a matrix of 0, 1 and 2: four quarters of its rows in the bits of one."""
    quarters = matrix.astype(np.uint8).reshape(4, -1, matrix.shape[1])
    return quarters[0] | quarters[1] << 2 | quarters[2] << 4 | quarters[3] << 6


def packed(folder: Path, name: str, linear_class: str) -> Path:
    """A BitNet of the same values, packed, with scales that are inverted in one of the classes."""
    path = proofs.checkpoint(name, folder)

    def change(tensors: dict[str, Any]) -> None:
        for key in [key for key in tensors if "_proj" in key]:
            mean = np.abs(tensors[key]).mean(dtype=np.float64).astype(np.float32)
            signs = np.clip(np.round(tensors[key] / mean), -1, 1)
            scale = mean if linear_class == "autobitlinear" else np.float32(1) / mean
            tensors |= {key: pack(signs + 1), f"{key}_scale": np.array([scale])}

    altered(path, change)
    quantization = {"quant_method": "bitnet", "linear_class": linear_class, "quantization_mode": "offline"}
    changed(path / "config.json", lambda config: config.update(quantization_config=quantization))
    return path


@pytest.mark.parametrize("linear_class", ["autobitlinear", "bitlinear"])
def test_packed_matrices(linear_class: str, tmp_path: Path) -> None:
    name = "bitnet-b1.58"
    plain = open_checkpoint(proofs.checkpoint(name, tmp_path / "plain")).tensors
    tensors = open_checkpoint(packed(tmp_path, name, linear_class)).tensors
    assert tensors.keys() == plain.keys()
    for key, tensor in tensors.items():
        assert (tensor.shape, tensor.type) == (plain[key].shape, plain[key].type)
        found, wanted = tensor.load().view(np.float32), plain[key].load().view(np.float32)
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_packed_matrices_without_sense(tmp_path: Path) -> None:
    folder, key = packed(tmp_path, "bitnet-b1.58", "autobitlinear"), "model.layers.1.mlp.up_proj.weight"
    whole = load_file(folder / "model.safetensors")
    odd = {
        f"tensor {key}: is U8 [39, 96], not U8 [40, 96]": {key: whole[key][1:]},
        f"tensor {key}: is F32 [40, 96], not U8": {key: whole[key].astype(np.float32)},
        f"tensor {key}: has no scale": {f"{key}_scale": np.ones(2, np.float32)},
    }
    for line, changes in odd.items():
        save_file(whole | changes, folder / "model.safetensors")
        assert line in str(refusal(folder))
    save_file({name: values for name, values in whole.items() if name != f"{key}_scale"}, folder / "model.safetensors")
    assert f"tensor {key}: has no scale" in str(refusal(folder))


FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
FP4 = np.concatenate([FP4, -FP4])


def in_mxfp4(folder: Path) -> tuple[Path, dict[str, Any]]:
    """gpt-oss with random blocks for its experts, as it is shared, and the values that these stand for."""
    path, values = proofs.checkpoint("gpt-oss", folder), {}

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
    changed(path / "config.json", lambda config: config.update(quantization_config={"quant_method": "mxfp4"}))
    return path, values


def test_blocks_of_mxfp4_stay_what_they_are(tmp_path: Path) -> None:
    path, values = in_mxfp4(tmp_path)
    tensors = open_checkpoint(path).tensors
    for key, rows in (("gate_up_proj", "gate"), ("gate_up_proj", "up"), ("down_proj", "down")):
        tensor, whole = tensors[f"blk.1.ffn_{rows}_exps.weight"], values[f"model.layers.1.mlp.experts.{key}"]
        wanted = {"gate": whole[:, ::2], "up": whole[:, 1::2], "down": whole}[rows]
        assert (tensor.type_name, tensor.shape) == ("MXFP4", wanted.shape)
        blocks = tensor.load().reshape(*tensor.shape[:-1], -1)
        np.testing.assert_array_equal(gguf.dequantize(blocks, gguf.GGMLQuantizationType.MXFP4), wanted)


def test_blocks_of_mxfp4_without_sense(tmp_path: Path) -> None:
    path, _ = in_mxfp4(tmp_path)
    key = "model.layers.0.mlp.experts.down_proj_scales"
    whole = load_file(path / "model.safetensors")
    save_file(whole | {key: whole[key][1:]}, path / "model.safetensors")
    assert f"tensor {key}: is U8 [5, 96, 5], not U8 [6, 96, 5]" in str(refusal(path))
    save_file({name: values for name, values in whole.items() if name != key}, path / "model.safetensors")
    assert "is missing" in str(refusal(path))


# ------------------------------------------------------------------------------------------------ what is refused


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


@each
def test_each_tensor_that_is_missing_is_named(name: str, tmp_path: Path) -> None:
    """In the last block, where the others tell what it would be called."""
    folder = proofs.checkpoint(name, tmp_path)
    last = proofs.described(name)["n_layer"] - 1
    whole = load_file(folder / "model.safetensors")
    idle = IDLE.get(name, STACKED)
    of_last = [key for key in whole if f".{last}." in f".{key}" and not (STACKED.search(key) or idle.search(key))]
    for missing in of_last:
        save_file({key: values for key, values in whole.items() if key != missing}, folder / "model.safetensors")
        assert str(refusal(folder)).endswith(f"tensor {missing}: is missing")


@each
def test_a_tensor_of_another_shape_is_named(name: str, tmp_path: Path) -> None:
    folder = proofs.checkpoint(name, tmp_path)
    whole = load_file(folder / "model.safetensors")
    first = {key: values for key, values in whole.items() if ".0." in f".{key}" and not STACKED.search(key)}
    for key, values in first.items():
        odd = np.zeros((*values.shape[:-1], values.shape[-1] + 1), np.float32)
        save_file(whole | {key: odd}, folder / "model.safetensors")
        assert f"tensor {key}: has " in str(refusal(folder))


@each
def test_a_tensor_more_is_named(name: str, tmp_path: Path) -> None:
    folder = proofs.checkpoint(name, tmp_path)
    more = next(key for key in proofs.described(name)["tensors"] if "{}" in key).replace("{}", "0")
    for extra in (more.removesuffix(".weight") + "_of_another.weight", "model.layers.0.mlp.lookup.weight"):
        altered(folder, lambda tensors, extra=extra: tensors.update({extra: np.ones(3, np.float32)}))
        error = refusal(folder)
        assert isinstance(error, Unsupported)
        assert f"tensor {extra}: is not part of the {proofs.architecture(name)} architecture" in str(error)
        altered(folder, lambda tensors, extra=extra: tensors.pop(extra))


def test_a_bias_of_zeros_is_left_out(tmp_path: Path) -> None:
    """Some checkpoints of cohere2 have them; others are refused."""
    folder, bias = proofs.checkpoint("cohere2", tmp_path), "model.layers.0.self_attn.q_proj.bias"
    altered(folder, lambda tensors: tensors.update({bias: np.zeros(96, np.float32)}))
    assert "blk.0.attn_q.bias" not in open_checkpoint(folder).tensors
    altered(folder, lambda tensors: tensors.update({bias: np.ones(96, np.float32)}))
    assert f"tensor {bias}: is not part of" in str(refusal(folder))


@pytest.mark.parametrize(
    ("name", "changes", "line"),
    [
        ("falcon", {"alibi": True}, "alibi: True is not supported"),
        ("falcon", {"parallel_attn": False}, "parallel_attn: False is not supported"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx: True is not"),
        ("gpt2", {"n_embd": -1}, "n_embd: is -1; it must be 1"),
        ("gpt2", {"activation_function": "relu"}, "activation_function: 'relu' is not supported"),
        ("phi2", {"qk_layernorm": True}, "qk_layernorm: True is not supported"),
        ("smollm3", {"no_rope_layers": [1, 1, 1, 1, 1]}, "no_rope_layers: others than each fourth are not"),
        ("smollm3", {"no_rope_layers": None, "no_rope_layer_interval": 3}, "no_rope_layers: others than"),
        ("llama2", {"logits_scaling": 2.0}, "logits_scaling: 2.0 is not supported"),
        ("llama2", {"partial_rotary_factor": 0.5}, "partial_rotary_factor: is not supported"),
        ("glm4", {"rope_parameters": {"partial_rotary_factor": 0.04}}, "makes 1 values of a head turn"),
        ("glm4", {"rope_parameters": {"partial_rotary_factor": 1.5}}, "partial_rotary_factor: is 1.5; it must be"),
        ("llama-yarn", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "truncate": False}}, "truncate: false"),
        ("phi3-long", {"rope_parameters": {"rope_type": "longrope", "long_factor": [1.0]}}, "long_factor: must be 16"),
        ("phi3-long", {"rope_parameters": {"rope_type": "longrope", "long_factor": ["1"] * 16}}, "long_factor: must"),
        ("granite", {"attention_multiplier": 0}, "attention_multiplier: is 0; it must be above 0"),
        ("minicpm", {"scale_emb": None}, "scale_emb: is missing"),
        ("exaone4", {"sliding_window": 9, "layer_types": None, "sliding_window_pattern": "LGG"}, "'LGG' is not"),
        ("gemma2", {"query_pre_attn_scalar": 24}, "query_pre_attn_scalar: 24 is not supported"),
        ("cohere2", {"layer_types": ["global"] * 5}, "layer_types: must be full_attention or sliding_attention 5 t"),
    ],
)
def test_what_config_json_may_not_say(name: str, changes: dict[str, Any], line: str, tmp_path: Path) -> None:
    folder = proofs.checkpoint(name, tmp_path)
    changed(folder / "config.json", lambda config: config.update(changes))
    assert line in str(refusal(folder))


@pytest.mark.parametrize("infinity", [float("inf"), {"__float__": "Infinity"}, {"__float__": float("inf")}])
def test_steps_of_time_have_no_limit(infinity: Any, tmp_path: Path) -> None:
    """Infinity is not JSON, but configurations say it; other numbers must be finite, and limits are not supported."""
    folder = proofs.checkpoint("mamba2", tmp_path)
    changed(folder / "config.json", lambda config: config.update(time_step_limit=[0.0, infinity]))
    assert "blk.0.ssm_a" in open_checkpoint(folder).tensors
    changed(folder / "config.json", lambda config: config.update(time_step_limit=[0.0, 0.1]))
    assert str(refusal(folder)).endswith("time_step_limit: [0.0, 0.1] is not supported")
    changed(folder / "config.json", lambda config: config.update(time_step_limit=None, layer_norm_epsilon=infinity))
    assert str(refusal(folder)).endswith("layer_norm_epsilon: is inf; it must be finite")


def test_a_base_that_grows_beyond_the_context_is_plain_within(tmp_path: Path) -> None:
    """As internlm2 has it."""
    folder = proofs.checkpoint("internlm2", tmp_path)
    before = keys_of(open_checkpoint(folder))
    growing = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e6}
    changed(folder / "config.json", lambda config: config.update(rope_parameters=growing))
    assert keys_of(open_checkpoint(folder)) == before


def test_a_pattern_of_windows_in_letters(tmp_path: Path) -> None:
    folder = proofs.checkpoint("exaone4-windows", tmp_path)
    before = keys_of(open_checkpoint(folder))
    changed(folder / "config.json", lambda config: config.update(layer_types=None, sliding_window_pattern="LLLG"))
    assert keys_of(open_checkpoint(folder)) == before


def test_the_context_of_command_r_is_what_it_was_trained_for(tmp_path: Path) -> None:
    folder = proofs.checkpoint("command-r", tmp_path)
    changed(folder / "config.json", lambda config: config.update(model_max_length=131_072))
    assert keys_of(open_checkpoint(folder))["context_length"] == 131_072


# ----------------------------------------------------------------------------------------- heads beside a model


def head_and_model(folder: Path) -> tuple[Path, Path]:
    return eagle3_heads.checkpoint("eagle3", folder), proofs.checkpoint("llama3", folder)


def test_a_head_has_the_words_of_its_model(tmp_path: Path) -> None:
    head, model = head_and_model(tmp_path)
    source, whole = open_checkpoint(head, model), open_checkpoint(model)
    for key, field in whole.fields.items():
        if key.startswith("tokenizer."):
            assert source.fields[key] == field
    assert {*whole.files} & {*source.files}


def test_a_head_without_its_model_is_refused(tmp_path: Path) -> None:
    head, _ = head_and_model(tmp_path)
    with pytest.raises(UsageError, match=r"config\.json: is of a head \(EAGLE-3\): --target-model-dir names"):
        open_checkpoint(head)


def test_names_and_places_of_older_and_newer_heads(tmp_path: Path) -> None:
    """A layer may be `layers.0`, and its numbers a table of their own."""
    head, model = head_and_model(tmp_path)
    before = open_checkpoint(head, model)
    tensors = load_file(head / "model.safetensors")
    renamed = {name.replace("midlayer.", "layers.0."): value for name, value in tensors.items()}
    save_file(renamed, head / "model.safetensors")
    nested = ("hidden_size", "num_hidden_layers", "head_dim", "num_attention_heads", "rope_parameters")

    def nest(config: dict[str, Any]) -> None:
        config["transformer_layer_config"] = {key: config.pop(key) for key in nested}

    changed(head / "config.json", nest)
    after = open_checkpoint(head, model)
    assert keys_of(after) == keys_of(before)
    assert {*after.tensors} == {*before.tensors}


@pytest.mark.parametrize(
    ("first", "second", "problem"),
    [(-1, 0, "beyond the vocabulary"), (264, 0, "beyond the vocabulary"), (1, 0, "to one token twice")],
)
def test_a_vocabulary_that_is_none_is_refused(first: int, second: int, problem: str, tmp_path: Path) -> None:
    head, model = head_and_model(tmp_path)
    tensors = load_file(head / "model.safetensors")
    tensors["d2t"][:2] = first, second
    save_file(tensors, head / "model.safetensors")
    with pytest.raises(LocalInferError, match=f"tensor d2t: leads {problem}"):
        open_checkpoint(head, model)


@pytest.mark.parametrize("layers", [[1, 2], [1, 2, 3], [1, 2, "1"]])
def test_layers_that_the_model_has_not_are_refused(layers: list[object], tmp_path: Path) -> None:
    head, model = head_and_model(tmp_path)
    changed(head / "config.json", lambda config: config.update(eagle_aux_hidden_state_layer_ids=layers))
    with pytest.raises(LocalInferError, match="eagle_aux_hidden_state_layer_ids: is "):
        open_checkpoint(head, model)


def test_which_layers_a_head_looks_at_may_follow_from_their_number(tmp_path: Path) -> None:
    head, model = eagle3_heads.checkpoint("eagle3-borrowing", tmp_path), proofs.checkpoint("smollm3", tmp_path)
    changed(head / "config.json", lambda config: config.pop("eagle_aux_hidden_state_layer_ids"))
    assert keys_of(open_checkpoint(head, model))["target_layers"] == [2, 2, 2]  # of five
