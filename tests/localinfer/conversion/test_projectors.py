"""Encoders of checkpoints become the files that llama.cpp's converter makes: the same keys, tensors and bytes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from projector_checkpoints import comparable, descriptions, digest_of_all, summary, write_checkpoint
from reference_models import values

from localinfer import convert
from localinfer.conversion.projectors.gemma import softplus
from localinfer.errors import LocalInferError, ModelNotFoundError, UnsupportedError, UsageError
from localinfer.gguf.reader import GGUF, open_gguf
from localinfer.multimodal.preprocessing.processors import make_image_processor

DESCRIPTIONS = descriptions()
IMAGES = [
    name for name, each in DESCRIPTIONS.items() if "clip.has_vision_encoder" in each["expected"]["F32"]["keys"]
]
KEYS = ("clip.", "general.type", "general.architecture", "general.file_type")
BREAK = "v.token_embd.img_break"  # llama.cpp's converter skips it together with the text model


def converted(folder: Path, name: str, kind: str) -> GGUF:
    """Return the file that the encoder of a checkpoint becomes."""
    checkpoint = write_checkpoint(folder / "checkpoint", DESCRIPTIONS[name])
    return open_gguf(convert(checkpoint, folder / "mmproj.gguf", kind, mmproj=True))


def tensors_of(f: GGUF) -> dict[str, str]:
    return {name: summary(each.shape, each.type_name, each.data) for name, each in f.tensors.items() if name != BREAK}


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_f32_is_equal_to_llama_cpp(name: str, tmp_path: Path) -> None:
    f, expected = converted(tmp_path, name, "F32"), DESCRIPTIONS[name]["expected"]["F32"]
    assert comparable(name, tensors_of(f)) == {key: value for key, value in expected["tensors"].items() if key != BREAK}
    keys = {key: value for key, value in f.metadata.items() if key.startswith(KEYS)}
    plain = {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in keys.items()}
    assert plain == expected["keys"]


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_f16_is_equal_to_llama_cpp(name: str, tmp_path: Path) -> None:
    f = converted(tmp_path, name, "F16")
    assert digest_of_all(comparable(name, tensors_of(f))) == DESCRIPTIONS[name]["expected"]["F16"]["tensors"]
    assert f.metadata["general.file_type"] == 1


@pytest.mark.parametrize("name", IMAGES)
def test_the_file_describes_its_preprocessing(name: str, tmp_path: Path) -> None:
    grids = make_image_processor(converted(tmp_path, name, "F16")).grids(60, 80)
    assert grids
    assert all(rows > 0 and columns > 0 for rows, columns in grids)


@pytest.mark.parametrize("name", ["pixtral", "mistral3"])
def test_the_embedding_of_the_end_of_a_row(name: str, tmp_path: Path) -> None:
    f = converted(tmp_path, name, "F16")
    tensors = DESCRIPTIONS[name]["tensors"]
    embedding = next(each for each in tensors if each.endswith("embed_tokens.weight"))
    expected = values(embedding, tuple(tensors[embedding]), 1.0)[12]
    assert np.array_equal(f.tensors[BREAK].data.view(np.float32), expected)


def test_the_softplus_of_a_scale() -> None:
    values = np.array([-100, -3, -0.5, 0, 0.25, 2, 100], np.float32)
    assert np.allclose(softplus(values), np.log1p(np.exp(values.astype(np.float64))), rtol=1e-7, atol=1e-40)


def test_an_encoder_of_sounds_alone(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint", DESCRIPTIONS["gemma4"])
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps({**config, "vision_config": None}))
    f = open_gguf(convert(checkpoint, tmp_path / "mmproj.gguf", "F16", mmproj=True))
    assert f.metadata["clip.audio.projector_type"] == "gemma4a"
    assert "clip.has_vision_encoder" not in f.metadata
    assert all(name.startswith(("a.", "mm.a.")) for name in f.tensors)


def test_the_encoder_of_sounds_of_gemma3n(tmp_path: Path) -> None:
    description = json.loads(json.dumps(DESCRIPTIONS["gemma3n"]))
    subsample, layer = (f"model.audio_tower.{name}" for name in ("subsample_conv_projection.conv_1.", "conformer.0."))
    description["tensors"] |= {
        f"{subsample}norm.weight": [32], f"{subsample}conv.weight": [32, 32, 3, 3],
        f"{layer}attention.attn.per_dim_scale": [16], f"{layer}lconv1d.depthwise_conv1d.weight": [16, 1, 5],
        "model.embed_audio.embedding.weight": [4, 16],
    }  # fmt: skip
    checkpoint = write_checkpoint(tmp_path / "checkpoint", description)
    f = open_gguf(convert(checkpoint, tmp_path / "mmproj.gguf", "F16", mmproj=True))
    types = {name: (tensor.type_name, tensor.shape) for name, tensor in f.tensors.items() if name.startswith("a.")}
    assert types == {
        "a.conv1d.1.norm.weight": ("F32", (32,)), "a.conv1d.1.weight": ("F32", (32, 32, 3, 3)),
        "a.blk.0.per_dim_scale": ("F32", (16,)), "a.blk.0.conv_dw.weight": ("F32", (16, 1, 5)),
    }  # fmt: skip
    kinds = [f.metadata[f"clip.{kind}.projector_type"] for kind in ("vision", "audio")]
    assert kinds == ["gemma3nv", "gemma3na"]
    description["files"]["config.json"]["audio_config"]["gradient_clipping"] = 1.0
    with pytest.raises(UnsupportedError, match=r"audio_config\.gradient_clipping: must be 10000000000\.0"):
        convert(write_checkpoint(tmp_path / "other", description), tmp_path / "other.gguf", mmproj=True)


def test_sizes_of_gemma4_that_readers_do_not_assume(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint", DESCRIPTIONS["gemma4 of other size"])
    config = json.loads((checkpoint / "config.json").read_text())
    config["vision_config"] |= {"pooling_kernel_size": 2, "head_dim": 16}
    (checkpoint / "config.json").write_text(json.dumps(config))
    f = open_gguf(convert(checkpoint, tmp_path / "mmproj.gguf", "F16", mmproj=True))
    assert f.metadata["clip.vision.projector.scale_factor"] == 2
    assert f.metadata["clip.vision.attention.head_dim"] == 16


def test_other_types(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint", DESCRIPTIONS["kimivl"])
    for kind, matrix, convolution in (("Q8_0", "Q8_0", "F32"), ("BF16", "BF16", "F32")):
        f = open_gguf(convert(checkpoint, tmp_path / kind, kind, mmproj=True))
        assert f.tensors["v.blk.0.attn_q.weight"].type_name == matrix
        assert f.tensors["v.patch_embd.weight"].type_name == convolution
        assert f.tensors["v.blk.0.ln1.weight"].type_name == "F32"
    with pytest.raises(UsageError, match="Q4_K_M: an encoder is written as F32, F16, BF16 or Q8_0"):
        convert(checkpoint, tmp_path / "other", "Q4_K_M", mmproj=True)
    assert not (tmp_path / "other").exists()


def test_rows_that_blocks_do_not_divide_are_f16(tmp_path: Path) -> None:
    description = DESCRIPTIONS["gemma3"]
    f = open_gguf(convert(write_checkpoint(tmp_path / "c", description), tmp_path / "out", "Q8_0", mmproj=True))
    assert f.tensors["mm.input_projection.weight"].type_name == "F16"  # in every file
    assert f.tensors["v.position_embd.weight"].type_name == "F32"


def without(key: str, part: str = "") -> Callable[[dict[str, Any]], None]:
    """Return the function that removes a key of config.json or of an object in it."""
    return lambda config: (config[part] if part else config).pop(key) and None


def with_value(key: str, value: object, part: str = "vision_config") -> Callable[[dict[str, Any]], None]:
    """Return the function that sets a key of an object in config.json."""
    return lambda config: (config[part] if part else config).update({key: value})


@pytest.mark.parametrize(
    ("name", "change", "error", "problem"),
    [
        ("gemma3", without("vision_config"), UnsupportedError, "vision_config: is missing: the checkpoint has no"),
        ("gemma3", without("hidden_size", "vision_config"), LocalInferError, r"vision_config\.hidden_size: is missing"),
        ("gemma3", with_value("architectures", ["New"], ""), UnsupportedError, "'New' has no encoder of images"),
        ("gemma3", with_value("num_hidden_layers", -1), LocalInferError, r"num_hidden_layers: is -1; it must be"),
        ("gemma3", with_value("num_hidden_layers", 10**9), LocalInferError, r"num_hidden_layers: is 1000000000"),
        ("gemma4", with_value("num_key_value_heads", 1), UnsupportedError, "num_key_value_heads: must be 2"),
        ("gemma4", with_value("hidden_activation", "silu"), UnsupportedError, "hidden_activation: must be gelu_"),
        ("gemma4", with_value("rope_parameters", {"rope_theta": 1e4}), UnsupportedError, "rope_theta: must be 100"),
        ("gemma4", with_value("residual_weight", 1.0, "audio_config"), UnsupportedError, "residual_weight: must be"),
        ("gemma3n", with_value("audio_soft_tokens_per_image", 9, ""), UnsupportedError, "must be 188"),
        ("gemma4 of other size", with_value("vision_config", None, ""), UnsupportedError, "vision_config: is missing"),
        ("qwen2.5vl", with_value("fullatt_block_indexes", [1, 2]), LocalInferError, "must be every n-th layer"),
        ("qwen2.5vl", with_value("fullatt_block_indexes", ["x"]), LocalInferError, "must be numbers of layers"),
        ("qwen3vl", with_value("deepstack_visual_indexes", [9]), LocalInferError, "must be numbers of layers below 4"),
        ("minicpm-v4.6", with_value("insert_layer_id", -1, ""), LocalInferError, "insert_layer_id: is -1; it must be"),
        ("pixtral", with_value("model_type", "clip"), UnsupportedError, "model_type: must be pixtral"),
        (
            "granite_speech_plus", with_value("cat_hidden_layers", [-1], "encoder_config"), LocalInferError,
            "cat_hidden_layers: must be numbers of layers",
        ),
        ("glm4v", with_value("hidden_act", "tanh"), LocalInferError, "hidden_act: 'tanh' is not supported"),
        ("lfm2", with_value("vision_feature_layer", 3, ""), UnsupportedError, "vision_feature_layer: is not supported"),
    ],
)
def test_invalid_configurations(
    name: str, change: Callable[[dict[str, Any]], None], error: type[LocalInferError], problem: str, tmp_path: Path
) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint", DESCRIPTIONS[name])
    config = json.loads((checkpoint / "config.json").read_text())
    change(config)
    (checkpoint / "config.json").write_text(json.dumps(config))
    with pytest.raises(error, match=problem) as caught:
        convert(checkpoint, tmp_path / "out.gguf", mmproj=True)
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "out.gguf").exists()


@pytest.mark.parametrize(
    ("name", "added", "problem"),
    [
        ("gemma3", {"vision_tower.new.weight": [4, 4]}, "vision_tower.new.weight: is not part of the supported gemma3"),
        ("qwen2vl", {"model.visual.patch_embed.proj.weight": [4, 4]}, "has the unexpected shape"),
        ("qwen3vl", {"model.visual.deepstack_merger_list.x.norm.weight": [4]}, "has an unexpected name"),
        ("kimivl", {"vision_tower.patch_embed.proj.weight": [2, 3, 1, 1, 1]}, "has the unexpected shape"),
    ],
)
def test_unexpected_tensors(name: str, added: dict[str, list[int]], problem: str, tmp_path: Path) -> None:
    description = DESCRIPTIONS[name]
    changed = {**description, "tensors": {**description["tensors"], **added}}
    with pytest.raises(LocalInferError, match=problem):
        convert(write_checkpoint(tmp_path / "checkpoint", changed), tmp_path / "out.gguf", mmproj=True)


def test_the_position_embeddings_of_qwen25_omni(tmp_path: Path) -> None:
    table = converted(tmp_path, "qwen2.5omni", "F32").tensors["a.position_embd.weight"]
    angles = np.arange(1500)[:, None] / 10_000 ** (np.arange(16) / 15)
    assert (table.shape, table.type_name) == ((1500, 32), "F32")
    expected = np.concatenate([np.sin(angles), np.cos(angles)], 1)
    np.testing.assert_allclose(table.data.view(np.float32).reshape(1500, 32), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [({"running_var": None}, "belongs to a batch normalization without running_var"),
     ({"running_mean": [33]}, r"running_mean: has the unexpected shape \[33\]"),
     ({"running_mean": [4, 8]}, r"running_mean: has the unexpected shape \[4, 8\]")],
)  # fmt: skip
def test_incomplete_batch_normalizations(changed: dict[str, list[int] | None], problem: str, tmp_path: Path) -> None:
    description, prefix = DESCRIPTIONS["lfm2audio"], "conformer.layers.3.conv.batch_norm."
    tensors = {**description["tensors"], **{prefix + name: shape for name, shape in changed.items()}}
    tensors = {name: shape for name, shape in tensors.items() if shape}
    checkpoint = write_checkpoint(tmp_path / "checkpoint", {**description, "tensors": tensors})
    with pytest.raises(LocalInferError, match=problem):
        convert(checkpoint, tmp_path / "out.gguf", mmproj=True)


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        convert(tmp_path / "none", tmp_path / "out.gguf", mmproj=True)
    checkpoint = write_checkpoint(tmp_path / "checkpoint", DESCRIPTIONS["gemma3"])
    (checkpoint / "preprocessor_config.json").unlink()
    with pytest.raises(LocalInferError, match="image_mean: is missing"):
        convert(checkpoint, tmp_path / "out.gguf", mmproj=True)
    pixtral = write_checkpoint(tmp_path / "pixtral", DESCRIPTIONS["pixtral"])
    (pixtral / "tokenizer.json").write_text("{}")
    with pytest.raises(LocalInferError, match=r"the tokenizer has no token \[IMG_BREAK\]"):
        convert(pixtral, tmp_path / "out.gguf", mmproj=True)


LLAVA_NEXT: dict[str, Any] = {  # llama.cpp's converter does not know it: test_projector.py compares what it computes
    "files": {
        "config.json": {
            "architectures": ["LlavaNextForConditionalGeneration"], "text_config": {"model_type": "mistral"},
            "vision_config": {
                "model_type": "clip_vision_model", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
                "num_attention_heads": 2, "image_size": 56, "patch_size": 14,
            },
            "image_grid_pinpoints": [[56, 112], [112, 56]], "vision_feature_layer": [-3, -2],
        },
        "preprocessor_config.json": {"image_mean": [0.5] * 3, "image_std": [0.5] * 3},
    },
    "tensors": {
        "image_newline": [4096], "multi_modal_projector.linear_1.weight": [4096, 128],
        "vision_tower.vision_model.embeddings.class_embedding": [64],
        "vision_tower.vision_model.encoder.layers.2.mlp.fc1.weight": [96, 64],
        "vision_tower.vision_model.encoder.layers.3.mlp.fc1.weight": [96, 64],
        "vision_tower.vision_model.post_layernorm.weight": [64], "language_model.model.norm.weight": [64],
    },
}  # fmt: skip


def llava_next(folder: Path, **changes: object) -> Path:
    """Write the checkpoint with other values in config.json."""
    files = LLAVA_NEXT["files"]
    config = {**files["config.json"], **changes}
    return write_checkpoint(folder / "checkpoint", {**LLAVA_NEXT, "files": {**files, "config.json": config}})


def test_layers_of_llava_next_that_the_model_does_not_read_are_left_out(tmp_path: Path) -> None:
    f = open_gguf(convert(llava_next(tmp_path), tmp_path / "out.gguf", "F16", mmproj=True))
    assert set(f.tensors) == {"v.image_newline", "mm.0.weight", "v.class_embd", "v.blk.2.ffn_up.weight"}
    assert f.metadata["clip.vision.feature_layer"].tolist() == [2, 3]
    assert f.metadata["clip.vision.block_count"] == 3
    assert f.metadata["clip.vision.image_grid_pinpoints"].tolist() == [112, 56, 56, 112]  # widths first
    assert f.metadata["clip.vision.projection_dim"] == 4096


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"vision_feature_layer": -5}, "vision_feature_layer: must be numbers of layers, 1 to 4 or negative"),
        ({"vision_feature_layer": [0]}, "vision_feature_layer: must be numbers of layers"),
        ({"vision_feature_select_strategy": "full"}, "vision_feature_select_strategy: must be default"),
        ({"image_grid_pinpoints": [[56]]}, "image_grid_pinpoints: must be pairs of a height and a width"),
        ({"vision_config": {"model_type": "clip_vision_model", "hidden_act": "silu"}}, "hidden_act: 'silu' is not"),
    ],
)
def test_invalid_configurations_of_llava_next(changes: dict[str, Any], problem: str, tmp_path: Path) -> None:
    sizes = {**LLAVA_NEXT["files"]["config.json"]["vision_config"], **changes.pop("vision_config", {})}
    with pytest.raises(LocalInferError, match=problem):
        convert(llava_next(tmp_path, vision_config=sizes, **changes), tmp_path / "out.gguf", mmproj=True)


MINICPM: dict[str, Any] = {  # test_encoders.py computes with a whole one
    "files": {
        "config.json": {
            "architectures": ["MiniCPMV"], "version": 2.6, "hidden_size": 128,
            "vision_config": {
                "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 2,
                "image_size": 980, "patch_size": 14,
            },
        },
        "preprocessor_config.json": {"norm_mean": [0.5] * 3, "norm_std": [0.5] * 3},
    },
    "tensors": {
        "vpm.embeddings.position_embedding.weight": [4900, 64], "resampler.query": [64, 128],
        "resampler.proj": [128, 128], "resampler.attn.in_proj_bias": [384], "resampler.kv_proj.weight": [128, 64],
        "resampler.pos_embed": [1, 128], "llm.model.norm.weight": [128],
    },
}  # fmt: skip


def test_minicpm(tmp_path: Path) -> None:
    f = open_gguf(convert(write_checkpoint(tmp_path / "c", MINICPM), tmp_path / "out.gguf", "F16", mmproj=True))
    shapes = {name: (each.shape, each.type_name) for name, each in f.tensors.items()}
    assert shapes == {
        "v.position_embd.weight": ((4900, 64), "F32"),
        "resampler.query": ((64, 128), "F32"),
        "resampler.pos_embed_k": ((4900, 128), "F32"),
        "resampler.proj.weight": ((128, 128), "F16"),
        "resampler.kv.weight": ((128, 64), "F16"),
        **{f"resampler.attn.{kind}.bias": ((128,), "F32") for kind in "qkv"},
    }
    assert f.metadata["clip.minicpmv_version"] == 3
    assert f.metadata["clip.vision.image_size"] == 448
    table = f.tensors["resampler.pos_embed_k"].data.view(np.float32).reshape(70, 70, 2, 2, 32)
    angles = np.arange(70)[:, None] * 10_000.0 ** (-np.arange(32) / 32)
    np.testing.assert_allclose(table[3, :, 0, 0], np.sin(angles), atol=1e-5)  # columns first
    np.testing.assert_allclose(table[:, 3, 1, 1], np.cos(angles), atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"version": 2.5}, "version: must be one of 2.6, 4.0, 4.5"),
        ({"version": "new"}, "version: must be one of"),
        ({"drop_vision_last_layer": True}, "drop_vision_last_layer: true is not supported"),
    ],
)
def test_other_versions_of_minicpm(changes: dict[str, Any], problem: str, tmp_path: Path) -> None:
    files = MINICPM["files"]
    changed = {**MINICPM, "files": {**files, "config.json": {**files["config.json"], **changes}}}
    with pytest.raises(UnsupportedError, match=problem):
        convert(write_checkpoint(tmp_path / "c", changed), tmp_path / "out.gguf", "F16", mmproj=True)


def test_minicpm_4_6_knows_two_modes(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint", DESCRIPTIONS["minicpm-v4.6"])
    processor = json.loads((checkpoint / "preprocessor_config.json").read_text())
    (checkpoint / "preprocessor_config.json").write_text(json.dumps({**processor, "downsample_mode": "8x"}))
    with pytest.raises(LocalInferError, match="downsample_mode: must be '4x' or '16x'"):
        convert(checkpoint, tmp_path / "out.gguf", mmproj=True)


def test_positions_of_nemotron_are_resampled_for_tiles(tmp_path: Path) -> None:
    description, name = DESCRIPTIONS["nemotron_v2_vl"], "vision_model.radio_model.model.patch_generator.pos_embed"
    larger = {**description, "tensors": {**description["tensors"], name: [1, 49, 64]}}
    f = open_gguf(convert(write_checkpoint(tmp_path / "c", larger), tmp_path / "out.gguf", "F16", mmproj=True))
    found = f.tensors["v.position_embd.weight"]
    assert (found.shape, found.type_name) == ((1, 16, 64), "F32")
    table = values(name, (1, 49, 64), 1.0).reshape(7, 7, 64)
    np.testing.assert_allclose(found.data.view(np.float32).reshape(4, 4, 64), table[::2, ::2], rtol=0, atol=1e-6)
