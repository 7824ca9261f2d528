"""Block formats: bytes to floats, and the kernels that eat them. Knows no model and no file."""

from typing import NamedTuple

from quant.ggml import TYPES


class Format(NamedTuple):
    """A tensor type that can be computed with: its room in this package, and the module with its kernels."""

    room: str
    kernels: str

    @property
    def takes_floats(self) -> bool:
        """Whether its products take activations as they are, not quantized."""
        return self.kernels == "quant.floats"


FLOATS = ("F32", "F16", "BF16")
BLOCKS = (
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
    *("Q4_K", "Q6_K"),
    *("IQ4_NL", "MXFP4"),
    *("TQ1_0", "TQ2_0"),
)

# By ggml's number of the type.
FORMATS = {
    number: Format(kind.name.lower(), "quant.floats" if kind.name in FLOATS else "quant.rows")
    for number, kind in TYPES.items()
    if kind.name in FLOATS + BLOCKS
}
