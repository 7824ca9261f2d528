"""Projector files with the shapes of published encoders and random weights in F16, and a tiny language model for each.

    path = write("gemma3", folder)              # SigLIP of Gemma 3 4B, 896 x 896 pixels
    model = write_language_model("gemma3", folder)
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np


@dataclass(frozen=True, kw_only=True)
class Shape:
    """An encoder: sizes as in its file, and the grid of patches that is encoded."""

    projector: str
    architecture: str
    layers: int
    n: int
    n_ff: int
    heads: int
    patch: int
    image: int
    text: int
    grid: tuple[int, int]
    merge: int
    keys: dict[str, Any] = field(default_factory=dict)
    deepstack: tuple[int, ...] = ()


SHAPES = {
    "gemma3": Shape(
        projector="gemma3", architecture="gemma3", layers=27, n=1152, n_ff=4304, heads=16, patch=14, image=896,
        text=2560, grid=(64, 64), merge=4,
    ),
    "smolvlm-500m": Shape(
        projector="idefics3", architecture="llama", layers=12, n=768, n_ff=3072, heads=12, patch=16, image=512,
        text=960, grid=(32, 32), merge=4, keys={"projector.scale_factor": 4, "preproc_image_size": 2048},
    ),
    "qwen3-vl-4b": Shape(
        projector="qwen3vl_merger", architecture="qwen3vl", layers=24, n=1024, n_ff=4096, heads=16, patch=16,
        image=768, text=2560, grid=(64, 64), merge=2, keys={"spatial_merge_size": 2}, deepstack=(5, 11, 17),
    ),
}  # fmt: skip


class Writer:
    """Writes tensors of random numbers: matrices in F16, vectors in F32."""

    def __init__(self, path: Path, architecture: str) -> None:
        self.gguf, self._random = gguf.GGUFWriter(path, architecture), np.random.default_rng(1)

    def matrix(self, name: str, *shape: int) -> None:
        values = self._random.standard_normal(shape, np.float32) / np.sqrt(np.prod(shape[1:]))
        self.gguf.add_tensor(f"{name}.weight", values.astype(np.float16))

    def table(self, name: str, *shape: int) -> None:
        self.gguf.add_tensor(f"{name}.weight", self._random.standard_normal(shape, np.float32) * np.float32(0.02))

    def vector(self, name: str, n: int, mean: float) -> None:
        self.gguf.add_tensor(name, self._random.standard_normal(n, np.float32) * np.float32(0.02) + np.float32(mean))

    def layer(self, name: str, n_out: int, n_in: int) -> None:
        """Write a matrix with a bias."""
        self.matrix(name, n_out, n_in)
        self.vector(f"{name}.bias", n_out, 0)

    def norm(self, name: str, n: int) -> None:
        self.vector(f"{name}.weight", n, 1)
        self.vector(f"{name}.bias", n, 0)

    def close(self) -> None:
        self.gguf.write_header_to_file()
        self.gguf.write_kv_data_to_file()
        self.gguf.write_tensors_to_file()
        self.gguf.close()


def write_language_model(name: str, folder: Path) -> Path:
    """Write a file with the metadata that the projector must fit, and return its path."""
    shape, path = SHAPES[name], folder / f"{name}.gguf"
    writer = gguf.GGUFWriter(path, shape.architecture)
    numbers = {"embedding_length": shape.text, "n_deepstack_layers": len(shape.deepstack)}
    for key, number in numbers.items():
        writer.add_uint32(f"{shape.architecture}.{key}", number)
    if shape.architecture == "qwen3vl":
        writer.add_rope_dimension_sections([24, 20, 20, 0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write(name: str, folder: Path) -> Path:
    """Write a projector file and return its path."""
    shape, path = SHAPES[name], folder / f"mmproj-{name}.gguf"
    out = Writer(path, "clip")
    write_keys(out.gguf, shape)
    n, conv = shape.n, (3, shape.patch, shape.patch)
    out.matrix("v.patch_embd", n, *conv)
    out.vector("v.patch_embd.bias", n, 0)
    out.table("v.position_embd", (shape.image // shape.patch) ** 2, n)
    for number in range(shape.layers):
        blk = f"v.blk.{number}."
        out.norm(f"{blk}ln1", n)
        out.norm(f"{blk}ln2", n)
        if shape.projector == "qwen3vl_merger":
            out.layer(f"{blk}attn_qkv", 3 * n, n)
        else:
            for each in "qkv":
                out.layer(f"{blk}attn_{each}", n, n)
        out.layer(f"{blk}attn_out", n, n)
        out.layer(f"{blk}ffn_up", shape.n_ff, n)
        out.layer(f"{blk}ffn_down", n, shape.n_ff)
    out.norm("v.post_ln", n)
    write_projection(out, shape)
    out.close()
    return path


def write_keys(writer: gguf.GGUFWriter, shape: Shape) -> None:
    """Write the metadata of a projector."""
    writer.add_type("mmproj")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_bool("clip.use_gelu", True)
    writer.add_string("clip.projector_type", shape.projector)
    numbers = {
        "image_size": shape.image, "patch_size": shape.patch, "embedding_length": shape.n, "projection_dim": shape.text,
        "feed_forward_length": shape.n_ff, "block_count": shape.layers, "attention.head_count": shape.heads,
        **shape.keys,
    }  # fmt: skip
    for key, number in numbers.items():
        writer.add_uint32(f"clip.vision.{key}", number)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    for key in ("image_mean", "image_std"):
        writer.add_array(f"clip.vision.{key}", [0.5, 0.5, 0.5])
    if shape.deepstack:
        flags = [number in shape.deepstack for number in range(shape.layers)]
        writer.add_array("clip.vision.is_deepstack_layers", flags)


def write_projection(out: Writer, shape: Shape) -> None:
    """Write what follows the transformer."""
    merged = shape.n * shape.merge**2
    if shape.projector == "gemma3":
        out.matrix("mm.input_projection", shape.n, shape.text)
        out.vector("mm.soft_emb_norm.weight", shape.n, 1)
    elif shape.projector == "idefics3":
        out.matrix("mm.model.fc", shape.text, merged)
    else:
        second_frame = np.zeros((shape.n, 3, shape.patch, shape.patch), np.float16)
        out.gguf.add_tensor("v.patch_embd.weight.1", second_frame)
        out.layer("mm.0", merged, merged)
        out.layer("mm.2", shape.text, merged)
        for number in shape.deepstack:
            out.norm(f"v.deepstack.{number}.norm", merged)
            out.layer(f"v.deepstack.{number}.fc1", merged, merged)
            out.layer(f"v.deepstack.{number}.fc2", shape.text, merged)
