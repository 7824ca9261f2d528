"""Granite 4.0 H (IBM, 2025): as granite, with Mamba 2's recurrent heads in most blocks, and experts in some models."""

from localinfer.architectures import granite
from localinfer.architectures.mamba2 import state_space
from localinfer.plan.basics import Block
from localinfer.plan.buffers import Buffer
from localinfer.plan.decoder import Mixed
from localinfer.plan.recorder import Recorder


def record(r: Recorder) -> None:
    """Blocks without heads of keys are recurrent."""
    shape = r.recurrence("add")

    def mixer(blk: Block, h: Buffer) -> Mixed | None:
        return None if blk.heads.count_kv else Mixed(state_space(r, blk, h, shape), "ssm_out")

    granite.record(r, r.router(normed=True) if r.has_experts else None, mixer)
