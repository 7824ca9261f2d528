"""A checkpoint's tensors as GGUF's: other names, the rows of queries and keys in another order, vectors in F32.

Everything that the architecture has must be there, in the shape that config.json gives it, and nothing else.
"""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from localinfer.checkpoint.architectures import HEAD_OF_MODEL, MODEL, Architecture, Rows
from localinfer.checkpoint.folder import Folder
from localinfer.checkpoint.hyperparameters import Numbers
from localinfer.checkpoint.weights import Stored
from localinfer.errors import Unsupported
from localinfer.files.source import SourceTensor
from quant import ggml

TYPES = {"F32": 0, "F16": 1, "BF16": 30}  # safetensors' names -> ggml's numbers
assert all(ggml.TYPES[number].name == name for name, number in TYPES.items())

# A text model within a larger one has the same names behind another prefix; what sees and hears is left out.
PREFIXES = (("model.language_model.", "model."), ("language_model.", ""))
OTHER_MODELS = re.compile(r"(model\.)?(vision_tower|multi_modal_projector)\.")
COMPUTED = re.compile(r".*\.rotary_emb\.inv_freq")  # old checkpoints store what follows from config.json


class Wanted(NamedTuple):
    """A tensor that there must be; `heads`: its rows are in so many heads, whose halves turn together (0: leave it)."""

    stored_name: str
    name: str
    shape: tuple[int, ...]
    heads: int


def convert(
    folder: Folder, architecture: Architecture, numbers: Numbers, stored: Mapping[str, Stored]
) -> dict[str, SourceTensor]:
    """All tensors of the GGUF file by name; their bytes are read, and changed, when they are asked for.

    Raises LocalInferError naming the tensor that is missing or has another shape, Unsupported one that is foreign.
    """
    present = renamed(stored)
    tensors: dict[str, SourceTensor] = {}
    for wanted in expected(architecture, numbers):
        found = present.pop(wanted.stored_name, None)
        if found is None:
            raise folder.error(f"tensor {wanted.stored_name}: is missing")
        tensors[wanted.name] = converted(found, wanted, architecture.norm_offset)
    for name, extra in present.items():
        if not (numbers.tied and name == "lm_head.weight"):
            what = f"is not part of the {architecture.name} architecture as it is supported"
            raise extra.error(what, Unsupported)
    factors = numbers.rope.factors
    if factors is not None:
        name = "rope_freqs.weight"
        tensors[name] = SourceTensor(name, factors.shape, TYPES["F32"], lambda: raw(factors))
    return tensors


def renamed(stored: Mapping[str, Stored]) -> dict[str, Stored]:
    """The text model's tensors, by the names that they have where it stands alone."""
    present = {}
    for name, tensor in stored.items():
        if OTHER_MODELS.match(name) or COMPUTED.fullmatch(name):
            continue
        prefix, replacement = next((pair for pair in PREFIXES if name.startswith(pair[0])), ("", ""))
        present[replacement + name.removeprefix(prefix)] = tensor
    return present


def expected(architecture: Architecture, numbers: Numbers) -> Iterator[Wanted]:
    """Every tensor that there must be."""
    heads = {"attn_q": numbers.n_head, "attn_k": numbers.n_head_kv} if architecture.pairs == "neighbours" else {}

    def rows(table: Rows, stored_prefix: str = "", prefix: str = "") -> Iterator[Wanted]:
        for stored_name, (name, *sizes) in table.items():
            ending = "" if name.endswith(".bias") else ".weight"
            shape = tuple(getattr(numbers, size) for size in sizes)
            yield Wanted(f"{stored_prefix}{stored_name}{ending}", f"{prefix}{name}{ending}", shape, heads.get(name, 0))

    yield from rows(MODEL)
    for i in range(numbers.n_layer):
        yield from rows(architecture.layer, f"model.layers.{i}.", f"blk.{i}.")
    if not numbers.tied:
        yield from rows(HEAD_OF_MODEL)


def converted(stored: Stored, wanted: Wanted, norm_offset: float) -> SourceTensor:
    """A matrix keeps its type; a vector, which is a norm or a bias, becomes F32."""
    if stored.shape != wanted.shape:
        raise stored.error(f"has shape {list(stored.shape)}, not {list(wanted.shape)}")
    if stored.dtype not in TYPES:
        raise stored.error(f"type {stored.dtype} is not supported (only {', '.join(TYPES)})", Unsupported)
    if len(wanted.shape) == 1:
        offset = norm_offset if wanted.name.endswith("norm.weight") else 0.0
        return SourceTensor(wanted.name, wanted.shape, TYPES["F32"], lambda: raw(floats(stored) + np.float32(offset)))
    load = (lambda: neighbours(stored.load(), wanted)) if wanted.heads else stored.load
    return SourceTensor(wanted.name, wanted.shape, TYPES[stored.dtype], load)


def floats(stored: Stored) -> NDArray[np.float32]:
    """The values, float32, flat."""
    data = stored.load()
    if stored.dtype == "BF16":
        return (data.view("<u2").astype(np.uint32) << 16).view(np.float32)
    return data.view({"F32": "<f4", "F16": "<f2"}[stored.dtype]).astype(np.float32)


def neighbours(data: NDArray[np.uint8], wanted: Wanted) -> NDArray[np.uint8]:
    """Rows of queries or keys, so that values that turn together, the halves of a head, become neighbours.

    A head of six rows: 0 1 2 3 4 5 -> 0 3 1 4 2 5.
    """
    halves = data.reshape(wanted.heads, 2, wanted.shape[0] // wanted.heads // 2, -1)
    return halves.swapaxes(1, 2).reshape(-1)


def raw(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    return values.astype("<f4").view(np.uint8)
