"""HRM-Text, whose checkpoints have two stacks of layers: in GGUF, those of the second one follow those of the first."""

from dataclasses import replace
from functools import partial

from localinfer.conversion.architecture import Architecture
from localinfer.conversion.architectures.common import GATED_FFN, SEPARATE_QKV
from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.hparams import HParams
from localinfer.conversion.tensor_formats import reorder
from localinfer.conversion.tensor_formats.values import Values
from localinfer.gguf.source import Field
from localinfer.graph.properties.hyperparameters import MAXIMA
from localinfer.graph.properties.repeated_layers import HIGH_CYCLES, LOW_CYCLES, PER_STACK

FUSED = ("attn_gate", "attn_q", "attn_k", "attn_v")  # the parts of a matrix, all with the same number of rows


def quarter(values: Values, hp: HParams, *, number: int) -> Values:  # noqa: ARG001 (one signature for all)
    """Return a quarter of the rows of a matrix."""
    size = len(values) // 4
    return values[number * size : (number + 1) * size]


def with_stacks(config: JsonObject, hp: HParams) -> HParams:
    """Set the number of layers in the checkpoint, and add that of a stack. config.json has the number of layers that
    are applied, or without `num_layers_per_stack` that of a stack."""
    most, key = MAXIMA["block_count"], "num_layers_per_stack"
    size = config.positive_int(key if key in config.values else "num_hidden_layers", most)
    cycles = {"n_high": config.positive_int("H_cycles", most), "n_low": config.positive_int("L_cycles", most)}
    if size * cycles["n_high"] * (cycles["n_low"] + 1) > most:
        raise config.error("H_cycles", f"makes more than {most} layers")
    return replace(hp, n_layer=2 * size, sizes={**cycles, "n_per_stack": size, "n_gqkv": 4 * hp.n_q})


def stacks(config: JsonObject, hp: HParams) -> dict[str, Field]:
    """Return the metadata of the stacks. The number of blocks counts each time that a layer is applied."""
    size, high, low = (hp.sizes[key] for key in ("n_per_stack", "n_high", "n_low"))
    return {
        "block_count": Field.uint32(size * high * (low + 1)),
        PER_STACK: Field.uint32(size), HIGH_CYCLES: Field.uint32(high), LOW_CYCLES: Field.uint32(low),
        "hrm.prefix_lm": Field.flag(config.get("prefix_lm", bool, False)),
    }  # fmt: skip


HRM_TEXT = Architecture(
    name="hrm_text",
    layer_tensors=(*SEPARATE_QKV, "attn_gate", *GATED_FFN),
    layer_modules=("L_module", "H_module"),
    output_norm="",
    model_tensors=("hrm.z_l_init",),
    no_weight_suffix=("hrm.z_l_init",),
    shapes={
        "attn_gate": ("n_q", "n_embd"), "attn_gqkv": ("n_gqkv", "n_embd"), "ffn_gate_up": ("n_gate_and_up", "n_embd"),
        "hrm.z_l_init": ("n_embd",),
    },
    fused_sources=dict.fromkeys(FUSED, "attn_gqkv") | dict.fromkeys(("ffn_gate", "ffn_up"), "ffn_gate_up"),
    reorder={kind: partial(quarter, number=number) for number, kind in enumerate(FUSED)}
    | {"ffn_gate": reorder.first_half, "ffn_up": reorder.second_half},
    name_map_architecture="llama",
    tensor_names={
        "attn.gqkv_proj": "attn_gqkv", "attn.o_proj": "attn_output", "self_attn.gate_proj": "attn_gate",
        "mlp.gate_up_proj": "ffn_gate_up", "model.z_L_init": "hrm.z_l_init",
    },
    float_keys={"embedding_scale": "embedding_scale"},
    read_hparams=with_stacks,
    metadata=stacks,
    required_values={"attention_bias": False, "mlp_bias": False},
)  # fmt: skip
BY_CLASS = {"HrmTextForCausalLM": HRM_TEXT}
