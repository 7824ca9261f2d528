"""PLaMo 2 (Preferred Networks, 2025) in torch, for make_reference_models.py, because transformers has no class for it.
Written from what the code of published checkpoints computes, with their tensor names."""

from typing import Any

import torch
from plamo3_model import Plamo3ForCausalLM
from torch import Tensor, nn
from torch.nn import functional as F
from torch_decoder import attend, heads, matrix, rotated


def normalized(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


class Attention(nn.Module):
    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        n, self.size = config.hidden_size, config.hidden_size_per_head
        q, kv = config.num_attention_heads, config.num_key_value_heads
        self.counts = [q, kv, kv]
        self.qkv_proj, self.o_proj = matrix(n, (q + 2 * kv) * self.size), matrix(q * self.size, n)
        self.q_weight, self.k_weight = (nn.Parameter(torch.ones(count, self.size)) for count in (q, kv))
        self.window = 0 if layer in config.full_attention_idx else config.attention_window_size + 1

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads(self.qkv_proj(x), self.size).split(self.counts)
        weights = self.q_weight, self.k_weight
        q, k = (rotated(normalized(x, weight[:, None], 1e-6), 1e4) for x, weight in zip((q, k), weights, strict=True))
        return self.o_proj(attend(q, k, v, self.window))


class Mamba(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        n, self.count, self.size = config.hidden_size, config.mamba_num_heads, config.hidden_size_per_head
        inner, state, self.eps = self.count * self.size, config.mamba_d_state, config.rms_norm_eps
        rank = max(64, n // 16)
        self.sizes = [state, state, rank]
        self.in_proj, self.out_proj = matrix(n, 2 * inner), matrix(inner, n)
        self.conv1d = nn.Conv1d(inner, inner, config.mamba_d_conv, groups=inner, bias=False)
        self.bcdt_proj, self.dt_proj = matrix(inner, rank + 2 * state), matrix(rank, self.count)
        self.dt_bias, self.A_log, self.D = (nn.Parameter(torch.ones(self.count)) for _ in range(3))
        self.dt_norm_weight = nn.Parameter(torch.ones(rank))
        self.B_norm_weight, self.C_norm_weight = (nn.Parameter(torch.ones(state)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        z, x = self.in_proj(x).unflatten(-1, (self.count, -1)).split(self.size, -1)  # (tokens, heads, values)
        padded = F.pad(x.flatten(1).T, (self.conv1d.kernel_size[0] - 1, 0))
        x = F.silu(self.conv1d(padded[None])[0].T)
        weights = self.B_norm_weight, self.C_norm_weight, self.dt_norm_weight
        parts = zip(self.bcdt_proj(x).split(self.sizes, -1), weights, strict=True)
        b, c, dt = (normalized(part, weight, self.eps) for part, weight in parts)
        dt = F.softplus(self.dt_proj(dt) + self.dt_bias)
        decay, x, outputs = torch.exp(dt * -self.A_log.exp()), x.unflatten(-1, (self.count, -1)), []
        state = torch.zeros(self.count, self.size, b.shape[-1])
        for t in range(len(x)):
            state = decay[t, :, None, None] * state + (dt[t, :, None] * x[t])[:, :, None] * b[t]
            outputs.append(state @ c[t] + self.D[:, None] * x[t])
        return self.out_proj((torch.stack(outputs) * F.silu(z)).flatten(1))


def make_mixer(config: Any, layer: int) -> nn.Module:
    """Return attention in one of `mamba_step` layers, or in the last of few, and Mamba in the others."""
    n_layer, middle = config.num_hidden_layers, config.mamba_step // 2
    has_attention = layer == n_layer - 1 if n_layer <= middle else layer % config.mamba_step == middle
    return Attention(config, layer) if has_attention else Mamba(config)


class Plamo2ForCausalLM(Plamo3ForCausalLM):
    mixer = staticmethod(make_mixer)
