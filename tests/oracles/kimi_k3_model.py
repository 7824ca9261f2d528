"""Kimi K3 (Kimi Team, 2026) in torch, for make_reference_models.py, because transformers has no class for it. Written
from what the code of its checkpoints and llama.cpp compute, with the checkpoints' tensor names."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_decoder import Decoder, RMSNorm, attend, heads, matrix


class Activation:
    """SiTU, the gated unit of all feed-forward networks."""

    def __init__(self, config: Any) -> None:
        self.beta, self.linear_beta = config.activation_situ_beta, config.activation_situ_linear_beta

    def __call__(self, gate: Tensor, up: Tensor) -> Tensor:
        soft = self.linear_beta * torch.tanh(up / self.linear_beta)
        return self.beta * torch.tanh(gate / self.beta) * torch.sigmoid(gate) * soft


class Network(nn.Module):
    """A feed-forward network whose matrices of gate, up and down have these names."""

    def __init__(self, config: Any, n: int, n_ff: int, *names: str) -> None:
        super().__init__()
        self.names, self.act = names or ("gate_proj", "up_proj", "down_proj"), Activation(config)
        for name, shape in zip(self.names, ((n, n_ff), (n, n_ff), (n_ff, n)), strict=True):
            self.add_module(name, matrix(*shape))

    def forward(self, x: Tensor) -> Tensor:
        gate, up, down = (getattr(self, name) for name in self.names)
        return down(self.act(gate(x), up(x)))


class DeltaAttention(nn.Module):
    """Kimi Delta Attention with a limit of the logarithms of decays."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        kda, n, self.count = config.linear_attn_config, config.hidden_size, config.num_attention_heads
        self.size, self.width, self.bound = kda["head_dim"], kda["short_conv_kernel_size"], kda["gate_lower_bound"]
        inner = self.count * self.size
        for kind in "qkv":
            self.add_module(f"{kind}_proj", matrix(n, inner))
            self.add_module(f"{kind}_conv1d", nn.Conv1d(inner, inner, self.width, groups=inner, bias=False))
        self.f_a_proj, self.f_b_proj = matrix(n, self.size), matrix(self.size, inner)
        self.A_log, self.dt_bias = nn.Parameter(torch.zeros(self.count)), nn.Parameter(torch.zeros(inner))
        self.b_proj, self.g_proj, self.o_proj = matrix(n, self.count), matrix(n, inner), matrix(inner, n)
        self.o_norm = RMSNorm(self.size, config.rms_norm_eps)

    def convolved(self, x: Tensor, kind: str) -> Tensor:
        """Return the heads of queries, keys or values: (tokens, heads, size)."""
        rows = F.pad(getattr(self, f"{kind}_proj")(x).T, (self.width - 1, 0))
        return F.silu(getattr(self, f"{kind}_conv1d")(rows)).T.unflatten(-1, (-1, self.size))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.convolved(x, kind) for kind in "qkv")
        q, k = (each * torch.rsqrt(each.pow(2).sum(-1, keepdim=True) + 1e-6) for each in (q, k))
        steps = (self.f_b_proj(self.f_a_proj(x)) + self.dt_bias).unflatten(-1, (-1, self.size))
        decays = torch.exp(self.bound * torch.sigmoid(self.A_log.exp()[:, None] * steps))
        rates, state, outputs = torch.sigmoid(self.b_proj(x)), torch.zeros(self.count, self.size, self.size), []
        for t in range(len(x)):
            state = state * decays[t][:, :, None]
            learned = rates[t][:, None] * (v[t] - torch.einsum("hk,hkv->hv", k[t], state))
            state = state + torch.einsum("hk,hv->hkv", k[t], learned)
            outputs.append(torch.einsum("hk,hkv->hv", q[t] * self.size**-0.5, state))
        return self.o_proj(self.o_norm(torch.stack(outputs)).flatten(1) * torch.sigmoid(self.g_proj(x)))


class LatentAttention(nn.Module):
    """Latent attention without positions, whose values have gates."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        n, count, self.nope = config.hidden_size, config.num_attention_heads, config.qk_nope_head_dim
        self.rank, self.rope, value, eps = (
            config.kv_lora_rank, config.qk_rope_head_dim, config.v_head_dim, config.rms_norm_eps
        )  # fmt: skip
        self.key, q_rank = self.nope + self.rope, config.q_lora_rank
        if q_rank:
            self.q_a_proj, self.q_a_layernorm = matrix(n, q_rank), RMSNorm(q_rank, eps)
            self.q_b_proj = matrix(q_rank, count * self.key)
        else:
            self.q_proj = matrix(n, count * self.key)
        self.kv_a_proj_with_mqa, self.kv_a_layernorm = matrix(n, self.rank + self.rope), RMSNorm(self.rank, eps)
        self.kv_b_proj = matrix(self.rank, count * (self.nope + value))
        self.g_proj, self.o_proj = matrix(n, count * value), matrix(count * value, n)

    def queries(self, x: Tensor) -> Tensor:
        return self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))) if hasattr(self, "q_a_proj") else self.q_proj(x)

    def forward(self, x: Tensor) -> Tensor:
        q = heads(self.queries(x), self.key)
        latent, shared = self.kv_a_proj_with_mqa(x).split([self.rank, self.rope], -1)
        expanded = self.kv_b_proj(self.kv_a_layernorm(latent)).unflatten(-1, (len(q), -1)).transpose(0, 1)
        k, v = expanded.split([self.nope, expanded.shape[-1] - self.nope], -1)
        y = attend(q, torch.cat([k, shared.expand(len(q), -1, -1)], -1), v)
        return self.o_proj(y * torch.sigmoid(self.g_proj(x)))


class Gate(nn.Module):
    def __init__(self, n: int, count: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(count, n))
        self.e_score_correction_bias = nn.Parameter(torch.zeros(count))


class LatentExperts(nn.Module):
    """Experts that process latent vectors, and a shared one that does not."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        n, latent, n_ff = config.hidden_size, config.routed_expert_hidden_size, config.moe_intermediate_size
        self.used, self.scale = config.num_experts_per_token, config.routed_scaling_factor
        self.gate = Gate(n, config.num_experts)
        self.experts = nn.ModuleList(
            Network(config, latent, n_ff, "w1", "w3", "w2") for _ in range(config.num_experts)
        )
        self.routed_expert_down_proj, self.routed_expert_up_proj = matrix(n, latent), matrix(latent, n)
        self.routed_expert_norm = RMSNorm(latent, config.rms_norm_eps)
        self.shared_experts = Network(config, n, config.num_shared_experts * n_ff)

    def forward(self, x: Tensor) -> Tensor:
        scores = torch.sigmoid(F.linear(x, self.gate.weight))
        chosen = (scores + self.gate.e_score_correction_bias).topk(self.used, dim=-1).indices
        weights = scores.gather(1, chosen)
        weights = self.scale * weights / weights.sum(-1, keepdim=True)
        latent, rows = self.routed_expert_down_proj(x), torch.arange(len(x))[:, None]
        outputs = torch.stack([expert(latent) for expert in self.experts], 1)[rows, chosen]
        y = self.routed_expert_norm((weights[:, :, None] * outputs).sum(1))
        return self.routed_expert_up_proj(y) + self.shared_experts(x)


class Layer(nn.Module):
    def __init__(self, config: Any, number: int) -> None:
        super().__init__()
        n, eps = config.hidden_size, config.rms_norm_eps
        is_full, is_dense = (
            number + 1 in config.linear_attn_config["full_attn_layers"], number < config.first_k_dense_replace
        )  # fmt: skip
        self.begins_block = number % config.attn_res_block_size == 0
        self.self_attn = LatentAttention(config) if is_full else DeltaAttention(config)
        if is_dense:
            self.mlp = Network(config, n, config.intermediate_size)
        else:
            self.block_sparse_moe = LatentExperts(config)
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(n, eps), RMSNorm(n, eps)
        self.self_attention_res_norm, self.self_attention_res_proj = RMSNorm(n, eps), matrix(n, 1)
        self.mlp_res_norm, self.mlp_res_proj = RMSNorm(n, eps), matrix(n, 1)

    def forward(self, x: Tensor, earlier: list[Tensor]) -> Tensor:
        h = mean(x, earlier, self.self_attention_res_norm, self.self_attention_res_proj)
        if self.begins_block:
            earlier.append(x)
        y = self.self_attn(self.input_layernorm(h))
        x = y if self.begins_block else x + y
        h = self.post_attention_layernorm(mean(x, earlier, self.mlp_res_norm, self.mlp_res_proj))
        return x + (self.mlp(h) if hasattr(self, "mlp") else self.block_sparse_moe(h))


def mean(x: Tensor, earlier: list[Tensor], norm: nn.Module, projection: nn.Module) -> Tensor:
    """Return the mean of the residual stream and of those before the blocks of layers."""
    streams = torch.stack([*earlier, x], 1)
    return (F.softmax(projection(norm(streams)), 1) * streams).sum(1)


class KimiK3ForConditionalGeneration(Decoder):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        n, eps = config.hidden_size, config.rms_norm_eps
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(config.vocab_size, n)
        self.model.layers = nn.ModuleList(Layer(config, number) for number in range(config.num_hidden_layers))
        self.model.output_attn_res_norm, self.model.output_attn_res_proj = RMSNorm(n, eps), matrix(n, 1)
        self.model.norm, self.lm_head = RMSNorm(n, eps), matrix(n, config.vocab_size)
        self.post_init()

    def logits(self, ids: Tensor) -> Tensor:
        x, earlier = self.model.embed_tokens(ids), []
        for layer in self.model.layers:
            x = layer(x, earlier)
        x = mean(x, earlier, self.model.output_attn_res_norm, self.model.output_attn_res_proj)
        return self.lm_head(self.model.norm(x))
