"""Which tensors a calibration writes with which block, and how much work each block is."""

from itertools import chain

import numpy as np
from numpy.typing import NDArray

from localinfer.gguf.source import SourceTensor
from localinfer.quantization.feedback_encoders import supports_feedback
from localinfer.quantization.plan import QuantizationPlan
from localinfer.quantization.tied_output_importance import TABLE
from localinfer.runtime.attention_inputs import AttentionObserver
from quant.encoders.feedback import DESCENT_SWEEPS, is_scalar_type

OUTPUT = "output.weight"
SEARCH_COST = 2000  # cost of the search for blocks per weight, in multiplications
RUN_COST = 0.5  # cost of multiplying with blocks, relative to multiplying with floats

Chunks = NDArray[np.int32]  # (chunks, tokens)


class CalibratedTensors:
    """The tensors of a plan by block; `blocks` is the number of blocks. `output_matrix` is the name of the output
    matrix, or None. A matrix that is also the token embedding counts only if its codes depend on its inputs."""

    def __init__(self, plan: QuantizationPlan, attention: AttentionObserver) -> None:
        self._source, self._types = plan.source, plan.types
        self.blocks = attention.engine.compiled_graph.model_graph.block_count
        multiplied = {product.weight.name for product in attention.engine.graph.products}
        self.output_matrix: str | None = None
        if OUTPUT in multiplied:
            self.output_matrix = OUTPUT
        elif TABLE in multiplied and self.gets_feedback(TABLE):
            self.output_matrix = TABLE

    def of(self, number: int | None) -> list[SourceTensor]:
        """Return the tensors of a block, or of the output layer if `number` is None."""
        if number is None:
            return [self._source.tensors[self.output_matrix]] if self.output_matrix else []
        return [tensor for name, tensor in self._source.tensors.items() if name.startswith(f"blk.{number}.")]

    def outside_blocks(self) -> list[SourceTensor]:
        """Return the tensors outside of blocks, which the engine of the new file needs from the start."""
        inside = {each.name for each in chain.from_iterable(map(self.of, (*range(self.blocks), None)))}
        return [tensor for name, tensor in self._source.tensors.items() if name not in inside]

    def gets_feedback(self, name: str) -> bool:
        """Return whether a tensor is encoded with error feedback."""
        tensor, number = self._source.tensors[name], self._types[name]
        return number != tensor.type and len(tensor.shape) == 2 and supports_feedback(number)


class CalibrationCosts:
    """The work of a calibration in multiplications; `total` is that of all of it."""

    def __init__(
        self, tensors: CalibratedTensors, types: dict[str, int], chunks: Chunks, attention: AttentionObserver
    ) -> None:
        self._tensors, self._types, self._attention = tensors, types, attention
        self._n_chunks, self._n_tokens = len(chunks), int(chunks.shape[1])
        running = sum(map(self.of_running, range(tensors.blocks)))
        self.total = sum(map(self.of_block, (*range(tensors.blocks), None))) + self._n_chunks * running

    def of_block(self, number: int | None) -> float:
        """Return the cost of quantizing a block, or the output layer if `number` is None."""
        encoding = sum(map(self.of_encoding, self._tensors.of(number)))
        return self._n_chunks * self.of_reading(number) + encoding

    def of_reading(self, number: int | None) -> float:
        """Return the cost of the inputs of a block in one chunk: the products of the source model, and those of the
        inputs with each other."""
        matrices = [tensor for tensor in self._tensors.of(number) if len(tensor.shape) == 2]
        squares = sum(n * n for n in {tensor.shape[-1] for tensor in matrices})
        counts = {name: rows.covariance_count for name, rows in self._attention.values.items()}
        squares += sum(counts.get(each.name, 0) * each.shape[-1] ** 2 for each in matrices)
        products = 0 if number is None else sum(tensor.n_elements for tensor in matrices)
        return float(self._n_tokens * (products + squares))

    def of_running(self, number: int) -> float:
        """Return the cost of running a finished block for one chunk; 0 if the result is not needed."""
        if number + 1 == self._tensors.blocks and not self._tensors.output_matrix:
            return 0.0
        return RUN_COST * float(self._n_tokens * sum(tensor.n_elements for tensor in self._tensors.of(number)))

    def of_encoding(self, tensor: SourceTensor) -> float:
        """Return the cost of encoding a tensor."""
        number = self._types[tensor.name]
        if number == tensor.type:
            return 0.0
        passes = 0.5 + DESCENT_SWEEPS * is_scalar_type(number) if self._tensors.gets_feedback(tensor.name) else 0.0
        return tensor.n_elements * (SEARCH_COST + passes * tensor.shape[-1])
