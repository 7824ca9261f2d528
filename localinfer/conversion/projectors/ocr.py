"""Readers of documents: PaddleOCR-VL (SigLIP with RoPE), dots.ocr (Qwen2-VL's patches), DeepSeek-OCR (Segment Anything
and CLIP, or the layers of a language model) and HunyuanOCR (convolutions over squares)."""

from math import isqrt

from localinfer.conversion.projectors.projector_architecture import (
    USE_GELU,
    USE_SILU,
    Fields,
    Parts,
    ProjectorArchitecture,
    ProjectorConfig,
    epsilon,
    scale_factor,
)
from localinfer.gguf.source import Field

MAX_PIXELS = 1 << 27
MAX_COUNT = 1 << 17  # of values, heads, layers and tokens
CLIP, SAM, QWEN2 = "clip-l-14-224", "sam_vit_b", "qwen2-0-5b"  # objects with sizes
QWEN2_MATRICES = {"q": "q", "k": "k", "v": "v", "o": "out"}


def pixel_limits(config: ProjectorConfig) -> Fields:
    """Return the fewest and the most pixels of an image."""
    return {
        f"clip.vision.image_{kind}_pixels": Field.uint32(config.preprocessor.positive_int(f"{kind}_pixels", MAX_PIXELS))
        for kind in ("min", "max")
    }


def paddle_sizes(config: ProjectorConfig) -> dict[str, int]:
    """Return the side of the largest square image."""
    return {"image_size": isqrt(config.preprocessor.positive_int("max_pixels", MAX_PIXELS))}


def paddle_fields(config: ProjectorConfig) -> Fields:
    return {**pixel_limits(config), **USE_GELU, **epsilon(config.encoder, "rms_norm_eps", 1e-6)}


def dots_fields(config: ProjectorConfig) -> Fields:
    return {
        **pixel_limits(config),
        **epsilon(config.encoder, "rms_norm_eps"),
        **scale_factor(config.encoder, "spatial_merge_size"),
        **USE_SILU,
    }


def deepseek_sizes(config: ProjectorConfig) -> dict[str, int]:
    """Return the sizes of CLIP by the usual names. Readers take the length of its feed-forward network from tensors."""
    clip = config.encoder.child("width").child(CLIP)
    heads = clip.positive_int("heads", MAX_COUNT)
    names = {"hidden_size": "width", "num_hidden_layers": "layers", "image_size": "image_size"}
    sizes = {new: clip.positive_int(old, MAX_COUNT) for new, old in (*names.items(), ("patch_size", "patch_size"))}
    return sizes | {"num_attention_heads": heads, "intermediate_size": 4 * heads}


def deepseek2_sizes(config: ProjectorConfig) -> dict[str, int]:
    """Return the sizes of the layers behind Segment Anything: those of Qwen2 0.5B, which config.json may lack."""
    encoder = config.encoder
    return {
        "hidden_size": encoder.child("width").child(QWEN2).positive_int("dim", MAX_COUNT),
        "intermediate_size": encoder.positive_int("intermediate_size", MAX_COUNT, 4864),
        "num_hidden_layers": encoder.positive_int("layers", MAX_COUNT, 24),
        "num_attention_heads": encoder.positive_int("num_attention_heads", MAX_COUNT, 14),
        "patch_size": encoder.positive_int("patch_size", MAX_COUNT, 16),
    }


def deepseek2_fields(config: ProjectorConfig) -> Fields:
    """Return the fields of DeepSeek-OCR, with fewer tiles, and the number of heads of keys and values."""
    heads = config.encoder.positive_int("num_key_value_heads", MAX_COUNT, 2)
    kv = {"clip.vision.attention.head_count_kv": Field.uint32(heads)}
    return {**deepseek_fields(config), "clip.vision.preproc_max_tiles": Field.uint32(6), **kv}


def deepseek_fields(config: ProjectorConfig) -> Fields:
    """Return the sizes of Segment Anything, and of windows and tiles, which config.json lacks."""
    encoder, sam = config.encoder, config.encoder.child("width").child(SAM)
    names = {"layers": "block_count", "width": "embedding_length", "heads": "head_count"}
    counts = {f"sam.{new}": sam.positive_int(old, MAX_COUNT) for old, new in names.items()}
    counts |= {"window_size": encoder.positive_int("window_size", MAX_COUNT, 14)}
    counts |= {"preproc_min_tiles": 2, "preproc_max_tiles": 9}
    side = isqrt(config.preprocessor.positive_int("image_seq_length", MAX_COUNT, 256))
    factor = encoder.positive_int("image_size", MAX_COUNT) // encoder.positive_int("patch_size", MAX_COUNT) // side
    if factor not in (0, 4):  # of CLIP's own patches, which are not used
        counts["projector.scale_factor"] = factor
    numbers = {f"clip.vision.{key}": Field.uint32(number) for key, number in counts.items()}
    return {**epsilon(encoder, "layer_norm_eps", 1e-6), **USE_GELU, **numbers}


def deepseek_parts(name: str, config: ProjectorConfig) -> Parts | None:  # noqa: ARG001
    """Return the end of an image as a matrix of one row, as readers expect it."""
    return {"v.view_seperator": lambda values: values[None]} if name == "model.view_seperator" else None


PADDLEOCR = ProjectorArchitecture(
    projector_type="paddleocr",
    fields=paddle_fields,
    prefixes={"visual.": "model.", "mlp_AR.": "mlp_AR.", "model.visual.": "model."},
    ignored=r"packing_position_embedding|vision_model\.head",
    sizes=paddle_sizes,
)
DOTS_OCR = ProjectorArchitecture(
    projector_type="dots_ocr",
    fields=dots_fields,
    prefixes={"vision_tower.": "vision_tower."},
    names=(
        (r"^vision_tower\.(blocks\.\d+\.mlp)\.fc1", r"visual.\1.gate_proj"),
        (r"^vision_tower\.(blocks\.\d+\.mlp)\.fc2", r"visual.\1.down_proj"),
        (r"^vision_tower\.(blocks\.\d+\.mlp)\.fc3", r"visual.\1.up_proj"),
    ),
    sizes=lambda config: {"image_size": 0},  # noqa: ARG005 images have any size
)
DEEPSEEK_OCR = ProjectorArchitecture(
    projector_type="deepseekocr",
    fields=deepseek_fields,
    prefixes={
        f"model.{part}": f"model.{part}"
        for part in ("sam_model.", "vision_model.", "projector.", "image_newline", "view_seperator")
    },
    ignored=r"position_ids$",
    names=((r"(pos_embed|rel_pos_[hw])$", r"\1.weight"),),
    parts=deepseek_parts,
    f32_tensors=r"v\.(sam\.(pos_embd|blk\.\d+\.attn\.pos_|neck|net_)|class_embd|position_embd|patch_embd).*",
    sizes=deepseek_sizes,
)
DEEPSEEK_OCR2 = ProjectorArchitecture(
    projector_type="deepseekocr2",
    fields=deepseek2_fields,
    prefixes={
        f"model.{part}": f"model.{part}" for part in ("sam_model.", "qwen2_model.", "projector.", "view_seperator")
    },
    names=(
        *DEEPSEEK_OCR.names,
        (r"^model\.qwen2_model\.query_(\d+)", r"v.resample_query_\1"),
        (r"^model\.qwen2_model\.model\.model\.norm", "v.post_ln"),
        (r"^model\.qwen2_model\.model\.model\.layers\.", "v.blk."),
        *((rf"^(v\.blk\.\d+)\.self_attn\.{old}_proj", rf"\1.attn_{new}") for old, new in QWEN2_MATRICES.items()),
        (r"^(v\.blk\.\d+)\.mlp\.(gate|up|down)_proj", r"\1.ffn_\2"),
        (r"^(v\.blk\.\d+)\.input_layernorm", r"\1.ln1"),
        (r"^(v\.blk\.\d+)\.post_attention_layernorm", r"\1.ln2"),
    ),
    parts=deepseek_parts,
    f32_tensors=r"v\.sam\.(pos_embd|blk\.\d+\.attn\.pos_|neck|net_).*",
    sizes=deepseek2_sizes,
)


def hunyuan_sizes(config: ProjectorConfig) -> dict[str, int]:
    """Return the size of the image that the table of position embeddings belongs to."""
    largest = config.encoder.positive_int("max_image_size", MAX_COUNT, 2048)
    return {"image_size": config.encoder.positive_int("image_size", MAX_COUNT, largest)}


def hunyuan_fields(config: ProjectorConfig) -> Fields:
    merge = config.encoder.positive_int("spatial_merge_size", MAX_COUNT, 2)
    merge_key = {"clip.vision.spatial_merge_size": Field.uint32(merge)}
    return {**USE_GELU, **epsilon(config.encoder, "rms_norm_eps", 1e-5), **merge_key, **pixel_limits(config)}


def hunyuan_parts(name: str, config: ProjectorConfig) -> Parts | None:  # noqa: ARG001
    """Return the position embeddings without that of a class, which there is not."""
    return {"v.position_embd.weight": lambda values: values[1:]} if "position_embedding" in name else None


HUNYUAN_VL = ProjectorArchitecture(
    projector_type="hunyuanvl",
    fields=hunyuan_fields,
    prefixes={"vit.": "vit.", "model.vision_tower.": "vit."},
    names=(  # those of transformers
        (r"\.layer_norm1\.", ".input_layernorm."),
        (r"\.layer_norm2\.", ".post_attention_layernorm."),
        (r"\.mlp\.fc1\.", ".mlp.dense_h_to_4h."),
        (r"\.mlp\.fc2\.", ".mlp.dense_4h_to_h."),
        (r"^vit\.patch_merger\.", "vit.perceive."),
        (r"\.proj_conv\.", ".proj.0."),
        (r"\.proj_out\.", ".proj.2."),
    ),
    parts=hunyuan_parts,
    sizes=hunyuan_sizes,
)
BY_CLASS = {
    "PaddleOCRVLForConditionalGeneration": PADDLEOCR,
    "PaddleOCRVisionModel": PADDLEOCR,
    "DotsOCRForCausalLM": DOTS_OCR,
    "DeepseekOCRForCausalLM": DEEPSEEK_OCR,
    "DeepseekOCR2ForCausalLM": DEEPSEEK_OCR2,
    "HunYuanVLForConditionalGeneration": HUNYUAN_VL,
}
