"""Llama with ALiBi (Press et al., 2021) in place of rotary embeddings, for make_reference_models.py, because
transformers has no class of Baichuan 13B and Refact. The biases enter as the attention mask."""

from math import floor, log2
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM


def slopes(heads: int) -> list[float]:
    """Return the paper's slopes: 2^(-8/n), 2^(-16/n), ... for a power of two n; further heads have every other slope of
    twice as many heads."""
    n = 2 ** floor(log2(heads))
    return ([2 ** (-8 * i / n) for i in range(1, n + 1)] + [2 ** (-4 * i / n) for i in range(1, 2 * n, 2)])[:heads]


class NoRotation(nn.Module):
    """Rotary embeddings that rotate nothing."""

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        size = self.size
        return torch.ones(1, position_ids.shape[1], size), torch.zeros(1, position_ids.shape[1], size)


class AlibiLlamaForCausalLM(LlamaForCausalLM):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model.rotary_emb = NoRotation()
        self.model.rotary_emb.size = config.head_dim

    def forward(self, ids: Tensor, use_cache: bool = False) -> SimpleNamespace:
        position = torch.arange(ids.shape[1])
        ahead = (position[None, :] - position[:, None]).float()
        bias = torch.tensor(slopes(self.config.num_attention_heads))[:, None, None] * ahead
        mask = torch.where(ahead > 0, torch.finfo(torch.float32).min, bias)
        return SimpleNamespace(logits=super().forward(ids, attention_mask=mask[None], use_cache=use_cache).logits)
