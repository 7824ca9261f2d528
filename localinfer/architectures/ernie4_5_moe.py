"""ERNIE 4.5 with experts (Baidu, 2025): as llama; a first block without experts, a biased choice, shared experts."""

from localinfer.plan.decoder import Sight, decoder
from localinfer.plan.recorder import Recorder


def record(r: Recorder) -> None:
    """The weights of the chosen are divided by their sum. Which blocks have experts is seen by their routers."""
    r.keys.name("interleave_moe_layer_step")
    decoder(r, Sight(r.rope("neighbours")), router=r.router(normed=True))
