"""Granite 3 (IBM, 2024): as llama, with four multipliers: of the embedding, of scores, of branches and of logits."""

from localinfer.plan.decoder import Mixer, Sight, decoder
from localinfer.plan.experts import Router
from localinfer.plan.recorder import Recorder
from localinfer.plan.recurrence import SHAPE_OF_STATES


def record(r: Recorder, router: Router | None = None, mixer: Mixer | None = None) -> None:
    """The logits are divided by theirs. Others of its kind have experts, or recurrent blocks, and files tell of these
    even where there are none; whether anything tells distances, a key says that is about something else elsewhere."""
    keys, rope = r.keys, r.rope("neighbours")
    keys.understand("expert_shared_feed_forward_length", *SHAPE_OF_STATES)
    decoder(
        r,
        Sight(rope if keys.flag("rope.scaling.finetuned", True) else None),
        embedding_scale=keys.positive("embedding_scale", 1.0),
        residual_scale=keys.positive("residual_scale", 1.0),
        scale=keys.number("attention.scale", 0.0) or None,
        logit_scale=1 / keys.positive("logit_scale"),
        router=router,
        mixer=mixer,
    )
