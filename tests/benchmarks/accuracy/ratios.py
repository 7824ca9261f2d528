"""The rows of quality.py: divergences as they are written and read again, and the ratios that bars are about.

A divergence is a mean over tokens for each kind of text; all kinds together are their geometric mean, so that none
counts more because it is harder. Two files are compared by the ratio of these. Both were judged on the same tokens, so
its standard error comes from the tokens' differences (the delta method): that of log(mean a / mean b) is that of the
mean of a / mean a - b / mean b. That says what other tokens would change. Another file of the same model, from weights
that differ by noise, changes more: of SmolLM2 such ratios differ by a tenth. So a case is the geometric mean over the
seeds of that noise, and where there are several its error is what they differ by. Knows no model and no file but that
of the rows.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
    seed: int  # of the noise in the source

    def rivals(self, contender: str) -> tuple["Key", "Key"]:
        """The rows of another contender in the same case: calibrated by the same text, or not at all."""
        same = replace(self, contender=contender)
        return same, replace(same, calibration="", chunks=0)

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
    def logs(self) -> dict[str, Mean]:
        """The logarithm of the ratio, by kind of text."""
        return {kind: log_ratio(a, self.rival.tokens[kind]) for kind, a in self.row.tokens.items()}

    @property
    def log(self) -> Mean:
        """Of all kinds of text."""
        logs = self.logs.values()
        error = math.sqrt(sum(log.error**2 for log in logs)) / len(logs)
        return Mean(sum(log.value for log in logs) / len(logs), error)

    def __str__(self) -> str:
        other_size = "" if self.row.size == self.rival.size else f" ({self.row.size / self.rival.size:.3f} of the size)"
        return f"{bold(self.log.exp())} of {self.rival.key.contender}{other_size}"


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
    rule = f"|---|---:|---|---|---:|{'---:|' * (len(kinds) + 1)}---|"
    return f"| model | seed | type | by | chunks | {names} | all | to rivals |\n{rule}"


def line(row: Row, rows: Mapping[Key, Row]) -> str:
    """A row of the table."""
    key, values = row.key, [*row.means.values(), row.mean]
    cells = " | ".join(f"{value:.4g}" for value in values)
    rivals = "; ".join(map(str, comparisons(row, rows)))
    return f"| {key.model} | {key.seed} | {key.recipe} | {key.contender} | {key.chunks or ''} | {cells} | {rivals} |"


def bars(rows: Mapping[Key, Row]) -> Iterator[str]:
    """A line for each bar: its mean, and the worst cases."""
    yield "| ratio | cases | mean | worst | | worst kind of text | |\n|---|---:|---:|---:|---|---:|---|"
    cases: dict[Bar, dict[str, list[Comparison]]] = {bar: {} for bar in BARS}
    for row in rows.values():
        for comparison in comparisons(row, rows):
            cases[comparison.bar].setdefault(row.key.case, []).append(comparison)
    yield from (line_of_bar(bar, having) for bar, having in cases.items() if having)


def line_of_bar(bar: Bar, cases: Mapping[str, Sequence[Comparison]]) -> str:
    logs = {case: over_seeds([each.log for each in having]) for case, having in cases.items()}
    kinds = {
        f"{case}, {kind}": over_seeds([each.logs[kind] for each in having])
        for case, having in cases.items() for kind in having[0].logs
    }  # fmt: skip
    mean = math.exp(sum(log.value for log in logs.values()) / len(logs))
    (case, worst), (where, kind) = (max(of.items(), key=lambda item: item[1].value) for of in (logs, kinds))
    of_all = f"| {bar.about} | {len(cases)} | **{mean:.3f}** | {shown(worst.exp())} | {case} "
    return f"{of_all}| {shown(kind.exp())} | {where} |"


def over_seeds(logs: Sequence[Mean]) -> Mean:
    """Their mean; its error is what they differ by."""
    return Mean.of(np.array([log.value for log in logs])) if len(logs) > 1 else logs[0]


def shown(ratio: Mean) -> str:
    return f"{ratio.value:.3f} ± {ratio.error:.3f}"


def bold(ratio: Mean) -> str:
    return f"**{ratio.value:.3f}** ± {ratio.error:.3f}"


# --- as JSON ---


def as_json(row: Row, rows: Mapping[Key, Row]) -> str:
    """One line, with all that is needed to go on from it."""
    found = {each.rival.key.contender: each.log.exp() for each in comparisons(row, rows)}
    ratios = {rival: [ratio.value, ratio.error] for rival, ratio in found.items()}
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
