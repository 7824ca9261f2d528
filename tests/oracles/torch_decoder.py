"""Parts of decoders in torch, for models that transformers lacks. All take one text, without a batch dimension."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PretrainedConfig, PreTrainedModel


class RMSNorm(nn.Module):
    def __init__(self, n: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(n)), eps

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


def matrix(n_in: int, n_out: int) -> nn.Linear:
    return nn.Linear(n_in, n_out, bias=False)


def rotated(x: Tensor, theta: float, *, frequencies: Tensor | None = None) -> Tensor:
    """Rotate the halves of the heads of x, (heads, tokens, values), with other `frequencies` if given."""
    size = x.shape[-1]
    given = theta ** (-torch.arange(0, size, 2) / size) if frequencies is None else frequencies
    angles = torch.cat([torch.arange(x.shape[-2])[:, None] * given] * 2, -1)
    first, second = x.chunk(2, -1)
    return x * angles.cos() + torch.cat([-second, first], -1) * angles.sin()


def rotated_pairs(x: Tensor, theta: float) -> Tensor:
    """Rotate the adjacent values of the heads of x."""
    halves = torch.cat([x[..., ::2], x[..., 1::2]], -1)
    return torch.stack(rotated(halves, theta).chunk(2, -1), -1).flatten(-2)


def heads(x: Tensor, size: int) -> Tensor:
    """Return the heads of rows: (heads, tokens, size)."""
    return x.unflatten(-1, (-1, size)).transpose(0, 1)


def attend(
    q: Tensor, k: Tensor, v: Tensor, window: int = 0, *, causal: bool = True,
    score: Callable[[Tensor], Tensor] = lambda x: x,
) -> Tensor:  # fmt: skip
    """Return the attention of heads, as rows: (tokens, heads * values). `score` changes the scores."""
    k, v = (each.repeat_interleave(len(q) // len(k), 0) for each in (k, v))
    scores = score(q @ k.transpose(1, 2) * q.shape[-1] ** -0.5)
    distance = torch.arange(q.shape[1])[:, None] - torch.arange(q.shape[1])
    visible = (distance >= 0) & (distance < (window or len(distance))) if causal else distance == distance
    weights = F.softmax(scores.masked_fill(~visible, -torch.inf), -1)
    return (weights @ v).transpose(0, 1).flatten(1)


class MLP(nn.Module):
    def __init__(self, n: int, n_ff: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = matrix(n, n_ff), matrix(n, n_ff), matrix(n_ff, n)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Attention(nn.Module):
    """Attention with rotary embeddings of halves. Subclasses change what becomes of the heads of queries and keys."""

    def __init__(self, config: Any, *, bias: bool = False, causal: bool = True, window: int = 0) -> None:
        super().__init__()
        n, count = config.hidden_size, config.num_attention_heads
        self.size, self.theta = getattr(config, "head_dim", n // count), getattr(config, "rope_theta", 0.0)
        self.causal, self.window, q, kv = causal, window, count * self.size, config.num_key_value_heads * self.size
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(n, each, bias=bias) for each in (q, kv, kv))
        self.o_proj = matrix(q, n)

    def prepared(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys as they are compared."""
        return rotated(q, self.theta), rotated(k, self.theta)

    def mixed(self, x: Tensor) -> Tensor:
        """Return the outputs of the heads."""
        q, k, v = (heads(project(x), self.size) for project in (self.q_proj, self.k_proj, self.v_proj))
        return attend(*self.prepared(q, k), v, self.window, causal=self.causal)

    def forward(self, x: Tensor) -> Tensor:
        return self.o_proj(self.mixed(x))


class Experts(nn.Module):
    """A mixture of experts with a softmax router, and shared experts if there are any."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        n, self.used, self.normed = config.hidden_size, config.num_experts_per_tok, config.norm_topk_prob
        self.gate = matrix(n, config.num_experts)
        self.experts = nn.ModuleList(MLP(n, config.expert_size) for _ in range(config.num_experts))
        if shared := getattr(config, "num_shared_experts", 0):
            self.shared_experts = MLP(n, shared * config.expert_size)

    def routed(self, x: Tensor) -> Tensor:
        weights, chosen = F.softmax(self.gate(x), -1).topk(self.used, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True) if self.normed else weights
        outputs = torch.stack([expert(x) for expert in self.experts], 1)
        return (outputs.gather(1, chosen[:, :, None].expand(-1, -1, x.shape[1])) * weights[:, :, None]).sum(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.routed(x) + self.shared_experts(x) if hasattr(self, "shared_experts") else self.routed(x)


class Layer(nn.Module):
    """A layer of attention and a feed-forward network, or what replaces them."""

    def __init__(self, config: Any, attention: nn.Module, network: nn.Module) -> None:
        super().__init__()
        n, eps, self.self_attn, self.mlp = config.hidden_size, config.rms_norm_eps, attention, network
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(n, eps), RMSNorm(n, eps)

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.self_attn(self.input_layernorm(x))
        return y + self.mlp(self.post_attention_layernorm(y))


class Decoder(PreTrainedModel):
    """The base of models whose `logits` compute those of a text, (tokens, vocabulary)."""

    config_class = PretrainedConfig

    def forward(self, ids: Tensor, *, use_cache: bool = False) -> Any:
        return SimpleNamespace(logits=self.logits(ids[0])[None])


class PlainDecoder(Decoder):
    """A decoder whose layers follow each other, between an embedding and an RMS norm. `layer(config, number)` makes a
    layer."""

    def __init__(self, config: Any, layer: Callable[[Any, int], nn.Module]) -> None:
        super().__init__(config)
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.model.layers = nn.ModuleList(layer(config, number) for number in range(config.num_hidden_layers))
        self.model.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = matrix(config.hidden_size, config.vocab_size)
        self.post_init()

    def logits(self, ids: Tensor) -> Tensor:
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x)
        return self.lm_head(self.model.norm(x))


class Encoder(PreTrainedModel):
    """The base of models whose `states` compute the hidden states of a text, (tokens, values)."""

    config_class = PretrainedConfig

    def forward(self, ids: Tensor) -> Any:
        return SimpleNamespace(last_hidden_state=self.states(ids[0])[None])
