"""The expert cache: before the experts of a layer are applied, it reads those that are missing.

While a layer is computed, the experts that the next layer's router would choose for the same input are read ahead
(Eliseev and Mazur, "Fast inference of mixture-of-experts language models with offloading", 2023). The addresses of
cached experts are in the tables that the kernels read (`localinfer.graph.ops.compute_graph.MatrixTable`). An expert
that is not cached has its address in the mapped file there, so results never depend on what is cached.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from localinfer.errors import NotEnoughMemoryError
from localinfer.gguf.direct_file import PAGE, READERS, DirectFile
from localinfer.gguf.reader import GGUF, Tensor
from localinfer.graph.ops.buffers import Region
from localinfer.graph.ops.compute_graph import MatrixTable
from localinfer.graph.ops.op import encode_argument
from localinfer.graph.recording.model_graph import ExpertLayer
from localinfer.runtime.expert_cache.reads import Entry, Read, ReadQueue
from localinfer.runtime.expert_cache.slots import Expert, SlotPool, matrix_size, matrix_sizes


@dataclass
class Statistics:
    """Counts: experts that layers `used`, of these those that were `cached` and those that were read ahead; the experts
    of layers that had predictions (`predictable`) and those `predicted` rightly; the seconds that layers waited for
    reads; the bytes read, and the seconds in which at least one read was in progress."""

    used: int = 0
    cached: int = 0
    read_ahead: int = 0
    predictable: int = 0
    predicted: int = 0
    wait_seconds: float = 0.0
    bytes_read: int = 0
    read_seconds: float = 0.0

    @property
    def cached_share(self) -> float:
        """The share of the used experts that were cached."""
        return self.cached / self.used if self.used else 0.0

    @property
    def predicted_share(self) -> float:
        """The share of the used experts that were predicted, of layers that had predictions."""
        return self.predicted / self.predictable if self.predictable else 0.0

    @property
    def bandwidth(self) -> float:
        """Bytes per second while at least one read was in progress."""
        return self.bytes_read / self.read_seconds if self.read_seconds else 0.0


class ExpertCache:
    """The cached experts of a model. One thread at a time uses it: the one that evaluates a batch.

    `tables` are those of the compute graph, by the address of the tensor in the file. `slots` is the number of slots
    for each combination of matrix sizes.
    """

    def __init__(
        self, f: GGUF, layers: Sequence[ExpertLayer], tables: Mapping[int, MatrixTable],
        slots: Mapping[tuple[int, ...], int],
    ) -> None:  # fmt: skip
        self._layers = {layer.number: layer for layer in layers}
        self._tables = {
            layer.number: [tables[encode_argument(tensor)] for tensor in layer.weights] for layer in layers
        }
        self._files = [DirectFile(file) for file in f.files]
        try:
            pools = {sizes: SlotPool(sizes, count, self._forget_address) for sizes, count in slots.items()}
        except MemoryError as error:
            raise f.error("memory", str(error), NotEnoughMemoryError) from None
        self._pools = {number: pools[matrix_sizes(layer.weights)] for number, layer in self._layers.items()}
        self._reads = ReadQueue(READERS)
        self._ahead: set[Expert] = set()  # experts that are read ahead for the next layer
        self._predicted: set[Expert] = set()  # all experts that were predicted for it
        self._counts = Statistics()

    def load(self, layer: ExpertLayer, tokens: int) -> None:
        """Read the experts that a layer has chosen for `tokens` tokens, unless they are cached; begin to read those
        that are predicted for the next layer. The experts have their slots until the next call.

        Raises LocalInferError if the file cannot be read.
        """
        chosen = experts_of(layer.number, layer.chosen, layer.used * tokens)
        pinned = set(chosen)
        self._reads.forget_finished()
        self._count_predictions(layer, pinned)
        try:
            self._drop_wrong_predictions(pinned)
            entries = [self._find_or_read(expert, pinned) for expert in chosen]
            self._read_ahead(layer, tokens, pinned)
            begin = time.perf_counter()
            for expert, entry in zip(chosen, entries, strict=True):
                if entry is not None and not entry.in_use:
                    self._finish(expert, entry)
            self._counts.wait_seconds += time.perf_counter() - begin
        except BaseException:  # also Ctrl-C, after which not all reads may have been asked for
            self._discard_unfinished()
            raise

    def take_statistics(self) -> Statistics:
        """Return the counts since the last call."""
        bytes_read, seconds = self._reads.take_totals()
        counts, self._counts = self._counts, Statistics()
        return replace(counts, bytes_read=bytes_read, read_seconds=seconds)

    def close(self) -> None:
        """End the threads. No batch may be in progress."""
        self._reads.close()

    def _find_or_read(self, expert: Expert, pinned: set[Expert]) -> Entry | None:
        """Return the entry of an expert, whose reads are begun if it was not cached. Return None if no slot is free:
        the expert is then used where the file is mapped."""
        entry, is_ahead = self._pools[expert.layer].use(expert), expert in self._ahead
        self._counts.used += 1
        self._counts.read_ahead += is_ahead
        self._counts.cached += entry is not None and not is_ahead
        return entry or self._begin_reading(expert, pinned)

    def _begin_reading(self, expert: Expert, pinned: set[Expert]) -> Entry | None:
        pool = self._pools[expert.layer]
        entry = pool.add(expert, pinned)
        if entry is not None:
            tensors, number = self._layers[expert.layer].weights, expert.number
            reads = [
                Read(
                    entry, self._files[tensor.split_index], pool.memory(entry, index), offset_of(tensor, number),
                    matrix_size(tensor),
                )
                for index, tensor in enumerate(tensors)
            ]  # fmt: skip
            self._reads.submit(entry, reads)
        return entry

    def _finish(self, expert: Expert, entry: Entry) -> None:
        """Wait until an expert is read, and let the kernels use it."""
        self._reads.wait(entry)
        for index, table in enumerate(self._tables[expert.layer]):
            start = offset_of(table.weights, expert.number)
            address = self._pools[expert.layer].address(entry, index) + start % PAGE
            table.addresses.view(np.int64)[expert.number] = address
        entry.in_use = True

    def _discard_unfinished(self) -> None:
        """Remove the experts that kernels do not use yet."""
        for pool in set(self._pools.values()):
            for expert in [expert for expert, entry in pool.entries.items() if not entry.in_use]:
                pool.discard(expert)

    def _forget_address(self, expert: Expert) -> None:
        """Let the kernels use an expert where the file is mapped."""
        for table in self._tables[expert.layer]:
            table.reset(expert.number)

    # --- prediction ---

    def _count_predictions(self, layer: ExpertLayer, chosen: set[Expert]) -> None:
        if self._predicted and next(iter(self._predicted)).layer == layer.number:
            self._counts.predictable += len(chosen)
            self._counts.predicted += len(chosen & self._predicted)

    def _drop_wrong_predictions(self, chosen: set[Expert]) -> None:
        """Skip reads of experts that were predicted for this layer and not chosen; those that are already read are the
        first to leave the cache."""
        for expert in self._ahead:
            pool = self._pools[expert.layer]
            entry = pool.entries.get(expert)
            if entry is not None and expert not in chosen:
                if entry.pending:
                    pool.discard(expert)
                else:
                    pool.use_first(expert)

    def _read_ahead(self, layer: ExpertLayer, tokens: int, pinned: set[Expert]) -> None:
        """Begin to read the experts that are predicted for the next layer."""
        self._ahead, number = set(), layer.number + 1
        is_known = layer.predicted is not None and number in self._layers
        predicted = experts_of(number, layer.predicted, layer.used * tokens) if layer.predicted and is_known else []
        self._predicted = set(predicted)
        pinned = pinned | self._predicted
        for expert in predicted:
            pool = self._pools[number]
            if pool.use(expert) is None:
                if self._begin_reading(expert, pinned) is None:
                    break
                self._ahead.add(expert)


def offset_of(tensor: Tensor, number: int) -> int:
    """Return the offset in the file of one matrix of a tensor (count, n_out, n_in)."""
    return tensor.offset + matrix_size(tensor) * number


def experts_of(layer: int, ids: Region, pairs: int) -> list[Expert]:
    """Return the distinct experts in int32 [pairs], in the order of their first appearance."""
    return [Expert(layer, number) for number in dict.fromkeys(ids.view(np.int32)[:pairs].tolist())]
