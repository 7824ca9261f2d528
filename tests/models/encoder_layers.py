"""The residual stream after each layer of the encoders in tests/data, as `transformers` computes it.

data/encoder_layers.npz has a few values of each layer; make_encoder_layers.py writes it.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

DATA = Path(__file__).parents[1] / "data" / "encoder_layers.npz"
Floats = NDArray[np.float32]


def expected_layers(name: str) -> dict[str, Floats]:
    """Return the values of the layers of an encoder, by prefix: "v.blk.0"."""
    with np.load(DATA) as found:
        names, values = found["names"].tolist(), found["values"]
    return {
        each.removeprefix(f"{name}/"): value
        for each, value in zip(names, values, strict=True)
        if each.startswith(f"{name}/")
    }


def sample(residual: Floats) -> Floats:
    """Return the values of a residual stream that the file has: the first ones of three rows."""
    return residual[[0, len(residual) // 2, len(residual) - 1], :12]
