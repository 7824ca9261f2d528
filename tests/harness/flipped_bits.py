"""Wrong bits in what kernels compute and in their arguments, planted in the executor."""

from typing import Any

import numpy as np
import pytest

from localinfer.graph.ops.buffers import Buffer, ConvertedActivations, Region
from localinfer.graph.ops.op import Op
from localinfer.kernels.signatures import KernelSignature
from localinfer.multimodal.encoder_graph.compiled_encoder import CompiledEncoder
from localinfer.runtime.compiled_graph import CompiledGraph
from quant.jit.kernel_call import HEADER_WORDS


def flip_a_bit(monkeypatch: pytest.MonkeyPatch, name: str, *, rounded: bool = False) -> None:
    """Flip a bit of the largest of the first eight numbers that an op writes, whenever it has run: the leading bit of
    its mantissa, or of a byte of rounded activations."""
    run = CompiledGraph.run

    def run_with_error(self: CompiledGraph, first: int, end: int, *arguments: Any) -> None:
        run(self, first, end, *arguments)
        for op in self.graph.ops[first:end]:
            if op.name == name:
                flip_what_was_written(op, rounded=rounded)

    monkeypatch.setattr(CompiledGraph, "run", run_with_error)


def flip_a_bit_of_an_encoder(monkeypatch: pytest.MonkeyPatch, number: int, *, rounded: bool = False) -> None:
    """Do what `flip_a_bit` does for the op of an encoder with this number."""
    run = CompiledEncoder.run_ops

    def run_with_error(self: CompiledEncoder, first: int, end: int, *arguments: Any) -> None:
        run(self, first, end, *arguments)
        if first <= number < end:
            flip_what_was_written(self.graph.ops[number], rounded=rounded)

    monkeypatch.setattr(CompiledEncoder, "run_ops", run_with_error)


def flip_what_was_written(op: Op, *, rounded: bool) -> None:
    """Flip a bit of what an op has written, its last float argument or its rounded activations."""
    kind = ConvertedActivations if rounded else (Buffer, Region)
    written = next(each for each in reversed(op.writes) if isinstance(each, kind))
    region = written if isinstance(written, Region) else getattr(written, "floats", None) or written.region
    if rounded:
        codes = region.view(np.uint8)
        codes[np.flatnonzero(codes)[3]] ^= 64  # short rows begin with padding
    elif op.name.endswith("append"):
        op.writes[0].view(np.uint16)[np.argmax(np.abs(op.writes[0].view(np.float16)[:16]))] ^= 1 << 9
    else:
        region.view(np.uint32)[np.argmax(np.abs(region.view(np.float32)[:8]))] ^= 1 << 22


def flip_a_bit_of_a_state(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Flip a bit of the recurrent state that an op updates, whenever it has run: the leading bit of the mantissa of the
    largest of its first eight numbers."""
    run = CompiledGraph.run

    def run_with_error(self: CompiledGraph, first: int, end: int, tokens: int, *arguments: Any) -> None:
        run(self, first, end, tokens, *arguments)
        states = self.model_graph.states
        for op in self.graph.ops[first:end]:
            if op.name == name:
                region = next(each for each in op.writes if isinstance(each, Region))
                size = states.sizes[states.layers.index(region)]
                state = region.view(np.uint8).reshape(-1, size)[states.slot_after(tokens - 1), :32]
                state.view(np.uint32)[np.argmax(np.abs(state.view(np.float32)))] ^= 1 << 22

    monkeypatch.setattr(CompiledGraph, "run", run_with_error)


def flip_a_bit_of_codes(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Flip a bit of the code of the first dimension of the first key of a quantized cache, whenever an op that appends
    has run."""
    run = CompiledGraph.run

    def run_with_error(self: CompiledGraph, first: int, end: int, *arguments: Any) -> None:
        run(self, first, end, *arguments)
        for op in self.graph.ops[first:end]:
            if op.name == name and self.model_graph.attention.positions.view(np.int32)[0] == 0:
                cache = self.model_graph.attention.caches[name.removesuffix("append")]
                cache.k.view(np.uint8)[32] ^= 4  # behind the scales of 16 keys

    monkeypatch.setattr(CompiledGraph, "run", run_with_error)


def flip_a_bit_of_an_argument(
    monkeypatch: pytest.MonkeyPatch, name: str, argument: tuple[KernelSignature, str], bit: int
) -> None:
    """Flip a bit of an argument that an op's kernel gets, which is an integer or a 64-bit float."""
    create, (signature, parameter) = CompiledGraph.__init__, argument

    def create_with_error(self: CompiledGraph, *arguments: Any, **keywords: Any) -> None:
        create(self, *arguments, **keywords)
        number = next(number for number, op in enumerate(self.graph.ops) if op.name == name)
        self._op_records[number, HEADER_WORDS + signature.parameters.index(parameter)] ^= 1 << bit

    monkeypatch.setattr(CompiledGraph, "__init__", create_with_error)
