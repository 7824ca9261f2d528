"""Write tests/data/projectors: tiny projector files of every projector type, and the output rows that transformers
computes.

    LLAMA_CPP=path/to/llama.cpp python tests/making/make_encoder_fixtures.py           # all of them
    LLAMA_CPP=path/to/llama.cpp python tests/making/make_encoder_fixtures.py gemma3    # these

Needs torch, transformers, timm and gguf, and the converter of llama.cpp's source. NAME.gguf.xz is the file that
llama.cpp's converter makes in F32 of a checkpoint with random weights, without those that `generated_weights` draws
again. NAME.npz has the grid of patches, the patches in sixteenths and the output rows of some images (patches_0,
rows_0, grid_0, patches_1, ...), computed in float32 with eager attention, and `embedding_length` and `architecture` of
the language model. `image_rows_N` is every third of the `image_length_N` rows of the whole made image N, for models
whose images consist of several views.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gemma3n_encoder
import gemma_encoders
import gguf
import numpy as np
import torch
import transformers

sys.path.extend(str(Path(__file__).parents[1] / folder) for folder in ("models", "oracles"))

from encoder_families import cogvlm, exaone, hunyuan, kimi, llava_next, minicpm, minimax, muse, nemotron, ocr, qwen4
from encoder_families.spec import MEAN, TEXT, Grid, Rows, Spec, as_patches, renamed, siglip, video_patches
from generated_weights import LARGEST, SEED, pack
from safetensors.torch import save_file

DATA = Path(__file__).parents[1] / "data" / "projectors"
CONVERTER = Path(os.environ.get("LLAMA_CPP", ".")) / "convert_hf_to_gguf.py"


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


def without_post_attention_norm(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Name the second norm of Llama 4's layers as other encoders do: the converter takes it for another norm."""
    layers, norm = "vision_model.model.layers.", ".post_attention_layernorm."
    other = "vision_tower.vision_model.encoder.layers."
    return {
        name.replace(layers, other).replace(norm, ".layer_norm2.") if layers in name and norm in name else name: tensor
        for name, tensor in tensors.items()
    }


def named(architecture: str, *, vision: bool = True) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return the change of config.json to the name by which the converter knows the encoder."""

    def change(config: dict[str, Any]) -> dict[str, Any]:
        (config["vision_config"] if vision else config)["architectures"] = [architecture]
        return config

    return change


def with_features(model: Any, pixels: torch.Tensor, _grid: Grid) -> Rows:
    """Return the output rows of models whose get_image_features takes pixels alone."""
    features = model.model.get_image_features(pixels)
    rows = getattr(features, "pooler_output", features)
    return rows[0] if isinstance(rows, list | tuple) or rows.dim() == 3 else rows


def idefics3_rows(model: Any, pixels: torch.Tensor, grid: Grid) -> Rows:
    return with_features(model, pixels[None], grid)


def qwen_vision(**changes: Any) -> dict[str, Any]:
    return {
        "depth": 3, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 4, "in_channels": 3,
        "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 64, **changes,
    }  # fmt: skip


def qwen2vl() -> Any:
    vision = {**qwen_vision(embed_dim=32, hidden_size=64, mlp_ratio=2), "in_chans": 3}
    config = transformers.Qwen2VLConfig(text_config={**TEXT, "model_type": "qwen2_vl_text"}, vision_config=vision)
    return transformers.Qwen2VLForConditionalGeneration(config)


def qwen2_5vl() -> Any:
    vision = qwen_vision(intermediate_size=44, window_size=112, patch_size=14, fullatt_block_indexes=[1])
    config = transformers.Qwen2_5_VLConfig(text_config=TEXT, vision_config=vision)
    return transformers.Qwen2_5_VLForConditionalGeneration(config)


def qwen3vl() -> Any:
    vision = qwen_vision(num_position_embeddings=36, deepstack_visual_indexes=[0, 2])
    config = transformers.Qwen3VLConfig(text_config=TEXT, vision_config=vision)
    return transformers.Qwen3VLForConditionalGeneration(config)


def glm4v() -> Any:
    vision = {**qwen_vision(out_hidden_size=64, image_size=24, rms_norm_eps=1e-5), "hidden_act": "silu"}
    config = transformers.Glm4vConfig(text_config={**TEXT, "partial_rotary_factor": 0.5}, vision_config=vision)
    return transformers.Glm4vForConditionalGeneration(config)


def glm_ocr() -> Any:
    vision = {**qwen_vision(rms_norm_eps=1e-5, image_size=24, num_heads=1), "hidden_act": "silu"}
    text = {**TEXT, "partial_rotary_factor": 1.0}
    return transformers.GlmOcrForConditionalGeneration(
        transformers.GlmOcrConfig(text_config=text, vision_config=vision)
    )


GLM5V = {**MEAN, "patch_size": 4, "merge_size": 2, "min_image_tokens": 4, "max_image_tokens": 100}


def glm5v(**changes: Any) -> Any:
    sizes = {
        "depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 4, "image_size": 24,
        "out_hidden_size": 64, "projection_intermediate_size": 96, "swiglu_limit": 0.25,
    }  # fmt: skip
    text = {
        **TEXT, "num_key_value_heads": 2, "layer_types": ["full_attention"], "mlp_layer_types": ["dense"],
        "n_routed_experts": 2, "head_dim": 0,
    }  # fmt: skip
    config = transformers.Glm5NextConfig(text_config=text, vision_config=sizes | changes)
    return transformers.Glm5NextForConditionalGeneration(config)


def glm5v_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return config.json with the keys of published ones."""
    kda = {"head_dim": 32, "num_heads": 2, "short_conv_kernel_size": 4, "gate_lower_bound": -5.0}
    return config | {"text_config": config["text_config"] | {"linear_attn_config": kda}}


def pixtral_vision(patch: int = 4) -> dict[str, Any]:
    return {
        "model_type": "pixtral", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
        "num_attention_heads": 2, "head_dim": 16, "patch_size": patch, "image_size": 64, "hidden_act": "silu",
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    }  # fmt: skip


def pixtral() -> Any:
    config = transformers.LlavaConfig(
        text_config={**TEXT, "model_type": "llama"}, vision_config=pixtral_vision(), image_token_index=3,
        vision_feature_layer=-1, vision_feature_select_strategy="full", projector_hidden_act="gelu",
    )  # fmt: skip
    return transformers.LlavaForConditionalGeneration(config)


def mistral3() -> Any:
    config = transformers.Mistral3Config(
        text_config={**TEXT, "model_type": "mistral"}, vision_config=pixtral_vision(), image_token_index=3,
        vision_feature_layer=-1, spatial_merge_size=2, multimodal_projector_bias=False,
    )  # fmt: skip
    return transformers.Mistral3ForConditionalGeneration(config)


def lightonocr() -> Any:
    config = transformers.LightOnOcrConfig(
        text_config={**TEXT, "model_type": "qwen3"}, vision_config=pixtral_vision(), image_token_id=3,
        spatial_merge_size=2,
    )  # fmt: skip
    return transformers.LightOnOcrForConditionalGeneration(config)


def with_sizes(model: Any, pixels: torch.Tensor, _grid: Grid) -> Rows:
    """Return the output rows of models that read images of any size."""
    found = model.model.get_image_features(pixels, image_sizes=torch.tensor([pixels.shape[2:]]))
    rows = found.pooler_output
    return rows[0] if isinstance(rows, list | tuple) or rows.dim() == 3 else rows


def with_breaks(model: Any, pixels: torch.Tensor, grid: Grid) -> Rows:
    """Return the rows with the embedding of [IMG_BREAK], which is token 5, after each row of the image but the last."""
    rows = with_sizes(model, pixels, grid)
    size = int((grid[0] * grid[1] / len(rows)) ** 0.5)
    by_row = rows.reshape(grid[0] // size, grid[1] // size, -1)
    token = model.get_input_embeddings().weight[5].expand(len(by_row), 1, -1)
    return torch.cat([by_row, token], 1).reshape(-1, rows.shape[-1])[:-1]


def lfm2() -> Any:
    vision = {**siglip(96, 16, num_hidden_layers=3), "num_patches": 36, "model_type": "siglip2_vision_model"}
    config = transformers.Lfm2VlConfig(
        text_config={**TEXT, "model_type": "lfm2"}, vision_config=vision, image_token_id=3, downsample_factor=2,
        projector_hidden_size=48, vision_feature_layer=-1,
    )  # fmt: skip
    return transformers.Lfm2VlForConditionalGeneration(config)


def lfm2_rows(model: Any, pixels: torch.Tensor, grid: Grid) -> Rows:
    """Patches of SigLIP 2 are in the order [y][x][channel]."""
    patches = as_patches(pixels, 16).reshape(-1, 3, 16, 16).transpose(0, 2, 3, 1).reshape(1, -1, 768)
    shapes, mask = torch.tensor([grid]), torch.ones(1, patches.shape[1], dtype=torch.long)
    return model.model.get_image_features(torch.tensor(patches), shapes, mask).pooler_output[0]


def internvl() -> Any:
    vision = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 2,
        "image_size": [24, 24], "patch_size": [4, 4], "norm_type": "layer_norm", "attention_bias": True,
        "use_absolute_position_embeddings": True, "layer_scale_init_value": 0.1,
    }  # fmt: skip
    config = transformers.InternVLConfig(
        text_config={**TEXT, "model_type": "qwen2"}, vision_config=vision, image_token_id=3, downsample_ratio=0.5
    )
    return transformers.InternVLForConditionalGeneration(config)


def llama4() -> Any:
    vision = {
        "hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 2,
        "image_size": 24, "patch_size": 4, "vision_output_dim": 48, "projector_input_dim": 48,
        "projector_output_dim": 48, "pixel_shuffle_ratio": 0.5,
    }  # fmt: skip
    config = transformers.Llama4Config(text_config={**TEXT, "num_local_experts": 2}, vision_config=vision)
    return transformers.Llama4ForConditionalGeneration(config)


def llama4_rows(model: Any, pixels: torch.Tensor, _grid: Grid) -> Rows:
    features = model.vision_model(pixels).last_hidden_state
    return model.multi_modal_projector(features.reshape(-1, features.shape[-1]))


def paddleocr() -> Any:
    vision = siglip(24, 4, num_hidden_layers=3, spatial_merge_size=2)
    config = transformers.PaddleOCRVLConfig(text_config=TEXT, vision_config=vision)
    return transformers.PaddleOCRVLForConditionalGeneration(config)


def paddleocr_rows(model: Any, pixels: torch.Tensor, grid: Grid) -> Rows:
    patches = torch.tensor(as_patches(pixels, 4).reshape(-1, 3, 4, 4))
    found = model.model.get_image_features(patches, torch.tensor([[1, *grid]]))
    return found.pooler_output[0]


def llava() -> Any:
    vision = siglip(24, 4, num_hidden_layers=3, model_type="clip_vision_model", hidden_act="quick_gelu")
    vision["projection_dim"] = 32
    config = transformers.LlavaConfig(
        text_config={**TEXT, "model_type": "llama"}, vision_config=vision, image_token_index=3, vision_feature_layer=-2
    )
    return transformers.LlavaForConditionalGeneration(config)


CLIP_NAMES = {
    "vision_tower.embeddings.class_embedding": "v.class_embd",
    "vision_tower.embeddings.patch_embedding": "v.patch_embd",
    "vision_tower.embeddings.position_embedding": "v.position_embd", "vision_tower.pre_layrnorm": "v.pre_ln",
    "multi_modal_projector.linear_1": "mm.0", "multi_modal_projector.linear_2": "mm.2", "layer_norm1": "ln1",
    "vision_tower.encoder.layers": "v.blk", "layer_norm2": "ln2", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down",
    "self_attn.out_proj": "attn_out", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
}  # fmt: skip


def llava_file(model: Any) -> bytes:
    """Return a file as published ones of LLaVA 1.5, which an older converter wrote: without the last layer, and with
    the length of CLIP's own projection."""
    vision = model.config.vision_config
    with tempfile.TemporaryDirectory() as folder:
        writer = gguf.GGUFWriter(Path(folder, "mmproj.gguf"), "clip")
        for key, flag in (("has_vision_encoder", True), ("has_llava_projector", True), ("use_gelu", False)):
            writer.add_bool(f"clip.{key}", flag)
        writer.add_string("clip.projector_type", "mlp")
        numbers = {
            "image_size": 24, "patch_size": 4, "embedding_length": 32, "feed_forward_length": 48, "projection_dim": 32,
            "attention.head_count": 2, "block_count": vision.num_hidden_layers - 1,
        }  # fmt: skip
        for key, number in numbers.items():
            writer.add_uint32(f"clip.vision.{key}", number)
        writer.add_float32("clip.vision.attention.layer_norm_epsilon", vision.layer_norm_eps)
        for key in ("image_mean", "image_std"):
            writer.add_array(f"clip.vision.{key}", MEAN[key])
        for name, tensor in model.model.state_dict().items():
            for old, new in CLIP_NAMES.items():
                name = name.replace(old, new)
            if name.startswith(("v.", "mm.")) and not name.startswith(f"v.blk.{vision.num_hidden_layers - 1}."):
                writer.add_tensor(name, tensor.numpy())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return Path(folder, "mmproj.gguf").read_bytes()


def with_tokenizer(folder: Path) -> None:
    """Write the tokenizer in which the converter finds [IMG_BREAK]."""
    added = {"5": {"content": "[IMG_BREAK]"}}
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))


QWEN_GRIDS: list[Grid] = [(6, 6), (4, 10), (2, 2)]
PIXTRAL: dict[str, Any] = {
    "grids": [(4, 6), (6, 2)], "patch": 4, "preprocessor": MEAN, "extra": with_tokenizer,
    "saved": renamed(("language_model.model.embed_tokens", "text.embed_tokens")),
}  # fmt: skip
SPECS = {
    "gemma3": Spec(
        architecture="gemma3", model=gemma3, encode=with_features, grids=[(8, 8)], patch=7,
        preprocessor={**MEAN, "image_seq_length": 16}, saved=nested("vision_tower"),
    ),
    "gemma3nv": Spec(
        architecture="gemma3n", model=gemma3n_encoder.Gemma3n, encode=gemma3n_encoder.rows, patch=0,
        grids=[(128, 128), (128, 256)], pixels=gemma3n_encoder.pixels_of, inputs=gemma3n_encoder.squares_of,
        preprocessor={"size": {"height": gemma3n_encoder.SIDE, "width": gemma3n_encoder.SIDE}},
    ),
    "gemma4uv": Spec(
        architecture="gemma4", model=gemma_encoders.unified_gemma4, encode=gemma_encoders.gemma4_rows, patch=12,
        grids=[(2, 3), (1, 1)], preprocessor=gemma_encoders.UNCHANGED,
    ),
    "gemma4v": Spec(
        architecture="gemma4", model=gemma_encoders.gemma4, encode=gemma_encoders.gemma4_rows, patch=4,
        grids=[(6, 9), (3, 3), (21, 3)], preprocessor=gemma_encoders.UNCHANGED,
    ),
    "gemma4v_unclipped": Spec(
        architecture="gemma4", model=gemma_encoders.unclipped_gemma4, encode=gemma_encoders.gemma4_rows, patch=4,
        grids=[(3, 12), (9, 6)], preprocessor=gemma_encoders.UNCHANGED,
    ),
    "glm4v": Spec(
        architecture="glm4", model=glm4v, encode=video_patches, grids=QWEN_GRIDS, patch=4, preprocessor=MEAN
    ),
    "glm5v": Spec(
        architecture="glm5-next", model=glm5v, encode=video_patches, grids=QWEN_GRIDS, patch=4, preprocessor=GLM5V,
        written=glm5v_config,
    ),
    "glm5v-large": Spec(
        architecture="glm5-next", encode=video_patches, grids=[(4, 6), (2, 8)], patch=4, preprocessor=GLM5V,
        model=lambda: glm5v(hidden_size=96, num_heads=3, depth=3, swiglu_limit=0.5), written=glm5v_config,
    ),
    "glm-ocr": Spec(
        architecture="glm4", model=glm_ocr, encode=video_patches, grids=[(4, 6), (2, 8)], patch=4, preprocessor=MEAN
    ),
    "idefics3": Spec(
        architecture="llama", model=idefics3, encode=idefics3_rows, grids=[(6, 6)], patch=10,
        preprocessor={**MEAN, "size": {"longest_edge": 120}},
    ),
    "internvl": Spec(
        architecture="qwen2", model=internvl, encode=with_features, grids=[(6, 6)], patch=4, preprocessor=MEAN,
        written=named("InternVisionModel"),
        saved=renamed(("vision_tower", "model.vision_tower"), ("multi_modal", "model.multi_modal")),
    ),
    "lfm2": Spec(
        architecture="lfm2", model=lfm2, encode=lfm2_rows, grids=[(6, 6), (4, 10), (8, 8)], patch=16,
        preprocessor=MEAN, saved=nested("vision_tower"),
    ),
    "lightonocr": Spec(
        architecture="qwen3", model=lightonocr, encode=with_sizes, **PIXTRAL,
        written=named("LightOnOCRForConditionalGeneration", vision=False),
    ),
    "llama4": Spec(
        architecture="llama4", model=llama4, encode=llama4_rows, grids=[(6, 6)], patch=4, preprocessor=MEAN,
        saved=without_post_attention_norm,
    ),
    "mlp": Spec(
        architecture="llama", model=llava, encode=with_features, grids=[(6, 6)], patch=4, preprocessor=MEAN,
        file=llava_file,
    ),
    "mistral3": Spec(architecture="mistral3", model=mistral3, encode=with_breaks, **PIXTRAL),
    "paddleocr": Spec(
        architecture="paddleocr", model=paddleocr, encode=paddleocr_rows, grids=QWEN_GRIDS, patch=4,
        preprocessor={**MEAN, "min_pixels": 64, "max_pixels": 576}, written=named("PaddleOCRVisionModel"),
    ),
    "pixtral": Spec(architecture="llama", model=pixtral, encode=with_breaks, **PIXTRAL),
    "qwen2_5vl": Spec(
        architecture="qwen2vl", model=qwen2_5vl, encode=video_patches, grids=[(6, 6), (10, 20), (2, 2)], patch=14,
        preprocessor=MEAN,
    ),
    "qwen2vl": Spec(
        architecture="qwen2vl", model=qwen2vl, encode=video_patches, grids=QWEN_GRIDS, patch=4, preprocessor=MEAN
    ),
    "qwen3vl": Spec(
        architecture="qwen3vl", model=qwen3vl, encode=video_patches, grids=QWEN_GRIDS, patch=4, preprocessor=MEAN
    ),
    **cogvlm.SPECS,
    **exaone.SPECS,
    **hunyuan.SPECS,
    **kimi.SPECS,
    **llava_next.SPECS,
    **minicpm.SPECS,
    **minimax.SPECS,
    **muse.SPECS,
    **nemotron.SPECS,
    **ocr.SPECS,
    **qwen4.SPECS,
}  # fmt: skip


def random_weights(model: Any) -> None:
    """Replace all weights by integers times a power of two."""
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            values = torch.randint(-LARGEST, LARGEST + 1, tensor.shape, generator=generator).float()
            is_norm = tensor.dim() == 1 and name.endswith("weight")
            scale = 2.0**-6 if tensor.dim() == 1 else 2.0 ** -np.ceil(np.log2(4 * tensor[0].numel() ** 0.5))
            tensor.copy_(values * scale + float(is_norm))


def convert(spec: Spec, model: Any) -> bytes:
    """Return the projector file that llama.cpp's converter makes of the model. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        config = spec.written(json.loads(Path(folder, "config.json").read_text()))
        Path(folder, "config.json").write_text(json.dumps(config))
        Path(folder, "preprocessor_config.json").write_text(json.dumps(spec.preprocessor))
        spec.extra(Path(folder))
        if spec.saved is not dict:
            from safetensors.torch import load_file

            tensors = load_file(Path(folder, "model.safetensors"))
            save_file(spec.saved(tensors), Path(folder, "model.safetensors"), {"format": "pt"})
        out = Path(folder, "mmproj.gguf")
        command = [sys.executable, str(CONVERTER), folder, "--mmproj", "--outtype", "f32", "--outfile", str(out)]
        subprocess.run(command, capture_output=True, text=True, check=True)
        return next(Path(folder).glob("*.gguf")).read_bytes()


def pixels_of(spec: Spec, grid: Grid, generator: np.random.Generator) -> torch.Tensor:
    """Return the pixels of the next image."""
    shape = (1, 3, grid[0] * spec.patch, grid[1] * spec.patch)
    some = torch.tensor(generator.integers(-16, 17, shape) / 16).float()
    return spec.pixels(grid, generator) if spec.pixels else some


def make(name: str, spec: Spec) -> str:
    """Write the fixtures of one projector. Return what the converter reports if it fails."""
    torch.manual_seed(SEED)
    model = spec.model().eval().float()
    model.config._attn_implementation = "eager"
    model.set_attn_implementation("eager")
    random_weights(model)
    arrays: dict[str, Any] = {"architecture": spec.architecture, "embedding_length": spec.embedding_length}
    generator = np.random.default_rng(SEED)
    for number, grid in enumerate(spec.grids):
        pixels = pixels_of(spec, grid, generator)
        with torch.no_grad():
            rows = spec.encode(model, pixels, grid)
        inputs = spec.inputs(pixels) if spec.inputs else as_patches(pixels, spec.patch)
        sixteenths = (inputs * 16).astype(np.int8)
        assert (sixteenths == inputs * 16).all(), name
        arrays |= {f"patches_{number}": sixteenths, f"rows_{number}": rows.numpy()}
        arrays[f"grid_{number}"] = np.array(grid)
    with torch.no_grad():
        arrays |= spec.more(model)
    DATA.mkdir(exist_ok=True)
    try:
        file = pack(spec.file(model) if spec.file else convert(spec, model))
    except subprocess.CalledProcessError as error:
        return str(error.stderr[-2000:])
    (DATA / f"{name}.gguf.xz").write_bytes(file)
    np.savez_compressed(DATA / f"{name}.npz", **arrays)
    size = (DATA / f"{name}.npz").stat().st_size
    print(f"{name}: {len(file):,} and {size:,} bytes; largest value {np.abs(arrays['rows_0']).max():.3f}")
    return ""


if __name__ == "__main__":
    failed = {each: error for each in sys.argv[1:] or SPECS if (error := make(each, SPECS[each]))}
    sys.exit("\n".join(f"{each}: {error}" for each, error in failed.items()) or None)
