"""Granite 4.0 H (IBM, 2025): as granite, with Mamba 2 in most layers, and experts in some models."""

from localinfer.architectures import granite
from localinfer.architectures.mamba2 import state_space
from localinfer.graph.builder import Block, Builder, X
from localinfer.graph.decoder import BranchOutput
from localinfer.graph.mixture_of_experts import has_experts, read_router
from localinfer.graph.properties.recurrence import read_recurrence


def build(g: Builder[X]) -> None:
    """Layers without key heads are Mamba 2 layers."""
    shape = read_recurrence(g.hparams, "add")

    def mixer(blk: Block, h: X) -> BranchOutput[X] | None:
        return None if blk.heads.count_kv else BranchOutput(state_space(g, blk, h, shape), "ssm_out")

    granite.build(g, read_router(g, normed=True) if has_experts(g) else None, mixer)
