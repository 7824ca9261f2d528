"""ARWKV in torch, for make_reference_models.py, because transformers has no class for it. Written from the paper (Lin
et al., 2025), token by token, with the tensor names of published checkpoints."""

from typing import Any

import torch
from rwkv6_model import parameter
from rwkv7_model import previous_rows, recur
from torch import Tensor, nn
from torch_decoder import MLP, Layer, PlainDecoder

RANKS = {"w": 64, "a": 64, "v": 32, "g": 128}


class TimeMixer(nn.Module):
    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        n, self.head, self.has_gate = config.hidden_size, config.head_size, config.wkv_has_gate
        for kind in "rwkvag" if self.has_gate else "rwkva":
            setattr(self, f"x_{kind}", parameter(1, 1, n))
        for kind in ("w", "a", *("v" if layer else ""), *("g" if self.has_gate else "")):
            setattr(self, f"{kind}1", parameter(n, RANKS[kind]))
            setattr(self, f"{kind}2", parameter(RANKS[kind], n))
        for kind in ("w0", "a0", *(["v0"] if layer else []), "k_k", "k_a"):
            setattr(self, kind, parameter(1, 1, n))
        self.r_k = parameter(n // self.head, self.head)
        for kind in ("receptance", "key", "value", "output"):
            setattr(self, kind, nn.Linear(n, n, bias=False))
        if config.wkv_has_group_norm:
            self.ln_x = nn.GroupNorm(n // self.head, n, eps=1e-5 * config.head_size_divisor**2)

    def mixed(self, x: Tensor, kind: str) -> Tensor:
        return x + (previous_rows(x) - x) * getattr(self, f"x_{kind}")[0]

    def forward(self, x: Tensor, first: Tensor | None) -> tuple[Tensor, Tensor]:
        r, k, v = self.receptance(self.mixed(x, "r")), self.key(self.mixed(x, "k")), self.value(self.mixed(x, "v"))
        w = -nn.functional.softplus(-(self.w0[0] + torch.tanh(self.mixed(x, "w") @ self.w1) @ self.w2)) - 0.5
        if first is not None:
            v = v + (first - v) * torch.sigmoid(self.v0[0] + self.mixed(x, "v") @ self.v1 @ self.v2)
        a = torch.sigmoid(self.a0[0] + self.mixed(x, "a") @ self.a1 @ self.a2)
        of_heads = (r, torch.exp(-torch.exp(w)), k * (1 + (a - 1) * self.k_a[0]), v, a, k * self.k_k[0])
        inputs = [each.unflatten(1, (-1, self.head)) for each in of_heads]
        y = recur(*inputs)
        y = self.ln_x(y) if hasattr(self, "ln_x") else y
        bonus = (inputs[0] * inputs[2] * self.r_k).sum(-1, keepdim=True) * inputs[3]
        y = y + bonus.flatten(1)
        if self.has_gate:
            y = y * (torch.sigmoid(self.mixed(x, "g") @ self.g1) @ self.g2)
        return self.output(y), v if first is None else first


class TimeMixing(nn.Module):
    """What replaces attention."""

    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        self.time_mixer = TimeMixer(config, layer)


def arwkv7_layer(config: Any, number: int) -> Layer:
    return Layer(config, TimeMixing(config, number), MLP(config.hidden_size, config.intermediate_size))


class RwkvHybridForCausalLM(PlainDecoder):
    """All layers get the values of the first one."""

    def __init__(self, config: Any) -> None:
        super().__init__(config, arwkv7_layer)

    def logits(self, ids: Tensor) -> Tensor:
        x, first = self.model.embed_tokens(ids), None
        for layer in self.model.layers:
            y, first = layer.self_attn.time_mixer(layer.input_layernorm(x), first)
            x = x + y
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return self.lm_head(self.model.norm(x))
