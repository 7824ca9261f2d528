"""SmallThinker (SJTU, 2025) in torch, for make_reference_models.py, because transformers has no class for it. Written
from what the code of published checkpoints computes, with their tensor names."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_decoder import PlainDecoder, RMSNorm, attend, heads, matrix, rotated


class Expert(nn.Module):
    def __init__(self, n: int, n_ff: int) -> None:
        super().__init__()
        self.up, self.gate, self.down = matrix(n, n_ff), matrix(n, n_ff), matrix(n_ff, n)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.relu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """Experts that are chosen by another row than their input."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        n, count = config.hidden_size, config.moe_num_primary_experts
        self.primary_router = matrix(n, count)
        self.experts = nn.ModuleList(Expert(n, config.moe_ffn_hidden_size) for _ in range(count))
        self.used, self.softmax = config.moe_num_active_primary_experts, config.moe_primary_router_apply_softmax

    def forward(self, x: Tensor, before: Tensor) -> Tensor:
        logits, chosen = self.primary_router(before).topk(self.used, dim=-1)
        weights = F.softmax(logits, -1) if self.softmax else logits.sigmoid() / logits.sigmoid().sum(-1, keepdim=True)
        outputs = torch.stack([expert(x) for expert in self.experts], 1)
        return (outputs.gather(1, chosen[:, :, None].expand(-1, -1, x.shape[1])) * weights[:, :, None]).sum(1)


class Attention(nn.Module):
    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        n, q = config.hidden_size, config.num_attention_heads * config.head_dim
        kv, self.size, self.theta = config.num_key_value_heads * config.head_dim, config.head_dim, config.rope_theta
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = matrix(n, q), matrix(n, kv), matrix(n, kv), matrix(q, n)
        self.has_rope = config.rope_layout[layer]
        self.window = config.sliding_window_size if config.sliding_window_layout[layer] else 0

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads(project(x), self.size) for project in (self.q_proj, self.k_proj, self.v_proj))
        if self.has_rope:
            q, k = rotated(q, self.theta), rotated(k, self.theta)
        return self.o_proj(attend(q, k, v, self.window))


class Layer(nn.Module):
    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        self.self_attn, self.block_sparse_moe = Attention(config, layer), Experts(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.self_attn(self.input_layernorm(x))
        return y + self.block_sparse_moe(self.post_attention_layernorm(y), x)


class SmallThinkerForCausalLM(PlainDecoder):
    def __init__(self, config: Any) -> None:
        super().__init__(config, Layer)
