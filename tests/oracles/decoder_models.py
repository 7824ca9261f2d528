"""Decoders in torch, for make_reference_models.py, because transformers has no classes for them: DeepSeekMoE (DeepSeek,
2024), Ling (inclusionAI, 2025), Maincoder (Maincode, 2025), PLaMo (Preferred Networks, 2023), Jais (Inception and
MBZUAI, 2023), Arctic (Snowflake, 2024), Maple (DeepGrove, 2026), Spark X2.5 (XHToken, 2026) and Grok (xAI, 2024).
Written from what the code of published checkpoints computes, with their tensor names, except for names that the
specifications change."""

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
