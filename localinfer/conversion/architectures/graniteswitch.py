"""Conversion of Granite Switch: granite with LoRA adapters, which checkpoints have beside each matrix.

A checkpoint counts what finds the active adapter as a layer more, which has no weights.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from localinfer.conversion.architectures.common import FUSED_QKV, GATED_FFN, PRE_NORMS
from localinfer.conversion.architectures.granite import GRANITE, GRANITE_WITHOUT_STATES
from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.hparams import HParams
from localinfer.conversion.tensor_formats import reorder
from localinfer.conversion.tensor_formats.values import Values
from localinfer.errors import UnsupportedError
from localinfer.gguf.source import Field
from localinfer.graph.properties.embedded_adapters import MAX_ADAPTERS, MAX_GAIN, MAX_RANK, USUAL_GAIN

SWITCH_LAYERS = 1
CONTROL_TOKENS = {
    "adapter_token_ids": "adapters.token_ids_activate",
    "adapter_substitute_token_ids": "adapters.token_ids_substitute",
}
# The modules with adapters, and the matrices that they compute: columns and rows
MODULES = {
    "self_attn.qkv_proj": {"attn_q": ("n_embd", "n_q"), "attn_k": ("n_embd", "n_kv"), "attn_v": ("n_embd", "n_kv")},
    "self_attn.o_proj": {"attn_output": ("n_q", "n_embd")},
    "shared_mlp.input_linear": {"ffn_gate": ("n_embd", "n_ff"), "ffn_up": ("n_embd", "n_ff")},
    "shared_mlp.output_linear": {"ffn_down": ("n_ff", "n_embd")},
}
MATRICES = {name: sizes for matrices in MODULES.values() for name, sizes in matrices.items()}


def with_zero_adapter(rows: Callable[[Values, HParams], Values] | None = None) -> Callable[[Values, HParams], Values]:
    """Return a function that puts an adapter of zeros before the others, whose rows `rows` may reorder."""

    def moved(values: Values, hp: HParams) -> Values:
        adapters = [rows(each, hp) if rows else each for each in values[:, 0]]
        return np.stack([np.zeros_like(adapters[0]), *adapters])

    return moved


def interleave_qkv_halves(values: Values, hp: HParams) -> Values:
    """Return the rows q1 q2 k1 k2 v1 v2 with the halves of each head of queries and keys interleaved."""
    parts = (reorder.first_queries, reorder.middle_keys, reorder.last_values)
    return np.concatenate([part(values, hp) for part in parts])


def adapter_names() -> dict[str, str]:
    """Return GGUF's names of the matrices of adapters, by their names in a checkpoint, which numbers them if a module
    computes several matrices."""
    return {
        f"{module}.lora_{kind}_slices.{number}" if len(matrices) > 1 else f"{module}.lora_{kind}": (
            f"{name}.lora_{kind.lower()}"
        )
        for module, matrices in MODULES.items()
        for kind in "AB"
        for number, name in enumerate(matrices)
    }


def without_switch(config: JsonObject, hp: HParams) -> HParams:
    """Add the sizes of the adapters, and remove the layer that has no weights. Raises UnsupportedError for a later kind
    of checkpoint, in which the last control token counts alone, and which has two such layers."""
    if "ms_code_m" in config.values:
        what = "a model whose last control token counts alone is not supported: GGUF has no keys for it"
        raise config.error("ms_code_m", what, UnsupportedError)
    if hp.n_layer <= SWITCH_LAYERS:
        raise config.error("num_hidden_layers", f"is {hp.n_layer}; there must be {SWITCH_LAYERS + 1} at least")
    count = config.positive_int("num_adapters", MAX_ADAPTERS)
    sizes = {"n_adapters": count, "n_slots": count + 1, "n_rank": config.positive_int("max_lora_rank", MAX_RANK)}
    layers = hp.n_layer - SWITCH_LAYERS
    return replace(hp, n_layer=layers, is_sliding=hp.is_sliding[:layers], sizes=sizes)


def metadata(config: JsonObject, hp: HParams) -> dict[str, Field]:
    """Return the metadata of the adapters. The feed-forward network counts as a shared expert beside no others."""
    gain = config.positive_float("control_token_gain", USUAL_GAIN, maximum=MAX_GAIN)
    fields = {
        "expert_shared_feed_forward_length": Field.uint32(hp.n_ff),
        "expert_count": Field.uint32(0),
        "expert_used_count": Field.uint32(0),
        "adapters.count": Field.uint32(hp.sizes["n_adapters"]),
        "adapters.lora_rank": Field.uint32(hp.sizes["n_rank"]),
        "adapters.router_gain": Field.float32(gain),
    }
    for key, name in CONTROL_TOKENS.items():
        ids = config.get(key, list)
        if len(ids) != hp.sizes["n_adapters"] or not all(type(each) is int and 0 <= each < hp.n_vocab for each in ids):
            raise config.error(key, f"must be {hp.sizes['n_adapters']} tokens of the vocabulary, one for each adapter")
        fields[name] = Field.numbers(np.array(ids, np.int32))
    return fields


LORA_SHAPES = {
    **{f"{name}.lora_a": ("n_adapters", "one", "n_rank", columns) for name, (columns, _) in MATRICES.items()},
    **{f"{name}.lora_b": ("n_adapters", "one", rows, "n_rank") for name, (_, rows) in MATRICES.items()},
}
GRANITESWITCH = replace(
    GRANITE_WITHOUT_STATES,
    name="graniteswitch",
    layer_tensors=(*PRE_NORMS, *FUSED_QKV, *GATED_FFN, *LORA_SHAPES),
    optional_layer_tensors=(),
    no_weight_suffix=(*GRANITE.no_weight_suffix, "lora_a", "lora_b", *LORA_SHAPES),
    shapes={**GRANITE_WITHOUT_STATES.shapes, **LORA_SHAPES},
    final_shapes={
        **GRANITE_WITHOUT_STATES.final_shapes,
        **{name: ("n_slots", *shape[2:]) for name, shape in LORA_SHAPES.items()},
    },
    reorder={
        **GRANITE_WITHOUT_STATES.reorder,
        "attn_qkv": interleave_qkv_halves,
        **dict.fromkeys(LORA_SHAPES, with_zero_adapter()),
        "attn_q.lora_b": with_zero_adapter(reorder.interleave_query_halves),
        "attn_k.lora_b": with_zero_adapter(reorder.interleave_key_halves),
    },
    name_map_architecture="granite",
    tensor_names={
        **adapter_names(),
        "self_attn.qkv_proj.base_layer": "attn_qkv",
        "self_attn.o_proj.base_layer": "attn_output",
        "shared_mlp.input_linear.base_layer": "ffn_gate_up",
        "shared_mlp.output_linear.base_layer": "ffn_down",
    },
    ignored_tensors=r"(model\.)?(switch\..*|adapter_token_ids|control_to_substitute_lut)",
    read_hparams=without_switch,
    metadata=metadata,
    required_values={
        "position_embedding_type": "rope", "num_local_experts": 0, "attention_bias": False, "qk_norm": False,
    },
    defaults={**GRANITE.defaults, "tie_word_embeddings": True},
)  # fmt: skip
BY_CLASS = {"GraniteSwitchForCausalLM": GRANITESWITCH}
