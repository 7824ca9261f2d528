"""Granite Switch (IBM, 2026) in torch, for make_reference_models.py, because transformers has no class for it. Written
from what the code of its checkpoints and llama.cpp compute, with the tensor names of checkpoints."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_decoder import PlainDecoder, RMSNorm, attend, heads, matrix, rotated


class SwitchedLinear(nn.Module):
    """A matrix that computes several products at once, and low-rank changes of each of them for each adapter."""

    def __init__(self, config: Any, n_in: int, *n_outs: int) -> None:
        super().__init__()
        self.base_layer, self.n_outs = matrix(n_in, sum(n_outs)), n_outs
        shapes = [(config.max_lora_rank, n_in)] * len(n_outs), [(n_out, config.max_lora_rank) for n_out in n_outs]
        for kind, of_kind in zip("AB", shapes, strict=True):
            given = [nn.Parameter(torch.zeros(config.num_adapters, 1, *shape)) for shape in of_kind]
            if len(given) > 1:
                setattr(self, f"lora_{kind}_slices", nn.ParameterList(given))
            else:
                setattr(self, f"lora_{kind}", given[0])

    def forward(self, x: Tensor, adapters: Tensor) -> tuple[Tensor, ...]:
        several = len(self.n_outs) > 1
        a, b = (getattr(self, f"lora_{kind}_slices") if several else [getattr(self, f"lora_{kind}")] for kind in "AB")
        products = []
        for y, each_a, each_b in zip(self.base_layer(x).split(self.n_outs, -1), a, b, strict=True):
            rows = [
                row + each_b[number - 1, 0] @ (each_a[number - 1, 0] @ token) if number else row
                for row, token, number in zip(y, x, adapters.tolist(), strict=True)
            ]
            products.append(torch.stack(rows))
        return tuple(products)


class Attention(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.size, self.theta = config.hidden_size // config.num_attention_heads, config.rope_theta
        self.scale = config.attention_multiplier
        q, kv = (count * self.size for count in (config.num_attention_heads, config.num_key_value_heads))
        self.qkv_proj = SwitchedLinear(config, config.hidden_size, q, kv, kv)
        self.o_proj = SwitchedLinear(config, q, config.hidden_size)

    def forward(self, x: Tensor, adapters: Tensor) -> Tensor:
        q, k, v = (heads(each, self.size) for each in self.qkv_proj(x, adapters))
        scaled = rotated(q, self.theta) * self.scale * self.size**0.5
        return self.o_proj(attend(scaled, rotated(k, self.theta), v), adapters)[0]


class MLP(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        n, n_ff = config.hidden_size, config.shared_intermediate_size
        self.input_linear, self.output_linear = SwitchedLinear(config, n, n_ff, n_ff), SwitchedLinear(config, n_ff, n)

    def forward(self, x: Tensor, adapters: Tensor) -> Tensor:
        gate, up = self.input_linear(x, adapters)
        return self.output_linear(F.silu(gate) * up, adapters)[0]


class Layer(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        n, eps, self.scale = config.hidden_size, config.rms_norm_eps, config.residual_multiplier
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(n, eps), RMSNorm(n, eps)
        self.self_attn, self.shared_mlp = Attention(config), MLP(config)

    def forward(self, x: Tensor, adapters: Tensor) -> Tensor:
        y = x + self.scale * self.self_attn(self.input_layernorm(x), adapters)
        return y + self.scale * self.shared_mlp(self.post_attention_layernorm(y), adapters)


class GraniteSwitchForCausalLM(PlainDecoder):
    def __init__(self, config: Any) -> None:
        super().__init__(config, lambda config, _: Layer(config))
        del self.lm_head  # the embedding is the output layer

    def adapters(self, ids: Tensor) -> Tensor:
        """Return the adapter of each token: a head of attention finds the control tokens."""
        controls = torch.tensor(self.config.adapter_token_ids)
        values = ((ids[:, None] == controls) * torch.arange(1, len(controls) + 1)).sum(1).float()
        keys = torch.where(values > 0, 1.0, -1.0) * self.config.control_token_gain
        mean = attend(torch.ones(1, len(ids), 1), keys[None, :, None], values[None, :, None])
        return mean[:, 0].round().long().clamp(0, len(controls))

    def logits(self, ids: Tensor) -> Tensor:
        tokens = torch.arange(self.config.vocab_size)
        tokens[self.config.adapter_token_ids] = torch.tensor(self.config.adapter_substitute_token_ids)
        x, adapters = self.config.embedding_multiplier * self.model.embed_tokens(tokens[ids]), self.adapters(ids)
        for layer in self.model.layers:
            x = layer(x, adapters)
        return F.linear(self.model.norm(x), self.model.embed_tokens.weight) / self.config.logits_scaling
