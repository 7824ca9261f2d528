"""OLMo 2 and 3 (Allen Institute for AI, 2024): norms behind the branches only, and over whole rows of queries and keys;
OLMo 3 has sliding layers, whose rotary embedding is not stretched."""

from localinfer.plan.decoder import BEHIND_BRANCHES, NOWHERE, Sight, decoder
from localinfer.plan.recorder import Recorder

PATTERN = 4


def record(r: Recorder) -> None:
    """A SwiGLU feed-forward network, as llama's."""
    everything, nearby = Sight(r.rope("halves")), Sight(r.rope_swa("halves", "rope.freq_base"), r.sliding_window())
    sights = [nearby if sliding else everything for sliding in r.sliding(PATTERN)]
    decoder(r, sights, row_norm=True, before=NOWHERE, behind=BEHIND_BRANCHES)
