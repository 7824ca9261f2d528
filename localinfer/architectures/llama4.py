"""Llama 4 (Meta, 2025; Scout and Maverick: text): three layers that turn and see their own stretch of the text for each
that does not turn and sees everything; one expert for each token, beside one for all, in every block or every other."""

from localinfer.plan.decoder import Sight, decoder
from localinfer.plan.recorder import Recorder

PATTERN = 4  # the last of so many layers sees everything
STRETCH = 8192  # positions
MAVERICK = 128  # experts: this one does not normalise heads, and files do not say so


def record(r: Recorder) -> None:
    """An expert is given as much of a token as its probability is."""
    stretch = r.sliding_window(STRETCH)
    if not stretch:
        raise r.keys.refuse("attention.sliding_window", 0)
    router = r.router("sigmoid", weighs_inputs=True)
    r.keys.name("interleave_moe_layer_step")  # which blocks have experts is seen by their routers
    norm = "no" if router.count == MAVERICK else "to_one"
    nearby = Sight(r.rope("neighbours", grows=False), stretch, stretches=True, head_norm=norm)
    everything = Sight(r.growing(0.1, STRETCH, ahead=1))
    decoder(r, [nearby if near else everything for near in r.sliding(PATTERN, STRETCH)], router=router)
