"""Compares the ops of an encoder with what the naive forward pass computes from the same inputs.

The graph runs op after op. Before each one, `localinfer.naive.encoders` computes what it should write, in float64, from
what the memory of the graph has then. So each op has an error of its own.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from localinfer.evaluation.verification.cached_heads import CachedHeads, read_keys, read_values
from localinfer.evaluation.verification.op_names import OpNames, kind_of_op
from localinfer.evaluation.verification.operation_check import (
    TANH,
    OperationCheck,
    check_rounding,
    compare,
    tolerance,
)
from localinfer.evaluation.verification.rounded_inputs import rounded_inputs
from localinfer.gguf.reader import Tensor
from localinfer.graph.ops.buffers import Buffer, ConvertedActivations, Region
from localinfer.graph.ops.op import Op
from localinfer.kernels.signatures import APPEND, ATTENTION, COMBINE, PRODUCT, RELATIVE_ATTENTION, SOFT_CAP
from localinfer.multimodal.encoder_graph.compiled_encoder import CompiledEncoder
from localinfer.multimodal.encoder_graph.encoder_builder import EncoderBuilder
from localinfer.naive.encoders.forward import sources_of
from localinfer.naive.encoders.op_arguments import OpArguments
from localinfer.naive.encoders.operations import compute, signature_of
from localinfer.naive.formulas import Floats

BF16_ROUNDING = 2.0**-8 * 1.01, 2.0**-134  # half a unit in the last of 8 bits, relative; the smallest floats


class KernelMemory:
    """The memory of a graph as kernels have written it, in floats of `dtype`. `caches` are the keys and values that
    caches have."""

    def __init__(self, passes: int, caches: Mapping[Region, Floats], dtype: type[np.floating[Any]]) -> None:
        self.dtype, self._passes, self._caches = np.dtype(dtype), passes, caches

    def floats(self, region: Region) -> Floats:
        values: Floats = region.view(np.float32).astype(self.dtype)
        return values

    def heads(self, region: Region) -> Floats:
        values: Floats = self._caches[region].astype(self.dtype)
        return values

    def product_input(self, op: Op) -> Floats:
        """Return the input as kernels have rounded it."""
        for _, rounded in rounded_inputs(op, op.rows.capacity, self._passes):
            return rounded.astype(self.dtype)
        return OpArguments(op, self).rows("x")


class EncoderVerifier:
    """Checks the ops of an encoder whose input is in its memory. Names of tensors that have values that are not finite
    are added to `not_finite`."""

    def __init__(self, g: EncoderBuilder, encoder: CompiledEncoder) -> None:
        self._g, self._graph, self._encoder = g, g.graph, encoder
        self.not_finite: dict[str, None] = {}
        self._caches: dict[Region, Floats] = {}
        self._exact, self._single = (
            KernelMemory(g.graph.passes, self._caches, dtype) for dtype in (np.float64, np.float32)
        )
        self._sources, self._names = sources_of(g.graph), OpNames()

    def verify(self) -> Iterator[tuple[int, list[OperationCheck]]]:
        """Run all ops. Yield the number of the op that has run and its checks."""
        ops, end = self._graph.ops, 0
        while end < len(ops):
            first, end = end, end + 1
            if end < len(ops) and signature_of(ops[end]) == COMBINE:
                end += 1  # attention of few rows is computed in parts, which this op combines
            yield end, self._verify_op(ops[first], first, end)

    def _verify_op(self, op: Op, first: int, end: int) -> list[OperationCheck]:
        signature, name = signature_of(op), self._names.name(op)
        exact, single = (OpArguments(op, memory) for memory in (self._exact, self._single))
        checks = [*self._rounding(exact, name)] if signature == PRODUCT else []
        with np.errstate(all="ignore"):
            expected, with_32_bits = compute(exact), compute(single)
        if signature == PRODUCT:
            self._note_damage(exact, expected["y"])
        self._encoder.run_ops(first, end)
        if signature == APPEND:
            return checks + self._cache_checks(exact, expected, with_32_bits)
        for written, values in expected.items():
            allowed = tolerance(values, with_32_bits[written], values) + error_of_tanh(exact)
            buffer = exact.given[written]
            assert isinstance(buffer, Buffer)
            actual = buffer.floats.view(np.float32)[: values.size].reshape(values.shape).copy()
            label = name if len(expected) == 1 else f"{name}.{written.removesuffix('_out')}"
            checks.append(compare((label, kind_of_op(op), type_of(exact)), values, actual, allowed))
        return checks

    def _rounding(self, a: OpArguments, name: str) -> Iterator[OperationCheck]:
        """Yield the check of the rounded input of a product, if it has one."""
        source = self._sources.get(x) if isinstance(x := a.given["x"], ConvertedActivations) else None
        for _, rounded in rounded_inputs(a.op, a.count, self._graph.passes) if source else ():
            assert source is not None
            values = self._exact.floats(source.floats)[: a.count * source.n].reshape(-1, source.n)
            if x is source.bf16:
                allowed = BF16_ROUNDING[0] * np.abs(values) + BF16_ROUNDING[1]
                yield compare((f"{name}.rounded", "quantize", ""), values, rounded, allowed)
            else:
                yield check_rounding(name, values, rounded, self._graph.passes)

    def _note_damage(self, a: OpArguments, y: Floats) -> None:
        """Note the matrix of a product if it is the reason why results are not finite."""
        if not np.isfinite(y).all() and not all(np.isfinite(values).all() for _, values in a.matrix("w")):
            self.not_finite[a.op.name] = None

    def _cache_checks(
        self, a: OpArguments, expected: Mapping[str, Floats], single: Mapping[str, Floats]
    ) -> list[OperationCheck]:
        """Return the checks of the keys and values that the cache has, which attention reads."""
        layer = a.op.name.removesuffix("append")
        cached = self._read_cache(layer, a.count)
        checks = []
        for (argument, values), short in zip(expected.items(), "kv", strict=True):
            stored, region = cached[argument], a.given[argument]
            assert isinstance(region, Region)
            exact = stored.as_stored(values)
            allowed = tolerance(exact, stored.as_stored(single[argument]), exact) + stored.rounding(exact)
            checks.append(compare((f"{layer}attn_{short}_cache", "cache", ""), exact, stored.stored, allowed))
            self._caches[region] = stored.heads()
        return checks

    def _read_cache(self, layer: str, count: int) -> Mapping[str, CachedHeads]:
        attention = self._g.model.attention
        cache, heads = attention.caches[layer], attention.layers[layer][0].heads
        ring = next(ring for ring in attention.rings.values() if any(each is cache for each in ring.layers))
        entries = ring.entries.view(np.int32)[:count]
        return {
            "k_cache": read_keys(cache, ring, entries, heads.key_dim, heads.key),
            "v_cache": read_values(cache, ring, entries, heads.value_dim, heads.value),
        }


def type_of(a: OpArguments) -> str:
    """Return the type of the matrix of a product."""
    weight = a.given.get("w")
    return weight.type_name if isinstance(weight, Tensor) else ""


def error_of_tanh(a: OpArguments) -> float:
    """Return what the error of the kernels' tanh allows: of soft-capped values, and of the means of values that are
    weighed by soft-capped scores."""
    signature = signature_of(a.op)
    if signature == SOFT_CAP:
        return TANH * a.number("cap")
    if signature in (RELATIVE_ATTENTION, ATTENTION) and a.number("cap"):
        largest = np.abs(a.all_rows("v") if signature == RELATIVE_ATTENTION else a.heads("v_cache")).max()
        return 2 * TANH * a.number("cap") * float(largest)
    return 0.0
