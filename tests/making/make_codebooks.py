"""Generate quant/packing/codebooks.npz from the tables of the gguf package.

    python tests/making/make_codebooks.py
"""

from pathlib import Path

import gguf.quants
import numpy as np
from numpy.typing import NDArray

CODEBOOKS = Path(__file__).parents[2] / "quant" / "packing" / "codebooks.npz"
TABLES = ("IQ3_S", "IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_S")


def table(name: str) -> NDArray[np.int8]:
    """Return the entries of a format's grid, (count, columns) int8."""
    quant_class = getattr(gguf.quants, name)
    quant_class.init_grid()
    return np.asarray(quant_class.grid[0, 0], np.int8)


if __name__ == "__main__":
    np.savez_compressed(CODEBOOKS, **{name.lower(): table(name) for name in TABLES})
