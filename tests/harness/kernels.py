"""Runs single kernels of `quant` on numpy arrays as the executor does, with an op record and threads."""

import threading
from functools import cache
from typing import Any

import gguf
import newest_types  # noqa: F401
import numba  # noqa: F401  (kernels are compiled in this process then: starting one for each takes longer)
import numpy as np
import random_blocks
from guard_pages import guarded_memory
from numpy.typing import NDArray

from localinfer import paths
from localinfer.kernels.signatures import PRODUCT
from quant import FORMATS
from quant.ggml import TYPES
from quant.jit import loader
from quant.jit.cpu import target
from quant.jit.kernel import Kernel, make_kernel
from quant.jit.kernel_call import HEADER_WORDS, RECORD_WORDS, KernelFunction
from quant.matmul.layout import flat_bytes, matmul_scratch_bytes, tiled_bytes
from quant.matmul.row_access import RowAccess, default_row_access

SCRATCH_BYTES = matmul_scratch_bytes(1 << 14)
Bytes, Floats = NDArray[np.uint8], NDArray[np.float32]

NUMBERS = {kind.name: number for number, kind in TYPES.items() if number in FORMATS}


@cache
def compiled(kernel: Kernel) -> Any:
    """Return the kernel as a callable."""
    addresses, _ = loader.load_kernels([kernel], paths.jit_dir())
    return KernelFunction(addresses[kernel])


def run(path: str, arguments: dict[str, Any], threads: int = 1, **constants: int | str) -> None:
    """Call the kernel `module:function`. Arrays are passed by address."""
    floats = frozenset(name for name, value in arguments.items() if isinstance(value, float))
    kernel = make_kernel(path, tuple(arguments), floats, constants)
    record = np.zeros(RECORD_WORDS, np.int64)
    for word, value in enumerate(arguments.values(), HEADER_WORDS):
        if isinstance(value, float):
            record[word : word + 1] = np.array([value]).view(np.int64)
        else:
            record[word] = value.ctypes.data if isinstance(value, np.ndarray) else value
    call = compiled(kernel)
    scratch = np.zeros((threads, SCRATCH_BYTES), np.uint8)
    chunks = [(record.ctypes.data, chunk, threads, scratch[chunk].ctypes.data) for chunk in range(threads)]
    workers = [threading.Thread(target=call, args=chunk) for chunk in chunks]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def get_rows(name: str, rows: Bytes, n: int) -> Floats:
    """Return all rows, decoded: float32 (rows, n)."""
    fmt, count = FORMATS[NUMBERS[name]], len(rows)
    y = np.empty((count, n), np.float32)
    arguments = {
        "tokens": np.array([count]),
        "ids": np.arange(count, dtype=np.int32),
        "per_token": 1,
        "w": rows,
        "row_bytes": rows.shape[1],
        "n": n,
        "y": y,
        "factor": 1.0,
    }
    run(fmt.get_rows_kernel, arguments, format_module=fmt.format_module)
    return y


def quantize_activations(x: Floats, tile: int, passes: int) -> Bytes:
    """Return quantized activations, in the flat layout (`tile` = 0) or tiled."""
    count, n = x.shape
    out = np.zeros((tiled_bytes if tile else flat_bytes)(n, passes) * (count + tile), np.uint8)
    arguments = {"tokens": np.array([count]), "x": x, "n": n, "out": out}
    run("quant.matmul.activations:quantize", arguments, tile=tile, passes=passes)
    return out


def to_bf16(x: Floats) -> NDArray[np.uint16]:
    """Return activations in bfloat16, followed by a guard page."""
    y = copy_before_guard_page(np.zeros((len(x), 2 * x.shape[1]), np.uint8)).view(np.uint16)
    run("quant.formats.floats:to_bf16", {"tokens": np.array([len(x)]), "x": x, "n": x.shape[1], "y": y})
    return y


def matrix_product(
    name: str, function: str, x: Floats, rows: Bytes, passes: int, *, threads: int = 1, add_to: Floats | None = None,
    access: RowAccess | None = None, subtract: bool = False,
) -> Floats:  # fmt: skip
    """Return x . rows^T, (tokens, n_out), computed by the kernel `matvec` or `matmul`. Threads divide rows, and many
    tokens."""
    fmt, (count, n_in), n_out = FORMATS[NUMBERS[name]], x.shape, len(rows)
    tile = target().tokens if function == "matmul" else 0
    y = np.zeros((count, n_out), np.float32) if add_to is None else add_to.copy()
    takes = fmt.activation_type(passes)
    source = x if takes == "f32" else to_bf16(x) if takes == "bf16" else quantize_activations(x, tile, passes)
    base, stride = (0, 0) if add_to is None else (y, 4 * n_out)
    values = (
        np.array([count]), source, rows, rows.shape[1], n_in, n_out, base, stride, y, 4 * n_out, threads,
        np.array([*(access or default_row_access()), subtract]), np.zeros(1, np.int64),
    )  # fmt: skip
    path, constants = fmt.matmul_kernels[function == "matmul"], fmt.matmul_constants(passes)
    run(path, dict(zip(PRODUCT.parameters, values, strict=True)), threads, **constants)
    return y


def random_rows(name: str, n_out: int, n_in: int, seed: int = 0) -> Bytes:
    """Return rows of a format: quantized normal numbers, or random blocks with sensible scales if gguf has
    no encoder.
    """
    rng, number = np.random.default_rng(seed), NUMBERS[name]
    try:
        weights = rng.standard_normal((n_out, n_in)).astype(np.float32)
        rows = gguf.quantize(weights, gguf.GGMLQuantizationType(number))
        return np.ascontiguousarray(rows).view(np.uint8).reshape(n_out, -1)
    except NotImplementedError:
        return random_blocks.random_rows(rng, name, n_out, n_in, 0.02)


def decode(name: str, rows: Bytes) -> Floats:
    """Return the rows as the gguf package decodes them."""
    plain = {"F32": np.float32, "F16": np.float16}.get(name, np.uint8)
    with np.errstate(all="ignore"):
        return gguf.dequantize(rows.view(plain), gguf.GGMLQuantizationType(NUMBERS[name]))


def copy_before_guard_page(rows: Bytes) -> Bytes:
    """Return a copy that ends at a guard page: reading past it ends the process."""
    copy = guarded_memory(rows.nbytes).reshape(rows.shape)
    copy[:] = rows
    return copy
