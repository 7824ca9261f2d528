"""A compiled encoder: its compute graph for images of one size in memory, with kernels and threads."""

from collections.abc import Callable
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from localinfer import paths
from localinfer.graph.cache.ring_buffer import EMPTY
from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.ops.compute_graph import MAX_SMALL_BATCH
from localinfer.graph.ops.op import Op
from localinfer.graph.recording.points import Point
from localinfer.kernels.layout import PAGE_SIZE
from localinfer.multimodal.encoder_graph.encoder_builder import EncoderBuilder
from localinfer.multimodal.encoder_graph.encoder_model import require_memory
from localinfer.runtime.compiled_graph import float_rows
from localinfer.runtime.cuts import run_in_parts
from localinfer.runtime.thread_pool import POOL_KERNELS, OnOp, ThreadPool
from quant.jit import loader
from quant.jit.kernel import Kernel

Floats = NDArray[np.float32]
OnPoint = Callable[[Point], None]


class CompiledEncoder:
    """An encoder that is ready to run for images with the grid of its builder; `output` are its output rows.

    Its memory is that of the graph, which ends with `close`. Raises NotEnoughMemoryError.
    """

    def __init__(self, g: EncoderBuilder, output: Buffer, progress: loader.Progress | None = None) -> None:
        self._cuts = g.model.points.cuts()
        self._g, self._output, self.graph = g, output, g.graph
        require_memory(g.f, g.input_size, g.graph.nbytes)
        needed = [*POOL_KERNELS, *(kernel_of(op.rows.capacity, op) for op in self.graph.ops)]
        addresses, self.warnings = loader.load_kernels(needed, paths.jit_dir(), progress)
        unused = {kernel: 0 for op in self.graph.ops for kernel in (op.small_batch, op.large_batch)}
        records = self.graph.finalize(unused | addresses)
        self._page_tables = write_constants(g)
        stop = self.graph.stop.view(np.int64)
        self._pool = ThreadPool(addresses, records, stop, self.graph.scratch_addresses)

    def run(self, patches: Floats, on_op: OnOp | None = None, on_point: OnPoint | None = None) -> Floats:
        """Return the output rows of an image, given its patches in the order of the grid. `on_op` receives the number
        of the current op regularly, `on_point` each point of the graph, whose activations it may read and change."""
        if self._cuts:  # a point may have rows that no op writes
            self._g.constants.write()
        write_input(self._g, patches)
        n_ops = len(self.graph.ops)
        for cut in run_in_parts(lambda first, end: self.run_ops(first, end, on_op), self._cuts, 0, n_ops):
            for point in self._cuts[cut]:
                if on_point:
                    on_point(point)
        return float_rows(self._output, self._output.rows.capacity).copy()

    def run_ops(self, first: int, end: int, on_op: OnOp | None = None) -> None:
        """Run the ops `first` to `end - 1`, of which `first` begins a stage."""
        threads = self.graph.threads if self.graph.batch <= MAX_SMALL_BATCH else self.graph.threads_batch
        self._pool.run(first, end, threads, on_op)

    def close(self) -> None:
        """End the threads."""
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def kernel_of(rows: int, op: Op) -> Kernel:
    """Return the kernel that computes this number of rows."""
    return op.small_batch if rows <= MAX_SMALL_BATCH else op.large_batch


def write_constants(g: EncoderBuilder) -> list[NDArray[np.int32]]:
    """Write what does not change from image to image where the kernels read it. Return the page tables of the attention
    ops, which must live as long as the graph."""
    for rows in g.row_counts:
        rows.set(rows.capacity)
    g.constants.write()
    tables = []
    for (window, *_), ring in g.model.attention.rings.items():
        n = len(g.attention.spans[window][0]) if window else g.graph.batch
        oldest, newest = g.attention.spans[window] if window else (np.zeros(n, np.int32), np.full(n, n - 1, np.int32))
        positions = ring.positions.view(np.int32)
        positions[:], positions[:n] = EMPTY, np.arange(n)
        ring.entries.view(np.int32)[:n] = np.arange(n)
        ring.oldest.view(np.int32)[:n], ring.newest.view(np.int32)[:n] = oldest, newest
        n_pages = -(-n // PAGE_SIZE)
        tables.append(np.arange(ring.capacity // PAGE_SIZE, dtype=np.int32))
        ring.add_segment(0, n, tables[-1].ctypes.data, n_pages)
    return tables


def write_input(g: EncoderBuilder, patches: Floats) -> None:
    """Write the patches of an image, in the order of the grid, and the values that the residual stream begins with."""
    entry = g.input
    assert entry is not None
    rows = float_rows(entry.patches, entry.patches.rows.capacity)
    rows[entry.first : entry.first + len(entry.order), : patches.shape[1]] = patches[entry.order]
    float_rows(entry.residual, len(entry.initial))[:] = entry.initial
