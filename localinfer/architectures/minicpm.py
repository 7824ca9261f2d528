"""MiniCPM (OpenBMB, 2024): as llama, scaled by width and depth; files of its first time do not say how."""

import math

from localinfer.plan.decoder import Sight, decoder
from localinfer.plan.recorder import Recorder


def record(r: Recorder) -> None:
    """The logits are divided by their scale, as in granite; the older files' value is a factor's inverse."""
    keys = r.keys
    decoder(
        r,
        Sight(r.rope("neighbours")),
        embedding_scale=keys.positive("embedding_scale", 12.0),
        residual_scale=keys.positive("residual_scale", 1.4 / math.sqrt(r.block_count)),
        logit_scale=1 / keys.positive("logit_scale", r.embedding_length / 256),
    )
