"""Scale pairs in quantization: which ones can change, and the sample of a pair's matrices on which factors are tried.

    plan = with_scale_pairs(plan, effort="normal", threads=2)       # for an importance matrix

`localinfer.graph.scale_pairs` finds the pairs, `localinfer.quantization.scale_factors` their factors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from localinfer.gguf.file_types import SCALE_PAIRS
from localinfer.gguf.reader import open_gguf
from localinfer.gguf.source import Field, Source
from localinfer.graph.scale_pairs import ScalePair, find_scale_pairs
from localinfer.options import Options
from localinfer.quantization.feedback_encoders import checked_factor
from localinfer.quantization.noise import Progress, sample_rows
from localinfer.quantization.plan import QuantizationPlan
from localinfer.quantization.quantize import compile_kernels
from localinfer.quantization.rows import load_bytes, matrices, read_selected_rows
from localinfer.quantization.scale_factors import MAX_ROWS, PairMatrix, find_factors
from localinfer.quantization.shared_inputs import SharedInputs, divided_components, divided_squares
from localinfer.quantization.tensor_scales import tensor_scales
from localinfer.runtime.graph_building import Extensions, build_graph
from quant import FORMATS, ggml
from quant.jit import loader

COLUMN_ROWS = 512  # of a matrix, for the magnitudes of its columns
F32 = ggml.TYPE_NUMBERS["F32"]

Floats = NDArray[np.float32]
Names = tuple[str, ...]
Inputs = Mapping[tuple[Names, range | None], SharedInputs]  # by the matrices that share them, and the rows of these


def pairs_of_plan(plan: QuantizationPlan) -> list[ScalePair]:
    """Return the scale pairs of a plan whose source is a GGUF file. Tensors that are copied must be in F32.

    Raises LocalInferError for a model that cannot run.
    """
    model = build_graph(open_gguf(plan.source.files[0]), Options(), Extensions(media=True))
    source, types = plan.source, plan.types

    def can_change(name: str) -> bool:
        old = source.tensors[name].type
        return old in FORMATS and (old == F32 or types[name] != old)

    def is_quantized(name: str) -> bool:
        return types[name] != source.tensors[name].type

    return [
        pair
        for pair in find_scale_pairs(model)
        if all(map(can_change, pair.tensors)) and any(map(is_quantized, pair.products))
    ]


def pair_matrices(source: Source, types: Mapping[str, int], pair: ScalePair, inputs: Inputs) -> list[PairMatrix]:
    """Return samples of the matrices of a pair that are quantized, each with the inputs of its rows."""
    found = []
    for name in pair.products:
        tensor = source.tensors[name]
        if types[name] == tensor.type:
            continue
        [matrix] = matrices(tensor, types[name])
        parts = {rows: each for (names, rows), each in inputs.items() if name in names}
        data = load_bytes(source, tensor)
        squares = np.square(sample_rows(source, matrix, data, COLUMN_ROWS)).mean(axis=0)
        for rows, each in parts.items():
            others = {row for part in parts if part for row in part} if rows is None else set[int]()
            numbers = [row for row in rows or range(matrix.rows) if row not in others]
            chosen = numbers[:: -(-len(numbers) // MAX_ROWS)]
            found.append(PairMatrix(matrix, read_selected_rows(source, matrix, data, chosen), squares, each))
    return found


# --- with an importance matrix ---


def with_scale_pairs(
    plan: QuantizationPlan, *, effort: str, threads: int, progress: Progress | None = None,
    compiling: loader.Progress | None = None,
) -> QuantizationPlan:  # fmt: skip
    """Return the plan with the factors of its scale pairs, for which the inputs in its importance matrix are divided.

    The source is a GGUF file. Pairs with matrices that are not in the importance matrix do not change.
    """
    compile_kernels(plan.old_types, plan.changed_types, "normal", compiling, low_rank=bool(plan.components))
    factors, pairs = [], pairs_of_plan(plan)
    for done, pair in enumerate(pairs):
        if progress:
            progress(done, len(pairs))
        if all(name in plan.importance for name in pair.products):
            inputs = inputs_of_plan(plan, pair.products, with_covariance=effort == "max", threads=threads)
            found = find_factors(pair, pair_matrices(plan.source, plan.types, pair, inputs), threads)
            if found is not None:
                factors.append((pair, found))
    scales = tensor_scales(plan.source.tensors, factors)
    importance, components = dict(plan.importance), dict(plan.components)
    shared: dict[int, Floats] = {}  # by the array that several matrices have: what they have instead
    for name in scales.keys() & importance.keys():
        importance[name] = divided_squares(importance[name], scales[name].columns)
        if name in components:
            old = plan.components[name]
            shared[id(old)] = shared.get(id(old), divided_components(old, scales[name].columns))
            components[name] = shared[id(old)]
    fields = {**plan.fields, SCALE_PAIRS: Field.flag(True)} if factors else plan.fields
    return replace(plan, importance=importance, components=components, scales=scales, fields=fields)


def inputs_of_plan(
    plan: QuantizationPlan, names: Sequence[str], *, with_covariance: bool, threads: int
) -> Inputs:
    """Return the inputs of matrices in the importance matrix of a plan."""
    groups: dict[object, list[str]] = {}
    for name in names:
        groups.setdefault(id(plan.components[name]) if name in plan.components else name, []).append(name)
    found: dict[tuple[Names, range | None], SharedInputs] = {}
    for group in groups.values():
        covariance = plan.covariances.get(group[0]) if with_covariance else None
        copied = replace(covariance, products=covariance.products.copy()) if covariance else None
        factor = checked_factor(group[0], copied, threads) if copied else None
        components = plan.components.get(group[0])
        found[tuple(group), None] = SharedInputs(group, plan.importance[group[0]], components, factor)
    return found
