"""PLM in torch, because transformers has no class for it: latent attention as in DeepSeek-V2, and squared ReLU. Written
from the paper (Deng et al., 2025), with the tensor names of checkpoints.

Checkpoints contain such a file, too, which transformers runs with `trust_remote_code`.
"""

from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PretrainedConfig, PreTrainedModel


class PLMConfig(PretrainedConfig):
    """The hyperparameters of config.json."""

    model_type = "plm"


class RMSNorm(nn.Module):
    def __init__(self, n: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(n)), eps

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


class Attention(nn.Module):
    """Heads have nope values that are not rotated, followed by rope values that are; keys share the latter."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        n, self.rank, heads = config.hidden_size, config.kv_lora_rank, config.num_attention_heads
        self.nope, self.rope, self.value = config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim
        self.heads, self.theta = heads, config.rope_theta
        self.q_proj = nn.Linear(n, heads * (self.nope + self.rope), bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(n, self.rank + self.rope, bias=False)
        self.kv_a_layernorm = RMSNorm(self.rank, config.rms_norm_eps)
        self.kv_b_proj = nn.Linear(self.rank, heads * (self.nope + self.value), bias=False)
        self.o_proj = nn.Linear(heads * self.value, n, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q_nope, q_rope = self.q_proj(x).unflatten(1, (self.heads, -1)).split([self.nope, self.rope], -1)
        latent, k_rope = self.kv_a_proj_with_mqa(x).split([self.rank, self.rope], -1)
        kv = self.kv_b_proj(self.kv_a_layernorm(latent)).unflatten(1, (self.heads, -1))
        k_nope, v = kv.split([self.nope, self.value], -1)
        k_rope = self.rotated(k_rope[:, None]).expand(-1, self.heads, -1)
        q, k = torch.cat([q_nope, self.rotated(q_rope)], -1), torch.cat([k_nope, k_rope], -1)
        q, k, v = (each.transpose(0, 1)[None] for each in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)[0]
        return self.o_proj(y.transpose(0, 1).flatten(1))

    def rotated(self, x: Tensor) -> Tensor:
        """Rotate the pairs (0, 1), (2, 3), ... of each head of x, (tokens, heads, rope)."""
        frequencies = self.theta ** (-torch.arange(0, self.rope, 2) / self.rope)
        angles = torch.arange(len(x))[:, None, None] * frequencies
        even, odd = x[..., ::2], x[..., 1::2]
        turned = even * angles.cos() - odd * angles.sin(), even * angles.sin() + odd * angles.cos()
        return torch.stack(turned, -1).flatten(2)


class MLP(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.relu(self.up_proj(x)).square())


class Layer(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(config), MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class PLMForCausalLM(PreTrainedModel):
    """The model. `input_ids` are (1, n)."""

    config_class = PLMConfig
    _tied_weights_keys: ClassVar = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.model.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.model.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embed_tokens

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def forward(self, input_ids: Tensor, *, use_cache: bool = False) -> Any:
        x = self.model.embed_tokens(input_ids[0])
        for layer in self.model.layers:
            x = layer(x)
        return SimpleNamespace(logits=self.lm_head(self.model.norm(x))[None])
