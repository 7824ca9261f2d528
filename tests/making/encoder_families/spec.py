"""A description of a projector for make_encoder_fixtures.py, and what several of them have in common."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

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
    extra: Callable[[Path], None] = lambda folder: None  # writes further files of the checkpoint
    file: Callable[[Any], bytes] | None = None  # makes the projector file, if the converter cannot
    more: Callable[[Any], dict[str, Any]] = lambda model: {}  # makes further arrays of the fixture
    embedding_length: int = 64
    pixels: Callable[[Grid, np.random.Generator], torch.Tensor] | None = None  # if the grid does not tell their number
    inputs: Callable[[torch.Tensor], np.ndarray[Any, np.dtype[np.float32]]] | None = None  # if not patches


def siglip(size: int, patch: int, **changes: Any) -> dict[str, Any]:
    return {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
        "image_size": size, "patch_size": patch, "hidden_act": "gelu_pytorch_tanh", **changes,
    }  # fmt: skip


def renamed(*pairs: tuple[str, str]) -> Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]:
    """Return the change of the beginnings of names."""

    def change(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        for old, new in pairs:
            tensors = {name.replace(old, new) if name.startswith(old) else name: t for name, t in tensors.items()}
        return tensors

    return change


def as_patches(pixels: torch.Tensor, patch: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the patches of an image (1, 3, height, width), each in the order [channel][y][x]."""
    _, channels, height, width = pixels.shape
    tiles = pixels[0].reshape(channels, height // patch, patch, width // patch, patch)
    return tiles.permute(1, 3, 0, 2, 4).reshape(-1, channels * patch * patch).numpy()


def video_patches(model: Any, pixels: torch.Tensor, grid: Grid) -> Rows:
    """Return the output rows of models that read patches of two equal frames in the order of squares, and the rows of
    DeepStack beside them."""
    patch = pixels.shape[2] // grid[0]
    tiles = pixels[0].reshape(3, grid[0] // 2, 2, patch, grid[1] // 2, 2, patch).permute(1, 4, 2, 5, 0, 3, 6)
    patches = tiles.unsqueeze(5).expand(-1, -1, -1, -1, -1, 2, -1, -1).reshape(grid[0] * grid[1], -1)
    found = model.model.get_image_features(patches, torch.tensor([[1, *grid]]))
    deepstack = [rows[0] if isinstance(rows, tuple) else rows for rows in getattr(found, "deepstack_features", [])]
    return torch.cat([found.pooler_output[0], *deepstack], 1)
