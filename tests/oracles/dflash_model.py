"""The heads of DFlash and DSpark in torch, for make_dflash_heads.py, because transformers has no classes for them.
Written from the facts of the papers (Chen et al., 2026; DeepSeek, 2026) and of llama.cpp, with the tensor names of
checkpoints."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP, rotate_half


class Norm(nn.Module):
    """RMSNorm, in the precision of its input."""

    def __init__(self, n: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(n)), eps

    def forward(self, x: Tensor) -> Tensor:
        return normalized(x, self.eps) * self.weight


def normalized(x: Tensor, eps: float) -> Tensor:
    return x * (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt()


class Attention(nn.Module):
    """The queries of a block attend to the keys of the text's states and of the block."""

    def __init__(self, config: Any, window: int) -> None:
        super().__init__()
        n, self.head, self.window = config.hidden_size, config.head_dim, window
        queries, keys = config.num_attention_heads * self.head, config.num_key_value_heads * self.head
        self.q_proj, self.k_proj = nn.Linear(n, queries, bias=False), nn.Linear(n, keys, bias=False)
        self.v_proj = None if config.is_gemma4 else nn.Linear(n, keys, bias=False)
        self.o_proj = nn.Linear(queries, n, bias=False)
        self.q_norm, self.k_norm = (Norm(self.head, config.rms_norm_eps) for _ in "qk")
        self.causal, self.eps = getattr(config, "is_causal", False), config.rms_norm_eps
        self.value_scale = config.dflash_config.get("attention_value_scale", 1.0)
        self.scale = 1.0 if config.is_gemma4 else self.head**-0.5
        self.sinks = nn.Parameter(torch.zeros(config.num_attention_heads)) if config.has_sinks else None
        rope, pairs = config.rope_parameters, torch.arange(self.head // 2, dtype=torch.float64)
        self.frequencies = rope["rope_theta"] ** (-2 * pairs / self.head)
        self.frequencies[int(rope.get("partial_rotary_factor", 1.0) * len(pairs)) :] = 0

    def forward(self, x: Tensor, states: Tensor) -> Tensor:
        both = torch.cat([states, x])
        q, k = (each.unflatten(1, (-1, self.head)) for each in (self.q_proj(x), self.k_proj(both)))
        v = self.v_proj(both).unflatten(1, (-1, self.head)) if self.v_proj else normalized(k, self.eps)
        q, k, v = (each.transpose(0, 1) for each in (self.q_norm(q), self.k_norm(k), v))
        positions = torch.arange(len(both))
        own = positions[len(states) :]
        q, k = self.rotate(q, own), self.rotate(k, positions)
        seen = own[:, None] - positions < (self.window or len(both))
        if self.causal:
            seen = seen & (positions <= own[:, None])
        k, v = (each.repeat_interleave(len(q) // len(k), 0) for each in (k, v))
        scores = (q @ k.transpose(1, 2) * self.scale).masked_fill(~seen, -torch.inf)
        if self.sinks is not None:
            scores = torch.cat([scores, self.sinks[:, None, None].expand(-1, len(x), 1)], 2)
        observed = scores.softmax(2)[..., : len(both)] @ v * self.value_scale
        return self.o_proj(observed.transpose(0, 1).flatten(1))

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        angles = (positions[:, None] * self.frequencies).tile(2)
        return x * angles.cos() + rotate_half(x) * angles.sin()


class Convolution(nn.Module):
    """The convolution over the tokens of a block before and after a branch of DFlash 2."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        n, own = config.hidden_size, config.dflash_config
        self.taps, self.groups = own["conv_kernel_size"], n // own["conv_group_size"]
        self.base_kernel = nn.Parameter(torch.zeros(2, self.taps, n))
        self.kernel_projection = nn.Linear(n, 2 * self.taps * self.groups, bias=False)

    def filters(self, x: Tensor) -> Tensor:
        """Return the two filters of each token, (tokens, 2, taps, n)."""
        dynamic = self.kernel_projection(x).unflatten(1, (2, self.taps, self.groups))
        return self.base_kernel + dynamic.repeat_interleave(x.shape[1] // self.groups, 3)

    def forward(self, x: Tensor, filters: Tensor) -> Tensor:
        padded = torch.cat([torch.zeros(self.taps - 1, x.shape[1], dtype=x.dtype), x])
        shifted = [padded[self.taps - 1 - tap :][: len(x)] for tap in range(self.taps)]
        return (filters * torch.stack(shifted, 1)).sum(1)


class Selector(nn.Module):
    """Chooses one of the most probable tokens, given the token before it."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        rank, self.count = config.dflash_config["selector_rank"], config.dflash_config["selector_top_k"]
        self.predecessor_codebook = nn.Parameter(torch.zeros(config.vocab_size, rank))
        self.successor_codebook = nn.Parameter(torch.zeros(config.vocab_size, rank))
        self.hidden_projection = nn.Linear(config.hidden_size, rank, bias=False)

    def forward(self, states: Tensor, logits: Tensor, id: int) -> Tensor:
        """Return the scores of draft tokens, of which each follows the best one before it, the first one the token
        `id`: -inf for other tokens than the candidates."""
        rows = []
        for gate, row in zip(self.hidden_projection(states), logits, strict=True):
            best = row.topk(self.count).indices
            scores = torch.full_like(row, -torch.inf)
            scores[best] = row[best] + self.successor_codebook[best] @ (self.predecessor_codebook[id] * gate)
            rows.append(scores)
            id = int(scores.argmax())
        return torch.stack(rows)


class Layer(nn.Module):
    def __init__(self, config: Any, window: int) -> None:
        super().__init__()
        self.input_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.self_attn, self.mlp = Attention(config, window), Qwen3MLP(config)

    def forward(self, x: Tensor, states: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), states)
        return x + self.mlp(self.post_attention_layernorm(x))


class ConvolvingLayer(Layer):
    """A layer of DFlash 2."""

    def __init__(self, config: Any, window: int) -> None:
        super().__init__(config, window)
        self.attention_conv, self.mlp_conv = Convolution(config), Convolution(config)

    def forward(self, x: Tensor, states: Tensor) -> Tensor:
        h = self.input_layernorm(x)
        before, after = self.attention_conv.filters(h).unbind(1)
        x = x + self.attention_conv(self.self_attn(self.attention_conv(h, before), states), after)
        h = self.post_attention_layernorm(x)
        before, after = self.mlp_conv.filters(h).unbind(1)
        return x + self.mlp_conv(self.mlp(self.mlp_conv(h, before)), after)


class Gemma4Layer(Layer):
    """A layer with norms after its branches, too, and a factor."""

    def __init__(self, config: Any, window: int) -> None:
        super().__init__(config, window)
        self.pre_feedforward_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.post_feedforward_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.layer_scalar = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor, states: Tensor) -> Tensor:
        x = x + self.post_attention_layernorm(self.self_attn(self.input_layernorm(x), states))
        x = x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))
        return x * self.layer_scalar


class MarkovHead(nn.Module):
    """Adds to the logits of a token what follows from the token before it."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(config.vocab_size, config.markov_rank)
        self.markov_w2 = nn.Linear(config.markov_rank, config.draft_vocab_size or config.vocab_size, bias=False)


class ConfidenceHead(nn.Module):
    """Estimates the probability that a draft token is accepted."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.proj = nn.Linear(config.hidden_size + config.markov_rank, 1, bias=config.confidence_bias)


class ChainedHead(nn.Module):
    """A head that may have a Markov head and a confidence head."""

    def before_output(self, states: Tensor) -> Tensor:
        """Return what the output layer reads of the states of a block."""
        return states

    def chain(self, states: Tensor, logits: Tensor, id: int, tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the logits of draft tokens, each of which follows the most probable one before it, the first one the
        token `id`, and the probabilities that they are accepted. `tokens` are those of the rows of logits."""
        rows, confidences = [], []
        for state, row in zip(states, logits, strict=True):
            m = self.markov_head.markov_w1.weight[id]
            rows.append(row + self.markov_head.markov_w2(m))
            id = tokens[int(rows[-1].argmax())]
            if hasattr(self, "confidence_head"):
                confidences.append(self.confidence_head.proj(torch.cat([state, m])).sigmoid())
        return torch.stack(rows), torch.cat(confidences) if confidences else torch.zeros(0)


class Head(ChainedHead):
    """The draft head, without embedding, which is the model's. The output layer is its own in a reduced vocabulary."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        n, eps = config.hidden_size, config.rms_norm_eps
        kinds = config.layer_types or ["full_attention"] * config.num_hidden_layers
        windows = [config.sliding_window if each == "sliding_attention" else 0 for each in kinds]
        is_second = "selector_rank" in config.dflash_config
        kind = Gemma4Layer if config.is_gemma4 else ConvolvingLayer if is_second else Layer
        self.layers = nn.ModuleList(kind(config, window) for window in windows)
        self.fc = nn.Linear(len(config.dflash_config["target_layer_ids"]) * n, n, bias=False)
        self.hidden_norm, self.norm = Norm(n, eps), Norm(n, eps)
        if is_second:
            self.candidate_selector = Selector(config)
        if config.markov_rank:
            self.markov_head = MarkovHead(config)
        if config.has_confidence:
            self.confidence_head = ConfidenceHead(config)
        if config.draft_vocab_size:
            self.lm_head = nn.Linear(n, config.draft_vocab_size, bias=False)

    def forward(self, embedded: Tensor, features: Tensor) -> Tensor:
        """Return the states of a block, whose embeddings follow tokens with these features."""
        states, x = self.hidden_norm(self.fc(features)), embedded
        for layer in self.layers:
            x = layer(x, states)
        return self.norm(x)
