"""Bamba (IBM, Princeton, CMU and UIUC, 2024): Mamba 2 in most layers, attention with partial rotary embeddings in the
others."""

from localinfer.architectures.mamba2 import state_space
from localinfer.graph.builder import AttentionSpec, Block, Builder, X
from localinfer.graph.decoder import BranchOutput, DecoderSpec, build_decoder
from localinfer.graph.properties.recurrence import read_recurrence


def build(g: Builder[X]) -> None:
    """Layers without key heads are Mamba 2 layers."""
    shape = read_recurrence(g.hparams, "add")

    def mixer(blk: Block, h: X) -> BranchOutput[X] | None:
        return None if blk.heads.count_kv else BranchOutput(state_space(g, blk, h, shape), "ssm_out")

    build_decoder(g, DecoderSpec(attention=AttentionSpec(g.rope("halves"))), mixer)
