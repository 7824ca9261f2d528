"""Block formats: bytes to floats and back, and the kernels that eat them. Knows no model and no file."""

from typing import NamedTuple

from quant.ggml import TYPES
from quant.jit.cpu import target


class Format(NamedTuple):
    """A tensor type that can be computed with: its room in this package, and whether its weights are numbers, not codes
    with scales."""

    room: str
    plain: bool

    @property
    def get_rows(self) -> str:
        """The kernel that decodes rows, as `module:function`."""
        return "quant.formats.floats:get_rows" if self.plain else "quant.products.rows:get_rows"

    @property
    def encode(self) -> str:
        """The kernel that makes rows from floats."""
        return "quant.formats.floats:encode" if self.plain else "quant.encoders.encode_rows:encode"

    @property
    def products(self) -> tuple[str, str]:
        """The kernels that multiply, for few and for many tokens."""
        if self.plain:
            return "quant.products.float_products:matvec", "quant.products.float_products:matmul"
        return "quant.products.rows:matvec", "quant.products.panels:matmul"

    @property
    def expert_products(self) -> tuple[str, str]:
        """The same for some of many matrices."""
        return "quant.products.experts:matvec", "quant.products.experts:matmul"

    def takes(self, passes: int) -> str:
        """What they take activations as: "f32", "bf16", or "quantized".

        BF16 takes its like where a CPU multiplies pairs of them, unless two passes ask for precision.
        """
        if not self.plain:
            return "quantized"
        return "bf16" if self.room == "bf16" and passes == 1 and target().bfloats else "f32"

    def expert_constants(self, passes: int) -> dict[str, int | str]:
        """What is compiled into those."""
        return {"room": self.room, "passes": passes, "takes": self.takes(passes)}

    def constants(self, passes: int) -> dict[str, int | str]:
        """What is compiled into them."""
        takes = self.takes(passes)
        return {"room": self.room, **({"passes": passes} if takes == "quantized" else {"takes": takes})}


FLOATS = ("F32", "F16", "BF16")
BLOCKS = (
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    *("IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4"),
    *("IQ3_S", "IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_S", "IQ1_M"),
    *("TQ1_0", "TQ2_0", "Q1_0", "Q2_0"),
)

# By ggml's number of the type.
FORMATS = {
    number: Format(kind.name.lower(), kind.name in FLOATS)
    for number, kind in TYPES.items()
    if kind.name in FLOATS + BLOCKS
}
