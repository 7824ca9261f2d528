"""NeoBERT (Le Breton et al., 2025) in torch, for make_reference_models.py, because transformers has no class for it.
Written from the paper and from what the code of published checkpoints computes, with their tensor names."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_decoder import Encoder, RMSNorm, attend, matrix


def rotated_pairs(x: Tensor) -> Tensor:
    """Rotate adjacent values of the heads of x, (heads, tokens, values)."""
    size = x.shape[-1]
    angles = torch.arange(x.shape[1])[:, None] * 10_000.0 ** (-torch.arange(0, size, 2) / size)
    turned = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(turned).flatten(-2)


class FeedForward(nn.Module):
    def __init__(self, n: int, n_ff: int) -> None:
        super().__init__()
        self.w12, self.w3 = matrix(n, 2 * n_ff), matrix(n_ff, n)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.w12(x).chunk(2, -1)
        return self.w3(F.silu(gate) * up)


class Layer(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        n, self.n_head = config.hidden_size, config.num_attention_heads
        self.qkv, self.wo = matrix(n, 3 * n), matrix(n, n)
        self.ffn = FeedForward(n, -(-int(2 * config.intermediate_size / 3) // 8) * 8)
        self.attention_norm, self.ffn_norm = RMSNorm(n, config.norm_eps), RMSNorm(n, config.norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.attention_norm(x)).unflatten(-1, (self.n_head, -1)).transpose(0, 1).chunk(3, -1)
        x = x + self.wo(attend(rotated_pairs(q), rotated_pairs(k), v, causal=False))
        return x + self.ffn(self.ffn_norm(x))


class NeoBERT(Encoder):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.encoder = nn.Embedding(config.vocab_size, config.hidden_size)
        self.transformer_encoder = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.layer_norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.post_init()

    def states(self, ids: Tensor) -> Tensor:
        x = self.encoder(ids)
        for layer in self.transformer_encoder:
            x = layer(x)
        return self.layer_norm(x)
