"""CogVLM in torch, for the makers of fixtures, because transformers has no class for it. Written from the paper (Wang
et al., 2023) and from what the code of published checkpoints computes, with the tensor names of checkpoints.

CogVLM2 differs from CogVLM in fewer heads of keys and values, in biases of the visual expert, and in a convolution that
merges squares of 2 x 2 patches.
"""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_decoder import RMSNorm
from transformers import PretrainedConfig, PreTrainedModel

IMAGE_ID = 260


def is_inner(is_image: Tensor) -> Tensor:
    """Return which rows of images, of a text (n,), are neither the first nor the last one of their image."""
    before, after = F.pad(is_image[:-1], (1, 0)), F.pad(is_image[1:], (0, 1))
    return is_image & before & after


def rotary_positions(is_image: Tensor) -> Tensor:
    """Return the position of each token: all inner rows of an image share one."""
    inner = is_inner(is_image)
    advances = ~(inner & F.pad(inner[:-1], (1, 0)))
    return advances.long().cumsum(0) - 1


def uses_visual_expert(is_image: Tensor) -> Tensor:
    """Return which rows are multiplied with the matrices of images: those before another row of an image."""
    return is_image & F.pad(is_image[1:], (0, 1))


class MLP(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        n, n_ff = config.hidden_size, config.intermediate_size
        self.gate_proj, self.up_proj = nn.Linear(n, n_ff, bias=False), nn.Linear(n, n_ff, bias=False)
        self.down_proj = nn.Linear(n_ff, n, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Experts(nn.Module):
    """Two feed-forward networks: of text and of images."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.language_mlp, self.vision_mlp = MLP(config), MLP(config)

    def forward(self, x: Tensor, is_visual: Tensor) -> Tensor:
        return torch.where(is_visual[:, None], self.vision_mlp(x), self.language_mlp(x))


class Attention(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        n, self.n_head = config.hidden_size, config.num_attention_heads
        self.size, self.is_second = n // self.n_head, hasattr(config, "num_multi_query_heads")
        self.n_kv = config.num_multi_query_heads if self.is_second else self.n_head
        self.theta, n_qkv = 500_000.0 if self.is_second else 10_000.0, n + 2 * self.n_kv * self.size
        for kind in ("language", "vision"):
            bias = self.is_second and kind == "vision"
            setattr(self, f"{kind}_expert_query_key_value", nn.Linear(n, n_qkv, bias=bias))
            setattr(self, f"{kind}_expert_dense", nn.Linear(n, n, bias=False))

    def forward(self, x: Tensor, is_visual: Tensor, positions: Tensor) -> Tensor:
        qkv = self.product("query_key_value", x, is_visual)
        q, k, v = qkv.split([self.n_head * self.size, self.n_kv * self.size, self.n_kv * self.size], -1)
        q, k, v = (each.unflatten(1, (-1, self.size)).transpose(0, 1) for each in (q, k, v))
        q, k = self.rotated(q, positions), self.rotated(k, positions)
        k, v = (each.repeat_interleave(self.n_head // self.n_kv, 0) for each in (k, v))
        y = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
        return self.product("dense", y.transpose(0, 1).flatten(1), is_visual)

    def product(self, name: str, x: Tensor, is_visual: Tensor) -> Tensor:
        text, visual = (getattr(self, f"{kind}_expert_{name}")(x) for kind in ("language", "vision"))
        return torch.where(is_visual[:, None], visual, text)

    def rotated(self, x: Tensor, positions: Tensor) -> Tensor:
        frequencies = self.theta ** (-torch.arange(0, self.size, 2) / self.size)
        angles = torch.cat([positions[:, None] * frequencies] * 2, -1)
        first, second = x.chunk(2, -1)
        return x * angles.cos() + torch.cat([-second, first], -1) * angles.sin()


class Layer(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(config), Experts(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, is_visual: Tensor, positions: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), is_visual, positions)
        return x + self.mlp(self.post_attention_layernorm(x), is_visual)


class CogVLMForCausalLM(PreTrainedModel):
    """The text model. `rows` take the places of IMAGE_ID in `ids`, (1, n)."""

    config_class = PretrainedConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.model.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.model.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(self, ids: Tensor, rows: Tensor | None = None, *, use_cache: bool = False) -> Any:
        is_image = (ids[0] == IMAGE_ID) & (rows is not None)
        is_visual, positions = uses_visual_expert(is_image), rotary_positions(is_image)
        x = self.model.embed_tokens(ids[0])
        if rows is not None:
            x[is_image] = rows
        for layer in self.model.layers:
            x = layer(x, is_visual, positions)
        return SimpleNamespace(logits=self.lm_head(self.model.norm(x))[None])


class EncoderLayer(nn.Module):
    """A layer of EVA2-CLIP, whose norms are behind the branches."""

    def __init__(self, vision: Any) -> None:
        super().__init__()
        n, self.n_head = vision.hidden_size, vision.num_heads
        self.attention, self.mlp = nn.Module(), nn.Module()
        self.attention.query_key_value, self.attention.dense = nn.Linear(n, 3 * n), nn.Linear(n, n)
        self.mlp.fc1, self.mlp.fc2 = nn.Linear(n, vision.intermediate_size), nn.Linear(vision.intermediate_size, n)
        self.input_layernorm = nn.LayerNorm(n, eps=vision.layer_norm_eps)
        self.post_attention_layernorm = nn.LayerNorm(n, eps=vision.layer_norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.attention.query_key_value(x).unflatten(1, (3, self.n_head, -1)).permute(1, 2, 0, 3)
        y = F.scaled_dot_product_attention(q[None], k[None], v[None])[0].transpose(0, 1).flatten(1)
        x = x + self.input_layernorm(self.attention.dense(y))
        return x + self.post_attention_layernorm(self.mlp.fc2(F.gelu(self.mlp.fc1(x))))


class Projector(nn.Module):
    def __init__(self, config: Any, n_in: int) -> None:
        super().__init__()
        n, n_ff = config.hidden_size, config.intermediate_size
        self.linear_proj, self.norm1 = nn.Linear(n_in, n, bias=False), nn.LayerNorm(n)
        self.dense_h_to_4h, self.gate_proj = nn.Linear(n, n_ff, bias=False), nn.Linear(n, n_ff, bias=False)
        self.dense_4h_to_h = nn.Linear(n_ff, n, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.norm1(self.linear_proj(x)))
        return self.dense_4h_to_h(F.silu(self.gate_proj(x)) * self.dense_h_to_4h(x))


class CogVLMEncoder(PreTrainedModel):
    """The encoder of images, with the names that it has in a checkpoint."""

    config_class = PretrainedConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        vision, n = SimpleNamespace(**config.vision_config), config.hidden_size
        self.is_second = hasattr(config, "num_multi_query_heads")
        self.model = nn.Module()
        self.model.vision = encoder = nn.Module()
        encoder.patch_embedding = patches = nn.Module()
        patches.proj = nn.Conv2d(3, vision.hidden_size, vision.patch_size, vision.patch_size)
        patches.cls_embedding = nn.Parameter(torch.zeros(1, vision.hidden_size))
        patches.position_embedding = nn.Embedding(vision.num_positions, vision.hidden_size)
        encoder.transformer = nn.Module()
        encoder.transformer.layers = nn.ModuleList(EncoderLayer(vision) for _ in range(vision.num_hidden_layers))
        if self.is_second:
            encoder.conv = nn.Conv2d(vision.hidden_size, n, 2, 2)
        encoder.linear_proj = Projector(config, n if self.is_second else vision.hidden_size)
        encoder.boi, encoder.eoi = nn.Parameter(torch.zeros(1, 1, n)), nn.Parameter(torch.zeros(1, 1, n))
        self.post_init()

    def encode(self, pixels: Tensor) -> Tensor:
        """Return the rows of an image (1, 3, height, width)."""
        encoder = self.model.vision
        patches, grid = encoder.patch_embedding, encoder.patch_embedding.proj(pixels)[0]
        x = torch.cat([patches.cls_embedding, grid.flatten(1).T]) + patches.position_embedding.weight
        for layer in encoder.transformer.layers:
            x = layer(x)
        x = x[1:]
        if self.is_second:
            x = encoder.conv(x.T.unflatten(1, grid.shape[1:])[None])[0].flatten(1).T
        return torch.cat([encoder.boi[0], encoder.linear_proj(x), encoder.eoi[0]])
