"""Write tests/data/projectors: tiny projector files of every projector type, and the output rows that transformers
computes.

    LLAMA_CPP=path/to/llama.cpp python tests/making/make_projector_fixtures.py           # all of them
    LLAMA_CPP=path/to/llama.cpp python tests/making/make_projector_fixtures.py gemma3    # these

Needs torch and transformers, and the converter of llama.cpp's source. NAME.gguf.xz is the file that llama.cpp's
converter makes in F32 of a checkpoint with random weights of a few bits, which compress well. NAME.npz has the grid of
patches, the patches and the output rows of some images (patches_0, rows_0, grid_0, patches_1, ...), computed in
float32 with eager attention, and `embedding_length` and `architecture` of the language model.
"""

import json
import lzma
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

DATA = Path(__file__).parents[1] / "data" / "projectors"
CONVERTER = Path(os.environ.get("LLAMA_CPP", ".")) / "convert_hf_to_gguf.py"
TEXT = {
    "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
MEAN = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
Grid = tuple[int, int]
Rows = torch.Tensor


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A projector. `model` makes the checkpoint's model, `encode` computes the output rows of an image from its pixels
    (1, 3, height, width). `saved` changes the names or the values of the saved tensors."""

    architecture: str  # GGUF's name of the language model's architecture
    model: Callable[[], Any]
    encode: Callable[[Any, torch.Tensor, Grid], Rows]
    grids: Sequence[Grid]
    patch: int
    preprocessor: dict[str, Any]
    saved: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]] = dict
    written: Callable[[dict[str, Any]], dict[str, Any]] = dict  # changes config.json
    embedding_length: int = 64


def siglip(size: int, patch: int, **changes: Any) -> dict[str, Any]:
    return {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
        "image_size": size, "patch_size": patch, "hidden_act": "gelu_pytorch_tanh", **changes,
    }  # fmt: skip


def gemma3() -> Any:
    config = transformers.Gemma3Config(
        text_config=TEXT, vision_config=siglip(56, 7), mm_tokens_per_image=16, image_token_index=3,
        boi_token_index=4, eoi_token_index=5,
    )  # fmt: skip
    return transformers.Gemma3ForConditionalGeneration(config)


def idefics3() -> Any:
    config = transformers.Idefics3Config(
        text_config={"model_type": "llama", **TEXT}, vision_config=siglip(60, 10), scale_factor=2, image_token_id=3
    )
    return transformers.Idefics3ForConditionalGeneration(config)


def nested(prefix: str) -> Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]:
    """Return the change of the names below a prefix to those of published checkpoints, without SigLIP's head."""

    def change(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        kept = {name: tensor for name, tensor in tensors.items() if f"{prefix}.head." not in name}
        return {name.replace(prefix, f"{prefix}.vision_model"): tensor for name, tensor in kept.items()}

    return change


def with_features(model: Any, pixels: torch.Tensor, _grid: Grid) -> Rows:
    """Return the output rows of models whose get_image_features takes pixels alone."""
    features = model.model.get_image_features(pixels)
    rows = getattr(features, "pooler_output", features)
    return rows[0] if isinstance(rows, list | tuple) or rows.dim() == 3 else rows


def idefics3_rows(model: Any, pixels: torch.Tensor, grid: Grid) -> Rows:
    return with_features(model, pixels[None], grid)


SPECS = {
    "gemma3": Spec(
        architecture="gemma3", model=gemma3, encode=with_features, grids=[(8, 8)], patch=7,
        preprocessor={**MEAN, "image_seq_length": 16}, saved=nested("vision_tower"),
    ),
    "idefics3": Spec(
        architecture="llama", model=idefics3, encode=idefics3_rows, grids=[(6, 6)], patch=10,
        preprocessor={**MEAN, "size": {"longest_edge": 120}},
    ),
}  # fmt: skip


def random_weights(model: Any) -> None:
    """Replace all weights by integers times a power of two."""
    generator = torch.Generator().manual_seed(20)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            values = torch.randint(-7, 8, tensor.shape, generator=generator).float()
            is_norm = tensor.dim() == 1 and name.endswith("weight")
            scale = 2.0**-6 if tensor.dim() == 1 else 2.0 ** -np.ceil(np.log2(4 * tensor[0].numel() ** 0.5))
            tensor.copy_(values * scale + float(is_norm))


def as_patches(pixels: torch.Tensor, patch: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the patches of an image (1, 3, height, width), each in the order [channel][y][x]."""
    _, channels, height, width = pixels.shape
    tiles = pixels[0].reshape(channels, height // patch, patch, width // patch, patch)
    return tiles.permute(1, 3, 0, 2, 4).reshape(-1, channels * patch * patch).numpy()


def convert(spec: Spec, model: Any, path: Path) -> bytes:
    """Return the projector file that llama.cpp's converter makes of the model."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        config = spec.written(json.loads(Path(folder, "config.json").read_text()))
        Path(folder, "config.json").write_text(json.dumps(config))
        Path(folder, "preprocessor_config.json").write_text(json.dumps(spec.preprocessor))
        if spec.saved is not dict:
            from safetensors.torch import load_file

            tensors = load_file(Path(folder, "model.safetensors"))
            save_file(spec.saved(tensors), Path(folder, "model.safetensors"), {"format": "pt"})
        out = Path(folder, "mmproj.gguf")
        command = [sys.executable, str(CONVERTER), folder, "--mmproj", "--outtype", "f32", "--outfile", str(out)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode:
            sys.exit(f"{path.name}: {run.stderr[-2000:]}")
        return next(Path(folder).glob("*.gguf")).read_bytes()


def make(name: str, spec: Spec) -> None:
    """Write the fixtures of one projector."""
    torch.manual_seed(20)
    model = spec.model().eval().float()
    model.config._attn_implementation = "eager"
    model.set_attn_implementation("eager")
    random_weights(model)
    arrays: dict[str, Any] = {"architecture": spec.architecture, "embedding_length": spec.embedding_length}
    generator = np.random.default_rng(20)
    for number, grid in enumerate(spec.grids):
        shape = (1, 3, grid[0] * spec.patch, grid[1] * spec.patch)
        pixels = torch.tensor(generator.integers(-16, 17, shape) / 16).float()
        with torch.no_grad():
            rows = spec.encode(model, pixels, grid)
        arrays |= {f"patches_{number}": as_patches(pixels, spec.patch), f"rows_{number}": rows.numpy()}
        arrays[f"grid_{number}"] = np.array(grid)
    DATA.mkdir(exist_ok=True)
    file = lzma.compress(convert(spec, model, DATA / name), preset=9)
    (DATA / f"{name}.gguf.xz").write_bytes(file)
    np.savez_compressed(DATA / f"{name}.npz", **arrays)
    size = (DATA / f"{name}.npz").stat().st_size
    print(f"{name}: {len(file):,} and {size:,} bytes; largest value {np.abs(arrays['rows_0']).max():.3f}")


for each in sys.argv[1:] or SPECS:
    make(each, SPECS[each])
