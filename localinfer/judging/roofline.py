"""What this machine can do at best: read memory, and multiply-accumulate. The roof over every figure of speed.

Measured when it is asked for, in about a second, with as many threads as what is compared with it, and remembered for
the life of the process only: what a shared machine can do changes from hour to hour. The idea is Williams, Waterman
and Patterson's, "Roofline" (2009). Knows no model.
"""

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

import numpy as np

from localinfer import paths
from localinfer.engine import machine
from localinfer.ops.layout import OPERAND_RING, products_shape, round_bytes
from localinfer.plan.work import Amount
from quant.jit import loader
from quant.jit.cpu import target
from quant.jit.kernel import Kernel
from quant.jit.record import HEADER_WORDS, RECORD_WORDS, RUN

STREAMED_BYTES, PIECE_BYTES = 512 << 20, 128 << 20  # more than caches hold; what is read of it at a time
SHARE_OF_MEMORY = 4  # never more than a fourth of what is left
RUNS = 24  # the best one counts: many short ones, for some to be undisturbed ...
SHORTEST = 0.004  # ... but of seconds enough that waking the threads, 50 us, does not count

HERE = "localinfer.ops.measure"
STREAMS = [Kernel(HERE, "stream", ("memory", "nbytes", "result"), constants=(("asks", asks),)) for asks in (0, 1)]
MULTIPLY = {
    kind: Kernel(HERE, "multiply", ("operands", "rounds", "result"), constants=(("kind", kind),))
    for kind in (("dot", "fma", "pair") if target().bfloats else ("dot", "fma"))
}
KERNELS = [*STREAMS, *MULTIPLY.values()]


@dataclass(frozen=True, slots=True)
class Roofline:
    """Bytes, and multiply-accumulates of small integers, of floats, and of bfloat16, a second: the last two are equal
    where no instruction multiplies pairs."""

    threads: int
    bandwidth: float
    dots: float
    fmas: float
    pairs: float

    def reading(self, amount: Amount) -> float:
        """The seconds that the bytes take at least."""
        return amount.nbytes / self.bandwidth

    def computing(self, amount: Amount) -> float:
        """The seconds that the multiply-accumulates take at least."""
        return amount.dots / self.dots + amount.fmas / self.fmas + amount.pairs / self.pairs

    def least(self, amount: Amount) -> float:
        """The seconds that this amount of work takes at least."""
        return max(self.reading(amount), self.computing(amount))


@cache
def measured(threads: int) -> Roofline:
    """What so many threads reach. Raises what compiling and loading kernels raises, MemoryError where none is left."""
    addresses, _ = loader.addresses(KERNELS, paths.jit_dir())
    with ThreadPoolExecutor(threads) as pool:

        def seconds(kernel: Kernel, *arguments: int) -> float:
            """Of one run of the kernel by all threads."""
            record = np.zeros(RECORD_WORDS, np.int64)
            record[HEADER_WORDS : HEADER_WORDS + len(arguments)] = arguments
            run, at = RUN(addresses[kernel]), record.ctypes.data
            begin = time.perf_counter()
            list(pool.map(lambda part: run(at, part, threads, 0), range(threads)))
            return time.perf_counter() - begin

        rates = {kind: products(kind, threads, seconds) for kind in MULTIPLY}
        pairs = rates.get("pair", rates["fma"])
        return Roofline(threads, bandwidth(threads, seconds), rates["dot"], rates["fma"], pairs)


def bandwidth(threads: int, seconds: Callable[..., float]) -> float:
    """Bytes a second, read from memory: some processors have to be asked ahead, others know better."""
    size = min(STREAMED_BYTES, machine.available_memory() // SHARE_OF_MEMORY)
    memory, result = np.ones(size, np.uint8), np.zeros(threads, np.int64)  # zeros would all be one page
    piece = min(size, PIECE_BYTES)
    starts = [memory.ctypes.data + run * piece % (size - piece + 1) for run in range(RUNS)]
    return piece / min(seconds(kernel, start, piece, result.ctypes.data) for kernel in STREAMS for start in starts)


def products(kind: str, threads: int, seconds: Callable[..., float]) -> float:
    """Multiply-accumulates a second, out of registers and the nearest cache."""
    operands = np.zeros(OPERAND_RING * round_bytes(kind) * threads, np.uint8)
    result, rounds = np.zeros(threads, np.int64), 1 << 10
    while seconds(MULTIPLY[kind], operands.ctypes.data, rounds, result.ctypes.data) < SHORTEST:
        rounds *= 2
    best = min(seconds(MULTIPLY[kind], operands.ctypes.data, rounds, result.ctypes.data) for _ in range(RUNS))
    return threads * rounds * math.prod(products_shape(kind)) / best
