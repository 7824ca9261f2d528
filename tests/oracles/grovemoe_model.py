"""GroveMoE (inclusionAI, 2025) in torch, for make_reference_models.py, because transformers has no class for it.
Written from what the code of its checkpoints computes, with their tensor names."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_decoder import MLP, Attention, Layer, PlainDecoder, RMSNorm, rotated

PER_GROUP, SCALE = 2, 0.05


class GroveExperts(nn.Module):
    """Experts with normalized weights. Each pair of them has a small expert, which gets the same input and weight."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        n, count, self.used = config.hidden_size, config.num_experts, config.num_experts_per_tok
        self.gate = nn.Linear(n, count, bias=False)
        self.experts = nn.ModuleList(MLP(n, config.expert_size) for _ in range(count))
        self.chunk_experts = nn.ModuleList(MLP(n, config.head_dim) for _ in range(count // PER_GROUP))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = F.softmax(self.gate(x), -1).topk(self.used, dim=-1)
        weights = (weights / weights.sum(-1, keepdim=True))[:, :, None]
        large, small = (torch.stack([each(x) for each in group], 1) for group in (self.experts, self.chunk_experts))
        rows = torch.arange(len(x))[:, None]
        return (weights * (large[rows, chosen] + SCALE * small[rows, chosen // PER_GROUP])).sum(1)


class NormedAttention(Attention):
    """Attention with norms of heads before their rotation."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.q_norm, self.k_norm = (RMSNorm(self.size, config.rms_norm_eps) for _ in range(2))

    def prepared(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return rotated(self.q_norm(q), self.theta), rotated(self.k_norm(k), self.theta)


class GroveMoeForCausalLM(PlainDecoder):
    def __init__(self, config: Any) -> None:
        super().__init__(config, lambda _, number: Layer(config, NormedAttention(config), GroveExperts(config)))
