"""Talkie (2026) in torch, for make_reference_models.py, because transformers has no class for it. Written from what
llama.cpp computes with its converted checkpoints, with their tensor names."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_decoder import Decoder, attend, heads, matrix, rotated

EPSILON = torch.finfo(torch.float32).eps


def normalized(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPSILON)


class Factor(nn.Module):
    """A learned factor of whole rows, or one for each head."""

    def __init__(self, name: str, count: int = 1) -> None:
        super().__init__()
        self.register_parameter(name, nn.Parameter(torch.ones(count)))


class TalkieAttention(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        n, self.size, self.theta = config.hidden_size, config.head_dim, config.rope_theta
        q, kv = config.num_attention_heads * self.size, config.num_key_value_heads * self.size
        self.attn_query, self.attn_key, self.attn_value = matrix(n, q), matrix(n, kv), matrix(n, kv)
        self.attn_resid, self.head_gain = matrix(q, n), Factor("head_g", config.num_attention_heads)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads(project(x), self.size) for project in (self.attn_query, self.attn_key, self.attn_value))
        backwards = -(self.theta ** (-torch.arange(0, self.size, 2) / self.size))
        q, k = (normalized(rotated(each, self.theta, frequencies=backwards)) for each in (q, k))
        return self.attn_resid(attend(q * self.head_gain.head_g[:, None, None], k, v))


class TalkieNetwork(nn.Module):
    def __init__(self, n: int, n_ff: int) -> None:
        super().__init__()
        self.mlp_gate, self.mlp_linear, self.mlp_resid = matrix(n, n_ff), matrix(n, n_ff), matrix(n_ff, n)

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp_resid(F.silu(self.mlp_gate(x)) * self.mlp_linear(x))


class TalkieBlock(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.attn, self.mlp = TalkieAttention(config), TalkieNetwork(config.hidden_size, config.intermediate_size)
        self.attn_gain, self.mlp_gain, self.embed_skip = Factor("a_g"), Factor("a_g"), Factor("a_g")

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        x = x + self.attn_gain.a_g * self.attn(normalized(x))
        return x + self.mlp_gain.a_g * self.mlp(normalized(x)) + self.embed_skip.a_g * embedding


class TalkieForCausalLM(Decoder):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = nn.Module()
        self.model.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.model.blocks = nn.ModuleList(TalkieBlock(config) for _ in range(config.num_hidden_layers))
        self.lm_head, self.lm_head_gain = matrix(config.hidden_size, config.vocab_size), Factor("w_g")
        self.post_init()

    def logits(self, ids: Tensor) -> Tensor:
        embedding = normalized(self.model.embed(ids))
        x = embedding
        for block in self.model.blocks:
            x = block(x, embedding)
        return self.lm_head(normalized(x)) * self.lm_head_gain.w_g
