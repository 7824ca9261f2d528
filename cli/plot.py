"""Throughput against context depth, as a picture. The one place that knows matplotlib, which is optional."""

import importlib.util
import io
from collections.abc import Sequence
from pathlib import Path

from cli.files import promised, write_whole
from cli.results import Result
from localinfer.errors import UsageError

ENDINGS = (".png", ".svg")
KINDS = {"pp": "prompt processing", "tg": "text generation"}
INCHES = 5.0, 3.6  # of one panel


def promised_plot(name: str) -> Path:
    """Where the picture will be. UsageError when it cannot be written, or not be drawn."""
    path = promised("--plot", name, ENDINGS)
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--plot: needs matplotlib: python -m pip install matplotlib")
    return path


def plot(path: Path, title: str, results: Sequence[Result]) -> None:
    """A panel for prompts and one for answers, as far as they were measured; a line for each size and thread count."""
    from matplotlib.figure import Figure

    kinds = [kind for kind in KINDS if any(result.test.kind == kind for result in results)]
    width, height = INCHES
    figure = Figure(figsize=(width * len(kinds), height), layout="constrained")
    figure.suptitle(title)
    for axes, kind in zip(figure.subplots(1, len(kinds), squeeze=False)[0], kinds, strict=True):
        for label, points in lines(results, kind).items():
            depths, means, deviations = zip(*points, strict=True)
            axes.errorbar(depths, means, yerr=deviations, marker="o", capsize=3, label=label)
        top = 1.1 * max(result.mean + result.deviation for result in results if result.test.kind == kind)
        axes.set(title=KINDS[kind], xlabel="tokens before", ylabel="tokens a second", ylim=(0, top))
        axes.grid(alpha=0.3)
        axes.legend(loc="lower left")
    picture = io.BytesIO()
    figure.savefig(picture, format=path.suffix[1:].lower(), dpi=150)
    write_whole(path, picture.getvalue())


def lines(results: Sequence[Result], kind: str) -> dict[str, list[tuple[int, float, float]]]:
    """Depth, mean and deviation of the tests of a kind, the shallow ones first, by what else they differ in."""
    found: dict[str, list[tuple[int, float, float]]] = {}
    for result in sorted(results, key=lambda each: each.test.depth):
        test = result.test
        if test.kind == kind:
            label = f"{kind}{test.tokens}, {test.threads} thread{'s' * (test.threads != 1)}"
            found.setdefault(label, []).append((test.depth, result.mean, result.deviation))
    return found
