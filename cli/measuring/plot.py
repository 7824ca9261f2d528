"""Throughput against context depth, as a picture. The one place that knows matplotlib, which is optional."""

import importlib.util
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cli.files import promised, write_whole
from cli.measuring.results import Result
from localinfer.errors import UsageError

ENDINGS = (".png", ".svg")
KINDS = {"pp": "prompt processing", "tg": "text generation", "pg": "prompt and answer"}
INCHES = 5.0, 3.6  # of one panel


def promised_plot(name: str) -> Path:
    """Where the picture will be. UsageError when it cannot be written, or not be drawn."""
    path = promised("--plot", name, ENDINGS)
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--plot: needs matplotlib, the extra `plot`: python -m pip install matplotlib")
    return path


def plot(path: Path, results: Sequence[Result]) -> None:
    """A panel for each kind of test that was measured; in it a line for each model, size and thread count."""
    from matplotlib.figure import Figure

    kinds = [kind for kind in KINDS if any(result.test.kind == kind for result in results)]
    width, height = INCHES
    figure = Figure(figsize=(width * len(kinds), height), layout="constrained")
    figure.suptitle("; ".join(dict.fromkeys(f"{each.subject.model}, {each.subject.backend}" for each in results)))
    for axes, kind in zip(figure.subplots(1, len(kinds), squeeze=False)[0], kinds, strict=True):
        for label, points in lines(results, kind).items():
            depths, means, deviations = zip(*points, strict=True)
            axes.errorbar(depths, means, yerr=deviations, marker="o", capsize=3, label=label)
        top = 1.1 * max(result.mean + result.deviation for result in results if result.test.kind == kind)
        axes.set(title=KINDS[kind], xlabel="tokens before", ylabel="tokens a second", ylim=(0, top))
        axes.grid(alpha=0.3)
        axes.legend(loc="lower left", fontsize="small")
    picture = io.BytesIO()
    figure.savefig(picture, format=path.suffix[1:].lower(), dpi=150)
    write_whole(path, picture.getvalue())


def lines(results: Sequence[Result], kind: str) -> dict[str, list[tuple[int, float, float]]]:
    """Depth, mean and deviation of the tests of a kind, the shallow ones first, by what else they differ in."""
    found: dict[str, list[tuple[int, float, float]]] = {}
    several = len({result.subject for result in results}) > 1
    for result in sorted(results, key=lambda each: each.test.depth):
        test = result.test
        if test.kind == kind:
            size = replace(test, depth=0).name
            label = f"{size}, {test.threads} thread{'s' * (test.threads != 1)}"
            if several:
                label = f"{Path(result.subject.file).name}: {label}"
            found.setdefault(label, []).append((test.depth, result.mean, result.deviation))
    return found
