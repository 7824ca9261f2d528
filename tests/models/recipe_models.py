"""Models for testing quantization recipes: metadata and tensor shapes without weights.

All dimensions are small except the number of layers, which the recipes use. Shapes are numpy's, (n_out, n_in).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

Shapes = dict[str, tuple[int, ...]]
Value = int | float | tuple[int, ...]


@dataclass(frozen=True)
class Shape:
    """The dimensions of a model. `n_expert` is the number of experts per layer; `odd` row lengths are not multiples of
    256, some not even of 32.
    """

    architecture: str
    n_layer: int
    n_head: int = 4
    n_head_kv: int = 4
    n_expert: int = 0
    tied: bool = False
    n_embd: int = 256
    n_ff: int = 512
    more: Mapping[str, Value] = field(default_factory=dict)
    kinds: tuple[Shapes, ...] = ()  # cycle of layer tensors, instead of those of `layer`
    mtp_tensors: Shapes = field(default_factory=dict)  # tensors of the MTP layer, if there is one

    @property
    def metadata(self) -> dict[str, Value]:
        """Return metadata keys without the architecture's prefix; integers are u32, floats f32."""
        return {
            "block_count": self.n_layer,
            "context_length": 512,
            "embedding_length": self.n_embd,
            "feed_forward_length": self.n_ff,
            "attention.head_count": self.n_head,
            "attention.head_count_kv": self.n_head_kv,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "vocab_size": 32,
            **({"expert_count": self.n_expert, "expert_used_count": 2} if self.n_expert else {}),
            **self.more,
        }

    @property
    def tensors(self) -> Shapes:
        shapes: Shapes = {"token_embd.weight": (32, self.n_embd), "output_norm.weight": (self.n_embd,)}
        if not self.tied:
            shapes["output.weight"] = (32, self.n_embd)
        for layer in range(self.n_layer):
            default = self.kinds[layer % len(self.kinds)] if self.kinds else self.layer
            for name, shape in (
                self.mtp_tensors if layer == self.n_layer - 1 and self.mtp_tensors else default
            ).items():
                shapes[f"blk.{layer}.{name}.weight"] = shape
        return shapes

    @property
    def layer(self) -> Shapes:
        """Return the shapes of the tensors of one layer."""
        head = self.n_embd // self.n_head
        kv = head * self.n_head_kv
        up, down = (self.n_ff, self.n_embd), (self.n_embd, self.n_ff)
        attention: Shapes = {
            "attn_norm": (self.n_embd,),
            "attn_output": (self.n_embd, self.n_embd),
            "ffn_norm": (self.n_embd,),
        }
        if self.architecture == "falcon":
            return attention | {"attn_qkv": (self.n_embd + 2 * kv, self.n_embd), "ffn_up": up, "ffn_down": down}
        if self.architecture == "deepseek2":
            attention |= latent(self.n_head, self.n_embd)
        else:
            attention |= self.separate_projections(kv)
        if not self.n_expert:
            return attention | {"ffn_gate": up, "ffn_up": up, "ffn_down": down}
        experts = {f"ffn_{name}_exps": (self.n_expert, *up) for name in ("gate", "up")}
        router = {"ffn_gate_inp": (self.n_expert, self.n_embd)}
        return attention | router | experts | {"ffn_down_exps": (self.n_expert, *down)}

    def separate_projections(self, kv: int) -> Shapes:
        return {"attn_q": (self.n_embd, self.n_embd), "attn_k": (kv, self.n_embd), "attn_v": (kv, self.n_embd)}


def latent(n_head: int, n_embd: int) -> Shapes:
    """Return the shapes of latent attention with low-rank queries."""
    return {
        "attn_q_a": (64, n_embd),
        "attn_q_a_norm": (64,),
        "attn_q_b": (n_head * 64, 64),
        "attn_kv_a_mqa": (288, n_embd),
        "attn_kv_a_norm": (256,),
        "attn_k_b": (n_head, 256, 32),
        "attn_v_b": (n_head, 32, 256),
    }


# Tensors of mixture-of-experts layers by architecture: attention, routed experts and shared experts.
N, FF, KV, E = 256, 512, 128, 16
NORMS: Shapes = {"attn_norm": (N,), "ffn_norm": (N,)}
ATTENTION: Shapes = {**NORMS, "attn_q": (N, N), "attn_k": (KV, N), "attn_v": (KV, N), "attn_output": (N, N)}
HEAD_NORMS: Shapes = {"attn_q_norm": (64,), "attn_k_norm": (64,)}
DENSE: Shapes = {"ffn_gate": (FF, N), "ffn_up": (FF, N), "ffn_down": (N, FF)}
EXPERTS: Shapes = {
    "ffn_gate_inp": (E, N),
    "ffn_gate_exps": (E, FF, N),
    "ffn_up_exps": (E, FF, N),
    "ffn_down_exps": (E, N, FF),
}
FUSED_EXPERTS: Shapes = {"ffn_gate_inp": (E, N), "ffn_gate_up_exps": (E, 2 * FF, N), "ffn_down_exps": (E, N, FF)}
SHARED: Shapes = {"ffn_gate_shexp": (FF, N), "ffn_up_shexp": (FF, N), "ffn_down_shexp": (N, FF)}
GATED_SHARED: Shapes = {**SHARED, "ffn_gate_inp_shexp": (N,)}
BIASED: Shapes = {"exp_probs_b": (E,)}
GATED_ATTENTION: Shapes = {
    "attn_norm": (N,),
    "post_attention_norm": (N,),
    "attn_q": (2 * N, N),
    "attn_k": (KV, N),
    "attn_v": (KV, N),
    "attn_output": (N, N),
    **HEAD_NORMS,
}
STATE: Shapes = {
    "attn_norm": (N,),
    "post_attention_norm": (N,),
    "attn_qkv": (3 * N, N),
    "attn_gate": (N, N),
    "ssm_conv1d": (3 * N, 4),
    "ssm_norm": (64,),
    "ssm_out": (N, N),
}
DELTA_NET: Shapes = {**STATE, "ssm_alpha": (4, N), "ssm_beta": (4, N)}
NEXT_DELTA_NET: Shapes = {**STATE, "ssm_ba": (8, N)}
ATTENTION_ONLY: Shapes = {name: shape for name, shape in ATTENTION.items() if name != "ffn_norm"}
UP_DOWN: Shapes = {"attn_norm": (N,), "ffn_up": (FF, N), "ffn_down": (N, FF)}
UNGATED_EXPERTS: Shapes = {
    "attn_norm": (N,),
    "ffn_gate_inp": (E, N),
    "exp_probs_b": (E,),
    "ffn_up_exps": (E, FF, N),
    "ffn_down_exps": (E, N, FF),
    "ffn_up_shexp": (FF, N),
    "ffn_down_shexp": (N, FF),
}
CONVOLUTION: Shapes = {**NORMS, "shortconv.in_proj": (3 * N, N), "shortconv.conv": (N, 3), "shortconv.out_proj": (N, N)}
NEXTN: Shapes = {
    "nextn.eh_proj": (N, 2 * N),
    "nextn.enorm": (N,),
    "nextn.hnorm": (N,),
    "nextn.embed_tokens": (32, N),
    "nextn.shared_head_head": (32, N),
    "nextn.shared_head_norm": (N,),
}
STREAMS: Shapes = {
    **{f"hc_{branch}_fn": (24, 4 * N) for branch in ("attn", "ffn")},
    **{f"hc_{branch}_base": (24,) for branch in ("attn", "ffn")},
    **{f"hc_{branch}_scale": (3,) for branch in ("attn", "ffn")},
}
KDA: Shapes = {  # Kimi Delta Attention: 4 heads of 64 values
    **NORMS,
    **{f"attn_{name}": (N, N) for name in ("q", "k", "v", "output")},
    **{f"ssm_conv1d_{name}": (1, N, 1, 4) for name in "qkv"},
    **{f"ssm_{name}_a": (64, N) for name in "fg"},
    **{f"ssm_{name}_b": (N, 64) for name in "fg"},
    "ssm_beta": (4, N),
    "ssm_norm": (64,),
}
INDEXER: Shapes = {  # of runs of 4 positions
    "indexer.attn_q_b": (256, 64),
    "indexer.attn_k": (64, N),
    "indexer.k_norm": (64,),
    "indexer.proj": (4, N),
    "indexer_compressor_gate": (64, N),
    "indexer_compressor_ape": (4, 64),
}
MTP_KEYS = {"nextn_predict_layers": 1}
SCAN: Shapes = {  # Mamba: 2 N inner, state size 16, time step rank 16
    "attn_norm": (N,),
    "ssm_in": (4 * N, N),
    "ssm_conv1d": (2 * N, 4),
    "ssm_x": (48, 2 * N),
    "ssm_dt": (2 * N, 16),
    "ssm_out": (N, 2 * N),
}
HEADED_SCAN: Shapes = {  # Mamba 2: 8 heads, one group, state size 64
    "attn_norm": (N,),
    "ssm_in": (4 * N + 136, N),
    "ssm_conv1d": (2 * N + 128, 4),
    "ssm_norm": (1, 2 * N),
    "ssm_out": (N, 2 * N),
}
WIDTH = {"expert_feed_forward_length": FF, "expert_shared_feed_forward_length": FF, "expert_shared_count": 1}
RECURRENT = {
    "ssm.conv_kernel": 4,
    "ssm.inner_size": N,
    "ssm.state_size": 64,
    "ssm.time_step_rank": 4,
    "ssm.group_count": 4,
    "full_attention_interval": 4,
    "rope.dimension_count": 16,
    "attention.key_length": 64,
    "attention.value_length": 64,
}
SELECTIVE = {"ssm.conv_kernel": 4, "ssm.inner_size": 2 * N, "ssm.state_size": 16, "ssm.time_step_rank": 16}
HEADED = SELECTIVE | {"ssm.state_size": 64, "ssm.time_step_rank": 8, "ssm.group_count": 1}


def in_layers(n_layer: int, period: int, position: int, number: int) -> tuple[int, ...]:
    """Return `number` for the layers at index `position` of every period, and 0 for the others."""
    return tuple(number if layer % period == position else 0 for layer in range(n_layer))


NEMOTRON = HEADED | {"attention.layer_norm_epsilon": 1e-5}
SECTIONS = {"rope.dimension_sections": (11, 11, 10, 0)}
HEADS_64 = {"attention.key_length": 64, "attention.value_length": 64}
TIME_MIX: Shapes = {
    "attn_norm": (N,),
    "attn_norm_2": (N,),
    "time_mix_ln": (N,),
    "time_mix_k_k": (N,),
    "channel_mix_lerp_k": (N,),
    **{f"time_mix_{kind}": (N, N) for kind in ("receptance", "key", "value", "output")},
    **{f"time_mix_{kind}1": (64, N) for kind in "wavg"},
    **{f"time_mix_{kind}2": (N, 64) for kind in "wavg"},
    "time_mix_lerp_fused": (6, 1, 1, N),
    "channel_mix_key": (FF, N),
    "channel_mix_value": (N, FF),
}
RWKV = {
    "attention.layer_norm_epsilon": 1e-5,
    "wkv.head_size": 64,
    "attention.decay_lora_rank": 64,
    "attention.iclr_lora_rank": 64,
    "attention.value_residual_mix_lora_rank": 64,
    "attention.gate_lora_rank": 64,
}
LATENT = {
    "attention.kv_lora_rank": 256,
    "attention.key_length": 288,
    "attention.value_length": 256,
    "attention.key_length_mla": 64,
    "attention.value_length_mla": 32,
    "rope.dimension_count": 32,
    "expert_feed_forward_length": 512,
    "expert_shared_count": 0,
}
NEXT_KEYS = LATENT | {
    "attention.key_length": 256,
    "attention.q_lora_rank": 64,
    "rope.dimension_count": 0,
    "ssm.conv_kernel": 4,
    "kda.head_dim": 64,
    "attention.indexer.head_count": 4,
    "attention.indexer.key_length": 64,
    "attention.indexer.top_k": 16,
    "attention.indexer.kpool": 4,
    "hyper_connection.count": 4,
    "hyper_connection.sinkhorn_iterations": 20,
    "hyper_connection.epsilon": 1e-6,
}

SHAPES = {
    "llama": Shape("llama", 22, n_head_kv=2, tied=True),
    "llama, grouped": Shape("llama", 32, n_head_kv=1),
    "llama, 70B": Shape("llama", 80, n_head_kv=2),
    "llama, odd": Shape("llama", 9, n_head=3, n_head_kv=3, n_embd=96, n_ff=80),
    "gemma3": Shape("gemma3", 26, n_head_kv=1, tied=True, more={"attention.sliding_window": 512}),
    "8 experts": Shape("llama", 32, n_head_kv=1, n_expert=8),
    "16 experts": Shape("llama", 24, n_expert=16),
    "falcon": Shape("falcon", 32, n_head_kv=1, more={"attention.layer_norm_epsilon": 1e-5}),
    "qwen2": Shape("qwen2", 28, n_head_kv=1),
    "deepseek2": Shape("deepseek2", 27, n_head_kv=1, n_expert=16, more=LATENT),
    "qwen35moe": Shape(
        "qwen35moe",
        40,
        n_head_kv=2,
        n_expert=E,
        more=WIDTH | RECURRENT | SECTIONS,
        kinds=((DELTA_NET | EXPERTS | GATED_SHARED,) * 3 + (GATED_ATTENTION | EXPERTS | GATED_SHARED,)),
    ),
    "qwen3next": Shape(
        "qwen3next",
        48,
        n_head_kv=2,
        n_expert=E,
        more=WIDTH | RECURRENT,
        kinds=((NEXT_DELTA_NET | EXPERTS | GATED_SHARED,) * 3 + (GATED_ATTENTION | EXPERTS | GATED_SHARED,)),
    ),
    "lfm2moe": Shape(
        "lfm2moe",
        24,
        n_head_kv=2,
        n_expert=E,
        tied=True,
        more=WIDTH | {"shortconv.l_cache": 3, "leading_dense_block_count": 0, "expert_gating_func": 2},
        kinds=((CONVOLUTION | EXPERTS | BIASED,) * 2 + (ATTENTION | HEAD_NORMS | EXPERTS | BIASED,)),
    ),
    "granitemoe": Shape(
        "granitemoe",
        24,
        n_head_kv=2,
        n_expert=E,
        tied=True,
        kinds=(ATTENTION | EXPERTS | SHARED,),
        more=WIDTH | {"attention.scale": 0.1, "embedding_scale": 12.0, "residual_scale": 0.2, "logit_scale": 6.0},
    ),
    "ernie4_5-moe": Shape(
        "ernie4_5-moe",
        28,
        n_head_kv=2,
        n_expert=E,
        tied=True,
        kinds=(ATTENTION | EXPERTS | SHARED | BIASED,),
        more=WIDTH | {"interleave_moe_layer_step": 1, "leading_dense_block_count": 0},
    ),
    "hunyuan-moe": Shape(
        "hunyuan-moe",
        32,
        n_head_kv=1,
        n_expert=E,
        tied=True,
        kinds=(ATTENTION | HEAD_NORMS | EXPERTS | SHARED,),
        more=WIDTH,
    ),
    "phimoe": Shape("phimoe", 32, n_head_kv=1, n_expert=E, kinds=(ATTENTION | EXPERTS,)),
    "llama4": Shape(
        "llama4",
        48,
        n_head_kv=1,
        n_expert=E,
        more=WIDTH | {"interleave_moe_layer_step": 2},
        kinds=(ATTENTION | DENSE, ATTENTION | EXPERTS | SHARED),
    ),
    "mistral4": Shape(
        "mistral4",
        36,
        n_head_kv=1,
        n_expert=E,
        more=LATENT | {"attention.q_lora_rank": 64},
        kinds=(NORMS | latent(4, N) | {"attn_output": (N, N)} | FUSED_EXPERTS | SHARED,),
    ),
    "gpt-oss": Shape(
        "gpt-oss",
        24,
        n_head_kv=1,
        n_expert=E,
        more=WIDTH | HEADS_64 | {"attention.sliding_window": 128},
        kinds=({**ATTENTION, "attn_sinks": (4,), **EXPERTS},),
    ),
    "glm4moe": Shape(
        "glm4moe",
        46,
        n_head_kv=1,
        n_expert=E,
        more=WIDTH | {"leading_dense_block_count": 0, "expert_gating_func": 2},
        kinds=(ATTENTION | EXPERTS | SHARED | BIASED,),
    ),
    "glm4moe, MTP": Shape(
        "glm4moe",
        47,
        n_head_kv=1,
        n_expert=E,
        kinds=(ATTENTION | EXPERTS | SHARED | BIASED,),
        more=WIDTH | MTP_KEYS | {"leading_dense_block_count": 0, "expert_gating_func": 2},
        mtp_tensors=ATTENTION | EXPERTS | SHARED | BIASED | NEXTN,
    ),
    "glm5-next": Shape(
        "glm5-next",
        45,
        n_head_kv=0,
        n_expert=E,
        kinds=(KDA | STREAMS | EXPERTS | SHARED | BIASED,) * 3
        + (NORMS | latent(4, N) | {"attn_output": (N, N)} | INDEXER | STREAMS | EXPERTS | SHARED | BIASED,),
        more=WIDTH | NEXT_KEYS | {"attention.head_count_kv": in_layers(45, 4, 3, 1)},
    ),
    "qwen35, MTP": Shape(
        "qwen35",
        33,
        n_head_kv=2,
        more=RECURRENT | SECTIONS | MTP_KEYS,
        kinds=((DELTA_NET | DENSE,) * 3 + (GATED_ATTENTION | DENSE,)),
        mtp_tensors=GATED_ATTENTION | DENSE | NEXTN,
    ),
    "mamba": Shape("mamba", 64, n_head=0, n_head_kv=0, n_ff=0, tied=True, more=SELECTIVE, kinds=(SCAN,)),
    "mamba2": Shape("mamba2", 64, n_head=0, n_head_kv=0, n_ff=0, more=HEADED, kinds=(HEADED_SCAN,)),
    "falcon-h1": Shape("falcon-h1", 44, n_head_kv=1, more=HEADED | HEADS_64, kinds=(HEADED_SCAN | ATTENTION | DENSE,)),
    "granitehybrid": Shape(
        "granitehybrid",
        40,
        n_head_kv=0,
        tied=True,
        more=HEADED | {"attention.head_count_kv": in_layers(40, 10, 5, 1)},
        kinds=((HEADED_SCAN | DENSE,) * 5 + (ATTENTION | DENSE,) + (HEADED_SCAN | DENSE,) * 4),
    ),
    "granitehybrid, experts": Shape(
        "granitehybrid",
        40,
        n_head_kv=0,
        n_expert=E,
        tied=True,
        more=HEADED | WIDTH | {"attention.head_count_kv": in_layers(40, 10, 5, 1)},
        kinds=(
            (HEADED_SCAN | EXPERTS | SHARED,) * 5
            + (ATTENTION | EXPERTS | SHARED,)
            + (HEADED_SCAN | EXPERTS | SHARED,) * 4
        ),
    ),
    "nemotron_h": Shape(
        "nemotron_h",
        40,
        n_head_kv=0,
        kinds=(HEADED_SCAN, UP_DOWN, HEADED_SCAN, ATTENTION_ONLY),
        more=NEMOTRON
        | {"attention.head_count_kv": in_layers(40, 4, 3, 1), "feed_forward_length": in_layers(40, 4, 1, FF)},
    ),
    "nemotron_h_moe": Shape(
        "nemotron_h_moe",
        52,
        n_head_kv=0,
        n_expert=E,
        kinds=(HEADED_SCAN, UNGATED_EXPERTS, HEADED_SCAN, ATTENTION_ONLY),
        more=NEMOTRON
        | WIDTH
        | {"attention.head_count_kv": in_layers(52, 4, 3, 1), "feed_forward_length": in_layers(52, 4, 1, FF)},
    ),
    "rwkv7": Shape("rwkv7", 24, n_head=0, n_head_kv=0, more=RWKV, kinds=(TIME_MIX,)),
}
