"""Diffusion language models in torch, for make_reference_models.py, because transformers has no classes for them: LLaDA
(Nie et al., 2025), LLaDA-MoE, Dream (HKU and Huawei, 2025) and RND1 (Radical Numerics, 2025). Written from what the
code of published checkpoints computes. All of them attend in both directions."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_decoder import MLP, PlainDecoder, RMSNorm, attend, heads, matrix, rotated


class Attention(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        n, self.size, self.theta = config.hidden_size, config.head_dim, config.rope_theta
        q, kv = config.num_attention_heads * self.size, config.num_key_value_heads * self.size
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(n, each, bias=config.qkv_bias) for each in (q, kv, kv))
        self.o_proj = matrix(q, n)
        self.q_norm, self.k_norm = (
            RMSNorm(self.size, config.rms_norm_eps) if config.head_norms else nn.Identity() for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads(project(x), self.size) for project in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotated(self.q_norm(q), self.theta), rotated(self.k_norm(k), self.theta)
        return self.o_proj(attend(q, k, v, causal=False))


class Experts(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        n, self.used, self.normed = config.hidden_size, config.num_experts_per_tok, config.norm_topk_prob
        self.gate = matrix(n, config.num_experts)
        self.experts = nn.ModuleList(MLP(n, config.expert_size) for _ in range(config.num_experts))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = F.softmax(self.gate(x), -1).topk(self.used, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True) if self.normed else weights
        outputs = torch.stack([expert(x) for expert in self.experts], 1)
        return (outputs.gather(1, chosen[:, :, None].expand(-1, -1, x.shape[1])) * weights[:, :, None]).sum(1)


class Layer(nn.Module):
    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        n, eps, self.self_attn = config.hidden_size, config.rms_norm_eps, Attention(config)
        self.mlp = Experts(config) if config.num_experts else MLP(n, config.intermediate_size)
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(n, eps), RMSNorm(n, eps)

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.self_attn(self.input_layernorm(x))
        return y + self.mlp(self.post_attention_layernorm(y))


class DreamModel(PlainDecoder):
    def __init__(self, config: Any) -> None:
        super().__init__(config, Layer)


class LLaDAModelLM(DreamModel):
    pass


class LLaDAMoEModelLM(DreamModel):
    pass


class RND1(DreamModel):
    pass
