"""Converted checkpoints compute the logits of transformers.

data/checkpoints has tiny checkpoints of five architectures, with transformers' logits: see make_checkpoints.py.
"""

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import CHECKPOINTS, NAMES, as_f32, copy_checkpoint, edit_json
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from localinfer import naive
from localinfer.conversion import open_checkpoint
from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.rope import read_ropes
from localinfer.errors import UnsupportedError
from localinfer.gguf.reader import GGUF, StringArray, open_gguf
from localinfer.gguf.source import Source
from localinfer.options import Options
from localinfer.runtime.engine import Engine

each = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, GGUF]:
    """Return all checkpoints, converted to F32 and opened, by name."""
    folder = tmp_path_factory.mktemp("checkpoints")
    return {name: open_gguf(as_f32(CHECKPOINTS / name, folder / f"{name}.gguf")) for name in NAMES}


def expected(name: str) -> tuple[list[int], NDArray[np.intp], NDArray[np.float32]]:
    """Return token ids, positions in them, and transformers' logits after these positions, (n_positions, n_vocab)."""
    with np.load(CHECKPOINTS / name / "expected.npz") as actual:
        return actual["ids"].tolist(), actual["positions"], actual["logits"]


@each
def test_logits_are_those_of_transformers(name: str, files: dict[str, GGUF]) -> None:
    """The reference implementation does not round. Logits have a standard deviation of about one."""
    ids, positions, logits = expected(name)
    np.testing.assert_allclose(naive.forward(naive.Model(files[name]), ids)[positions], logits, atol=2e-5)


@each
def test_engine_logits_are_those_of_transformers(name: str, files: dict[str, GGUF]) -> None:
    """Weights, keys and values are F32, so results differ only by the order of summation."""
    ids, positions, logits = expected(name)
    options = Options(threads=1, ctx_size=32, precision="high", cache_type_k="f32", cache_type_v="f32")
    with contextlib.closing(Engine.load(files[name], options)) as engine:
        np.testing.assert_allclose(engine.logits(ids)[positions], logits, rtol=0, atol=2e-5)


# --------------------------------------------------------------------------------------------- tensors


@each
def test_matrices_keep_their_type_and_vectors_become_f32(name: str) -> None:
    kinds = {"llama": "BF16", "mistral": "F16", "gemma3": "BF16", "qwen2": "F32", "qwen3": "BF16"}
    for tensor in open_checkpoint(CHECKPOINTS / name).tensors.values():
        assert tensor.type_name == (kinds[name] if len(tensor.shape) == 2 else "F32"), tensor.name
        assert len(tensor.load()) == tensor.nbytes


def test_values_are_bit_identical() -> None:
    stored = load_file(CHECKPOINTS / "qwen2" / "model.safetensors")
    tensors = open_checkpoint(CHECKPOINTS / "qwen2").tensors
    assert tensors["token_embd.weight"].load().tobytes() == stored["model.embed_tokens.weight"].tobytes()
    assert tensors["blk.1.attn_k.bias"].load().tobytes() == stored["model.layers.1.self_attn.k_proj.bias"].tobytes()


@each
def test_tied_embeddings_are_stored_once(name: str) -> None:
    assert ("output.weight" not in open_checkpoint(CHECKPOINTS / name).tensors) == (name in ("gemma3", "qwen2"))


def test_output_layer_equal_to_the_embedding_is_omitted(tmp_path: Path) -> None:
    folder = copy_checkpoint("qwen2", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"]}, folder / "model.safetensors")
    assert "output.weight" not in open_checkpoint(folder).tensors


def test_text_model_of_a_multimodal_model(tmp_path: Path) -> None:
    """The layout of Gemma3ForConditionalGeneration: other prefixes, a text_config, and weights of a vision tower."""
    folder = copy_checkpoint("qwen2", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    inner = {f"model.language_model.{name.removeprefix('model.')}": values for name, values in tensors.items()}
    save_file(inner | {"model.vision_tower.patch.weight": np.ones(3, np.float32)}, folder / "model.safetensors")
    inside = {"hidden_size": 64, "num_hidden_layers": 2}
    edit_json(folder / "config.json", lambda config: config.update(dict.fromkeys(inside), text_config=inside))
    plain, actual = open_checkpoint(CHECKPOINTS / "qwen2"), open_checkpoint(folder)
    assert fields_of(actual, "qwen2.") == fields_of(plain, "qwen2.")
    assert actual.tensors.keys() == plain.tensors.keys()
    for name, tensor in actual.tensors.items():
        assert tensor.load().tobytes() == plain.tensors[name].load().tobytes()


# --------------------------------------------------------------------------------------------- numbers


def fields_of(source: Source, prefix: str) -> dict[str, Any]:
    return {key: field.value for key, field in source.fields.items() if key.startswith(prefix)}


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3"])
def test_older_rope_keys(name: str, tmp_path: Path) -> None:
    def older(config: dict[str, Any]) -> None:
        rope = config.pop("rope_parameters")
        windows = rope.get("sliding_attention", {})
        rope = rope.get("full_attention", rope)
        config["rope_theta"], config["rope_scaling"] = rope.pop("rope_theta"), rope if len(rope) > 1 else None
        if windows:
            config["rope_local_base_freq"] = windows["rope_theta"]
            rope["type"] = rope.pop("rope_type")

    folder = copy_checkpoint(name, tmp_path)
    edit_json(folder / "config.json", older)
    before, after = open_checkpoint(CHECKPOINTS / name), open_checkpoint(folder)
    assert fields_of(after, name) == fields_of(before, name)
    assert after.tensors.keys() == before.tensors.keys()


def test_llama3_rope_factors() -> None:
    """With Llama 3.2's parameters high frequencies are unchanged, low ones are 32 times lower, some are in between."""
    rope = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    config = {"rope_theta": 500_000.0, "rope_scaling": rope | {"original_max_position_embeddings": 8192}}
    factors = read_ropes(JsonObject(Path("config.json"), config), (64, 64), 131_072)[0].factors["rope_freqs.weight"]
    assert factors[:15].tolist() == [1.0] * 15
    assert factors[18:].tolist() == [32.0] * 14
    wavelength = 2 * np.pi * 500_000.0 ** (2 * 15 / 64)
    smooth = (8192 / wavelength - 1) / 3
    assert factors[15] == pytest.approx(1 / ((1 - smooth) / 32 + smooth))


@pytest.mark.parametrize(
    ("changes", "written"),
    [
        ({"layer_types": ["sliding_attention"] * 3}, None),  # the default: every sixth layer is global
        ({"layer_types": None, "sliding_window_pattern": 2}, 2),
        ({"layer_types": ["full_attention", "sliding_attention", "sliding_attention"]}, "flags"),
    ],
)
def test_sliding_window_layers(changes: dict[str, Any], written: object, tmp_path: Path) -> None:
    folder = copy_checkpoint("gemma3", tmp_path)
    edit_json(folder / "config.json", lambda config: config.update(changes))
    field = open_checkpoint(folder).fields.get("gemma3.attention.sliding_window_pattern")
    if written == "flags":
        assert field is not None
        assert field.data[-3:] == b"\0\1\1"
    else:
        assert (field.value if field else None) == written


def test_no_window_key_without_windows(tmp_path: Path) -> None:
    folder = copy_checkpoint("gemma3", tmp_path)
    edit_json(folder / "config.json", lambda config: config.update(layer_types=["full_attention"] * 3))
    assert "gemma3.attention.sliding_window" not in open_checkpoint(folder).fields


def test_yarn_metadata(tmp_path: Path) -> None:
    folder = copy_checkpoint("qwen3", tmp_path)
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 1e6}
    edit_json(folder / "config.json", lambda config: config.update(rope_parameters=yarn))
    assert fields_of(open_checkpoint(folder), "qwen3.rope.scaling.") == {
        "qwen3.rope.scaling.type": b"yarn",
        "qwen3.rope.scaling.factor": 4.0,
        "qwen3.rope.scaling.original_context_length": 64,
    }


@pytest.mark.parametrize(
    ("model_type", "more", "match"),
    [("new", {"mixed_b": 0.3}, "mixed_b: is not supported"), ("qwen3", {}, "'ntk' is supported in GTE only")],
)
def test_other_ntk_scaling_is_refused(model_type: str, more: dict[str, float], match: str, tmp_path: Path) -> None:
    folder = copy_checkpoint("qwen3", tmp_path)
    scaling = {"model_type": model_type, "rope_scaling": {"type": "ntk", "factor": 8.0, **more}, "rope_parameters": {}}
    edit_json(folder / "config.json", lambda config: config.update(scaling))
    with pytest.raises(UnsupportedError, match=match):
        open_checkpoint(folder)


def test_ignored_window_warns(tmp_path: Path) -> None:
    folder = copy_checkpoint("llama", tmp_path)
    edit_json(folder / "config.json", lambda config: config.update(sliding_window=64, use_sliding_window=True))
    with pytest.warns(UserWarning, match="sliding_window: is ignored; beyond 64 tokens"):
        open_checkpoint(folder)


# -------------------------------------------------------------------------------------- general keys


def general(folder: Path) -> dict[str, Any]:
    fields = open_checkpoint(folder).fields
    return {key.removeprefix("general."): field.value for key, field in fields.items() if key.startswith("general.")}


def test_parts_of_the_name(tmp_path: Path) -> None:
    folder = copy_checkpoint("llama", tmp_path).rename(tmp_path / "Llama-3.2-1b-Instruct")
    actual = general(folder)
    assert actual["name"] == b"Llama 3.2 1b Instruct"
    assert (actual["basename"], actual["size_label"], actual["finetune"]) == (b"Llama-3.2", b"1B", b"Instruct")


def test_name_from_a_hugging_face_cache(tmp_path: Path) -> None:
    revision = tmp_path / "models--some-org--tiny-model" / "snapshots" / "0a1b2c"
    revision.parent.mkdir(parents=True)
    copy_checkpoint("llama", tmp_path).rename(revision)
    actual = general(revision)
    assert (actual["organization"], actual["name"], actual["size_label"]) == (b"some-org", b"Tiny Model", b"58K")


def test_license_of_the_readme(files: dict[str, GGUF]) -> None:
    metadata = files["llama"].metadata
    assert metadata["general.license"] == "apache-2.0"
    for key, expected_ in {"general.tags": [b"tiny", b"random"], "general.languages": [b"en", b"fr"]}.items():
        strings = metadata[key]
        assert isinstance(strings, StringArray)
        assert list(strings) == expected_


@pytest.mark.parametrize(
    "readme", ["", "---\n", "no\n---\nlicense: mit\n---\n", "---\nlicense:\n---\n", "---\n- a\n---\n"]
)
def test_readme_without_a_license(readme: str, tmp_path: Path) -> None:
    folder = copy_checkpoint("llama", tmp_path)
    (folder / "README.md").write_text(readme)
    assert "license" not in general(folder)


def test_sampling_defaults_are_converted(tmp_path: Path) -> None:
    folder = copy_checkpoint("llama", tmp_path)
    (folder / "generation_config.json").write_text(
        '{"temperature": 0.6, "top_k": 20, "top_p": null, "do_sample": true}'
    )
    actual = general(folder)
    assert actual["sampling.top_k"] == 20
    assert actual["sampling.temp"] == pytest.approx(0.6)
    assert "sampling.top_p" not in actual


@pytest.mark.parametrize(("name", "number"), [("qwen2", 0), ("mistral", 1), ("llama", 32)])
def test_file_type(name: str, number: int) -> None:
    assert general(CHECKPOINTS / name)["file_type"] == number


def test_list_of_read_files() -> None:
    names = {path.name for path in open_checkpoint(CHECKPOINTS / "llama").files}
    assert names == {path.name for path in (CHECKPOINTS / "llama").iterdir()} - {"expected.npz"}
