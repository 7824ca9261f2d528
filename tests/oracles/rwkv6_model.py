"""RWKV-6 and QRWKV in torch, for make_reference_models.py, because transformers has no class for them. Written from the
papers (Peng et al., 2024; Yang et al., 2024), token by token, with the tensor names of published checkpoints."""

from typing import Any

import torch
from rwkv7_model import previous_rows
from torch import Tensor, nn
from torch.nn import functional as F
from torch_decoder import MLP, Decoder, Layer, PlainDecoder


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(*shape))


class MixedTokens(nn.Module):
    """Mixes each token with the one before it, in shares that depend on both: one mixture for each of the letters."""

    def __init__(self, n: int, rank: int, decay_rank: int, letters: str) -> None:
        super().__init__()
        self.letters = letters
        for kind in ("x", *letters):
            setattr(self, f"time_maa_{kind}", parameter(1, 1, n))
        self.time_maa_w1, self.time_maa_w2 = parameter(n, rank * len(letters)), parameter(len(letters), rank, n)
        self.time_decay = parameter(1, 1, n)
        self.time_decay_w1, self.time_decay_w2 = parameter(n, decay_rank), parameter(decay_rank, n)

    def mixed(self, x: Tensor) -> dict[str, Tensor]:
        """Return the mixtures of (n_tokens, n) by letter."""
        delta = previous_rows(x) - x
        low = torch.tanh((x + delta * self.time_maa_x[0]) @ self.time_maa_w1).unflatten(1, (len(self.letters), -1))
        shares = torch.einsum("tir,irn->itn", low, self.time_maa_w2)
        return {
            kind: x + delta * (getattr(self, f"time_maa_{kind}")[0] + share)
            for kind, share in zip(self.letters, shares, strict=True)
        }

    def decays(self, xw: Tensor) -> Tensor:
        """Return the decays of (n_tokens, n)."""
        return torch.exp(-torch.exp(self.time_decay[0] + torch.tanh(xw @ self.time_decay_w1) @ self.time_decay_w2))


class TimeMix(MixedTokens):
    def __init__(self, config: Any) -> None:
        n, wide = config.hidden_size, config.hidden_size == 4096
        super().__init__(n, 64 if wide else 32, 128 if wide else 64, "wkvrg")
        self.head = config.head_size
        self.time_faaaa = parameter(n // self.head, self.head)
        for kind in ("receptance", "key", "value", "gate", "output"):
            setattr(self, kind, nn.Linear(n, n, bias=False))
        self.ln_x = nn.GroupNorm(n // self.head, n, eps=1e-5 * config.head_size_divisor**2)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.mixed(x)
        each = (self.receptance(mixed["r"]), self.key(mixed["k"]), self.value(mixed["v"]), self.decays(mixed["w"]))
        r, k, v, decay = (values.unflatten(1, (-1, self.head)) for values in each)
        state, outputs = torch.zeros(r.shape[1], self.head, self.head), []
        for t in range(len(x)):  # state is (heads, keys, values)
            added = k[t, :, :, None] * v[t, :, None]
            outputs.append((r[t, :, None] @ (state + self.time_faaaa[:, :, None] * added)).flatten())
            state = decay[t, :, :, None] * state + added
        return self.output(self.ln_x(torch.stack(outputs)) * F.silu(self.gate(mixed["g"])))


class ChannelMix(nn.Module):
    def __init__(self, config: Any, width: int) -> None:
        super().__init__()
        n = config.hidden_size
        self.time_maa_k, self.time_maa_r = parameter(1, 1, n), parameter(1, 1, n)
        self.key, self.value = nn.Linear(n, width, bias=False), nn.Linear(width, n, bias=False)
        self.receptance = nn.Linear(n, n, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        delta = previous_rows(x) - x
        k, r = x + delta * self.time_maa_k[0], x + delta * self.time_maa_r[0]
        return torch.sigmoid(self.receptance(r)) * self.value(torch.relu(self.key(k)) ** 2)


class Block(nn.Module):
    def __init__(self, config: Any, number: int) -> None:
        super().__init__()
        n, eps = config.hidden_size, config.layer_norm_epsilon
        if not number:
            self.pre_ln = nn.LayerNorm(n, eps)
        self.ln1, self.ln2 = nn.LayerNorm(n, eps), nn.LayerNorm(n, eps)
        self.attention = TimeMix(config)
        self.feed_forward = ChannelMix(config, config.intermediate_size or int(n * 3.5 // 32 * 32))
        every = config.rescale_every or number + 1
        self.scale, self.halves = 0.5 ** (number // every), bool(config.rescale_every) and (number + 1) % every == 0

    def forward(self, x: Tensor) -> Tensor:
        x = self.pre_ln(x) if hasattr(self, "pre_ln") else x
        x = x + self.scale * self.attention(self.ln1(x))
        x = x + self.scale * self.feed_forward(self.ln2(x))
        return x / 2 if self.halves else x


class Model(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList([Block(config, number) for number in range(config.num_hidden_layers)])
        self.ln_out = nn.LayerNorm(config.hidden_size, config.layer_norm_epsilon)


class Rwkv6ForCausalLM(Decoder):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.rwkv, self.head = Model(config), nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def logits(self, ids: Tensor) -> Tensor:
        x = self.rwkv.embeddings(ids)
        for block in self.rwkv.blocks:
            x = block(x)
        return self.head(self.rwkv.ln_out(x))


class GatedLinearAttention(MixedTokens):
    """QRWKV's time mixing, whose heads share keys and values."""

    def __init__(self, config: Any) -> None:
        n, heads, kv_heads = config.hidden_size, config.num_attention_heads, config.num_key_value_heads
        super().__init__(n, config.lora_rank_tokenshift, config.lora_rank_decay, "rkvwg")
        self.size, self.groups = n // heads, heads // kv_heads
        for kind, width in zip("qkv", (n, *[kv_heads * self.size] * 2), strict=True):
            setattr(self, f"{kind}_proj", nn.Linear(n, width, bias=config.attention_bias))
        self.o_proj, self.gate = nn.Linear(n, n, bias=False), nn.Linear(n, n, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.mixed(x)
        q, k, v, decay = (
            values.unflatten(1, (-1, self.size))
            for values in (self.q_proj(mixed["r"]), self.k_proj(mixed["k"]), self.v_proj(mixed["v"]),
                           self.decays(mixed["w"]))
        )  # fmt: skip
        k, v = (each.repeat_interleave(self.groups, dim=1) for each in (k, v))
        k = k * (1 - decay)
        state, outputs = torch.zeros(q.shape[1], self.size, self.size), []
        for t in range(len(x)):  # state is (heads, keys, values)
            state = decay[t, :, :, None] * state + k[t, :, :, None] * v[t, :, None]
            outputs.append((q[t, :, None] @ state).flatten() * self.size**-0.5)
        return self.o_proj(torch.stack(outputs) * torch.sigmoid(self.gate(mixed["g"])))


def qrwkv_layer(config: Any, number: int) -> Layer:
    return Layer(config, GatedLinearAttention(config), MLP(config.hidden_size, config.intermediate_size))


class RWKV6Qwen2ForCausalLM(PlainDecoder):
    def __init__(self, config: Any) -> None:
        super().__init__(config, qrwkv_layer)
