"""OpenELM (Apple, 2024) in torch, for make_reference_models.py, because transformers has no class for it. Written from
what the code of published checkpoints computes, with their tensor names."""

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from torch_decoder import Decoder, RMSNorm, attend, heads, matrix, rotated


class Attention(nn.Module):
    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        self.size, self.theta, n = config.head_dim, float(config.rope_freq_constant), config.model_dim
        self.n_q, self.n_kv = config.num_query_heads[layer], config.num_kv_heads[layer]
        self.qkv_proj = matrix(n, (self.n_q + 2 * self.n_kv) * self.size)
        self.q_norm, self.k_norm = RMSNorm(self.size, 1e-6), RMSNorm(self.size, 1e-6)
        self.out_proj = matrix(self.n_q * self.size, n)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads(self.qkv_proj(x), self.size).split([self.n_q, self.n_kv, self.n_kv])
        return self.out_proj(attend(rotated(self.q_norm(q), self.theta), rotated(self.k_norm(k), self.theta), v))


class FeedForward(nn.Module):
    def __init__(self, n: int, n_ff: int) -> None:
        super().__init__()
        self.proj_1, self.proj_2 = matrix(n, 2 * n_ff), matrix(n_ff, n)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.proj_1(x).chunk(2, -1)
        return self.proj_2(F.silu(gate) * up)


class Layer(nn.Module):
    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        n, divisor = config.model_dim, config.ffn_dim_divisor
        wanted = config.ffn_multipliers[layer] * n
        n_ff = max(divisor, int(wanted + divisor / 2) // divisor * divisor)
        self.attn, self.attn_norm = Attention(config, layer), RMSNorm(n, 1e-6)
        self.ffn, self.ffn_norm = FeedForward(n, n_ff + divisor if n_ff < 0.9 * wanted else n_ff), RMSNorm(n, 1e-6)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.attn_norm(x))
        return x + self.ffn(self.ffn_norm(x))


class OpenELMForCausalLM(Decoder):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.transformer = nn.Module()
        self.transformer.token_embeddings = nn.Embedding(config.vocab_size, config.model_dim)
        self.transformer.layers = nn.ModuleList(Layer(config, layer) for layer in range(config.num_transformer_layers))
        self.transformer.norm = RMSNorm(config.model_dim, 1e-6)
        self.post_init()

    def logits(self, ids: Tensor) -> Tensor:
        x = self.transformer.token_embeddings(ids)
        for layer in self.transformer.layers:
            x = layer(x)
        return self.transformer.norm(x) @ self.transformer.token_embeddings.weight.T
