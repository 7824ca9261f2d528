"""Kimi K2.5, and Kimi-VL, whose tower and projector transformers has as those of Kimi K2.5, which computes the same for
images."""

from functools import partial
from typing import Any

import torch
import transformers
from encoder_families.spec import MEAN, Grid, Rows, Spec, as_patches, renamed

MLA = {
    "model_type": "deepseek_v3", "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1,
    "num_key_value_heads": 1, "vocab_size": 64, "q_lora_rank": None, "kv_lora_rank": 32,
    "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16, "n_routed_experts": 2,
    "first_k_dense_replace": 1, "pad_token_id": 0,
}  # fmt: skip


def kimi(side: int, n_embd: int, **vision: Any) -> Any:
    """Return a model with a table of `side` x `side` position embeddings."""
    sizes = {"hidden_size": n_embd, "pos_emb_height": side, "pos_emb_width": side, **vision}
    text = {**MLA, "num_attention_heads": vision["num_attention_heads"]}  # transformers saves both towers by these
    config = transformers.Kimi_K25Config(text_config=text, vision_config=sizes, projection_hidden_size=n_embd)
    return transformers.Kimi_K25ForConditionalGeneration(config)


def kimi_rows(model: Any, pixels: torch.Tensor, grid: Grid) -> Rows:
    patch = pixels.shape[2] // grid[0]
    patches = torch.tensor(as_patches(pixels, patch).reshape(-1, 3, patch, patch))
    return model.model.get_image_features(patches, torch.tensor([[1, *grid]])).pooler_output[0]


def as_kimi_vl(config: dict[str, Any]) -> dict[str, Any]:
    return {**config, "architectures": ["KimiVLForConditionalGeneration"]}


def as_kimi_k25(config: dict[str, Any]) -> dict[str, Any]:
    """Return config.json with the keys of published ones beside those of transformers, which the converter adds to
    files without them."""
    vision = config["vision_config"]
    published = {f"vt_{key}": vision[key] for key in SIZES} | {
        f"init_{key}": vision[key] for key in ("pos_emb_height", "pos_emb_width")
    }
    return {**config, "architectures": ["KimiK25ForConditionalGeneration"], "vision_config": vision | published}


SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
PATCH_EMBEDDING = ("vision_tower.encoder.patch_embed", "vision_tower.patch_embed")
KIMI_VL: dict[str, Any] = {
    "architecture": "deepseek2", "encode": kimi_rows, "preprocessor": MEAN, "written": as_kimi_vl,
    "saved": renamed(
        PATCH_EMBEDDING,
        ("model.mm_projector.pre_norm", "multi_modal_projector.pre_norm"),
        ("mm_projector.proj.0", "multi_modal_projector.linear_1"),
        ("mm_projector.proj.2", "multi_modal_projector.linear_2"),
    ),
}  # fmt: skip
SPECS = {
    "kimik25": Spec(
        architecture="deepseek2", encode=kimi_rows, preprocessor=MEAN, written=as_kimi_k25, patch=4,
        saved=renamed(PATCH_EMBEDDING, ("model.mm_projector.", "mm_projector.")), grids=[(4, 6), (2, 2)],
        model=partial(
            kimi, 4, 32, patch_size=4, num_attention_heads=2, num_hidden_layers=3, intermediate_size=48
        ),
    ),
    "kimivl": Spec(
        model=partial(
            kimi, 6, 32, patch_size=4, num_attention_heads=2, num_hidden_layers=3, intermediate_size=48
        ),
        grids=[(6, 6), (4, 10), (2, 2)], patch=4, **KIMI_VL,
    ),
    "kimivl-odd": Spec(
        model=partial(
            kimi, 5, 32, patch_size=7, num_attention_heads=1, num_hidden_layers=3, intermediate_size=44
        ),
        grids=[(4, 2), (10, 6)], patch=7, **KIMI_VL,
    ),
}  # fmt: skip
