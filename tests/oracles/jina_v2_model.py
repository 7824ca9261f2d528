"""Jina Embeddings v2 (Guenther et al., 2023) in torch, for make_reference_models.py, because transformers has no class
for it. Written from the paper and from what the code of published checkpoints computes, with their tensor names."""

from typing import Any

import torch
from alibi_model import slopes
from torch import Tensor, nn
from torch.nn import functional as F
from torch_decoder import Encoder, heads, matrix


class SelfAttention(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        n, self.n_head = config.hidden_size, config.num_attention_heads
        self.query, self.key, self.value = (nn.Linear(n, n) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        size, at = x.shape[1] // self.n_head, torch.arange(len(x))
        q, k, v = (heads(project(x), size) for project in (self.query, self.key, self.value))
        lowered = torch.tensor(slopes(self.n_head))[:, None, None] * (at[None, :] - at[:, None]).abs()
        return (F.softmax(q @ k.transpose(1, 2) / size**0.5 - lowered, -1) @ v).transpose(0, 1).flatten(1)


class Output(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        return self.LayerNorm(self.dense(y) + x)


class MLP(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        n, n_ff = config.hidden_size, config.intermediate_size
        self.gated_layers, self.wo = matrix(n, 2 * n_ff), nn.Linear(n_ff, n)
        self.layernorm = nn.LayerNorm(n, eps=config.layer_norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gated_layers(x).chunk(2, -1)
        return self.layernorm(x + self.wo(F.gelu(gate) * up))


class Layer(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.attention, self.mlp = nn.Module(), MLP(config)
        self.attention.self, self.attention.output = SelfAttention(config), Output(config)

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(self.attention.output(self.attention.self(x), x))


class JinaBertModel(Encoder):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        n = config.hidden_size
        self.embeddings, self.encoder = nn.Module(), nn.Module()
        self.embeddings.word_embeddings = nn.Embedding(config.vocab_size, n)
        self.embeddings.token_type_embeddings = nn.Embedding(config.type_vocab_size, n)
        self.embeddings.LayerNorm = nn.LayerNorm(n, eps=config.layer_norm_eps)
        self.encoder.layer = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.post_init()

    def states(self, ids: Tensor) -> Tensor:
        kinds = self.embeddings.token_type_embeddings.weight[0]
        x = self.embeddings.LayerNorm(self.embeddings.word_embeddings(ids) + kinds)
        for layer in self.encoder.layer:
            x = layer(x)
        return x
