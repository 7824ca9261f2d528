"""Decoders in torch, for make_reference_models.py, because transformers has no classes for them: DeepSeekMoE (DeepSeek,
2024), Ling (inclusionAI, 2025), Maincoder (Maincode, 2025), PLaMo (Preferred Networks, 2023), Jais (Inception and
MBZUAI, 2023), Arctic (Snowflake, 2024), Maple (DeepGrove, 2026), Spark X2.5 (XHToken, 2026), Grok (xAI, 2024) and
Step 3.5 (StepFun, 2026). Written from what the code of published checkpoints computes, with their tensor names, except
for names that the specifications change."""

from types import SimpleNamespace
from typing import Any

import torch
from alibi_model import slopes
from torch import Tensor, nn
from torch.nn import functional as F
from torch_decoder import (
    MLP,
    Attention,
    Decoder,
    Experts,
    Layer,
    PlainDecoder,
    RMSNorm,
    attend,
    heads,
    matrix,
    rotated,
    rotated_pairs,
)


def deepseek_layer(config: Any, number: int) -> Layer:
    """Return a layer of DeepSeekMoE, the first of which are dense."""
    dense = number < config.first_k_dense_replace
    network = MLP(config.hidden_size, config.intermediate_size) if dense else Experts(config)
    return Layer(config, Attention(config), network)


class DeepseekForCausalLM(PlainDecoder):
    def __init__(self, config: Any) -> None:
        super().__init__(config, deepseek_layer)


class FusedAttention(Attention):
    """Attention with one matrix of queries, keys and values."""

    def __init__(self, config: Any, *, window: int = 0) -> None:
        super().__init__(config, window=window)
        self.counts = [config.num_attention_heads, *[config.num_key_value_heads] * 2]
        self.query_key_value, self.dense = matrix(config.hidden_size, sum(self.counts) * self.size), self.o_proj
        del self.q_proj, self.k_proj, self.v_proj, self.o_proj

    def mixed(self, x: Tensor) -> Tensor:
        q, k, v = heads(self.query_key_value(x), self.size).split(self.counts)
        return attend(*self.prepared(q, k), v, self.window)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense(self.mixed(x))


class BailingMoeForCausalLM(PlainDecoder):
    def __init__(self, config: Any) -> None:
        super().__init__(config, lambda _, number: Layer(config, FusedAttention(config), Experts(config)))


class NormedAttention(Attention):
    """Attention with norms of heads after the rotation of adjacent values."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.q_norm, self.k_norm = (RMSNorm(self.size, config.rms_norm_eps) for _ in range(2))

    def prepared(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.q_norm(rotated_pairs(q, self.theta)), self.k_norm(rotated_pairs(k, self.theta))


class MaincoderForCausalLM(PlainDecoder):
    def __init__(self, config: Any) -> None:
        super().__init__(
            config,
            lambda _, number: Layer(config, NormedAttention(config), MLP(config.hidden_size, config.intermediate_size)),
        )


class TiledAttention(Attention):
    """Attention in which the heads of queries h, h + n, h + 2n, ... share one of the n heads of keys."""

    def mixed(self, x: Tensor) -> Tensor:
        q, k, v = (heads(project(x), self.size) for project in (self.q_proj, self.k_proj, self.v_proj))
        k, v = (each.repeat(len(q) // len(k), 1, 1) for each in (k, v))
        return attend(*self.prepared(q, k), v)


class PlamoLayer(nn.Module):
    def __init__(self, config: Any, number: int) -> None:
        super().__init__()
        n = config.hidden_size
        self.norm, self.self_attn, self.mlp = RMSNorm(n, 1e-6), TiledAttention(config), MLP(n, config.intermediate_size)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        return x + self.self_attn(h) + self.mlp(h)


class PlamoForCausalLM(PlainDecoder):
    def __init__(self, config: Any) -> None:
        super().__init__(config, PlamoLayer)


class JaisLayer(nn.Module):
    """A layer whose matrices are transposed."""

    def __init__(self, config: Any, number: int) -> None:
        super().__init__()
        n, n_ff, self.size = config.n_embd, config.n_inner, config.n_embd // config.n_head
        self.ln_1, self.ln_2 = nn.LayerNorm(n, config.layer_norm_epsilon), nn.LayerNorm(n, config.layer_norm_epsilon)
        self.attn, self.mlp = nn.Module(), nn.Module()
        self.attn.c_attn, self.attn.c_proj = Transposed(n, 3 * n), Transposed(n, n)
        self.mlp.c_fc, self.mlp.c_fc2, self.mlp.c_proj = Transposed(n, n_ff), Transposed(n, n_ff), Transposed(n_ff, n)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads(each, self.size) for each in self.attn.c_attn(self.ln_1(x)).chunk(3, -1))
        distance = torch.arange(len(x))[:, None] - torch.arange(len(x))
        bias = torch.tensor(slopes(len(q)))[:, None, None] * distance
        x = x + self.attn.c_proj(attend(q, k, v, score=lambda scores: scores * self.size**-0.5 - bias))
        h = self.ln_2(x)
        return x + self.mlp.c_proj(self.mlp.c_fc(h) * F.silu(self.mlp.c_fc2(h)))


class Transposed(nn.Module):
    """A matrix that is stored by columns, with a bias."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(n_in, n_out)), nn.Parameter(torch.zeros(n_out))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class JAISLMHeadModel(Decoder):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.transformer, n = nn.Module(), config.n_embd
        self.transformer.wte = nn.Embedding(config.vocab_size, n)
        self.transformer.h = nn.ModuleList(JaisLayer(config, number) for number in range(config.n_layer))
        self.transformer.ln_f, self.lm_head = nn.LayerNorm(n, config.layer_norm_epsilon), matrix(n, config.vocab_size)
        self.post_init()

    def logits(self, ids: Tensor) -> Tensor:
        x = self.transformer.wte(ids) * self.config.mup_embeddings_scale
        for layer in self.transformer.h:
            x = layer(x)
        return self.lm_head(self.transformer.ln_f(x)) * self.config.mup_output_alpha * self.config.mup_width_scale


class ArcticLayer(Layer):
    """A layer whose mixture of experts has the residual stream before the attention as input."""

    def __init__(self, config: Any, number: int) -> None:
        n = config.hidden_size
        super().__init__(config, Attention(config), Experts(config))
        self.residual_layernorm, self.residual_mlp = RMSNorm(n, config.rms_norm_eps), MLP(n, n)

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.self_attn(self.input_layernorm(x))
        return y + self.residual_mlp(self.residual_layernorm(y)) + self.mlp(self.post_attention_layernorm(x))


class ArcticForCausalLM(PlainDecoder):
    def __init__(self, config: Any) -> None:
        super().__init__(config, ArcticLayer)


class LimitedMLP(MLP):
    """A network whose gate and up are limited."""

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_proj(x).clamp(max=7.0), self.up_proj(x).clamp(-7.0, 7.0)
        return self.down_proj(F.silu(gate) * up)


class MapleAttention(Attention):
    """Attention with norms of heads, of which those with a window rotate a part."""

    def __init__(self, config: Any, number: int) -> None:
        is_local = config.layer_types[number] == "sliding_attention"
        super().__init__(config, window=config.sliding_window if is_local else 0)
        self.q_norm, self.k_norm = (RMSNorm(self.size, config.rms_norm_eps) for _ in range(2))
        self.n_rot = int(self.size * config.partial_rotary_factor) if is_local else 0

    def prepared(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        q, k = self.q_norm(q), self.k_norm(k)
        return partly_rotated(q, self.theta, self.n_rot), partly_rotated(k, self.theta, self.n_rot)


def partly_rotated(x: Tensor, theta: float, n_rot: int) -> Tensor:
    """Rotate the first `n_rot` values of the heads of x."""
    return torch.cat([rotated(x[..., :n_rot], theta), x[..., n_rot:]], -1) if n_rot else x


def maple_layer(config: Any, number: int) -> Layer:
    """Return a layer of Maple, whose experts are limited."""
    network, n = Experts(config), config.hidden_size
    network.experts = nn.ModuleList(LimitedMLP(n, config.expert_size) for _ in network.experts)
    return Layer(config, MapleAttention(config, number), network)


class MapleForCausalLM(PlainDecoder):
    def __init__(self, config: Any) -> None:
        super().__init__(config, maple_layer)


class GatedAttention(FusedAttention):
    """Attention with a sigmoid gate for each head. Layers with a window have another rotary embedding."""

    def __init__(self, config: Any, number: int) -> None:
        kind = config.layer_types[number]
        super().__init__(config, window=config.sliding_window if kind == "sliding_attention" else 0)
        self.g_proj, ropes = matrix(config.hidden_size, config.num_attention_heads), config.rope_parameters[kind]
        self.theta, self.n_rot = ropes["rope_theta"], int(self.size * ropes["partial_rotary_factor"])

    def prepared(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return partly_rotated(q, self.theta, self.n_rot), partly_rotated(k, self.theta, self.n_rot)

    def mixed(self, x: Tensor) -> Tensor:
        return (super().mixed(x).unflatten(-1, (-1, self.size)) * self.g_proj(x).sigmoid()[..., None]).flatten(1)


class GeluMLP(MLP):
    """A network with GELU, or its tanh approximation."""

    def __init__(self, n: int, n_ff: int, approximate: str = "none") -> None:
        super().__init__(n, n_ff)
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.gelu(self.gate_proj(x), approximate=self.approximate) * self.up_proj(x))


class Spark2_5ForCausalLM(PlainDecoder):
    def __init__(self, config: Any) -> None:
        n, n_ff = config.hidden_size, config.intermediate_size
        super().__init__(config, lambda _, number: Layer(config, GatedAttention(config, number), GeluMLP(n, n_ff)))


class CappedAttention(Attention):
    """Attention with soft-capped scores."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.cap, self.factor = config.attn_logit_softcapping, config.attn_output_multiplier * self.size**0.5

    def mixed(self, x: Tensor) -> Tensor:
        q, k, v = (heads(project(x), self.size) for project in (self.q_proj, self.k_proj, self.v_proj))
        return attend(*self.prepared(q, k), v, score=lambda scores: soft_capped(scores * self.factor, self.cap))


def soft_capped(x: Tensor, cap: float) -> Tensor:
    return cap * torch.tanh(x / cap)


class CappedExperts(Experts):
    """Experts with GELU, chosen by soft-capped logits."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        n, matrix_of_router = config.hidden_size, self.gate
        self.experts = nn.ModuleList(GeluMLP(n, config.expert_size, "tanh") for _ in self.experts)
        self.gate = Capped(matrix_of_router, config.router_logit_softcapping)


class Capped(nn.Module):
    """A matrix whose products are soft-capped."""

    def __init__(self, inner: nn.Linear, cap: float) -> None:
        super().__init__()
        self.weight, self.cap = inner.weight, cap

    def forward(self, x: Tensor) -> Tensor:
        return soft_capped(x @ self.weight.T, self.cap)


class GrokLayer(nn.Module):
    def __init__(self, config: Any, number: int) -> None:
        super().__init__()
        n, eps, self.self_attn = config.hidden_size, config.rms_norm_eps, CappedAttention(config)
        self.pre_attn_norm, self.post_attn_norm = RMSNorm(n, eps), RMSNorm(n, eps)
        self.pre_moe_norm, self.post_moe_norm = RMSNorm(n, eps), RMSNorm(n, eps)
        self.block_sparse_moe = CappedExperts(config)
        if config.residual_moe:
            self.mlp = GeluMLP(n, config.intermediate_size, "tanh")

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.post_attn_norm(self.self_attn(self.pre_attn_norm(x)))
        h = self.pre_moe_norm(x)
        y = self.block_sparse_moe(h)
        return x + self.post_moe_norm((y + self.mlp(h)) / 2**0.5 if hasattr(self, "mlp") else y)


class Grok1ForCausalLM(PlainDecoder):
    def __init__(self, config: Any) -> None:
        super().__init__(config, GrokLayer)

    def logits(self, ids: Tensor) -> Tensor:
        x = self.model.embed_tokens(ids) * self.config.embedding_multiplier_scale
        for layer in self.model.layers:
            x = layer(x)
        logits = self.lm_head(self.model.norm(x)) * self.config.output_multiplier_scale
        cap = getattr(self.config, "final_logit_softcapping", None)
        return soft_capped(logits, cap) if cap else logits


class LimitedNetwork(MLP):
    """A network whose gate is limited after the activation function, unless the limit is 0."""

    def __init__(self, n: int, n_ff: int, limit: float) -> None:
        super().__init__(n, n_ff)
        self.limit = limit or torch.inf

    def forward(self, x: Tensor) -> Tensor:
        gate, up = F.silu(self.gate_proj(x)).clamp(max=self.limit), self.up_proj(x).clamp(-self.limit, self.limit)
        return self.down_proj(gate * up)


class OffsetNorm(RMSNorm):
    """RMSNorm whose weights lack an offset of 1."""

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight + 1) * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


class StackedExperts(nn.Module):
    """Experts whose matrices are stacked, chosen by biased probabilities."""

    def __init__(self, config: Any, limit: float) -> None:
        super().__init__()
        n, count, n_ff, self.used = config.hidden_size, config.moe_num_experts, config.expert_size, config.moe_top_k
        self.gate, self.router_bias = matrix(n, count), nn.Parameter(torch.zeros(count))
        self.gate_proj, self.up_proj = (nn.Parameter(torch.zeros(count, n_ff, n)) for _ in range(2))
        self.down_proj, self.limit = nn.Parameter(torch.zeros(count, n, n_ff)), limit or torch.inf
        self.factor = config.moe_router_scaling_factor

    def forward(self, x: Tensor) -> Tensor:
        p = self.gate(x).sigmoid()
        chosen = (p + self.router_bias).topk(self.used, dim=-1)[1]
        weights = p.gather(1, chosen)
        weights = self.factor * weights / weights.sum(-1, keepdim=True)
        gate = F.silu(torch.einsum("tn,efn->tef", x, self.gate_proj)).clamp(max=self.limit)
        up = torch.einsum("tn,efn->tef", x, self.up_proj).clamp(-self.limit, self.limit)
        outputs = torch.einsum("tef,enf->ten", gate * up, self.down_proj)
        return (outputs.gather(1, chosen[:, :, None].expand(-1, -1, x.shape[1])) * weights[:, :, None]).sum(1)


class StepAttention(Attention):
    """Attention with normalized heads and a gate for each. Layers with a window have other numbers of heads."""

    def __init__(self, config: Any, number: int) -> None:
        is_local = config.layer_types[number] == "sliding_attention"
        counts = ("num_attention_heads", "num_attention_groups")
        source = config.attention_other_setting if is_local else {key: getattr(config, key) for key in counts}
        of_layer = SimpleNamespace(
            hidden_size=config.hidden_size, head_dim=config.head_dim, rope_theta=config.bases[number],
            num_attention_heads=source[counts[0]], num_key_value_heads=source[counts[1]],
        )  # fmt: skip
        super().__init__(of_layer, window=config.sliding_window if is_local else 0)
        self.g_proj = matrix(config.hidden_size, source[counts[0]])
        self.q_norm, self.k_norm = (OffsetNorm(self.size, config.rms_norm_eps) for _ in range(2))
        self.n_rot = self.size if is_local else self.size // 2
        plain = self.theta ** (-torch.arange(0, self.n_rot, 2) / self.n_rot)
        self.frequencies = llama3_frequencies(plain, config.scaling) if config.scaling and not is_local else plain

    def prepared(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.turned(self.q_norm(q)), self.turned(self.k_norm(k))

    def turned(self, x: Tensor) -> Tensor:
        first = rotated(x[..., : self.n_rot], self.theta, frequencies=self.frequencies)
        return torch.cat([first, x[..., self.n_rot :]], -1)

    def mixed(self, x: Tensor) -> Tensor:
        return (super().mixed(x).unflatten(-1, (-1, self.size)) * self.g_proj(x).sigmoid()[..., None]).flatten(1)


def llama3_frequencies(plain: Tensor, scaling: Any) -> Tensor:
    """Return the frequencies of Llama 3's scaling."""
    factor, low, high, original = (
        scaling[key]
        for key in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    )
    turns = original * plain / (2 * torch.pi)
    smooth = ((turns - low) / (high - low)).clamp(0, 1)
    return plain / factor * (1 - smooth) + plain * smooth


class StepLayer(nn.Module):
    def __init__(self, config: Any, number: int) -> None:
        super().__init__()
        n, eps, self.self_attn = config.hidden_size, config.rms_norm_eps, StepAttention(config, number)
        self.input_layernorm, self.post_attention_layernorm = OffsetNorm(n, eps), OffsetNorm(n, eps)
        routed, others = (getattr(config, key)[number] for key in ("swiglu_limits", "swiglu_limits_shared"))
        if str(number) in config.moe_layers_enum.split(","):
            self.moe = StackedExperts(config, routed)
            self.share_expert = LimitedNetwork(n, config.share_expert_dim, others)
        else:
            self.mlp = LimitedNetwork(n, config.intermediate_size, others)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        h = self.post_attention_layernorm(x)
        return x + (self.mlp(h) if hasattr(self, "mlp") else self.moe(h) + self.share_expert(h))


class Step3p5ForCausalLM(PlainDecoder):
    def __init__(self, config: Any) -> None:
        super().__init__(config, StepLayer)
        self.model.norm = OffsetNorm(config.hidden_size, config.rms_norm_eps)
