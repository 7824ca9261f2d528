"""Checkpoints with quantized weights: what `quantization_config` describes, and which tensors it makes of them.

FP8 and integers are dequantized to F32; NVFP4 and gpt-oss's MXFP4 keep their bits, and BitNet's packed ternary matrices
are unpacked by `tensors.py`.
"""

from collections.abc import Iterator, Mapping

from localinfer.conversion.architecture import Architecture
from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.tensor_formats import exponent_scales, nvfp4, packed_integers, scaled_matrices
from localinfer.conversion.tensor_formats.safetensors_file import StoredTensor
from localinfer.errors import UnsupportedError
from localinfer.escaping import printable

DEFAULT_BLOCK = (128, 128)  # rows and columns that share a scale
MAX_BLOCK = 1 << 16
COMPRESSED_FORMATS = (
    "float-quantized", "naive-quantized", "int-quantized", "pack-quantized", "nvfp4-pack-quantized",
    "mxfp4-pack-quantized", "mixed-precision", "dense",
)  # fmt: skip
MODELOPT_ALGORITHMS = ("FP8", "NVFP4", "MIXED_PRECISION")  # or longer names, such as FP8_PB_WO
PACKINGS = {"auto_round:auto_gptq": "gptq", "auto_round:auto_awq": "awq"}  # AutoRound's packing formats
SUPPORTED = ("awq", "compressed-tensors", "fp8", "gptq", "modelopt")


def read_method(architecture: Architecture, config: JsonObject) -> str:
    """Return the quantization method, "" if weights are not quantized.

    Raises UnsupportedError naming a method, or a variant of one, that is not supported.
    """
    quantization = quantization_of(config)
    if not quantization.values:
        return ""
    method = quantization.get("quant_method", str, "")
    if method == "auto-round":
        method = PACKINGS.get(quantization.get("packing_format", str, ""), method)
    method = "fp8" if method == "fbgemm_fp8" else method
    own = {"mxfp4": bool(architecture.mxfp4_rows), "bitnet": bool(architecture.ternary_tensors)}
    if is_nvfp4(quantization):
        return method or "modelopt"
    if not own.get(method, method in SUPPORTED):
        known = f"quantized weights of the method {printable(repr(method), 40)} are not supported"
        raise config.error("quantization_config", f"{known}, only {', '.join(SUPPORTED)}", UnsupportedError)
    for key, value, supported in variants(method, quantization):
        if value not in supported:
            raise quantization.error(key, f"{printable(repr(value), 40)} is not supported", UnsupportedError)
    return method


def variants(method: str, quantization: JsonObject) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield keys that select a variant of a method: key, value, and the supported values."""
    if method == "compressed-tensors":
        yield "format", quantization.get("format", str, ""), COMPRESSED_FORMATS
    if method == "awq":
        yield "version", quantization.get("version", str, "gemm").lower(), ("gemm",)
    if method == "modelopt":
        algorithm = quantization.get("quant_algo", str, "")
        known = (each for each in MODELOPT_ALGORITHMS if algorithm.startswith(each))
        yield "quant_algo", next(known, algorithm), MODELOPT_ALGORITHMS


def quantization_of(config: JsonObject) -> JsonObject:
    """Return the description of quantized weights, empty if there is none."""
    key = "quantization_config" if "quantization_config" in config.values else "compression_config"
    return config.child(key)


def is_nvfp4(quantization: JsonObject) -> bool:
    """Whether some or all matrices are stored in NVFP4; these are recognized by their scales."""
    algorithm, layout = (str(quantization.values.get(key)) for key in ("quant_algo", "format"))
    return algorithm.endswith("NVFP4") or layout == "nvfp4-pack-quantized"


def read_ternary_packing(architecture: Architecture, config: JsonObject) -> int:
    """Return the power of the scale of packed ternary matrices: 1, or -1 if the inverse is stored; 0 if they are not
    packed."""
    quantization = quantization_of(config)
    if read_method(architecture, config) != "bitnet":
        return 0
    if quantization.get("quantization_mode", str, "offline") != "offline":
        return 0
    return 1 if quantization.get("linear_class", str, "bitlinear") == "autobitlinear" else -1


def dequantize(
    architecture: Architecture, config: JsonObject, stored: Mapping[str, StoredTensor]
) -> dict[str, StoredTensor]:
    """Return the tensors with quantized matrices joined with their scales.

    Raises LocalInferError naming a tensor whose scales are missing or have another shape, UnsupportedError for a
    quantization that is not supported.
    """
    method, quantization = read_method(architecture, config), quantization_of(config)
    if method in ("bitnet", "mxfp4"):
        return dict(stored)
    joined = exponent_scales.join_matrices(nvfp4.join_matrices(stored))
    if method == "compressed-tensors":
        joined = packed_integers.join_compressed(joined, read_widths(quantization))
    elif method == "gptq":
        version = quantization.get("checkpoint_format", str, "gptq")
        joined = packed_integers.join_transposed(joined, method, int(version != "gptq_v2"), read_widths(quantization))
    elif method == "awq":
        joined = packed_integers.join_transposed(joined, method, 0, read_widths(quantization))
    joined = scaled_matrices.join_matrices(joined, read_block(quantization))
    return scaled_matrices.without_unused_scales(joined) if method and not is_nvfp4(quantization) else joined


def weight_groups(quantization: JsonObject) -> list[JsonObject]:
    """Return the descriptions of the groups of matrices that compressed-tensors has."""
    groups = quantization.child("config_groups")
    return [groups.child(name).child("weights") for name in groups.values]


def read_widths(quantization: JsonObject) -> packed_integers.Widths:
    """Return the numbers of bits of integers, and of columns that share a scale."""
    described = [quantization, *weight_groups(quantization)]
    bits = (each.get(key, int, 0) for each in described for key in ("bits", "num_bits"))
    sizes = (each.get(key, int, 0) for each in described for key in ("group_size", "q_group_size"))
    return packed_integers.Widths(frozenset(bits), frozenset(sizes))


def read_block(quantization: JsonObject) -> tuple[int, int]:
    """Return the number of rows and columns that share a scale."""
    given = [each.get("block_structure", list, None) for each in weight_groups(quantization)]
    block = quantization.get("weight_block_size", list, next((each for each in given if each), [*DEFAULT_BLOCK]))
    if len(block) != 2 or not all(type(each) is int and 1 <= each <= MAX_BLOCK for each in block):
        raise quantization.error("weight_block_size", f"must be two numbers from 1 to {MAX_BLOCK}")
    return block[0], block[1]
