"""GPT-2 (Radford et al., 2019): learned positions, LayerNorms, a plain feed-forward network, biases everywhere."""

from localinfer.plan.decoder import Sight, decoder
from localinfer.plan.recorder import Recorder


def record(r: Recorder) -> None:
    """Nothing turns."""
    decoder(r, Sight(None), activation="gelu", gated=False, learned_positions=True)
