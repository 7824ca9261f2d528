"""The time of a decode step with any choice of tensor types, from how fast this machine reads each type.

    time = measure_decode_time(source, kinds, folder, threads=2)
    1 / time.seconds(types)                                       # tokens per second

A decode step reads all weights once, but for the token embeddings and the experts that a token does not use. How many
bytes per second a kernel reads depends on the type and on the CPU: a type with fewer bits may take more time.

Probe files have layers of the model, with weights of 0: each layer in another type, and then all in one.
"""

import gc
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from localinfer.gguf.reader import GGUF, open_gguf
from localinfer.gguf.source import Source
from localinfer.graph.mixture_of_experts import active_part
from localinfer.machine.resources import available_memory
from localinfer.options import Options
from localinfer.quantization.prune import prune_layers
from localinfer.quantization.quantize import EncoderFactory, OutputOptions, compile_kernels, quantize
from localinfer.quantization.recipes import compatible_type, is_quantizable, layer_of
from localinfer.quantization.rows import Bytes, Floats
from localinfer.runtime.engine import Engine
from localinfer.runtime.graph_building import build_graph
from localinfer.runtime.row_access.row_access_timing import MAX_STEP_BYTES, measure
from localinfer.runtime.row_access.tuning import tunable_shapes
from quant import ggml
from quant.jit.loader import Progress

STEPS = 24  # timed decode steps
CONTEXT = 64  # tokens
OUTPUT_TYPE = "Q8_0"  # of the token embeddings and the output matrix, where each layer has another type
REST_TYPE = "Q4_K"
WITHOUT_DRAFTS = Options(spec_type="none", tune=False)
Rates = Mapping[tuple[str, int], float]


@dataclass(frozen=True, slots=True)
class Read:
    """What a decode step reads of a tensor: the number of weights, the columns of a row, and the type in the source."""

    weights: int
    columns: int
    kind: str


@dataclass(frozen=True, slots=True)
class DecodeTime:
    """The time of a decode step of a model. `reads` are by tensor, `rates` in bytes per second by type and columns;
    `rest` are the seconds that do not depend on the types."""

    reads: Mapping[str, Read]
    rates: Rates
    rest: float

    def of_tensor(self, name: str, kind: str) -> float:
        """Return the seconds that a step needs for a tensor in a type; 0 if it reads only a row of it."""
        if (read := self.reads.get(name)) is None:
            return 0.0
        shape = read.weights // read.columns, read.columns
        return ggml.nbytes(ggml.TYPE_NUMBERS[kind], shape) / rate_of(self.rates, kind, read.columns)

    def seconds(self, types: Mapping[str, str]) -> float:
        """Return the time of a step if the tensors have these types."""
        return self.rest + sum(self.of_tensor(name, kind) for name, kind in types.items())


def rate_of(rates: Rates, kind: str, columns: int) -> float:
    """Return the rate of a type, measured with the most similar number of columns; the lowest of all for a type that
    was not measured."""
    known = {n: rate for (other, n), rate in rates.items() if other == kind}
    return known[min(known, key=lambda n: abs(n - columns))] if known else min(rates.values())


def reads_of(f: GGUF) -> dict[str, Read]:
    """Return what a decode step reads of each matrix of a model."""
    weights = (each.weight for each in build_graph(f, WITHOUT_DRAFTS).graph.products)
    return {each.name: Read(active_part(f, each, each.n_elements), each.shape[-1], each.type_name) for each in weights}


# --- measuring ---


def measure_decode_time(
    source: Source, kinds: Sequence[str], folder: Path, *, threads: int, progress: Progress | None = None
) -> DecodeTime:
    """Measure how fast this machine decodes the model of a GGUF file with each of some types, by name.

    Writes and removes files in `folder`. Raises what `quantize` and `Engine.load` raise.
    """
    n_layers = build_graph(open_gguf(source.files[0]), WITHOUT_DRAFTS).block_count
    probe = Probe(source, n_layers, folder / "probe.gguf", threads, progress)
    compile_kernels({tensor.type for tensor in source.tensors.values()}, (), "fast", progress)
    rates: dict[tuple[str, int], float] = {}
    try:
        for group in groups_of(source, kinds, n_layers):
            rates |= probe.rates(group)
        return DecodeTime(reads_of(open_gguf(source.files[0])), rates, probe.rest(rates))
    finally:
        gc.collect()  # Windows deletes a file only after it is unmapped
        probe.path.unlink(missing_ok=True)


def groups_of(source: Source, kinds: Sequence[str], n_layers: int) -> Iterator[Sequence[str]]:
    """Divide types into groups: one for each layer of a probe file, of which a measured step reads all."""
    weights = weights_of_layer(source)
    largest = max(ggml.nbytes(ggml.TYPE_NUMBERS[kind], [weights]) for kind in kinds)
    size = max(1, min(n_layers, MAX_STEP_BYTES // largest))
    return (kinds[first : first + size] for first in range(0, len(kinds), size))


def weights_of_layer(source: Source) -> int:
    """Return the number of weights of the first layer, a multiple of all block sizes."""
    weights = sum(tensor.n_elements for name, tensor in source.tensors.items() if layer_of(name, -1) == 0)
    return 1024 * (weights // 1024 + 1)


@dataclass(frozen=True, slots=True)
class Probe:
    """A file of weights of 0 with the first layers of the model, to measure decode steps with."""

    source: Source
    n_layers: int
    path: Path
    threads: int
    progress: Progress | None

    def rates(self, kinds: Sequence[str]) -> Rates:
        """Return the rates of types, each of which is that of a layer, read in the fastest way."""
        self._write(len(kinds), lambda name: kinds[number] if (number := layer_of(name, -1)) >= 0 else OUTPUT_TYPE)
        with closing(self._engine()) as engine:
            timings = measure(engine.runner, tunable_shapes(engine.runner), self.progress).shapes
        return {
            (ggml.TYPES[shape.type].name, shape.n_in): timing.bytes_per_second(timing.best)
            for shape, timing in timings.items()
        }

    def rest(self, rates: Rates) -> float:
        """Return the seconds of a decode step that reading at these rates does not explain, of a file in REST_TYPE
        with as many layers as fit into the memory."""
        layer = ggml.nbytes(ggml.TYPE_NUMBERS[REST_TYPE], [weights_of_layer(self.source)])
        count = max(1, min(self.n_layers, available_memory() // (2 * layer)))
        self._write(count, lambda _: REST_TYPE)
        f = open_gguf(self.path)
        types = {name: tensor.type_name for name, tensor in f.tensors.items()}
        reads = reads_of(f)
        reading = DecodeTime(reads, rates, 0.0).seconds({name: types[name] for name in reads})
        with closing(self._engine()) as engine:
            for token in range(STEPS):
                engine.evaluate([token % engine.n_vocab])
            step = sorted(engine.runner.decode_seconds)[STEPS // 4]  # other programs disturb some steps
        return max(0.0, step - reading) * self.n_layers / count

    def _engine(self) -> Engine:
        options = replace(WITHOUT_DRAFTS, threads=self.threads, ctx_size=CONTEXT, tune=True)
        return Engine.load(open_gguf(self.path), options, self.progress)

    def _write(self, n_layers: int, kind_of: Callable[[str], str]) -> None:
        """Write the first layers, each quantizable tensor in a type, by name."""
        with warnings.catch_warnings(action="ignore"):  # about sliding windows, which do not change the time
            pruned = prune_layers(self.source, range(n_layers, self.n_layers))
        types = {
            name: ggml.TYPE_NUMBERS[compatible_type(tensor, kind_of(name))] if is_quantizable(tensor) else tensor.type
            for name, tensor in pruned.tensors.items()
        }
        quantize(
            pruned, self.path, types, encoder_factory=EncoderFactory(lambda _: encode_as_zeros), threads=self.threads,
            options=OutputOptions(replace=True),
        )  # fmt: skip


def encode_as_zeros(x: Floats, out: Bytes) -> None:  # noqa: ARG001
    """Write blocks whose scales and codes are 0."""
    out[:] = 0
