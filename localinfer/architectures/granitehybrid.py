"""Granite 4.0 H (IBM, 2025): as granite, with Mamba 2 in most layers, and experts in some models."""

from localinfer.architectures import granite
from localinfer.architectures.mamba2 import state_space
from localinfer.graph.buffers import Buffer
from localinfer.graph.decoder import BranchOutput
from localinfer.graph.graph_builder import GraphBuilder
from localinfer.graph.graph_builder_base import Block


def build(g: GraphBuilder) -> None:
    """Layers without key heads are Mamba 2 layers."""
    shape = g.recurrence("add")

    def mixer(blk: Block, h: Buffer) -> BranchOutput | None:
        return None if blk.heads.count_kv else BranchOutput(state_space(g, blk, h, shape), "ssm_out")

    granite.build(g, g.router(normed=True) if g.has_experts else None, mixer)
