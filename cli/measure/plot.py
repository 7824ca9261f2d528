"""Plot of throughput over context depth. Only this module uses matplotlib, which is optional."""

import importlib.util
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cli.files.output_files import writable_path, write_atomically
from cli.terminal import screen
from localinfer.errors import UsageError
from localinfer.evaluation.benchmark import BenchmarkResult

EXTENSIONS = (".png", ".svg")
KINDS = {"pp": "prompt processing", "tg": "text generation", "pg": "prompt and generation"}
INCHES = 5.0, 3.6  # size of one panel


def plot_path(name: str) -> Path:
    """Return the path of the plot. Raises UsageError if it is not writable or matplotlib is missing."""
    path = writable_path("--plot", name, EXTENSIONS)
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--plot: requires matplotlib (extra `plot`): python -m pip install matplotlib")
    return path


def plot(path: Path, results: Sequence[BenchmarkResult]) -> None:
    """Plot a panel per kind of test, with a line per model, test size and number of threads."""
    from matplotlib.figure import Figure

    kinds = [kind for kind in KINDS if any(result.test.kind == kind for result in results)]
    width, height = INCHES
    figure = Figure(figsize=(width * len(kinds), height), layout="constrained")
    models = dict.fromkeys(f"{screen.one_line(each.model.name)}, {each.model.backend}" for each in results)
    figure.suptitle("; ".join(models))
    for axes, kind in zip(figure.subplots(1, len(kinds), squeeze=False)[0], kinds, strict=True):
        for label, points in series(results, kind).items():
            depths, means, deviations = zip(*points, strict=True)
            axes.errorbar(depths, means, yerr=deviations, marker="o", capsize=3, label=label)
        top = 1.1 * max(result.mean + result.deviation for result in results if result.test.kind == kind)
        axes.set(title=KINDS[kind], xlabel="context depth (tokens)", ylabel="tokens per second", ylim=(0, top))
        axes.grid(alpha=0.3)
        axes.legend(loc="lower left", fontsize="small")
    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.suffix[1:].lower(), dpi=150)
    write_atomically(path, buffer.getvalue())


def series(results: Sequence[BenchmarkResult], kind: str) -> dict[str, list[tuple[int, float, float]]]:
    """Return the lines of a panel: label to (depth, mean, deviation), sorted by depth."""
    found: dict[str, list[tuple[int, float, float]]] = {}
    several = len({result.model for result in results}) > 1
    for result in sorted(results, key=lambda each: each.test.depth):
        test = result.test
        if test.kind == kind:
            size = replace(test, depth=0).name
            label = f"{size}, {test.threads} thread{'s' * (test.threads != 1)}"
            if several:
                label = f"{Path(result.model.file).name}: {label}"
            found.setdefault(label, []).append((test.depth, result.mean, result.deviation))
    return found
