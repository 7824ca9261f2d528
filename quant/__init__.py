"""Block formats for quantized weights: decoding, encoding and the matrix product kernels.

The package is independent of models and files.
"""

from typing import NamedTuple

from quant.ggml import TYPES
from quant.jit.cpu import target


class Format(NamedTuple):
    """A tensor type with kernels.

    `format_module` is the name of its module in `quant.formats`. `is_float` is true for F32, F16 and BF16, whose
    weights are plain numbers instead of codes with scales.
    """

    format_module: str
    is_float: bool

    @property
    def get_rows_kernel(self) -> str:
        """The kernel that decodes rows to float32, as `module:function`."""
        return "quant.formats.floats:get_rows" if self.is_float else "quant.matmul.dequantize:get_rows"

    @property
    def encode_kernel(self) -> str:
        """The kernel that encodes float32 rows, as `module:function`."""
        return "quant.formats.floats:encode" if self.is_float else "quant.encoders.encoder_kernel:encode_rows"

    @property
    def matmul_kernels(self) -> tuple[str, str]:
        """The matrix product kernels for few tokens (matvec) and for many tokens (matmul)."""
        if self.is_float:
            return "quant.matmul.float_matmul:matvec", "quant.matmul.float_matmul:matmul"
        return "quant.matmul.rows:matvec", "quant.matmul.panels:matmul"

    @property
    def expert_matmul_kernels(self) -> tuple[str, str]:
        """The matrix product kernels for mixture-of-experts layers: for few tokens and for many."""
        return "quant.matmul.experts:matvec", "quant.matmul.experts:matmul"

    def activation_type(self, passes: int) -> str:
        """Return the type in which the kernels read activations: "f32", "bf16" or "quantized".

        BF16 weights are multiplied by bfloat16 activations if the CPU has a bfloat16 dot product. With two passes (high
        precision), they are multiplied by float32 activations.
        """
        if not self.is_float:
            return "quantized"
        return "bf16" if self.format_module == "bf16" and passes == 1 and target().has_bf16_dot else "f32"

    def expert_matmul_constants(self, passes: int) -> dict[str, int | str]:
        """Return the constants that are compiled into the expert kernels."""
        return {"format_module": self.format_module, "passes": passes, "activation_type": self.activation_type(passes)}

    def matmul_constants(self, passes: int) -> dict[str, int | str]:
        """Return the constants that are compiled into the matrix product kernels."""
        if self.is_float:
            return {"format_module": self.format_module, "activation_type": self.activation_type(passes)}
        return {"format_module": self.format_module, "passes": passes}


FLOAT_TYPES = ("F32", "F16", "BF16")
BLOCK_TYPES = (
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    *("IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4"),
    *("IQ3_S", "IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_S", "IQ1_M"),
    *("TQ1_0", "TQ2_0", "Q1_0", "Q2_0"),
    *("IQ2_K", "IQ3_K", "IQ4_K", "IQ5_K", "IQ6_K", "IQ2_KS", "IQ3_KS", "IQ4_KS", "IQ5_KS"),
    *("IQ2_KL", "IQ4_KSS"),
    *("IQ1_KT", "IQ2_KT", "IQ3_KT", "IQ4_KT"),
)

# The key is ggml's type number.
FORMATS = {
    number: Format(kind.name.lower(), kind.name in FLOAT_TYPES)
    for number, kind in TYPES.items()
    if kind.name in FLOAT_TYPES + BLOCK_TYPES
}
