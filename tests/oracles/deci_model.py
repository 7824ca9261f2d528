"""Llama Nemotron (NVIDIA, 2024) and DeciLM in torch, for make_reference_models.py, because transformers has no class
for them. Written from what the code of published checkpoints computes, with their tensor names."""

from typing import Any

from torch import Tensor, nn
from torch_decoder import MLP, PlainDecoder, RMSNorm, attend, heads, matrix, rotated


class Attention(nn.Module):
    """Attention with groups of `group` heads."""

    def __init__(self, config: Any, group: int) -> None:
        super().__init__()
        n, self.size = config.hidden_size, config.hidden_size // config.num_attention_heads
        n_kv, self.theta = n // group, config.rope_theta
        self.q_proj, self.o_proj, self.k_proj, self.v_proj = (matrix(n, size) for size in (n, n, n_kv, n_kv))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads(project(x), self.size) for project in (self.q_proj, self.k_proj, self.v_proj))
        return self.o_proj(attend(rotated(q, self.theta), rotated(k, self.theta), v))


class Linear(nn.Module):
    """A matrix in place of attention."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.linear_attn = matrix(n, n)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_attn(x)


class Layer(nn.Module):
    """A layer that may lack attention or the feed-forward network, if `attention` or `n_ff` is None."""

    def __init__(self, config: Any, attention: nn.Module | None, n_ff: int | None) -> None:
        super().__init__()
        n, eps = config.hidden_size, config.rms_norm_eps
        if attention is not None:
            self.self_attn, self.input_layernorm = attention, RMSNorm(n, eps)
        if n_ff is not None:
            self.mlp, self.post_attention_layernorm = MLP(n, n_ff), RMSNorm(n, eps)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x)) if hasattr(self, "self_attn") else x
        return x + self.mlp(self.post_attention_layernorm(x)) if hasattr(self, "mlp") else x


def layer_of(config: Any, number: int) -> Layer:
    """Return a layer, as config.json describes it."""
    if not hasattr(config, "block_configs"):
        group = config.num_attention_heads // config.num_key_value_heads_per_layer[number]
        return Layer(config, Attention(config, group), config.intermediate_size)
    n, (attention, network) = config.hidden_size, config.block_configs[number].values()
    group, factor = attention["n_heads_in_group"], network["ffn_mult"]
    other = Linear(n) if attention["replace_with_linear"] else None
    n_ff = None if factor is None else -(-int(2 * factor * n / 3) // 256) * 256
    return Layer(config, other if group is None else Attention(config, group), n_ff)


class DeciLMForCausalLM(PlainDecoder):
    def __init__(self, config: Any) -> None:
        super().__init__(config, layer_of)
