"""Decoders in torch, for make_reference_models.py, because transformers has no classes for them: DeepSeekMoE (DeepSeek,
2024), Ling (inclusionAI, 2025), Maincoder (Maincode, 2025), PLaMo (Preferred Networks, 2023), Jais (Inception and
MBZUAI, 2023) and Arctic (Snowflake, 2024). Written from what the code of published checkpoints computes, with their
tensor names, except for names that the specifications change."""

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

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.counts = [config.num_attention_heads, *[config.num_key_value_heads] * 2]
        self.query_key_value, self.dense = matrix(config.hidden_size, sum(self.counts) * self.size), self.o_proj
        del self.q_proj, self.k_proj, self.v_proj, self.o_proj

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads(self.query_key_value(x), self.size).split(self.counts)
        return self.dense(attend(*self.prepared(q, k), v))


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
