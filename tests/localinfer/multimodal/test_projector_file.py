"""Damaged and unsupported projector files are refused by name, before memory is allocated."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import projectors
import pytest
import sound_projectors
from gguf import GGUFReader, GGUFValueType

from localinfer.errors import LocalInferError, NotEnoughMemoryError, UnsupportedError
from localinfer.gguf.reader import open_gguf
from localinfer.machine import resources
from localinfer.multimodal.encoder_graph.encoder_tensors import constant
from localinfer.multimodal.encoders import find_encoder, known
from localinfer.multimodal.projector_file import open_projector
from localinfer.options import Options

Tensors = dict[str, np.ndarray[Any, Any]]
Keys = dict[str, Any]
Change = Callable[[Tensors, Keys], None]
LARGE = {"embedding_length": 4096, "patch_size": 1, "image_size": 362}


def changed(name: str, folder: Path, change: Change) -> Path:
    """Write a reference projector with other keys or tensors."""
    reader = GGUFReader((projectors if name in projectors.NAMES else sound_projectors).write(name, folder))
    tensors = {tensor.name: tensor.data for tensor in reader.tensors}
    keys = {key: field for key, field in reader.fields.items() if key.startswith("clip.")}
    change(tensors, keys)
    path = folder / "changed.gguf"
    writer = gguf.GGUFWriter(path, "clip")
    for key, value in keys.items():
        if isinstance(value, gguf.ReaderField):
            element = value.types[1] if value.types[0] == GGUFValueType.ARRAY else None
            writer.add_key_value(key, value.contents(), value.types[0], element)
        else:
            writer.add_key_value(key, value, GGUFValueType.get_type(value))
    for tensor, data in tensors.items():
        writer.add_tensor(tensor, np.ascontiguousarray(data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def set_key(key: str, value: object) -> Change:
    def change(_tensors: Tensors, keys: Keys) -> None:
        keys[key] = value

    return change


def set_tensor(name: str, shape: tuple[int, ...]) -> Change:
    def change(tensors: Tensors, _keys: Keys) -> None:
        tensors[name] = np.zeros(shape, np.float32)

    return change


def set_values(name: str, *values: float) -> Change:
    def change(tensors: Tensors, _keys: Keys) -> None:
        tensors[name] = np.array(values, np.float32)

    return change


def set_narrow_output(blk: str) -> Change:
    """Let attention make fewer values than rows have, without a layer scale, which would not fit."""

    def change(tensors: Tensors, _keys: Keys) -> None:
        del tensors[f"{blk}layer_scale.gamma"]
        tensors[f"{blk}attn.output.proj.weight"] = np.zeros((32, 48, 1, 1), np.float32)

    return change


def resize_rows(name: str, rows: int) -> Change:
    """Give a matrix and its bias another number of rows."""

    def change(tensors: Tensors, _keys: Keys) -> None:
        tensors[f"{name}.weight"] = np.zeros((rows, tensors[f"{name}.weight"].shape[1]), np.float32)
        if f"{name}.bias" in tensors:
            tensors[f"{name}.bias"] = np.zeros(rows, np.float32)

    return change


def drop_tensor(name: str) -> Change:
    def change(tensors: Tensors, _keys: Keys) -> None:
        del tensors[name]

    return change


CASES: list[tuple[str, Change, type[LocalInferError], str]] = [
    ("gemma3", set_key("clip.projector_type", "telepathy"), UnsupportedError, "'telepathy' is not supported"),
    ("gemma3", set_key("clip.has_vision_encoder", False), UnsupportedError, "is false, and so is clip.has_audio"),
    ("gemma3", set_key("clip.vision.novelty", 3), UnsupportedError, r"clip\.vision\.novelty: 3 is not supported"),
    ("gemma3", set_key("clip.audio.novelty", 3), UnsupportedError, r"clip\.audio\.novelty: is not supported"),
    ("gemma3", set_key("clip.vision.patch_size", 0), LocalInferError, "is 56, with patches of 0"),
    ("gemma3", set_key("clip.vision.image_size", 1 << 20), LocalInferError, "is 1048576, with"),
    ("gemma3", set_key("clip.vision.image_size", 63), LocalInferError, "scale_factor: is 2; it must divide the 9 x 9"),
    ("gemma3", set_key("clip.vision.projector.scale_factor", 0), LocalInferError, "scale_factor: is 0"),
    ("gemma3", set_key("clip.vision.attention.head_count", 0), LocalInferError, r"attention\.head_count"),
    ("gemma3", set_key("clip.vision.embedding_length", 48), LocalInferError, "embedding_length: is 48"),
    ("gemma3", set_tensor("v.blk.0.ffn_up.weight", (64 * 96,)), LocalInferError, r"ffn_up\.weight"),
    ("gemma3", set_key("clip.vision.block_count", 3), LocalInferError, r"v\.blk\.2\.ln1\.weight: is missing"),
    ("gemma3", set_key("clip.vision.block_count", 1), UnsupportedError, r"v\.blk\.1\.\S+: is not used"),
    ("gemma3", set_key("clip.use_silu", True), LocalInferError, "is true, and so is"),
    ("gemma3", set_tensor("v.novelty", (4,)), UnsupportedError, r"tensor v\.novelty: is not used"),
    ("gemma3", drop_tensor("v.blk.1.ffn_up.bias"), LocalInferError, r"v\.blk\.1\.ffn_up\.bias: is missing"),
    ("gemma3", set_tensor("v.position_embd.weight", (63, 32)), LocalInferError, r"\[63, 32\], not \[64, 32\]"),
    ("gemma3", set_tensor("v.patch_embd.weight", (32, 3, 7, 8)), LocalInferError, r"v\.patch_embd\.weight: has shape"),
    ("gemma3", set_tensor("mm.input_projection.weight", (64, 32)), LocalInferError, r"\[64, 32\], not \[32, 64\]"),
    ("gemma3", set_tensor("v.class_embd", (1, 33)), LocalInferError, r"v\.class_embd"),
    ("qwen2_5vl", set_tensor("v.blk.0.ffn_gate.weight", (43, 32)), LocalInferError, r"v\.blk\.0\.ffn_gate"),
    ("qwen3vl", set_tensor("v.position_embd.weight", (37, 32)), LocalInferError, r"v\.position_embd\.weight"),
    ("qwen2_5vl", resize_rows("v.blk.0.ffn_gate", 4096), LocalInferError, r"v\.blk\.0\.ffn_gate\.weight: has shape"),
    ("qwen2_5vl", resize_rows("v.blk.0.ffn_gate", 43), LocalInferError, r"v\.blk\.0\.ffn_gate\.weight: has shape \[43"),
    ("glm4v", resize_rows("mm.gate", 4096), LocalInferError, r"mm\.gate\.weight: has shape"),
    ("pixtral", resize_rows("mm.2", 4096), LocalInferError, r"mm\.2\.weight: has shape"),
    ("qwen3vl", resize_rows("mm.2", 4096), LocalInferError, r"mm\.2\.weight: has shape"),
    ("qwen3vl", resize_rows("mm.2", 32), LocalInferError, r"mm\.2\.weight: has shape \[32"),
    ("qwen3vl", resize_rows("v.deepstack.0.fc2", 4096), LocalInferError, r"v\.deepstack\.0\.fc2\.weight: has shape"),
    ("pixtral", set_key("clip.vision.spatial_merge_size", 2), LocalInferError, r"mm\.2\.weight: makes 256 rows of 64"),
    *(
        (name, set_tensor("v.class_embd", (4, 32)), UnsupportedError, r"v\.class_embd: is not used")
        for name in ("gemma3", "idefics3", "glm4v", "lfm2", "pixtral", "qwen2vl")
    ),
    ("gemma3nv", set_key("clip.vision.image_size", 400), UnsupportedError, "makes maps of 25 x 25 places"),
    ("gemma3nv", set_key("clip.vision.image_size", 2000), LocalInferError, "an image of 2000 x 2000 pixels is too"),
    ("gemma3nv", set_tensor("v.blk.0.1.conv_exp.weight", (64,)), LocalInferError, "a convolution has four dimensions"),
    ("gemma3nv", set_narrow_output("v.blk.2.1."), LocalInferError, "output.proj.weight: has 32 rows; they must be 48"),
    ("gemma3nv", drop_tensor("v.blk.3.0.pw_proj.conv.weight"), LocalInferError, r"pw_proj\.conv\.weight: is missing"),
    ("gemma3nv", set_tensor("v.blk.2.1.attn.key.proj.weight", (24, 48, 1, 1)), UnsupportedError, "24 of a key"),
    ("gemma3nv", set_tensor("v.blk.1.1.layer_scale.gamma", (33,)), LocalInferError, "it must have 32 values"),
    ("gemma3nv", set_tensor("v.blk.1.1.dw_start.conv.weight", (32, 1, 10, 10)), LocalInferError, "at most 9 taps"),
    ("gemma4v", set_key("clip.vision.attention.head_dim", 18), LocalInferError, "makes heads of 18 values"),
    ("gemma4v", set_tensor("v.position_embd.weight", (2, 40, 32)), LocalInferError, "has 40 positions; an image"),
    ("gemma4uv", set_key("clip.vision.projector.scale_factor", 2), LocalInferError, r"norm\.1\.weight: has shape"),
    ("gemma4uv", set_key("clip.audio.embedding_length", 320), UnsupportedError, "is 320; it must be 640"),
    ("gemma4v", set_values("v.blk.0.attn_q.input_min", np.nan), LocalInferError, "attn_q.input_min: is not a number"),
    ("minicpm-v", set_key("clip.minicpmv_version", 2), LocalInferError, "MiniCPM-V of version 2 is not supported"),
    ("minicpm-v", set_tensor("resampler.query", (1 << 18, 1)), LocalInferError, "is too large; the limit is 131072"),
    ("minicpm-v", drop_tensor("resampler.query"), LocalInferError, r"tensor resampler\.query: is missing"),
    ("minicpm-v4.6", set_key("clip.vision.wa_layer_indexes", [3]), LocalInferError, "must be one number below 3"),
    ("minicpm-v4.6", set_key("clip.vision.wa_layer_indexes", [0, 1]), LocalInferError, "indexes: must be one number"),
    ("minicpm-v4.6", set_key("clip.vision.projector.scale_factor", 1), LocalInferError, "is 1; it must be 2 or 4"),
    ("idefics3", set_tensor("mm.model.fc.weight", (64, 64)), LocalInferError, r"mm\.model\.fc\.weight: has shape"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change", "kind", "message"), CASES)
def test_invalid_files_are_refused(
    name: str, change: Change, kind: type[LocalInferError], message: str, tmp_path: Path
) -> None:
    path = changed(name, tmp_path, change)
    model = open_gguf(projectors.language_model(projectors.reference(name), tmp_path))
    with pytest.raises(kind, match=message):
        open_projector(path, model)


def test_a_file_that_is_written_again_is_accepted(tmp_path: Path) -> None:
    path = changed("gemma3", tmp_path, lambda _tensors, _keys: None)
    model = open_gguf(projectors.language_model(projectors.reference("gemma3"), tmp_path))
    assert open_projector(path, model).projector_type == "gemma3"


def test_rows_for_deepstack_must_be_those_of_the_model(tmp_path: Path) -> None:
    reference = projectors.reference("qwen3vl")
    model = open_gguf(projectors.language_model(reference, tmp_path, n_deepstack_layers=1))
    with pytest.raises(LocalInferError, match="makes rows of 192 values; the model needs 128"):
        open_projector(projectors.write("qwen3vl", tmp_path), model)


def test_ops_do_not_leave_the_memory_of_their_buffers(tmp_path: Path) -> None:
    model = open_gguf(projectors.language_model(projectors.reference("gemma3"), tmp_path))
    g, output = open_projector(projectors.write("gemma3", tmp_path), model).build((8, 8), Options(threads=1))
    wide, narrow, few = g.graph.buffer(64), g.graph.buffer(32), g.graph.buffer(64, g.rows(16))
    weight = constant("w", np.zeros((64, 64), np.float32))
    for x, out in ((wide, narrow), (wide, few), (narrow, wide)):
        with pytest.raises(LocalInferError, match="tensor w: "):
            g.product(x, weight, out=out)
    for x, y, first in ((wide, narrow, 0), (narrow, wide, 33), (wide, few, 0)):
        with pytest.raises(LocalInferError, match="values do not fit into"):
            g.copy_columns(x, y, first)
    for numbers in ([0, 16], [-1, 2]):
        with pytest.raises(LocalInferError, match="an op reads rows"):
            g.gather(output, np.array(numbers, np.int32))
        with pytest.raises(LocalInferError, match="an op reads rows"):
            g.average(output, np.array([numbers], np.int32))
    assert g.product(wide, weight, out=g.graph.buffer(96)).n == 96


def test_heads_of_sound_encoders_must_have_lengths_that_kernels_read(tmp_path: Path) -> None:
    def one_head_of_one_value(tensors: Tensors, keys: Keys) -> None:
        keys |= {"clip.audio.attention.head_count": 1, "clip.audio.attention.head_dim": 1}
        for name in list(tensors):
            if name.endswith(("attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_q.bias", "attn_v.bias")):
                tensors[name] = tensors[name][:1]
            elif name.endswith("attn_out.weight"):
                tensors[name] = tensors[name][:, :1]

    path = changed("ultravox", tmp_path, one_head_of_one_value)
    model = open_gguf(sound_projectors.language_model("ultravox", tmp_path))
    with pytest.raises(UnsupportedError, match=r"tensor a\.blk\.0\.attn_q\.\w+: rows of 1 values are not supported"):
        open_projector(path, model)


def test_memory_is_checked_before_it_is_allocated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def large_rows(tensors: Tensors, keys: Keys) -> None:
        keys |= {f"clip.vision.{key}": value for key, value in LARGE.items()}
        for name in ("v.patch_embd.weight", "v.patch_embd.weight.1"):
            tensors[name] = np.zeros((LARGE["embedding_length"], 3, 1, 1), np.float16)

    monkeypatch.setattr(resources, "available_memory", lambda: 1 << 28)
    model = open_gguf(projectors.language_model(projectors.reference("qwen2vl"), tmp_path))
    with pytest.raises(NotEnoughMemoryError, match=r"memory: the input of 131044 rows needs 12\.0 GiB, 0\.2 GiB are"):
        open_projector(changed("qwen2vl", tmp_path, large_rows), model)


def test_memory_of_heads_is_checked_before_it_is_allocated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "available_memory", lambda: 1 << 28)
    model = open_gguf(projectors.language_model(projectors.reference("qwen2vl"), tmp_path))
    path = changed("qwen2vl", tmp_path, set_key("clip.vision.attention.head_dim", 1 << 12))
    with pytest.raises(NotEnoughMemoryError, match=r"memory: the input of 19600 rows needs 1\.8 GiB"):
        open_projector(path, model)


def test_memory_of_convolutions_is_checked_before_it_is_allocated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "available_memory", lambda: 1 << 20)
    model = open_gguf(sound_projectors.language_model("qwen3a", tmp_path))
    with pytest.raises(NotEnoughMemoryError, match="memory: a sound of 8 s needs"):
        open_projector(sound_projectors.write("qwen3a", tmp_path), model)


def test_names_of_projector_types() -> None:
    assert {"gemma3", "qwen2_5vl"} <= set(known())
    assert find_encoder("qwen2.5vl_merger") == find_encoder("qwen2_5vl")
    assert find_encoder("arrangement") is find_encoder("../gemma3") is None
