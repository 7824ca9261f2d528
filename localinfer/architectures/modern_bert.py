"""ModernBERT (Warner et al., 2024), and what is built like it: GTE, Granite Embedding R2."""

from localinfer.plan.decoder import Sight, decoder
from localinfer.plan.recorder import Recorder

PATTERN = 3  # the first of every three blocks sees the whole text, unless the file says otherwise
ACTIVATIONS = {"gelu": "gelu_erf", "silu": "silu", "swish": "silu", "geglu": "gelu_erf", "swiglu": "silu"}


def record(r: Recorder) -> None:
    """Norms before the branches, but for the first, which the embedding's does for."""
    everything, nearby = Sight(r.rope("halves")), Sight(r.rope_swa("halves"), r.sliding_window())
    activation = r.keys.text("hidden_activation", "gelu")
    if activation not in ACTIVATIONS:
        raise r.keys.refuse("hidden_activation", repr(activation))
    decoder(
        r,
        [nearby if sliding else everything for sliding in r.sliding(PATTERN, first=True)],
        activation=ACTIVATIONS[activation],
        embedding_norm=True,
    )
