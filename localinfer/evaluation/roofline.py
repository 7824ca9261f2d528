"""Roofline of this machine: its peak memory bandwidth and multiply-accumulate rates.

The roofline is measured on demand, in about a second, with as many threads as the measurement it is compared with. It
is cached only for the life of the process, because the speed of a shared machine changes from hour to hour. The memory
bandwidth is also remembered in a file, for estimates of how fast models will be. See Williams, Waterman and Patterson,
"Roofline" (2009).
"""

import contextlib
import json
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

import numpy as np

from localinfer import paths
from localinfer.graph.ops.compute_graph import ComputeGraph
from localinfer.graph.ops.cost import NO_COST, Cost
from localinfer.kernels.layout import OPERAND_RING, products_shape, round_bytes
from localinfer.machine import resources
from quant.jit import loader
from quant.jit.cpu import target
from quant.jit.files import replace_file
from quant.jit.kernel import Kernel
from quant.jit.kernel_cache import KernelCache
from quant.jit.kernel_call import HEADER_WORDS, RECORD_WORDS, KernelFunction
from quant.matmul.row_access import CANDIDATES

STREAMED_BYTES, PIECE_BYTES = 512 << 20, 128 << 20  # more than the caches hold; the bytes read in one run
SHARE_OF_MEMORY = 4  # use at most a fourth of the available memory
RUNS = 12  # the best one counts; many short ones, so that some are undisturbed ...
MIN_SECONDS = 0.004  # ... but long enough that waking the threads, 50 us, is negligible

BANDWIDTH_FILE = "bandwidth.json"  # beside the kernel cache: bytes per second by number of threads
Seconds = Callable[..., float]  # of one run of a kernel with these arguments, by all threads

HERE = "localinfer.kernels.roofline"
READ = Kernel(HERE, "read_bandwidth", ("memory", "nbytes", "streams", "prefetch", "result"))
MULTIPLY = {
    kind: Kernel(HERE, "multiply", ("operands", "rounds", "result"), constants=(("kind", kind),))
    for kind in (("dot", "fma", "pair") if target().has_bf16_dot else ("dot", "fma"))
}
KERNELS = [READ, *MULTIPLY.values()]


@dataclass(frozen=True, slots=True)
class Roofline:
    """Peak rates per second: bytes, and multiply-accumulates of small integers, of floats and of bfloat16 pairs.

    The last two are equal if the CPU has no instruction that multiplies pairs.
    """

    threads: int
    bandwidth: float
    dots: float
    fmas: float
    pairs: float

    def memory_time(self, cost: Cost) -> float:
        """Return the minimum time in seconds for the memory traffic."""
        return cost.nbytes / self.bandwidth

    def compute_time(self, cost: Cost) -> float:
        """Return the minimum time in seconds for the multiply-accumulates."""
        return cost.dots / self.dots + cost.fmas / self.fmas + cost.bf16_pairs / self.pairs

    def lower_bound(self, cost: Cost) -> float:
        """Return the minimum time in seconds for this amount of work."""
        return max(self.memory_time(cost), self.compute_time(cost))


@cache
def measure(threads: int) -> Roofline:
    """Return the roofline for this number of threads. Raises compiler and loader errors, and MemoryError."""
    with timed_kernels(KERNELS, threads) as seconds:
        rates = {kind: multiply_rate(kind, threads, seconds) for kind in MULTIPLY}
        pairs = rates.get("pair", rates["fma"])
        found = Roofline(threads, bandwidth(threads, seconds), rates["dot"], rates["fma"], pairs)
    remember_bandwidth(threads, found.bandwidth)
    return found


def known_bandwidth(threads: int, *, again: bool = False) -> float:
    """Return the memory bandwidth that was measured last with this number of threads; measures it if there is none, or
    `again`.

    Raises compiler and loader errors, and MemoryError.
    """
    found = remembered_bandwidths().get(str(threads), 0.0)
    if again or not found:
        with timed_kernels([READ], threads) as seconds:
            found = bandwidth(threads, seconds)
        remember_bandwidth(threads, found)
    return found


def remembered_bandwidths() -> dict[str, float]:
    """Return the remembered memory bandwidths in bytes per second, by number of threads."""
    directory = KernelCache(paths.jit_dir()).directory
    with contextlib.suppress(OSError, ValueError, AttributeError):  # none yet, or a damaged file
        found = json.loads((directory / BANDWIDTH_FILE).read_bytes()).items() if directory else ()
        return {threads: float(rate) for threads, rate in found if isinstance(rate, int | float) and 0 < rate < 1e15}
    return {}


def remember_bandwidth(threads: int, measured: float) -> None:
    """Store a measured bandwidth. A failed write never raises: the next estimate measures again."""
    if directory := KernelCache(paths.jit_dir()).directory:
        known = remembered_bandwidths() | {str(threads): measured}
        with contextlib.suppress(OSError):
            replace_file(directory / BANDWIDTH_FILE, json.dumps(known).encode())


@contextlib.contextmanager
def timed_kernels(kernels: list[Kernel], threads: int) -> Iterator[Seconds]:
    """Yield a function that runs a kernel on all threads and returns the time."""
    addresses, _ = loader.load_kernels(kernels, paths.jit_dir())
    with ThreadPoolExecutor(threads) as pool:

        def seconds(kernel: Kernel, *arguments: int) -> float:
            """Return the time of one run of the kernel by all threads."""
            record = np.zeros(RECORD_WORDS, np.int64)
            record[HEADER_WORDS : HEADER_WORDS + len(arguments)] = arguments
            run, at = KernelFunction(addresses[kernel]), record.ctypes.data
            begin = time.perf_counter()
            list(pool.map(lambda thread: run(at, thread, threads, 0), range(threads)))
            return time.perf_counter() - begin

        yield seconds


def bandwidth(threads: int, seconds: Seconds) -> float:
    """Return the memory bandwidth in bytes per second: that of the fastest of all ways in which kernels read rows.

    Each run reads another piece than the run before it: what a cache kept of a piece would make it 9 % faster.
    """
    size = min(STREAMED_BYTES, resources.available_memory() // SHARE_OF_MEMORY)
    memory, result = np.ones(size, np.uint8), np.zeros(threads, np.int64)  # zeros would share one physical page
    piece = min(size, PIECE_BYTES)
    starts = [memory.ctypes.data + run % (size // piece) * piece for run in range(RUNS)]
    ways = sorted({(1 if access.neighbours else access.streams, access.prefetch) for access in CANDIDATES})
    return piece / min(seconds(READ, start, piece, *way, result.ctypes.data) for way in ways for start in starts)


def multiply_rate(kind: str, threads: int, seconds: Seconds) -> float:
    """Return multiply-accumulates per second from registers and the nearest cache."""
    operands = np.zeros(OPERAND_RING * round_bytes(kind) * threads, np.uint8)
    result, rounds = np.zeros(threads, np.int64), 1 << 10
    while seconds(MULTIPLY[kind], operands.ctypes.data, rounds, result.ctypes.data) < MIN_SECONDS:
        rounds *= 2
    best = min(seconds(MULTIPLY[kind], operands.ctypes.data, rounds, result.ctypes.data) for _ in range(RUNS))
    return threads * rounds * math.prod(products_shape(kind)) / best


def evaluation_cost(graph: ComputeGraph, tokens: int, n_past: int) -> Cost:
    """Return the cost of evaluating `tokens` tokens after `n_past` cached ones, with logits after the last one."""
    batches = [(first, min(graph.batch, tokens - first)) for first in range(0, tokens, graph.batch)]
    return sum((graph.cost(count, n_past + first, first + count == tokens) for first, count in batches), NO_COST)
