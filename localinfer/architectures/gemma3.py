"""Gemma 3 (Google, 2025): norms around each branch, normalised heads, five sliding layers for each that sees all."""

import math

from localinfer.plan.decoder import BEHIND_BRANCHES, Sight, decoder
from localinfer.plan.recorder import Recorder

BLOCKS_27B = 62  # the largest model scales scores by the embedding's share of a head; its file does not say so
PATTERN = 6  # the last of every six blocks sees the whole context, unless the file says otherwise


def record(r: Recorder) -> None:
    """The embedding is scaled by sqrt(n); sliding layers turn with a base of their own."""
    n, everything, nearby = r.embedding_length, Sight(r.rope("halves")), Sight(r.rope_swa("halves"), r.sliding_window())
    decoder(
        r,
        [nearby if sliding else everything for sliding in r.sliding(PATTERN)],
        activation="gelu",
        head_norm="before",
        behind=BEHIND_BRANCHES,
        embedding_scale=math.sqrt(n),
        scale=(n / r.heads[0].count) ** -0.5 if r.block_count == BLOCKS_27B else None,
    )
