"""The adapters of a model file, of which control tokens in the text switch one on: see
`localinfer.graph.properties.embedded_adapters`."""

import numpy as np
from numpy.typing import NDArray

from localinfer.graph.properties.embedded_adapters import LORA_A, LORA_B, EmbeddedAdapters, Numbers, parts_of
from localinfer.naive.formulas import Floats, visible
from localinfer.naive.weights import Model


def active_adapters(embedded: EmbeddedAdapters, ids: NDArray[np.int64]) -> Numbers:
    """Return the adapter of each token of a text, 0 for none: what a head of attention finds whose keys and values say
    which tokens are control tokens, and of which adapter. Scores and sums are 32-bit floats, on whose rounding the
    result depends."""
    values = embedded.adapters[ids].astype(np.float32)
    keys = np.where(values > 0, embedded.gain, -embedded.gain).astype(np.float32)
    scores = np.where(visible(np.arange(len(ids)), 0), keys, -np.inf).astype(np.float32)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    mean = (weights @ values) / weights.sum(axis=1)
    active: Numbers = np.floor(mean + np.float32(0.5)).astype(np.int32)
    return active


def added_by_adapters(model: Model, name: str, x: Floats, active: Numbers) -> Floats | float:
    """Return what the adapters of the tokens add to the product of x, (n, n_in), with a matrix: (n, n_out), or 0."""
    parts = parts_of(name)
    if not model.has(f"{parts[0]}{LORA_A}"):
        return 0.0
    return np.concatenate([added_to_part(model, part, x, active) for part in parts], axis=1)


def added_to_part(model: Model, name: str, x: Floats, active: Numbers) -> Floats:
    """Return B (A x) with the matrices of each token's adapter."""
    y = np.zeros((len(x), model.file.tensors[f"{name}{LORA_B}"].shape[1]), x.dtype)
    for adapter in np.unique(active).tolist():
        a, b = (model.rows(f"{name}{kind}", slice(adapter, adapter + 1))[0] for kind in (LORA_A, LORA_B))
        low = model.product(f"{name}{LORA_A}", x[active == adapter], a.astype(model.dtype))
        y[active == adapter] = model.product(f"{name}{LORA_B}", low, b.astype(model.dtype))
    return y
