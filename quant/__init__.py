"""Block formats: bytes to floats and back, and the kernels that eat them. Knows no model and no file."""

from typing import NamedTuple

from quant.ggml import TYPES


class Format(NamedTuple):
    """A tensor type that can be computed with: its room in this package, and whether its products take activations as
    they are, not quantized."""

    room: str
    takes_floats: bool

    @property
    def get_rows(self) -> str:
        """The kernel that decodes rows, as `module:function`."""
        return "quant.floats:get_rows" if self.takes_floats else "quant.rows:get_rows"

    @property
    def encode(self) -> str:
        """The kernel that makes rows from floats."""
        return "quant.floats:encode" if self.takes_floats else "quant.encode_rows:encode"

    @property
    def products(self) -> tuple[str, str]:
        """The kernels that multiply, for few and for many tokens."""
        if self.takes_floats:
            return "quant.floats:matvec", "quant.floats:matmul"
        return "quant.rows:matvec", "quant.panels:matmul"


FLOATS = ("F32", "F16", "BF16")
BLOCKS = (
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    *("IQ4_NL", "IQ4_XS", "MXFP4"),
    *("IQ3_S", "IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_S", "IQ1_M"),
    *("TQ1_0", "TQ2_0"),
)

# By ggml's number of the type.
FORMATS = {
    number: Format(kind.name.lower(), kind.name in FLOATS)
    for number, kind in TYPES.items()
    if kind.name in FLOATS + BLOCKS
}
