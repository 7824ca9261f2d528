"""The quantization lab: measures the sensitivity to every tensor, and the frontier of divergence against size.

    content = run_lab(plan, chunks, setting, Path("lab.json"), size=700_000_000)

The result is the content of a lab file (`localinfer.lab.lab_file`). An interrupted measurement leaves
`.NAME.unfinished` next to the file, from which the next one with the same setting continues.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from localinfer.errors import LocalInferError, UsageError
from localinfer.evaluation.perplexity import Mean
from localinfer.gguf.source import Source
from localinfer.lab.frontier import SizeCurve, SizePoint
from localinfer.lab.lab_file import FORMAT, VERSION, read_lab, tensors_to_dict
from localinfer.lab.measurement import (
    SensitivityMeasurement,
    SensitivityObserver,
    measurable_types,
)
from localinfer.lab.tensor_sensitivity import TensorSensitivity
from localinfer.paths import replace_file
from localinfer.quantization.budget import Target, unreachable_message
from localinfer.quantization.plan import QuantizationPlan
from localinfer.tokenizer.chunks import Chunks
from localinfer.version import VERSION as PROGRAM_VERSION
from quant.jit.loader import Progress

MEASURED_RECIPES = ("Q3_K_M", "IQ4_XS", "Q4_K_M")
DEFAULT_RECIPE = "Q4_K_M"  # by default, `types` is the choice for its size


class LabObserver(SensitivityObserver):
    """Receives the progress of `run_lab`."""

    def on_resumed(self, tensors: int) -> None:
        """Called if so many tensors are known from an interrupted run."""

    def on_check(self, what: str) -> None:
        """Called before a whole choice of types is measured."""


def make_setting(
    plan: QuantizationPlan, chunks: Chunks, text: str, imatrix: Path | None, *, effort: str = "normal",
    layers_at_once: int = 1,
) -> dict[str, Any]:  # fmt: skip
    """Return what the result depends on. `text` names the text."""
    return {
        "source": str(plan.source.path), "source_state": [file_state(path) for path in plan.source.files],
        "text": text, "tokens": hashlib.sha256(chunks.tobytes()).hexdigest(), "chunks": len(chunks),
        "n_ctx": chunks.shape[1], "imatrix": str(imatrix) if imatrix else None,
        "imatrix_state": file_state(imatrix) if imatrix else None, "effort": effort, "layers_at_once": layers_at_once,
        "localinfer": PROGRAM_VERSION,
    }  # fmt: skip


def file_state(path: Path) -> list[int]:
    """Return the size of a file, and the time of its last change in ns."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def run_lab(
    plan: QuantizationPlan,
    chunks: Chunks,
    setting: Mapping[str, Any],
    path: Path,
    *,
    size: int | None = None,
    measured: Sequence[str] = MEASURED_RECIPES,
    threads: int = 1,
    observer: LabObserver | None = None,
    compiling: Progress | None = None,
) -> dict[str, Any]:
    """Measure a model and return the content of its lab file, which will be written to `path`.

    `types` is the best choice in a file of `size` bytes. The recipes in `measured`, and the best choices of the same
    sizes, are also measured as a whole. Raises UsageError if no file is that small, and the errors of
    `measure_sensitivity`.
    """
    observer = observer or LabObserver()
    if size is not None:
        require_reachable(plan, size)
    unfinished = unfinished_path(path)
    known = read_unfinished(unfinished, setting)
    if known:
        observer.on_resumed(len(known))
    recording = _Recording(observer, unfinished, plan.source, setting, known)
    with SensitivityMeasurement(
        plan, chunks, effort=setting["effort"], threads=threads, layers_at_once=setting["layers_at_once"],
        compiling=compiling,
    ) as measurement:  # fmt: skip
        found = measurement.run(known, recording)
        curve = SizeCurve(plan, {name: each.divergences for name, each in found.items()})
        recipes = curve.recipes()
        chosen = choice_for(curve, recipes, size)
        whole = {name: recipes[name] for name in measured if name in recipes}
        checked = check_recipes(measurement, curve, whole, observer)
    frontier = curve.frontier([point.size for point in recipes.values()])
    return {
        "format": FORMAT, "version": VERSION, "setting": dict(setting), "size": chosen.size,
        "kl_divergence": chosen.divergence, "types": dict(chosen.types),
        "recipes": {name: {**figures(point), **checked.get(name, {})} for name, point in recipes.items()},
        "frontier": [{**figures(point), "types": dict(point.types)} for point in frontier],
        "tensors": tensors_to_dict(found, plan.source),
    }  # fmt: skip


def figures(point: SizePoint) -> dict[str, float]:
    """Return the size and the predicted divergence of a choice, for JSON."""
    return {"size": point.size, "kl_divergence": point.divergence}


def require_reachable(plan: QuantizationPlan, size: int) -> None:
    """Raise UsageError if no file has at most `size` bytes."""
    curve = SizeCurve(plan, {name: dict.fromkeys(kinds, 0.0) for name, kinds in measurable_types(plan).items()})
    if not curve.best(size):
        raise UsageError(unreachable_message(Target(f"{size:,}", size), plan.source, curve.smallest_size))


def choice_for(curve: SizeCurve, recipes: Mapping[str, SizePoint], size: int | None) -> SizePoint:
    """Return the best choice in `size` bytes; by default, that of DEFAULT_RECIPE, or the smallest that there is."""
    if size is None:
        size = recipes[DEFAULT_RECIPE].size if DEFAULT_RECIPE in recipes else curve.smallest_size
    point = curve.best(size)
    assert point
    return point


def check_recipes(
    measurement: SensitivityMeasurement, curve: SizeCurve, recipes: Mapping[str, SizePoint], observer: LabObserver
) -> dict[str, dict[str, Any]]:
    """Measure recipes, and the best choices of the same sizes."""
    found = {}
    for name, recipe in recipes.items():
        best = curve.best(recipe.size)
        if best:
            observer.on_check(name)
            own = measurement.divergence_of(recipe.types)
            observer.on_check(f"best choice in the size of {name}")
            found[name] = {"measured": as_figures(own), "best": {
                **figures(best), "measured": as_figures(measurement.divergence_of(best.types)),
            }}  # fmt: skip
    return found


def as_figures(mean: Mean) -> dict[str, float]:
    """Return a measured divergence for JSON."""
    return {"kl_divergence": mean.value, "standard_error": mean.error}


# --- interrupted runs ---


def unfinished_path(path: Path) -> Path:
    """Return the file of an interrupted measurement, which is not needed any more when `path` is written."""
    return path.with_name(f".{path.name}.unfinished")


class _Recording(LabObserver):
    """Passes the progress on, and stores each tensor on disk."""

    def __init__(
        self, observer: LabObserver, path: Path, source: Source, setting: Mapping[str, Any],
        known: Mapping[str, TensorSensitivity],
    ) -> None:  # fmt: skip
        self._observer, self._path, self._source, self._setting = observer, path, source, setting
        self._found = dict(known)

    def on_estimate(self, tensors: int, seconds: float) -> None:
        self._observer.on_estimate(tensors, seconds)

    def on_progress(self, what: str, fraction: float) -> None:
        self._observer.on_progress(what, fraction)

    def on_tensor(self, found: TensorSensitivity) -> None:
        self._found[found.name] = found
        content = {"format": FORMAT, "version": VERSION, "setting": dict(self._setting),
                   "tensors": tensors_to_dict(self._found, self._source)}  # fmt: skip
        try:
            replace_file(self._path, json.dumps(content).encode())
        except OSError as error:
            raise LocalInferError(f"{self._path}: {error.strerror}") from None
        self._observer.on_tensor(found)


def read_unfinished(path: Path, setting: Mapping[str, Any]) -> dict[str, TensorSensitivity]:
    """Return the tensors of an interrupted run with the same setting; none if there is no such run."""
    if not path.exists():
        return {}
    try:
        lab = read_lab(path)
    except LocalInferError:  # a file of another version, or damaged
        return {}
    return dict(lab.tensors) if lab.setting == json.loads(json.dumps(setting)) else {}
