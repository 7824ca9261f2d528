"""Nomic Embed v2 (Nussbaum and Duderstadt, 2025) in torch, for make_reference_models.py, because transformers has no
class for it. Written from what the code of published checkpoints computes, with their tensor names, without the bias of
the experts, for which GGUF has no tensor."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_decoder import Encoder, attend, heads, matrix, rotated


class Attention(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        n, self.theta = config.n_embd, float(config.rotary_emb_base)
        self.size, self.Wqkv, self.out_proj = n // config.n_head, nn.Linear(n, 3 * n), nn.Linear(n, n)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads(self.Wqkv(x), self.size).chunk(3)
        return self.out_proj(attend(rotated(q, self.theta), rotated(k, self.theta), v, causal=False))


class MLP(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(config.n_embd, config.n_inner), nn.Linear(config.n_inner, config.n_embd)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class Experts(nn.Module):
    """Experts whose matrices are rows of one, weighted by their probabilities."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        n, count, self.used = config.n_embd, config.num_experts, config.moe_top_k
        self.router, self.experts = nn.Module(), nn.Module()
        self.router.layer, self.experts.mlp = matrix(n, count), nn.Module()
        for name in ("w1", "w2"):
            setattr(self.experts.mlp, name, nn.Parameter(torch.zeros(count * config.n_inner, n)))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = F.softmax(self.router.layer(x), -1).topk(self.used, -1)
        w1, w2 = (w.unflatten(0, (-1, w.shape[0] // self.router.layer.out_features))
                  for w in (self.experts.mlp.w1, self.experts.mlp.w2))  # fmt: skip
        outputs = torch.stack([F.gelu(x @ up.T) @ down for up, down in zip(w1, w2, strict=True)], 1)
        return (outputs.gather(1, chosen[:, :, None].expand(-1, -1, x.shape[1])) * weights[:, :, None]).sum(1)


class Layer(nn.Module):
    def __init__(self, config: Any, number: int) -> None:
        super().__init__()
        n, eps = config.n_embd, config.layer_norm_epsilon
        self.attn, self.norm1, self.norm2 = Attention(config), nn.LayerNorm(n, eps=eps), nn.LayerNorm(n, eps=eps)
        self.mlp = Experts(config) if number % config.moe_every_n_layers == 1 else MLP(config)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.attn(x))
        return self.norm2(x + self.mlp(x))


class NomicBertModel(Encoder):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        n = config.n_embd
        self.embeddings, self.emb_ln = nn.Module(), nn.LayerNorm(n, eps=config.layer_norm_epsilon)
        self.embeddings.word_embeddings = nn.Embedding(config.vocab_size, n)
        self.embeddings.token_type_embeddings = nn.Embedding(config.type_vocab_size, n)
        self.encoder = nn.Module()
        self.encoder.layers = nn.ModuleList(Layer(config, number) for number in range(config.num_hidden_layers))
        self.post_init()

    def states(self, ids: Tensor) -> Tensor:
        x = self.emb_ln(self.embeddings.word_embeddings(ids) + self.embeddings.token_type_embeddings.weight[0])
        for layer in self.encoder.layers:
            x = layer(x)
        return x
