"""Metadata of the text models of vision models, computed from config.json.

`architecture_metadata` explains the functions."""

from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.hparams import HParams
from localinfer.conversion.metadata import expert_metadata
from localinfer.conversion.rope import mrope_sections
from localinfer.gguf.source import Field
from localinfer.graph.properties.rope import SECTIONS_KEY

Fields = dict[str, Field]


def mrope(config: JsonObject, hp: HParams) -> Fields:  # noqa: ARG001
    """Return the sections of M-RoPE."""
    return {SECTIONS_KEY: mrope_sections(config)}


def deepstack(config: JsonObject, hp: HParams) -> Fields:
    """Return the sections of M-RoPE and the number of layers that rows of images are added after (DeepStack)."""
    count = len(config.child("vision_config").get("deepstack_visual_indexes", list, []))
    return mrope(config, hp) | {"n_deepstack_layers": Field.uint32(count)}


def deepstack_experts(config: JsonObject, hp: HParams) -> Fields:
    """Return the metadata of DeepStack and of experts."""
    return deepstack(config, hp) | expert_metadata.experts(config, hp, usually_normed=True)


def sigmoid_experts(config: JsonObject, hp: HParams) -> Fields:
    """Return the sections of M-RoPE and the metadata of experts with sigmoid gating."""
    return mrope(config, hp) | expert_metadata.sigmoid_experts(config, hp)
