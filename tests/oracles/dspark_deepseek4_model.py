"""The DSpark head for DeepSeek-V4 in torch, for make_dflash_heads.py: layers of the class of transformers, whose
attention is replaced. Written from the facts of llama.cpp, with the tensor names of the class of transformers."""

from typing import Any

import torch
from dflash_model import ChainedHead, ConfidenceHead, MarkovHead
from torch import Tensor, nn
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as modeling


class Attention(modeling.DeepseekV4Attention):
    """The queries of a block attend to a window of the keys of the text's states and of the block."""

    def forward(self, hidden_states: Tensor, states: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        x, pairs = hidden_states[0], self.config.qk_rope_head_dim // 2
        both, n = torch.cat([states, x]), len(states)
        positions = torch.arange(len(both))
        frequencies = self.config.rope_theta ** -(torch.arange(pairs) / pairs)
        angles = positions[:, None] * frequencies
        cos, sin = angles.cos(), angles.sin()
        q = self.q_b_norm(self.q_b_proj(self.q_a_norm(self.q_a_proj(x))).unflatten(1, (self.num_heads, -1)))
        q = modeling.apply_rotary_pos_emb(q, cos[n:], sin[n:])
        kv = modeling.apply_rotary_pos_emb(self.kv_norm(self.kv_proj(both))[:, None], cos, sin)[:, 0]
        seen = positions[n:, None] - positions < self.sliding_window
        scores = (torch.einsum("qhd,kd->hqk", q, kv) * self.scaling).masked_fill(~seen, -torch.inf)
        sinks = self.sinks[:, None, None].expand(-1, len(x), 1)
        observed = torch.cat([scores, sinks], 2).softmax(2)[..., : len(both)]
        y = modeling.apply_rotary_pos_emb(torch.einsum("hqk,kd->qhd", observed, kv), cos[n:], -sin[n:])
        low = self.o_a_proj(y.reshape(len(x), self.config.o_groups, -1)).flatten(1)
        return self.o_b_proj(low)[None], None


class Head(ChainedHead):
    """The draft head, without embedding and output layer, which are the model's."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        n, eps, count = config.hidden_size, config.rms_norm_eps, config.num_hidden_layers
        self.layers = nn.ModuleList(modeling.DeepseekV4DecoderLayer(config, number) for number in range(count))
        for number, layer in enumerate(self.layers):
            layer.self_attn = Attention(config, number)
        self.hc_head, self.n_streams = modeling.DeepseekV4HyperHead(config), config.hc_mult
        self.main_proj = nn.Linear(len(config.dflash_config["target_layer_ids"]) * n, n, bias=False)
        self.main_norm, self.norm = (modeling.DeepseekV4RMSNorm(n, eps) for _ in range(2))
        self.markov_head, self.confidence_head = MarkovHead(config), ConfidenceHead(config)

    def forward(self, embedded: Tensor, features: Tensor) -> Tensor:
        """Return the states of a block, whose embeddings follow tokens with these features."""
        states, x = self.main_norm(self.main_proj(features)), embedded[None, :, None].repeat(1, 1, self.n_streams, 1)
        for layer in self.layers:
            x = layer(x, states=states)
        return self.hc_head(x)[0]

    def before_output(self, states: Tensor) -> Tensor:
        return self.norm(states)
