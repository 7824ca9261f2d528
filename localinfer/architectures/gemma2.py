"""Gemma 2 (Google, 2024): norms around each branch, scores and logits kept within caps, every other layer slides."""

import math

from localinfer.plan.decoder import BEHIND_BRANCHES, Sight, decoder
from localinfer.plan.recorder import Recorder

BLOCKS_27B = 46  # the largest model scales scores by the embedding's share of a head; its file does not say so
PATTERN = 2  # the second of every two blocks sees the whole context
WINDOW = 4096  # unless the file says otherwise


def record(r: Recorder) -> None:
    """All layers turn alike."""
    n, rope, window = r.embedding_length, r.rope("halves"), r.sliding_window(WINDOW)
    decoder(
        r,
        [Sight(rope, window if sliding else 0) for sliding in r.sliding(PATTERN, WINDOW)],
        activation="gelu",
        behind=BEHIND_BRANCHES,
        embedding_scale=math.sqrt(n),
        scale=(n / r.heads[0].count) ** -0.5 if r.block_count == BLOCKS_27B else None,
        cap=r.keys.number("attn_logit_softcapping", 50.0),
        logit_cap=r.keys.number("final_logit_softcapping", 30.0),
    )
