"""Computes all ops of an encoder's graph in numpy, one after the other, without kernels."""

from typing import Any

import numpy as np

from localinfer.graph.ops.buffers import Buffer, ConvertedActivations, Region
from localinfer.graph.ops.compute_graph import ComputeGraph
from localinfer.graph.ops.op import Op
from localinfer.naive.encoders.op_arguments import OpArguments
from localinfer.naive.encoders.operations import compute
from localinfer.naive.formulas import Floats


class ExactMemory:
    """The memory of a graph in float64. It begins with what is in that of the graph: constants and the input."""

    dtype: np.dtype[Any] = np.dtype(np.float64)

    def __init__(self, graph: ComputeGraph) -> None:
        self._floats: dict[Region, Floats] = {}
        self._caches: dict[Region, Floats] = {}
        self._sources = sources_of(graph)

    def floats(self, region: Region) -> Floats:
        if region not in self._floats:
            self._floats[region] = region.view(np.float32).astype(self.dtype)
        return self._floats[region]

    def heads(self, region: Region) -> Floats:
        return self._caches[region]

    def product_input(self, op: Op) -> Floats:
        x = dict(zip(op.small_batch.parameters, op.arguments, strict=True))["x"]
        source = self._sources[x] if isinstance(x, ConvertedActivations) else x
        assert isinstance(source, Buffer)
        return self.floats(source.floats)[: op.rows.capacity * source.n].reshape(-1, source.n)

    def write(self, argument: object, values: Floats) -> None:
        """Write values to the beginning of a buffer, or to a cache."""
        if isinstance(argument, Buffer):
            self.floats(argument.floats)[: values.size] = values.ravel()
        else:
            assert isinstance(argument, Region)
            self._caches[argument] = values


def sources_of(graph: ComputeGraph) -> dict[ConvertedActivations, Buffer]:
    """Return the buffers of which there are converted activations."""
    buffers = [each for op in graph.ops for each in op.arguments if isinstance(each, Buffer)]
    buffers += [each.x for each in graph.products]
    return {converted: each for each in buffers for converted in (each.quantized, each.bf16)}


def forward(graph: ComputeGraph, output: Buffer) -> Floats:
    """Return the rows of `output`, (rows, n), in float64. The memory of the graph has its constants and its input, and
    is not changed."""
    memory = ExactMemory(graph)
    for op in graph.ops:
        arguments = OpArguments(op, memory)
        for name, values in compute(arguments).items():
            memory.write(arguments.given[name], values)
    return memory.floats(output.floats).reshape(output.rows.capacity, output.n)
