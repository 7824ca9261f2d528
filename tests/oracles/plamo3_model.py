"""PLaMo 3 (Preferred Networks and NICT, 2025) in torch, for make_reference_models.py, because transformers has no class
for it. Written from what the code of published checkpoints computes, with their tensor names."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_decoder import Decoder, RMSNorm, attend, heads, matrix, rotated
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS


class OffsetNorm(RMSNorm):
    """RMSNorm whose weights lack an offset."""

    def __init__(self, n: int, eps: float, offset: float = 1.0) -> None:
        super().__init__(n, eps)
        self.offset = offset

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight + self.offset) * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


def yarn(config: Any) -> tuple[Tensor, float]:
    """Return the frequencies of the pairs, and the factor of rotated values."""
    parameters = {
        "rope_type": "yarn", "rope_theta": config.rope_theta, "factor": config.rope_scaling_factor,
        "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
        "original_max_position_embeddings": config.initial_context_length,
    }  # fmt: skip
    of_llama = LlamaConfig(head_dim=config.head_dim, max_position_embeddings=256, rope_parameters=parameters)
    return ROPE_INIT_FUNCTIONS["yarn"](of_llama, torch.device("cpu"))


class Mixer(nn.Module):
    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        n, self.size, eps = config.hidden_size, config.head_dim, config.rms_norm_eps
        q, kv = config.num_attention_heads, config.num_key_value_heads
        self.counts = [q, kv, kv]
        self.qkv_proj, self.o_proj = matrix(n, (q + 2 * kv) * self.size), matrix(q * self.size, n)
        self.q_norm, self.k_norm = OffsetNorm(self.size, eps), OffsetNorm(self.size, eps)
        is_local = (layer + 1) % config.sliding_window_pattern > 0
        self.window = config.window_size if is_local else 0
        self.theta = config.rope_local_theta if is_local else config.rope_theta
        self.scaled = yarn(config) if not is_local and config.rope_scaling_factor != 1 else None

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads(self.qkv_proj(x), self.size).split(self.counts)
        frequencies, factor = self.scaled or (None, 1.0)
        q, k = (factor * rotated(norm(each), self.theta, frequencies=frequencies)
                for norm, each in ((self.q_norm, q), (self.k_norm, k)))  # fmt: skip
        return self.o_proj(attend(q, k, v, self.window))


class MLP(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.gate_up_proj = matrix(config.hidden_size, 2 * config.intermediate_size)
        self.down_proj = matrix(config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, -1)
        return self.down_proj(F.silu(gate) * up)


class Layer(nn.Module):
    def __init__(self, config: Any, mixer: nn.Module) -> None:
        super().__init__()
        n, eps, self.mixer, self.mlp = config.hidden_size, config.rms_norm_eps, mixer, MLP(config)
        self.pre_mixer_norm, self.post_mixer_norm = OffsetNorm(n, eps), OffsetNorm(n, eps, 1 / 5)
        self.pre_mlp_norm, self.post_mlp_norm = OffsetNorm(n, eps), OffsetNorm(n, eps, 1 / 5**1.5)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.post_mixer_norm(self.mixer(self.pre_mixer_norm(x)))
        return x + self.post_mlp_norm(self.mlp(self.pre_mlp_norm(x)))


class Plamo3ForCausalLM(Decoder):
    mixer: Callable[[Any, int], nn.Module] = Mixer  # what the configuration and the number of a layer make

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = nn.Module()
        self.model.embed_tokens, self.model.layers = nn.Embedding(config.vocab_size, config.hidden_size), nn.Module()
        mixers = (type(self).mixer(config, layer) for layer in range(config.num_hidden_layers))
        self.model.layers.layers = nn.ModuleList(Layer(config, mixer) for mixer in mixers)
        self.model.norm = OffsetNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = matrix(config.hidden_size, config.vocab_size)
        self.post_init()

    def logits(self, ids: Tensor) -> Tensor:
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers.layers:
            x = layer(x)
        return self.lm_head(self.model.norm(x))
