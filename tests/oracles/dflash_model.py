"""DFlash's head in torch, for make_dflash_heads.py, because transformers has no class for it. Written from the facts of
the paper (Chen et al., 2026), with the tensor names of checkpoints."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP, Qwen3RMSNorm, Qwen3RotaryEmbedding, rotate_half


class Attention(nn.Module):
    """The queries of a block attend to the keys of the text's states and of the block."""

    def __init__(self, config: Any, window: int) -> None:
        super().__init__()
        n, self.head, self.window = config.hidden_size, config.head_dim, window
        queries, keys = config.num_attention_heads * self.head, config.num_key_value_heads * self.head
        self.q_proj, self.k_proj = nn.Linear(n, queries, bias=False), nn.Linear(n, keys, bias=False)
        self.v_proj, self.o_proj = nn.Linear(n, keys, bias=False), nn.Linear(queries, n, bias=False)
        self.q_norm, self.k_norm = (Qwen3RMSNorm(self.head, config.rms_norm_eps) for _ in "qk")
        self.rotary = Qwen3RotaryEmbedding(config)

    def forward(self, x: Tensor, states: Tensor) -> Tensor:
        both = torch.cat([states, x])
        products = self.q_proj(x), self.k_proj(both), self.v_proj(both)
        q, k, v = (each.unflatten(1, (-1, self.head)) for each in products)
        q, k, v = (each.transpose(0, 1) for each in (self.q_norm(q), self.k_norm(k), v))
        positions = torch.arange(len(both))
        cos, sin = (each[0] for each in self.rotary(v, positions[None]))
        own = positions[len(states) :]
        q, k = q * cos[own] + rotate_half(q) * sin[own], k * cos + rotate_half(k) * sin
        seen = own[:, None] - positions < (self.window or len(both))
        observed = F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=seen, enable_gqa=True)
        return self.o_proj(observed[0].transpose(0, 1).flatten(1))


class Layer(nn.Module):
    def __init__(self, config: Any, window: int) -> None:
        super().__init__()
        self.input_layernorm = Qwen3RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = Qwen3RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn, self.mlp = Attention(config, window), Qwen3MLP(config)

    def forward(self, x: Tensor, states: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), states)
        return x + self.mlp(self.post_attention_layernorm(x))


class Head(nn.Module):
    """The draft head, without embedding and output layer, which are the model's."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        n, eps = config.hidden_size, config.rms_norm_eps
        kinds = config.layer_types or ["full_attention"] * config.num_hidden_layers
        windows = [config.sliding_window if each == "sliding_attention" else 0 for each in kinds]
        self.layers = nn.ModuleList(Layer(config, window) for window in windows)
        self.fc = nn.Linear(len(config.dflash_config["target_layer_ids"]) * n, n, bias=False)
        self.hidden_norm, self.norm = Qwen3RMSNorm(n, eps), Qwen3RMSNorm(n, eps)

    def forward(self, embedded: Tensor, features: Tensor) -> Tensor:
        """Return the states of a block, whose embeddings follow tokens with these features."""
        states, x = self.hidden_norm(self.fc(features)), embedded
        for layer in self.layers:
            x = layer(x, states)
        return self.norm(x)
