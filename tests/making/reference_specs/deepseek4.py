"""DeepSeek-V4: compressed attention, hyper-connections, and experts that the number of a token chooses."""

from typing import Any

import numpy as np
from reference_spec import WINDOW, Shapes, Spec, Tensors, rope, sizes
from transformers import DeepseekV4Config

NAMES = {  # of tensors of a layer, by parts of the names that the class of transformers has
    "self_attn.compressor.indexer.scorer.weights_proj": "attn.indexer.weights_proj",
    "self_attn.compressor.indexer.q_b_proj": "attn.indexer.wq_b",
    **{
        f"self_attn.compressor{inner}.{old}": f"attn{inner}.compressor.{new}"
        for inner in (".indexer", "")
        for old, new in (("position_bias", "ape"), ("kv_proj", "wkv"), ("gate_proj", "wgate"), ("kv_norm", "norm"))
    },
    "self_attn.q_a_proj": "attn.wq_a", "self_attn.q_a_norm": "attn.q_norm", "self_attn.q_b_proj": "attn.wq_b",
    "self_attn.kv_proj": "attn.wkv", "self_attn.kv_norm": "attn.kv_norm", "self_attn.o_a_proj": "attn.wo_a",
    "self_attn.o_b_proj": "attn.wo_b", "self_attn.sinks": "attn.attn_sink", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm", "attn_hc.": "hc_attn_", "ffn_hc.": "hc_ffn_",
    "mlp.gate.e_score_correction_bias": "ffn.gate.bias", "mlp.shared_experts.gate_proj": "ffn.shared_experts.w1",
    "mlp.shared_experts.up_proj": "ffn.shared_experts.w3", "mlp.shared_experts.down_proj": "ffn.shared_experts.w2",
    "mlp.": "ffn.", "model.embed_tokens": "embed", "lm_head": "head", "model.norm": "norm",
    "model.hc_head.": "hc_head_", "hc_head_hc_": "hc_head_", "model.layers": "layers",
}  # fmt: skip


def published(name: str) -> str:
    """Return the name that a tensor has in published checkpoints."""
    for old, new in NAMES.items():
        name = name.replace(old, new)
    return name


class Checkpoint:
    """The tensors of a published checkpoint, whose experts are matrices of their own."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}  # by those of the class of transformers, but those of experts

    def shapes(self, own: Shapes) -> Shapes:
        self.names = {published(name): name for name in own if ".experts." not in name}
        shapes = {name: own[old] for name, old in self.names.items()}
        for name, (count, rows, n) in ((name, shape) for name, shape in own.items() if ".experts." in name):
            kinds = {"w1": rows // 2, "w3": rows // 2} if name.endswith("gate_up_proj") else {"w2": rows}
            where = published(name).rpartition(".")[0]
            for expert in range(count):
                shapes |= {f"{where}.{expert}.{kind}.weight": (size, n) for kind, size in kinds.items()}
        return shapes

    def computed(self, tensors: Tensors) -> Tensors:
        own = {self.names[name]: x for name, x in tensors.items() if name in self.names}
        layers = sorted({name.partition(".ffn.")[0] for name in tensors if ".experts." in name})
        for layer in layers:
            where = f"{layer}.ffn.experts"
            count = sum(name.startswith(f"{where}.") and name.endswith(".w2.weight") for name in tensors)
            w1, w2, w3 = ([tensors[f"{where}.{i}.{kind}.weight"] for i in range(count)] for kind in ("w1", "w2", "w3"))
            own[f"model.{layer}.mlp.experts.gate_up_proj"] = np.stack(
                [np.concatenate(pair) for pair in zip(w1, w3, strict=True)]
            )
            own[f"model.{layer}.mlp.experts.down_proj"] = np.stack(w2)
        return own


def spec(config: DeepseekV4Config, runs: list[int], scaling: dict[str, Any]) -> Spec:
    """Return a model whose configuration is written as published ones are."""
    checkpoint = Checkpoint()
    replaced = "layer_types", "mlp_layer_types", "rope_parameters", "compress_rates", "partial_rotary_factor"

    def written(values: dict[str, Any]) -> dict[str, Any]:
        hashed = values["mlp_layer_types"].count("hash_moe")
        kept = {key: value for key, value in values.items() if key not in replaced}
        return kept | {"compress_ratios": runs, "num_hash_layers": hashed} | scaling

    return Spec(
        architecture="deepseek4", config=config, written=written, shapes=checkpoint.shapes, computed=checkpoint.computed
    )


COMMON = {
    "head_dim": 64, "qk_rope_head_dim": 32, "q_lora_rank": 64, "n_routed_experts": 8, "num_experts_per_tok": 3,
    "intermediate_size": 64, "o_groups": 2, "o_lora_rank": 32, "index_n_heads": 12, "index_head_dim": 64,
    "index_topk": 7, "sliding_window": WINDOW, "hc_sinkhorn_iters": 4, "hc_eps": 1e-4, "swiglu_limit": 1.0,
}  # fmt: skip
YARN = {"factor": 4.0, "original_max_position_embeddings": 64}
MODELS = {
    "deepseek4": spec(
        DeepseekV4Config(
            **sizes(4, 1, 4) | COMMON | rope("yarn", **YARN), compress_ratios=[0, 4, 128, 4], num_hash_layers=2
        ),
        [0, 4, 128, 4], {"rope_scaling": {"type": "yarn", **YARN}},
    ),
    "deepseek4-runs": spec(
        DeepseekV4Config(
            **sizes(6, 1, 3) | COMMON | rope()
            | {"head_dim": 32, "o_groups": 3, "hc_mult": 3, "index_topk": 20, "index_n_heads": 11}
            | {"qk_rope_head_dim": 16, "index_head_dim": 32},
            compress_ratios=[128, 4, 0], compress_rate_hca=12, num_hash_layers=1,
        ),
        [12, 4, 0], {},
    ),
}  # fmt: skip
