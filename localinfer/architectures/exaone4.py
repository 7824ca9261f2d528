"""EXAONE 4 (LG, 2025): norms behind the branches only, normalised heads; the larger one has three sliding layers for
each that sees everything, and these know no distances."""

from localinfer.plan.decoder import BEHIND_BRANCHES, NOWHERE, Sight, decoder
from localinfer.plan.recorder import Recorder

PATTERN = 4


def record(r: Recorder) -> None:
    """Without a window all layers turn."""
    rope, window = r.rope("halves"), r.sliding_window()
    everything, nearby = Sight(None if window else rope), Sight(rope, window)
    sights = [nearby if sliding else everything for sliding in r.sliding(PATTERN)]
    decoder(r, sights, head_norm="before", before=NOWHERE, behind=BEHIND_BRANCHES)
