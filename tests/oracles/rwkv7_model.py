"""RWKV-7 in torch, for make_reference_models.py, because transformers has no class for it. Written from the paper (Peng
et al., 2025), token by token, with the tensor names of flash-linear-attention checkpoints."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Lora(nn.Module):
    """A low-rank product of two matrices."""

    def __init__(self, n: int, rank: int, activation: Any = None, *, bias: bool = True) -> None:
        super().__init__()
        between = activation or nn.Identity()
        self.lora = nn.Sequential(nn.Linear(n, rank, bias=False), between, nn.Linear(rank, n, bias=bias))

    def forward(self, x: Tensor) -> Tensor:
        return self.lora(x)


def previous_rows(x: Tensor) -> Tensor:
    """Return the previous row of each row of (n_tokens, n)."""
    return F.pad(x, (0, 0, 1, -1))


def recur(r: Tensor, decay: Tensor, k: Tensor, v: Tensor, a: Tensor, removed: Tensor) -> Tensor:
    """Return the output of the recurrence, (n_tokens, n), of inputs (n_tokens, heads, size)."""
    removed = F.normalize(removed, dim=-1, eps=1e-12)
    state, outputs = torch.zeros(r.shape[1], r.shape[2], r.shape[2]), []
    for t in range(len(r)):  # state is (heads, values, keys)
        lost = state @ -removed[t, :, :, None]
        state = state * decay[t, :, None] + lost * (removed[t] * a[t])[:, None] + v[t, :, :, None] * k[t, :, None]
        outputs.append((state @ r[t, :, :, None]).flatten())
    return torch.stack(outputs)


class TimeMix(nn.Module):
    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        n, self.head = config.hidden_size, config.head_dim
        for kind in "rwkvag":
            setattr(self, f"x_{kind}", nn.Parameter(torch.zeros(1, 1, n)))
        self.k_k, self.k_a = nn.Parameter(torch.zeros(n)), nn.Parameter(torch.zeros(n))
        self.r_k = nn.Parameter(torch.zeros(n // self.head, self.head))
        for kind in "rkvo":
            setattr(self, f"{kind}_proj", nn.Linear(n, n, bias=False))
        self.w_lora = Lora(n, config.decay_low_rank_dim, nn.Tanh())
        self.a_lora = Lora(n, config.a_low_rank_dim)
        self.g_lora = Lora(n, config.gate_low_rank_dim, nn.Sigmoid(), bias=False)
        if layer:
            self.v_lora = Lora(n, config.v_low_rank_dim)
        self.g_norm = nn.GroupNorm(n // self.head, n, eps=self.head * config.norm_eps)

    def forward(self, x: Tensor, first: Tensor | None) -> tuple[Tensor, Tensor]:
        delta = previous_rows(x) - x
        xr, xw, xk, xv, xa, xg = (x + delta * getattr(self, f"x_{kind}")[0] for kind in "rwkvag")
        r, k, v = self.r_proj(xr), self.k_proj(xk), self.v_proj(xv)
        decay = torch.exp(-(torch.e**-0.5) * torch.sigmoid(self.w_lora(xw)))
        if first is None:
            first = v
        else:
            v = v + (first - v) * torch.sigmoid(self.v_lora(xv))
        a = torch.sigmoid(self.a_lora(xa))
        removed = k * self.k_k
        k = k * (1 + (a - 1) * self.k_a)
        r, decay, k, v, a, removed = (each.unflatten(1, (-1, self.head)) for each in (r, decay, k, v, a, removed))
        y = self.g_norm(recur(r, decay, k, v, a, removed)).unflatten(1, (-1, self.head))
        y = y + (r * k * self.r_k).sum(-1, keepdim=True) * v
        return self.o_proj(y.flatten(1) * self.g_lora(xg)), first


class ChannelMix(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.x_k = nn.Parameter(torch.zeros(config.hidden_size))
        self.key = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.value = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.value(torch.relu(self.key(x + (previous_rows(x) - x) * self.x_k)) ** 2)


class Layer(nn.Module):
    def __init__(self, config: Any, number: int) -> None:
        super().__init__()
        if not number:
            self.pre_norm = nn.LayerNorm(config.hidden_size, config.norm_eps)
        self.attn_norm, self.ffn_norm = (nn.LayerNorm(config.hidden_size, config.norm_eps) for _ in range(2))
        self.attn, self.ffn = TimeMix(config, number), ChannelMix(config)

    def forward(self, x: Tensor, first: Tensor | None) -> tuple[Tensor, Tensor]:
        x = self.pre_norm(x) if first is None else x
        y, first = self.attn(self.attn_norm(x), first)
        x = x + y
        return x + self.ffn(self.ffn_norm(x)), first


class Model(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([Layer(config, number) for number in range(config.num_hidden_layers)])
        self.norm = nn.LayerNorm(config.hidden_size, config.norm_eps)


class RWKV7ForCausalLM(nn.Module):
    """The interface that make_reference_models.py expects."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.all_tied_weights_keys: dict[str, str] = {}
        self.model = Model(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    @classmethod
    def _from_config(cls, config: Any, attn_implementation: str) -> "RWKV7ForCausalLM":
        return cls(config)

    def forward(self, ids: Tensor, *, use_cache: bool) -> SimpleNamespace:
        x, first = self.model.embeddings(ids[0]), None
        for layer in self.model.layers:
            x, first = layer(x, first)
        return SimpleNamespace(logits=self.lm_head(self.model.norm(x))[None])
