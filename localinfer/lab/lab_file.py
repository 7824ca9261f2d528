"""Lab files: the sensitivities of a model's tensors as a JSON object, written by `localinfer lab`.

    {"format": "localinfer lab", "version": 1, "setting": {"source": ..., "text": ..., ...},
     "tensors": {"blk.0.ffn_up.weight": {"shape": [...], "types": {"Q4_0": {"nbytes": ..., "weight_error": ...,
        "output_error": ..., "kl_divergence": ..., "standard_error": ...}, ...}}, ...},
     "recipes": {"Q4_K_M": {...}, ...}, "frontier": [...], "types": {"blk.0.ffn_up.weight": "Q5_0", ...}}

Errors are relative powers, divergences nats per token; `standard_error` shows that a divergence was measured. `types`
is the choice for one size, so that the file is also a recipe file (`localinfer.quantization.recipe_file`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localinfer.errors import LocalInferError
from localinfer.escaping import printable
from localinfer.gguf.source import Source
from localinfer.lab.tensor_sensitivity import TensorSensitivity
from localinfer.quantization.recipe_file import read_object
from localinfer.quantization.recipes import FLOATS
from quant import ggml

FORMAT, VERSION = "localinfer lab", 1
FIGURES = {"weight_error": "weight_errors", "output_error": "output_errors", "kl_divergence": "divergences"}


@dataclass(frozen=True, slots=True)
class Lab:
    """The measured sensitivities of a model. `setting` is what they depend on: the source, the text and so on."""

    path: Path
    setting: Mapping[str, Any]
    tensors: Mapping[str, TensorSensitivity]

    @property
    def divergences(self) -> dict[str, Mapping[str, float]]:
        """The divergence of each type in each tensor, in nats per token."""
        return {name: each.divergences for name, each in self.tensors.items()}

    def predict(self, types: Mapping[str, str]) -> float | None:
        """Return the divergence of a model whose tensors have these types: the sum of those of its tensors.

        A float type without a divergence is that of the source, and adds none. None if one of another type is unknown.
        """
        chosen = [(each.divergences, types[name]) for name, each in self.tensors.items() if name in types]
        if any(kind not in known and kind not in FLOATS for known, kind in chosen):
            return None
        return sum(known.get(kind, 0.0) for known, kind in chosen)


def tensors_to_dict(tensors: Mapping[str, TensorSensitivity], source: Source) -> dict[str, Any]:
    """Return the value of `tensors` in a lab file."""
    found = {}
    for name, each in tensors.items():
        tensor = source.tensors[name]
        types: dict[str, dict[str, float]] = {}
        for kind in each.divergences:
            figures = {key: getattr(each, field)[kind] for key, field in FIGURES.items()}
            error = {"standard_error": each.measured[kind]} if kind in each.measured else {}
            types[kind] = {"nbytes": ggml.nbytes(ggml.TYPE_NUMBERS[kind], tensor.shape), **figures, **error}
        found[name] = {"shape": list(tensor.shape), "types": types}
    return found


def read_lab(path: Path) -> Lab:
    """Read and validate a lab file. Raises LocalInferError."""
    content = read_object(path)
    if content.get("format") != FORMAT:
        raise _error(path, "format", f"must be {FORMAT!r}: this is not a file of `localinfer lab`")
    if content.get("version") != VERSION:
        raise _error(path, "version", f"must be {VERSION}, not {content.get('version')!r}")
    tensors, setting = content.get("tensors"), content.get("setting")
    if not isinstance(tensors, dict) or not tensors:
        raise _error(path, "tensors", "must be an object with the sensitivities of tensors")
    if not isinstance(setting, dict):
        raise _error(path, "setting", "must be an object")
    return Lab(path, setting, {name: _read_tensor(path, name, each) for name, each in tensors.items()})


def _read_tensor(path: Path, name: str, content: Any) -> TensorSensitivity:
    types = content.get("types") if isinstance(content, dict) else None
    if not isinstance(types, dict) or not types:
        raise _error(path, name, "must be an object with its types")
    for kind, figures in types.items():
        if kind not in ggml.TYPE_NUMBERS or not isinstance(figures, dict):
            raise _error(path, name, f"{kind}: is not a tensor type with its figures")
        for key in FIGURES:
            if not _is_figure(figures.get(key)):
                raise _error(path, name, f"{kind}: {key}: must be a number from 0 on, not {figures.get(key)!r}")
        if not _is_figure(figures.get("standard_error", 0)):
            raise _error(path, name, f"{kind}: standard_error: must be a number from 0 on")
    columns = {field: {kind: figures[key] for kind, figures in types.items()} for key, field in FIGURES.items()}
    measured = {kind: each["standard_error"] for kind, each in types.items() if "standard_error" in each}
    return TensorSensitivity(name, measured=measured, **columns)


def _is_figure(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _error(path: Path, key: str, problem: str) -> LocalInferError:
    return LocalInferError(f"{printable(str(path))}: {printable(key, 80)}: {problem}")
