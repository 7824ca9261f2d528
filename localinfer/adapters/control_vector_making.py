"""Making a control vector from pairs of prompts (Turner et al., 2023; Zou et al., 2023).

Each pair has a prompt with a property, such as "You are honest. ...", and the same prompt with the opposite one. The
difference of the residual streams after their last tokens is a direction of the property. The vector of a layer is

    mean    the mean of the differences
    pca     the direction in which the squared differences are largest, their first principal component without
            centering, times the mean of the differences' lengths along it

so that with the scale 1 both methods move the residual stream of a negative prompt as far as a positive one is away.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from localinfer.adapters.control_vector import ARCHITECTURE
from localinfer.errors import LocalInferError, UsageError
from localinfer.gguf.atomic_file import atomic_files
from localinfer.gguf.source import Field
from localinfer.gguf.writer import TensorInfo, make_layout
from localinfer.runtime.engine import Engine
from localinfer.runtime.probe import ActivationProbe
from quant import ggml

Floats = NDArray[np.float32]
Method = Literal["mean", "pca"]
METHODS = get_args(Method)
Pair = tuple[Sequence[int], Sequence[int]]  # the token ids of a positive prompt and of its negative one
F32 = ggml.TYPE_NUMBERS["F32"]


def compute_directions(
    engine: Engine, pairs: Sequence[Pair], method: Method, progress: Callable[[int, int], None] | None = None
) -> dict[int, Floats]:
    """Return the vectors of all layers but the first, by layer, float32 (n_embd,). `progress` is called with the number
    of pairs that are done, and of all.

    Raises UsageError without pairs or for a prompt that does not fit in one batch, LocalInferError if the prompts do
    not differ or values are not finite, UnsupportedError for a model whose layers cannot run one by one.
    """
    if method not in METHODS:
        raise UsageError(f"method: must be {' or '.join(METHODS)}, not {method}")
    if not pairs:
        raise UsageError("there are no pairs of prompts")
    longest = max(map(len, chain(*pairs)))
    if longest > engine.graph.batch:
        raise UsageError(f"a prompt has {longest} tokens; at most {engine.graph.batch} fit in a batch (--ubatch-size)")
    if engine.compiled_graph.model_graph.block_count < 2:
        raise engine.file.error("block_count", "is 1: the first layer has no control vector")
    differences = []
    for done, (positive, negative) in enumerate(pairs):
        if progress:
            progress(done, len(pairs))
        differences.append(last_residuals(engine, positive) - last_residuals(engine, negative))
    stacked = np.stack(differences, axis=1)  # (layers, pairs, n)
    if not np.isfinite(stacked).all():
        raise engine.file.error("", "has activations that are not finite")
    if not stacked.any():
        raise LocalInferError("the positive and the negative prompts do not differ")
    return {layer: direction(rows, method) for layer, rows in enumerate(stacked, start=1)}


def last_residuals(engine: Engine, tokens: Sequence[int]) -> Floats:
    """Return the residual stream at the last token after each layer but the first, float32 (n_layer - 1, n)."""
    probe = ActivationProbe(engine)
    x, rows = probe.embed(tokens), []
    for layer in range(engine.compiled_graph.model_graph.block_count):
        probe.run_block(layer, x)
        rows.append(x[-1].copy())
    engine.reset()
    return np.stack(rows[1:])


def direction(differences: Floats, method: Method) -> Floats:
    """Return the vector of a layer, given the differences of all pairs, (pairs, n)."""
    exact = differences.astype(np.float64)
    mean: NDArray[np.float64] = exact.mean(axis=0)
    if method == "pca" and exact.any():
        component = np.linalg.svd(exact, full_matrices=False)[2][0]
        mean = component * (exact @ component).mean()
    return mean.astype(np.float32)


def write_control_vector(
    path: Path, directions: Mapping[int, Floats], architecture: str, *, replace: bool = False
) -> None:
    """Write the file atomically, as llama.cpp reads it. Raises LocalInferError if that fails."""
    fields = {
        "general.architecture": Field.text(ARCHITECTURE),
        f"{ARCHITECTURE}.model_hint": Field.text(architecture),
        f"{ARCHITECTURE}.layer_count": Field.uint32(len(directions)),
    }
    tensors = [TensorInfo(f"direction.{layer}", values.shape, F32) for layer, values in directions.items()]
    layout = make_layout(fields, tensors)
    with atomic_files({path: layout.size}, replace=replace) as [file]:
        file.write_at(0, layout.header)
        for layer, values in directions.items():
            file.write_at(layout.offsets[f"direction.{layer}"], values.astype("<f4").tobytes())
