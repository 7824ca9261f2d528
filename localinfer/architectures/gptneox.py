"""GPT-NeoX and Pythia (EleutherAI, 2022): LayerNorms, parallel branches unless the file says otherwise, some values of
a head turn, biases everywhere."""

from localinfer.plan.decoder import Sight, decoder
from localinfer.plan.recorder import Recorder


def record(r: Recorder) -> None:
    """The gelu is the exact one."""
    parallel = r.keys.flag("use_parallel_residual", True)
    decoder(r, Sight(r.rope("halves")), activation="gelu_erf", gated=False, parallel=parallel)
