"""Nanbeige 4.2 (Nanbeige LLM Lab, 2026) in torch, for make_reference_models.py, because transformers has no class for
it. Written from what llama.cpp computes, with the tensor names of its checkpoints."""

from typing import Any

from torch import Tensor
from torch_decoder import MLP, Attention, Layer, PlainDecoder


class NanbeigeForCausalLM(PlainDecoder):
    """Llama whose layers are applied `num_loops` times, with the last norm between two passes."""

    def __init__(self, config: Any) -> None:
        n, n_ff = config.hidden_size, config.intermediate_size
        super().__init__(config, lambda _, number: Layer(config, Attention(config), MLP(n, n_ff)))

    def logits(self, ids: Tensor) -> Tensor:
        x = self.model.embed_tokens(ids)
        for number in range(self.config.num_loops):
            if number and not self.config.skip_loop_final_norm:
                x = self.model.norm(x)
            for layer in self.model.layers:
                x = layer(x)
        return self.lm_head(self.model.norm(x))
