"""EAGLE-3's head in torch, for make_eagle3_heads.py, because transformers has no class for it. Written from the paper
(Li et al., 2025), with the tensor names of checkpoints."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb


class Attention(nn.Module):
    """Attention whose input is twice as wide as its output."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        n, self.head = config.hidden_size, config.head_dim
        queries, keys = config.num_attention_heads * self.head, config.num_key_value_heads * self.head
        self.q_proj, self.k_proj = nn.Linear(2 * n, queries, bias=False), nn.Linear(2 * n, keys, bias=False)
        self.v_proj, self.o_proj = nn.Linear(2 * n, keys, bias=False), nn.Linear(queries, n, bias=False)
        self.rotary = LlamaRotaryEmbedding(config)

    def forward(self, x: Tensor) -> Tensor:
        whole = [project(x) for project in (self.q_proj, self.k_proj, self.v_proj)]
        q, k, v = (each.unflatten(1, (-1, self.head)).transpose(0, 1)[None] for each in whole)
        q, k = apply_rotary_pos_emb(q, k, *self.rotary(v, torch.arange(len(x))[None]))
        observed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(observed[0].transpose(0, 1).flatten(1))


class FeedForward(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        n, width = config.hidden_size, config.intermediate_size
        self.gate_proj, self.up_proj = nn.Linear(n, width, bias=False), nn.Linear(n, width, bias=False)
        self.down_proj = nn.Linear(width, n, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        n, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm, self.hidden_norm = nn.RMSNorm(n, eps), nn.RMSNorm(n, eps)
        self.post_attention_layernorm = nn.RMSNorm(n, eps)
        self.self_attn, self.mlp = Attention(config), FeedForward(config)
        self.normed_residual = getattr(config, "norm_before_residual", False)

    def forward(self, embedded: Tensor, before: Tensor) -> Tensor:
        normed = self.hidden_norm(before)
        x = normed if self.normed_residual else before
        x = x + self.self_attn(torch.cat([self.input_layernorm(embedded), normed], 1))
        return x + self.mlp(self.post_attention_layernorm(x))


class Head(nn.Module):
    """The draft head. Tensors that it lacks are the model's."""

    def __init__(self, config: Any, model: Any) -> None:
        super().__init__()
        n, features, self.model = config.hidden_size, 3 * config.target_hidden_size, [model]
        self.fc = nn.Linear(features, n, bias=False)
        if getattr(config, "norm_before_fc", False):
            self.input_norm = nn.RMSNorm(features, config.rms_norm_eps)
        self.midlayer, self.norm = Layer(config), nn.RMSNorm(n, config.rms_norm_eps)
        if config.own_embedding:
            self.embed_tokens = nn.Embedding(config.vocab_size, n)
        if config.own_output:
            self.lm_head = nn.Linear(n, config.draft_vocab_size, bias=False)

    def fuse(self, features: Tensor) -> Tensor:
        return self.fc(self.input_norm(features) if hasattr(self, "input_norm") else features)

    def forward(self, ids: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits for pairs of a token and the previous state, and the resulting states."""
        embedding = getattr(self, "embed_tokens", None) or self.model[0].get_input_embeddings()
        output = getattr(self, "lm_head", None) or self.model[0].get_output_embeddings()
        x = self.midlayer(embedding(ids), before)
        return output(self.norm(x)), x
