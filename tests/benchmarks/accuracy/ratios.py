"""The result rows of quality.py: their JSON format, and the ratios that the targets refer to.

A divergence is the mean over the tokens of each kind of text. The divergence of all kinds is the geometric mean, so
that no kind has more weight because it is harder. Two files are compared by the ratio of their divergences. Both were
evaluated on the same tokens, so the standard error of log(mean a / mean b) is that of the mean of
a / mean a - b / mean b (delta method). It covers the choice of tokens. Files of the same model from weights with
different noise differ more: by 10 % for SmolLM2. A case is therefore the geometric mean over the seeds of that noise;
with several seeds, its error comes from their differences.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from localinfer.evaluation.perplexity import Mean, Values

MIN_DIVERGENCE = 1e-9  # nats; smaller divergences are below the accuracy of float32
DIGITS = 6  # significant digits of a token's divergence in JSON


class Target(NamedTuple):
    """A required ratio of the divergences of two quantizers."""

    contender: str
    rival: str
    about: str


TARGETS = (
    Target("localinfer", "llama.cpp", "without importance, to llama.cpp"),
    Target("localinfer+imatrix", "localinfer", "with importance to without"),
    Target("llama.cpp+imatrix", "llama.cpp", "with importance to without, of llama.cpp"),
    Target("localinfer+imatrix", "llama.cpp+imatrix", "with importance, to llama.cpp"),
    Target("max+covariances", "localinfer+imatrix", "max with covariances to normal"),
    Target("max+covariances", "llama.cpp+imatrix", "max with covariances to llama.cpp"),
)


@dataclass(frozen=True, slots=True)
class Key:
    """The key of a row. Without calibration, `calibration` is empty and `chunks` is 0."""

    model: str
    recipe: str
    contender: str
    calibration: str
    chunks: int
    eval_chunks: int
    seed: int  # seed of the noise in the source

    def baseline_keys(self, contender: str) -> tuple["Key", "Key"]:
        """Return the keys of another quantizer in the same case: with the same calibration text, or without any."""
        same = replace(self, contender=contender)
        return same, replace(same, calibration="", chunks=0)

    @property
    def case(self) -> str:
        chunks = f", {self.chunks} chunks" if self.chunks else ""
        return f"{self.model} {self.recipe}{chunks}"


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A result. `size` is that of all tensors in bytes, `tokens` has the divergence of each token by kind of text."""

    key: Key
    size: int
    quantizing: float  # seconds
    evaluation: float
    tokens: Mapping[str, Values]

    @property
    def means(self) -> dict[str, float]:
        return {kind: mean_of(values) for kind, values in self.tokens.items()}

    @property
    def mean(self) -> float:
        """The geometric mean over all kinds of text."""
        return geometric_mean(self.tokens)


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """A row and the row of a baseline."""

    bar: Target
    row: Row
    rival: Row

    @property
    def logs(self) -> dict[str, Mean]:
        """The logarithm of the ratio by kind of text."""
        return {kind: log_ratio(a, self.rival.tokens[kind]) for kind, a in self.row.tokens.items()}

    @property
    def log(self) -> Mean:
        """The geometric mean over all kinds of text."""
        logs = self.logs.values()
        error = math.sqrt(sum(log.error**2 for log in logs)) / len(logs)
        return Mean(sum(log.value for log in logs) / len(logs), error)

    def __str__(self) -> str:
        other_size = "" if self.row.size == self.rival.size else f" ({self.row.size / self.rival.size:.3f} of the size)"
        return f"{format_bold(self.log.exp())} of {self.rival.key.contender}{other_size}"


def log_ratio(a: Values, b: Values) -> Mean:
    """Return log(mean a / mean b) of paired values with its standard error (delta method)."""
    mean_a, mean_b = mean_of(a), mean_of(b)
    return Mean(math.log(mean_a / mean_b), Mean.of(a / mean_a - b / mean_b).error)


def geometric_mean(tokens: Mapping[str, Values]) -> float:
    """Return the geometric mean over kinds of text of the mean divergence of their tokens."""
    return math.exp(sum(math.log(mean_of(values)) for values in tokens.values()) / len(tokens))


def mean_of(values: Values) -> float:
    """Return the mean, at least MIN_DIVERGENCE, because rounding can make it 0 or negative."""
    return max(float(values.mean()), MIN_DIVERGENCE)


def comparisons(row: Row, rows: Mapping[Key, Row]) -> Iterator[Comparison]:
    """Yield the comparisons with all baselines that have a row."""
    for bar in TARGETS:
        if bar.contender == row.key.contender:
            actual = next((rows[key] for key in row.key.baseline_keys(bar.rival) if key in rows), None)
            if actual:
                yield Comparison(bar, row, actual)


# --- as text ---


def format_header(kinds: Sequence[str]) -> str:
    """Return the first two lines of the table of rows."""
    names = " | ".join(kinds)
    rule = f"|---|---:|---|---|---:|{'---:|' * (len(kinds) + 1)}---|"
    return f"| model | seed | type | by | chunks | {names} | all | to rivals |\n{rule}"


def format_row(row: Row, rows: Mapping[Key, Row]) -> str:
    """Return a row of the table."""
    key, values = row.key, [*row.means.values(), row.mean]
    cells = " | ".join(f"{value:.4g}" for value in values)
    rivals = "; ".join(map(str, comparisons(row, rows)))
    return f"| {key.model} | {key.seed} | {key.recipe} | {key.contender} | {key.chunks or ''} | {cells} | {rivals} |"


def format_targets(rows: Mapping[Key, Row]) -> Iterator[str]:
    """Yield a line for each target: its mean and the worst cases."""
    yield "| ratio | cases | mean | worst | | worst kind of text | |\n|---|---:|---:|---:|---|---:|---|"
    cases: dict[Target, dict[str, list[Comparison]]] = {bar: {} for bar in TARGETS}
    for row in rows.values():
        for comparison in comparisons(row, rows):
            cases[comparison.bar].setdefault(row.key.case, []).append(comparison)
    yield from (format_target(bar, having) for bar, having in cases.items() if having)


def format_target(bar: Target, cases: Mapping[str, Sequence[Comparison]]) -> str:
    logs = {case: mean_over_seeds([each.log for each in having]) for case, having in cases.items()}
    kinds = {
        f"{case}, {kind}": mean_over_seeds([each.logs[kind] for each in having])
        for case, having in cases.items() for kind in having[0].logs
    }  # fmt: skip
    mean = math.exp(sum(log.value for log in logs.values()) / len(logs))
    (case, worst), (where, kind) = (max(of.items(), key=lambda item: item[1].value) for of in (logs, kinds))
    of_all = f"| {bar.about} | {len(cases)} | **{mean:.3f}** | {format_ratio(worst.exp())} | {case} "
    return f"{of_all}| {format_ratio(kind.exp())} | {where} |"


def mean_over_seeds(logs: Sequence[Mean]) -> Mean:
    """Return the mean over the seeds; its error comes from their differences."""
    return Mean.of(np.array([log.value for log in logs])) if len(logs) > 1 else logs[0]


def format_ratio(ratio: Mean) -> str:
    return f"{ratio.value:.3f} ± {ratio.error:.3f}"


def format_bold(ratio: Mean) -> str:
    return f"**{ratio.value:.3f}** ± {ratio.error:.3f}"


# --- as JSON ---


def to_json(row: Row, rows: Mapping[Key, Row]) -> str:
    """Return a JSON line from which the row can be restored."""
    actual = {each.rival.key.contender: each.log.exp() for each in comparisons(row, rows)}
    ratios = {rival: [ratio.value, ratio.error] for rival, ratio in actual.items()}
    about = {name: getattr(row.key, name) for name in Key.__slots__}
    about |= {"size": row.size, "quantizing": round(row.quantizing, 2), "evaluation": round(row.evaluation, 2)}
    tokens = {kind: [float(f"{x:.{DIGITS}g}") for x in values] for kind, values in row.tokens.items()}
    return json.dumps(about | {"means": row.means, "mean": row.mean, "ratios": ratios, "tokens": tokens})


def from_json(text: str) -> Row:
    actual: dict[str, Any] = json.loads(text)
    key = Key(**{name: actual[name] for name in Key.__slots__})
    tokens = {kind: np.array(values) for kind, values in actual["tokens"].items()}
    return Row(key, actual["size"], actual["quantizing"], actual["evaluation"], tokens)


def read_rows(path: Path) -> Iterable[Row]:
    """Yield the rows of a file, if it exists. Incomplete lines are ignored."""
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            yield from_json(text)
        except json.JSONDecodeError:
            continue


def append_line(path: Path, text: str) -> None:
    """Append a line. An incomplete last line is terminated first."""
    before = path.read_bytes()[-1:] if path.exists() else b""
    with path.open("ab") as file:
        file.write(b"\n" * (before not in (b"", b"\n")) + text.encode() + b"\n")
