"""Granite 3 (IBM, 2024): as llama, with four multipliers: of the embedding, of scores, of branches and of logits."""

from localinfer.plan.decoder import Sight, decoder
from localinfer.plan.experts import Router
from localinfer.plan.recorder import Recorder


def record(r: Recorder, router: Router | None = None) -> None:
    """The logits are divided by theirs. Others of its kind have experts."""
    keys = r.keys
    decoder(
        r,
        Sight(r.rope("neighbours")),
        embedding_scale=keys.positive("embedding_scale", 1.0),
        residual_scale=keys.positive("residual_scale", 1.0),
        scale=keys.number("attention.scale", 0.0) or None,
        logit_scale=1 / keys.positive("logit_scale"),
        router=router,
    )
