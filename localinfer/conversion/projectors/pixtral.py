"""Pixtral, Mistral Small 3.1 and LightOnOCR: an encoder with RoPE in two dimensions; rows end in [IMG_BREAK]."""

from dataclasses import replace

from localinfer.conversion.projectors.projector_architecture import (
    MAX_HEADS,
    Fields,
    Parts,
    ProjectorArchitecture,
    ProjectorConfig,
    activation,
    epsilon,
    permute_heads,
)
from localinfer.errors import UnsupportedError
from localinfer.gguf.source import Field

BREAK_TOKEN = "[IMG_BREAK]"


def pixtral_fields(config: ProjectorConfig) -> Fields:
    """Return how many patches per side become a token, in addition to the usual fields."""
    if config.encoder.get("model_type", str, "") != "pixtral":
        raise config.encoder.error("model_type", "must be pixtral", UnsupportedError)
    merge = config.root.positive_int("spatial_merge_size", 64, 1)
    is_stated = config.root.values.get("spatial_merge_size") is not None
    merged = {"clip.vision.spatial_merge_size": Field.uint32(merge)} if is_stated else {}
    return {
        **epsilon(config.encoder, "layer_norm_eps", 1e-5),
        **activation(config.encoder),
        **merged,
    }


def permuted_parts(name: str, config: ProjectorConfig) -> Parts | None:
    """Return queries and keys in the order of GGUF's RoPE."""
    if not name.startswith("vision_tower.") or not any(kind in name for kind in ("q_proj.", "k_proj.")):
        return None
    n_head = config.encoder.positive_int("num_attention_heads", MAX_HEADS)
    return {name: lambda values: permute_heads(values, n_head)}


def pixtral_parts(name: str, config: ProjectorConfig) -> Parts | None:
    """Return the row of the text model's embedding for the token at the end of a row of patches, too."""
    if name != "embed_tokens":
        return permuted_parts(name, config)
    number = break_token(config)
    return {"v.token_embd.img_break": lambda values: values[number]}


def break_token(config: ProjectorConfig) -> int:
    """Return the id of [IMG_BREAK]. Raises LocalInferError."""
    added = config.folder.optional_json("tokenizer_config.json").child("added_tokens_decoder")
    for key in added.values:
        if added.child(key).get("content", str, "") == BREAK_TOKEN and key.isdecimal():
            return int(key)
    for token in config.folder.optional_json("tokenizer.json").children("added_tokens"):
        if token.get("content", str, "") == BREAK_TOKEN:
            return token.positive_int("id", 1 << 30)
    raise config.folder.error(f"the tokenizer has no token {BREAK_TOKEN}")


PIXTRAL = ProjectorArchitecture(
    projector_type="pixtral",
    fields=pixtral_fields,
    prefixes={
        "model.vision_tower.": "vision_tower.",
        "model.multi_modal_projector.": "multi_modal_projector.",
        "vision_tower.": "vision_tower.",
        "multi_modal_projector.": "multi_modal_projector.",
        "language_model.model.embed_tokens.weight": "embed_tokens",
        "model.language_model.embed_tokens.weight": "embed_tokens",
    },
    parts=pixtral_parts,
)
LIGHTONOCR = replace(
    PIXTRAL,
    projector_type="lightonocr",
    prefixes={"model.vision_encoder.": "vision_tower.", "model.vision_projection.": "multi_modal_projector."},
    parts=permuted_parts,
)
BY_CLASS = {
    "Mistral3ForConditionalGeneration": PIXTRAL,
    "LightOnOcrForConditionalGeneration": LIGHTONOCR,
    "LightOnOCRForConditionalGeneration": LIGHTONOCR,
}
