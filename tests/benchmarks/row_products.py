"""Times the products of rows with a single token, by format and way of reading, with one thread.

    python tests/benchmarks/row_products.py                    # the k-quants, and formats with blocks of 32
    python tests/benchmarks/row_products.py Q4_K Q6_K --columns 1536

The first table has nanoseconds for a superblock of 256 weights if the weights are in the first-level cache: what the
arithmetic takes. The second one has GB/s if they are in memory: what a decode step of one thread can reach.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[1])]

from locations import CHECKOUT, PYTHONPATH  # noqa: E402

sys.path[:0] = [str(CHECKOUT), *PYTHONPATH]

from kernels import NUMBERS, PRODUCT, SCRATCH_BYTES, compiled, quantize_activations, random_rows  # noqa: E402

from quant import FORMATS  # noqa: E402
from quant.jit.kernel import make_kernel  # noqa: E402
from quant.jit.kernel_call import HEADER_WORDS, RECORD_WORDS  # noqa: E402
from quant.matmul.row_access import CANDIDATES, RowAccess  # noqa: E402

NAMES = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q4_0", "Q5_0", "Q8_0", "IQ4_XS")
CACHED_ROWS, MEMORY_BYTES, SECONDS = 160, 256 << 20, 0.3


def product(name: str, n_in: int, n_out: int, access: RowAccess, *, cached: bool) -> tuple[Callable[[], None], int]:
    """Return a function that multiplies n_out rows of n_in weights with a token, and the bytes of a row.

    `cached` rows overlap: each begins a superblock after the one before it.
    """
    fmt, some = FORMATS[NUMBERS[name]], random_rows(name, 64, n_in)
    row_bytes = some.shape[1]
    stride = row_bytes * 256 // n_in if cached else row_bytes
    w = np.resize(some, n_out * stride + row_bytes)
    source = quantize_activations(np.random.default_rng(0).standard_normal((1, n_in)).astype(np.float32), 0, 1)
    y, constants = np.zeros(n_out, np.float32), fmt.matmul_constants(1)
    arrays = (np.array([1]), source, w, y, np.array(access), np.zeros(1, np.int64), np.zeros(SCRATCH_BYTES, np.uint8))
    tokens, x, rows, out, how, runs, scratch = (each.ctypes.data for each in arrays)
    record = np.zeros(RECORD_WORDS, np.int64)
    values = (tokens, x, rows, stride, n_in, n_out, 0, 0, out, 4 * n_out, 1, how, runs)
    record[HEADER_WORDS : HEADER_WORDS + len(values)] = values
    kernel = make_kernel(fmt.matmul_kernels[False], tuple(PRODUCT.parameters), frozenset(), constants)
    call, address = compiled(kernel), record.ctypes.data

    def run(*_: object, keep: object = (arrays, record)) -> None:
        call(address, 0, 1, scratch)

    return run, row_bytes


def seconds(run: Callable[[], None]) -> float:
    """Return the seconds of a call: the lower decile."""
    times, begin = list[float](), time.perf_counter()
    while len(times) < 5 or time.perf_counter() - begin < SECONDS:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return float(np.quantile(times, 0.1))


def cached_nanoseconds(name: str, n_in: int, access: RowAccess) -> float:
    """Return the nanoseconds of a superblock, without those of a call."""
    few, many = (seconds(product(name, n_in, rows, access, cached=True)[0]) for rows in (8, CACHED_ROWS))
    return 1e9 * (many - few) / ((CACHED_ROWS - 8) * n_in / 256)


def memory_bandwidth(name: str, n_in: int, access: RowAccess) -> float:
    """Return the GB/s that are read from memory."""
    n_out = MEMORY_BYTES // random_rows(name, 1, n_in).shape[1] // 8 * 8
    run, row_bytes = product(name, n_in, n_out, access, cached=False)
    return n_out * row_bytes / seconds(run) / 1e9


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=NAMES, metavar="FORMAT")
    parser.add_argument("--columns", type=int, default=4096, help="weights in a row, a multiple of 256")
    options = parser.parse_args()
    for title, measured in (("ns, first-level cache", cached_nanoseconds), ("GB/s, memory", memory_bandwidth)):
        print(f"{title:24}", *(f"{access.streams} x {access.prefetch}".rjust(9) for access in CANDIDATES))
        for name in options.names:
            print(f"{name:24}", *(f"{measured(name, options.columns, access):9.2f}" for access in CANDIDATES))


if __name__ == "__main__":
    main()
