"""Projector files in which one key or one shape is another: they open, or are refused with an error of this program,
and no op of their graphs reads or writes beyond its memory."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import projectors
import pytest
import sound_projectors

from localinfer.errors import LocalInferError
from localinfer.gguf.reader import GGUF, Tensor, open_gguf
from localinfer.graph.ops.buffers import Buffer
from localinfer.kernels.signatures import (
    COPY,
    PRODUCT,
    RELATIVE_ATTENTION,
    RELATIVE_POSITIONS,
    ROPE,
    SOFTMAX,
    TRANSPOSE,
    WEIGH_ROWS,
)
from localinfer.machine import resources
from localinfer.multimodal import projector_file
from localinfer.multimodal.encoder_graph.encoder_builder import EncoderBuilder
from localinfer.multimodal.preprocessing.processors import make_image_processor
from localinfer.multimodal.sounds.sound_tensors import PREFIXES
from localinfer.options import Options

VALUES = (None, 0, 1, 1 << 31)  # None: the key is missing
CHECKED = (PRODUCT, COPY, ROPE, WEIGH_ROWS, SOFTMAX, TRANSPOSE, RELATIVE_ATTENTION, RELATIVE_POSITIONS)
OTHER_KEYS = ("vision.spatial_merge_size", "vision.projector.scale_factor", "vision.attention.head_dim")


def changed_keys(f: GGUF, kind: str) -> Iterator[GGUF]:
    """Change each key of the encoder of this kind, "vision" or "audio", and those that belong to none."""
    other = "clip.audio." if kind == "vision" else "clip.vision."
    for key in {**f.metadata, **{f"clip.{key}": 0 for key in OTHER_KEYS}}:
        if key.startswith("clip.") and not key.startswith(other):
            for value in VALUES:
                others = {name: each for name, each in f.metadata.items() if name != key}
                yield replace(f, metadata=others if value is None else {**others, key: value})


def changed_shapes(f: GGUF, kind: str) -> Iterator[GGUF]:
    """Change each dimension of the tensors that belong to no layer or to the first, and the bias with it: those of the
    encoder of this kind, "vision" or "audio"."""
    f32 = next(tensor.type for tensor in f.tensors.values() if tensor.type_name == "F32")

    def reshaped(tensor: Tensor, axis: int, size: int) -> Tensor:
        shape = (*tensor.shape[:axis], size, *tensor.shape[axis + 1 :])
        return replace(tensor, shape=shape, type=f32, data=np.zeros(4 * prod(shape), np.uint8))

    for tensor in f.tensors.values():
        if tensor.name.startswith(PREFIXES) != (kind == "audio"):
            continue
        if ".blk." in tensor.name and ".blk.0." not in tensor.name:
            continue
        for axis, old in enumerate(tensor.shape):
            for size in (old + 1, old * 2):
                tensors = {**f.tensors, tensor.name: reshaped(tensor, axis, size)}
                bias = f.tensors.get(tensor.name.removesuffix("weight") + "bias")
                if axis == 0 and bias:
                    tensors[bias.name] = reshaped(bias, 0, size)
                yield replace(f, tensors=tensors)


def memory_of_attention(given: dict[str, Any], count: int, g: EncoderBuilder) -> dict[str, int]:
    """Return the bytes that the attention of `count` rows reads and writes."""
    contents = {id(region): values for region, _, values in g.constants.recorded}
    oldest, newest = (contents[id(given[key])].astype(np.int64) for key in ("oldest", "newest"))
    assert len(oldest) == len(newest) == count
    n, begin, end = given["heads"] * given["size"], oldest // 16 * 16, newest // 16 * 16 + 16  # that are scored at once
    needed = {"q": n * count, "y": n * count, "v": n * (newest.max() + 1), "k": given["k_stride"] * (n - 1) + end.max()}
    assert oldest.min() >= 0
    if given["p"]:
        first = given["first"] - np.arange(count)
        assert (first + begin).min() >= 0
        vectors = given["heads"] * given["p_step"] or given["size"]
        needed["p"] = given["p_stride"] * (vectors - 1) + (first + end).max()
    return {key: 4 * int(values) for key, values in needed.items()}


def check_memory(g: EncoderBuilder) -> None:
    """Compare the sizes of products, copies, rotations, convolutions, positions and attention with the memory of their
    arguments."""
    for op in g.graph.ops:
        signature = next((each for each in CHECKED if each.parameters == op.small_batch.parameters), None)
        if signature is None:
            continue
        given: dict[str, Any] = dict(zip(signature.parameters, op.arguments, strict=True))
        last = op.rows.capacity - 1
        if signature is PRODUCT:
            needed = {"x": 4 * given["n_in"] * (last + 1), "y": given["y_stride"] * last + 4 * given["n_out"]}
        elif signature is COPY:
            needed = {key: 4 * (given[f"{key}_n"] * last + given[f"{key}_first"] + given["n"]) for key in "xy"}
        elif signature is WEIGH_ROWS:
            needed = {"numbers": 4 * given["count"] * (last + 1), "y": 4 * given["n"] * (last + 1)}
            assert given["weight"].nbytes == 4 * given["count"] * given["n"]
        elif signature is TRANSPOSE:
            columns = given["y_n"] * (given["n"] - 1) + given["first"] + last + 1
            needed = {"x": 4 * given["n"] * (last + 1), "y": 4 * columns}
        elif signature is RELATIVE_ATTENTION:
            needed = memory_of_attention(given, last + 1, g)
        elif signature is SOFTMAX:
            needed = {"x": 4 * given["stride"] * (last + 1)}
            assert given["n"] <= given["stride"] == given["x"].n
        elif signature is RELATIVE_POSITIONS:
            row_bytes, size = 4 * given["heads"] * (last + 1), given["size"]
            assert given["dim"] >= size + given["height"] + given["width"]
            needed = dict.fromkeys("qk", row_bytes * size) | {f"{key}_out": row_bytes * given["dim"] for key in "qk"}
            lengths = {"by_row": given["height"], "by_column": given["width"]}
            needed |= {key: 4 * size * (2 * length - 1) for key, length in lengths.items()}
        else:
            needed = {"table": 4 * given["n_rot"] * (last + 1), "x": 4 * given["heads"] * given["size"] * (last + 1)}
        for key, nbytes in needed.items():
            memory = given[key].floats if isinstance(given[key], Buffer) else given[key]
            if key != "x" or isinstance(given[key], Buffer):  # converted activations have other sizes
                assert nbytes <= memory.nbytes, (op.name, key)


def given_file(f: GGUF, _path: Path) -> GGUF:
    """Stand for `open_gguf`."""
    return f


def open_and_build(path: Path, model: GGUF) -> None:
    """Open a projector file, and build its graphs."""
    file = projector_file.open_projector(path, model)
    if file.encoder:
        check_memory(file.build(projector_file.smallest_grid(file.f, file.encoder), Options(threads=2))[0])
        for size in ((1, 1), (40, 60), (3, 600)):
            make_image_processor(file.f).grids(*size)
    if file.sound:
        check_memory(file.sound.build(file.sound.framing.frames(100), Options(threads=2))[0])


@pytest.mark.parametrize("name", [*projectors.NAMES, *sound_projectors.NAMES])
def test_changed_files_open_or_are_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "available_memory", lambda: 1 << 28)
    if name in projectors.NAMES:
        path, model = projectors.write(name, tmp_path), projectors.language_model(projectors.reference(name), tmp_path)
    else:
        path, model = sound_projectors.write(name, tmp_path), sound_projectors.language_model(name, tmp_path)
    f, language_model, results = open_gguf(path), open_gguf(model), []
    kind = "vision" if name in projectors.NAMES else "audio"
    open_and_build(path, language_model)
    for changed in (*changed_keys(f, kind), *changed_shapes(f, kind)):
        monkeypatch.setattr(projector_file, "open_gguf", partial(given_file, changed))
        try:
            open_and_build(path, language_model)
            results.append("opened")
        except LocalInferError:
            results.append("refused")
    assert {"opened", "refused"} <= set(results)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("name", ["qwen3vl", "gemma3"])
@pytest.mark.parametrize("value", [np.inf, np.nan, 3e38])
def test_weights_that_are_no_numbers_cause_no_warnings(name: str, value: float, tmp_path: Path) -> None:
    """numpy's warnings would be visible to users."""
    f, reference = open_gguf(projectors.write(name, tmp_path)), projectors.reference(name)
    kind, encoder = projector_file.read_encoder(f)
    for key in [key for key in f.tensors if key.startswith(("v.patch_embd", "v.position_embd"))]:
        values = np.full(f.tensors[key].data.nbytes // 4, value, np.float32)
        f.tensors[key] = replace(f.tensors[key], data=values.view(np.uint8))
    file = projector_file.ProjectorFile(f, kind, encoder, reference.embedding_length, reference.deepstack)
    file.build(projector_file.smallest_grid(f, encoder), Options(threads=1))
