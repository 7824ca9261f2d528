"""The rows of quality.py: divergences as they are written and read again, and the ratios that bars are about.

A divergence is a mean over tokens for each kind of text; all kinds together are their geometric mean, so that none
counts more because it is harder. Two files are compared by the ratio of these. Both were judged on the same tokens, so
its standard error comes from the tokens' differences (the delta method): that of log(mean a / mean b) is that of the
mean of a / mean a - b / mean b. Knows no model and no file but that of the rows.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from localinfer.judging.perplexity import Mean, Values

LEAST = 1e-9  # nats; arithmetic in float32 cannot tell less from nothing
DIGITS = 6  # of a token's divergence in a line of JSON


class Bar(NamedTuple):
    """The divergence of one contender is to be smaller than another's."""

    contender: str
    rival: str
    about: str


BARS = (
    Bar("localinfer", "llama.cpp", "without importance, to llama.cpp"),
    Bar("localinfer+imatrix", "localinfer", "with importance to without"),
    Bar("llama.cpp+imatrix", "llama.cpp", "with importance to without, of llama.cpp"),
    Bar("localinfer+imatrix", "llama.cpp+imatrix", "with importance, to llama.cpp"),
    Bar("max+covariances", "localinfer+imatrix", "max with covariances to normal"),
    Bar("max+covariances", "llama.cpp+imatrix", "max with covariances to llama.cpp"),
)


@dataclass(frozen=True, slots=True)
class Key:
    """Which row it is. Without calibration, `calibration` is empty and `chunks` 0."""

    model: str
    recipe: str
    contender: str
    calibration: str
    chunks: int
    eval_chunks: int

    def rivals(self, contender: str) -> tuple["Key", "Key"]:
        """The rows of another contender in the same case: calibrated by the same text, or not at all."""
        same = Key(self.model, self.recipe, contender, self.calibration, self.chunks, self.eval_chunks)
        return same, Key(self.model, self.recipe, contender, "", 0, self.eval_chunks)

    @property
    def case(self) -> str:
        chunks = f", {self.chunks} chunks" if self.chunks else ""
        return f"{self.model} {self.recipe}{chunks}"


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """What was measured. `size` is that of all tensors in bytes, `tokens` the divergence of each by kind of text."""

    key: Key
    size: int
    quantizing: float  # seconds
    judging: float
    tokens: Mapping[str, Values]

    @property
    def means(self) -> dict[str, float]:
        return {kind: mean_of(values) for kind, values in self.tokens.items()}

    @property
    def mean(self) -> float:
        """Of all kinds of text."""
        return math.exp(sum(map(math.log, self.means.values())) / len(self.tokens))


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """A row beside its rival's."""

    bar: Bar
    row: Row
    rival: Row

    @property
    def ratios(self) -> dict[str, Mean]:
        """By kind of text."""
        return {kind: log_ratio(a, self.rival.tokens[kind]).exp() for kind, a in self.row.tokens.items()}

    @property
    def ratio(self) -> Mean:
        """Of all kinds of text."""
        logs = [log_ratio(a, self.rival.tokens[kind]) for kind, a in self.row.tokens.items()]
        error = math.sqrt(sum(log.error**2 for log in logs)) / len(logs)
        return Mean(sum(log.value for log in logs) / len(logs), error).exp()

    def __str__(self) -> str:
        other_size = "" if self.row.size == self.rival.size else f" ({self.row.size / self.rival.size:.3f} of the size)"
        return f"**{self.ratio.value:.3f}** ± {self.ratio.error:.3f} of {self.rival.key.contender}{other_size}"


def log_ratio(a: Values, b: Values) -> Mean:
    """Of the means of two values of the same tokens: log(mean a / mean b)."""
    mean_a, mean_b = mean_of(a), mean_of(b)
    return Mean(math.log(mean_a / mean_b), Mean.of(a / mean_a - b / mean_b).error)


def mean_of(values: Values) -> float:
    """Above 0, whatever was rounded."""
    return max(float(values.mean()), LEAST)


def comparisons(row: Row, rows: Mapping[Key, Row]) -> Iterator[Comparison]:
    """With all rivals that are there."""
    for bar in BARS:
        if bar.contender == row.key.contender:
            found = next((rows[key] for key in row.key.rivals(bar.rival) if key in rows), None)
            if found:
                yield Comparison(bar, row, found)


# --- as text ---


def header(kinds: Sequence[str]) -> str:
    """The first two lines of the table of rows."""
    names = " | ".join(kinds)
    rule = f"|---|---|---|---:|{'---:|' * (len(kinds) + 1)}---|"
    return f"| model | type | by | chunks | {names} | all | to rivals |\n{rule}"


def line(row: Row, rows: Mapping[Key, Row]) -> str:
    """A row of the table."""
    key, values = row.key, [*row.means.values(), row.mean]
    cells = " | ".join(f"{value:.4g}" for value in values)
    rivals = "; ".join(map(str, comparisons(row, rows)))
    return f"| {key.model} | {key.recipe} | {key.contender} | {key.chunks or ''} | {cells} | {rivals} |"


def bars(rows: Mapping[Key, Row]) -> Iterator[str]:
    """A line for each bar: its mean, and the worst cases."""
    yield "| ratio | cases | mean | worst | | worst kind of text | |\n|---|---:|---:|---:|---|---:|---|"
    found = [comparison for row in rows.values() for comparison in comparisons(row, rows)]
    for bar in BARS:
        if having := [comparison for comparison in found if comparison.bar == bar]:
            yield line_of_bar(bar, having)


def line_of_bar(bar: Bar, having: Sequence[Comparison]) -> str:
    mean = math.exp(sum(math.log(each.ratio.value) for each in having) / len(having))
    worst = max(having, key=lambda each: each.ratio.value)
    kinds = [(ratio, f"{each.row.key.case}, {kind}") for each in having for kind, ratio in each.ratios.items()]
    ratio, where = max(kinds, key=lambda pair: pair[0].value)
    return (
        f"| {bar.about} | {len(having)} | **{mean:.3f}** | {shown(worst.ratio)} | {worst.row.key.case} "
        f"| {shown(ratio)} | {where} |"
    )


def shown(ratio: Mean) -> str:
    return f"{ratio.value:.3f} ± {ratio.error:.3f}"


# --- as JSON ---


def as_json(row: Row, rows: Mapping[Key, Row]) -> str:
    """One line, with all that is needed to go on from it."""
    ratios = {each.rival.key.contender: [each.ratio.value, each.ratio.error] for each in comparisons(row, rows)}
    about = {name: getattr(row.key, name) for name in Key.__slots__}
    about |= {"size": row.size, "quantizing": round(row.quantizing, 2), "judging": round(row.judging, 2)}
    tokens = {kind: [float(f"{x:.{DIGITS}g}") for x in values] for kind, values in row.tokens.items()}
    return json.dumps(about | {"means": row.means, "mean": row.mean, "ratios": ratios, "tokens": tokens})


def from_json(text: str) -> Row:
    found: dict[str, Any] = json.loads(text)
    key = Key(**{name: found[name] for name in Key.__slots__})
    tokens = {kind: np.array(values) for kind, values in found["tokens"].items()}
    return Row(key, found["size"], found["quantizing"], found["judging"], tokens)


def read(path: Path) -> Iterable[Row]:
    """The rows of a file, as far as it is there; a line that was cut off counts for nothing."""
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            yield from_json(text)
        except json.JSONDecodeError:
            continue


def append(path: Path, text: str) -> None:
    """Add a line; one that was cut off before stays by itself."""
    before = path.read_bytes()[-1:] if path.exists() else b""
    with path.open("ab") as file:
        file.write(b"\n" * (before not in (b"", b"\n")) + text.encode() + b"\n")
