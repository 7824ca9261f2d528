"""Nemotron-H and Nemotron Nano 2 (NVIDIA, 2025): each layer is Mamba 2, attention without positions, or a plain
feed-forward network with squared ReLU."""

from localinfer.architectures.mamba2 import state_space
from localinfer.graph.attention import qkv
from localinfer.graph.builder import AttentionSpec, Builder, Router, X
from localinfer.graph.decoder import BranchOutput, add_branch
from localinfer.graph.feed_forward import feed_forward
from localinfer.graph.mixture_of_experts import routed_experts, shared_expert
from localinfer.graph.properties.recurrence import read_recurrence


def build(g: Builder[X], router: Router | None = None) -> None:
    """The tensors of a layer determine its kind. A variant has experts in some or all layers instead of the
    feed-forward network."""
    g.hparams.accept("rope.dimension_count", "rope.freq_base")  # in the files, but there is no RoPE
    n, shape, x = g.embedding_length, read_recurrence(g.hparams, "add"), g.embeddings.tokens()
    for blk in g.blocks():
        h = g.norm(x, f"{blk}attn_norm")
        if blk.heads.count_kv:
            q, k, v = qkv(g, h, blk)
            attention = BranchOutput(g.attend(blk, q, k, v, AttentionSpec()), "attn_output")
            add_branch(g, x, attention, blk, point="attn_out")
        elif g.tensors.has(f"{blk}ssm_in.weight"):
            g.matmul(state_space(g, blk, h, shape), f"{blk}ssm_out", n, add_to=x)
        elif router and g.tensors.has(f"{blk}ffn_gate_inp.weight"):
            g.add(x, routed_experts(g, h, blk, router, "relu_squared", gated=False))
            g.add(x, shared_expert(g, h, blk, "relu_squared", gated=False))
        else:
            network = BranchOutput(feed_forward(g, h, blk, "relu_squared", gated=False), "ffn_down")
            add_branch(g, x, network, blk, point="ffn_out")
    g.output.logits(x)
