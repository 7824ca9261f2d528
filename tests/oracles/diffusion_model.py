"""Diffusion language models in torch, for make_reference_models.py, because transformers has no classes for them: LLaDA
(Nie et al., 2025), LLaDA-MoE, Dream (HKU and Huawei, 2025) and RND1 (Radical Numerics, 2025). Written from what the
code of published checkpoints computes. All of them attend in both directions."""

from typing import Any

import torch_decoder
from torch import Tensor, nn
from torch_decoder import MLP, Experts, Layer, PlainDecoder, RMSNorm


class Attention(torch_decoder.Attention):
    """Attention in both directions, with norms of heads in some models."""

    def __init__(self, config: Any) -> None:
        super().__init__(config, bias=config.qkv_bias, causal=False)
        self.q_norm, self.k_norm = (
            RMSNorm(self.size, config.rms_norm_eps) if config.head_norms else nn.Identity() for _ in range(2)
        )

    def prepared(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return super().prepared(self.q_norm(q), self.k_norm(k))


def layer(config: Any, number: int) -> Layer:
    """Return a layer, as config.json describes it."""
    network = Experts(config) if config.num_experts else MLP(config.hidden_size, config.intermediate_size)
    return Layer(config, Attention(config), network)


class DreamModel(PlainDecoder):
    def __init__(self, config: Any) -> None:
        super().__init__(config, layer)


class LLaDAModelLM(DreamModel):
    pass


class LLaDAMoEModelLM(DreamModel):
    pass


class RND1(DreamModel):
    pass
