"""Muse Glimmer. Rows are those before the language model normalizes them, as it does with embeddings of tokens."""

from typing import Any

import torch
import transformers
from encoder_families.spec import MEAN, TEXT, Grid, Rows, Spec, as_patches

N_FRAMES = 2


def muse_glimmer() -> Any:
    vision = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 5, "num_attention_heads": 2, "patch_size": 4,
        "pos_emb_height": 4, "pos_emb_width": 4, "max_position_embeddings": 16,
    }  # fmt: skip
    config = transformers.MuseGlimmerConfig(
        text_config=TEXT, vision_config=vision, out_hidden_size=128, projector_hidden_size=48
    )
    return transformers.MuseGlimmerForConditionalGeneration(config)


def muse_rows(model: Any, pixels: torch.Tensor, grid: Grid) -> Rows:
    """Both frames of a patch are equal, and have their channels one after the other."""
    patches = torch.tensor(as_patches(pixels, pixels.shape[2] // grid[0])).repeat(1, N_FRAMES)
    found = model.model.vision_tower(patches, torch.tensor([[1, *grid]])).last_hidden_state
    return model.model.vision_projection(model.model.vision_adapter(found))


SPECS = {
    "muse-glimmer": Spec(
        architecture="muse-glimmer", model=muse_glimmer, encode=muse_rows, grids=[(4, 4), (6, 10)], patch=4,
        preprocessor=MEAN,
    ),
}  # fmt: skip
