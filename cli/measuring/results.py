"""What `localinfer bench` found: as llama-bench's table, as JSON or CSV, beside what the machine can do at best."""

import csv
import io
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cli import screen
from localinfer.options import Options
from localinfer.plan.work import Amount

if TYPE_CHECKING:
    from localinfer.judging.roofline import Roofline

# Heading, side, width. The first seven are llama-bench's.
COLUMNS = [
    ("model", "<", 24), ("size", ">", 10), ("params", ">", 9), ("backend", "<", 14), ("threads", ">", 7),
    ("test", ">", 14), ("t/s", ">", 18), ("work", ">", 12), ("of peak", ">", 7),
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Test:
    """Tokens of a prompt, of an answer or of one after the other, behind `depth` others, on `threads` threads."""

    n_prompt: int
    n_gen: int
    depth: int
    threads: int

    @property
    def tokens(self) -> int:
        return self.n_prompt + self.n_gen

    @property
    def kind(self) -> str:
        """pp, tg, or pg for both."""
        return "pg" if self.n_prompt and self.n_gen else "pp" if self.n_prompt else "tg"

    @property
    def name(self) -> str:
        parts = [f"pp{self.n_prompt}" * bool(self.n_prompt), f"tg{self.n_gen}" * bool(self.n_gen)]
        return "+".join(filter(None, parts)) + (f" @ d{self.depth}" if self.depth else "")


@dataclass(frozen=True, slots=True)
class Subject:
    """A model, as the table's columns have it."""

    file: str
    model: str
    size: int  # bytes of all tensors
    params: int
    backend: str
    options: Options


@dataclass(frozen=True, slots=True)
class Result:
    """What a test of a model measured; what there was to do in one repetition; what so many threads can do at best."""

    subject: Subject
    test: Test
    seconds: list[float]  # of each repetition
    amount: Amount
    roofline: "Roofline"

    @property
    def rates(self) -> list[float]:
        """Tokens a second."""
        return [self.test.tokens / each for each in self.seconds]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.rates)

    @property
    def deviation(self) -> float:
        return statistics.stdev(self.rates) if len(self.rates) > 1 else 0.0

    def a_second(self, amount: float) -> float:
        """Of an amount that each repetition has."""
        return amount * self.mean / self.test.tokens

    @property
    def bandwidth_share(self) -> float:
        """Of the time, what reading the bytes takes at least."""
        return self.a_second(self.roofline.reading(self.amount))

    @property
    def peak_share(self) -> float:
        """Of the time, what the multiply-accumulates take at least."""
        return self.a_second(self.roofline.computing(self.amount))


def as_markdown(results: Sequence[Result]) -> str:
    """llama-bench's table. A prompt is bound by arithmetic and an answer by memory: each has its own kind of work."""
    rule = "|".join("-" * (width + 1) + ("-" if side == "<" else ":") for _, side, width in COLUMNS)
    lines = [table_line([heading for heading, _, _ in COLUMNS]), f"|{rule}|\n"]
    for result in results:
        subject = result.subject
        lines.append(table_line([
            subject.model, screen.mib(subject.size), f"{subject.params / 1e6:.2f} M", subject.backend,
            str(result.test.threads), result.test.name, f"{result.mean:.2f} ± {result.deviation:.2f}",
            *work_of(result),
        ]))  # fmt: skip
    return "".join(lines)


def work_of(result: Result) -> tuple[str, str]:
    """How much is done a second of what bounds the test, and its share; nothing of two that are bound otherwise."""
    if result.test.kind == "pg":
        return "", ""
    if result.test.kind == "pp":
        return f"{result.a_second(result.amount.macs) / 1e9:.1f} GMAC/s", f"{100 * result.peak_share:.0f} %"
    return f"{result.a_second(result.amount.nbytes) / 1e9:.1f} GB/s", f"{100 * result.bandwidth_share:.0f} %"


def table_line(cells: Sequence[str]) -> str:
    padded = (f"{cell:{side}{width}}" for cell, (_, side, width) in zip(cells, COLUMNS, strict=True))
    return f"| {' | '.join(padded)} |\n"


def machine_line(roofline: "Roofline") -> str:
    """What "of peak" is measured against."""
    threads = f"{roofline.threads} thread{'s' * (roofline.threads != 1)}"
    return (
        f"peak of {threads}, measured: {roofline.bandwidth / 1e9:.1f} GB/s read, {roofline.dots / 1e9:.0f} GMAC/s "
        f"of small integers, {roofline.fmas / 1e9:.0f} of floats, {roofline.pairs / 1e9:.0f} of bfloat16"
    )


def as_object(result: Result) -> dict[str, object]:
    """With llama-bench's names; bytes and multiply-accumulates are of one repetition."""
    subject, options, test, roofline = result.subject, result.subject.options, result.test, result.roofline
    return {
        "model_filename": subject.file, "model_type": subject.model, "model_size": subject.size,
        "model_n_params": subject.params, "backend": subject.backend, "n_batch": options.batch_size,
        "n_ubatch": options.ubatch_size, "type_k": options.cache_type_k, "type_v": options.cache_type_v,
        "precision": options.precision, "n_threads": test.threads, "test": test.name, "n_prompt": test.n_prompt,
        "n_gen": test.n_gen, "n_depth": test.depth, "avg_ts": result.mean, "stddev_ts": result.deviation,
        "samples_ns": [round(each * 1e9) for each in result.seconds], "samples_ts": result.rates,
        "bytes": result.amount.nbytes, "bytes_per_second": result.a_second(result.amount.nbytes),
        "macs": result.amount.macs, "macs_per_second": result.a_second(result.amount.macs),
        "bandwidth_share": result.bandwidth_share, "peak_share": result.peak_share,
        "machine_bytes_per_second": roofline.bandwidth, "machine_int_macs_per_second": roofline.dots,
        "machine_float_macs_per_second": roofline.fmas, "machine_bfloat16_macs_per_second": roofline.pairs,
    }  # fmt: skip


def as_json(results: Sequence[Result]) -> str:
    """One object a test."""
    return json.dumps([as_object(result) for result in results], indent=2) + "\n"


def as_json_lines(results: Sequence[Result]) -> str:
    """One object a line."""
    return "".join(json.dumps(as_object(result)) + "\n" for result in results)


def as_csv(results: Sequence[Result]) -> str:
    """A line of names, and one for each test, without the lists of single measurements."""
    rows = [
        {name: value for name, value in as_object(result).items() if not isinstance(value, list)} for result in results
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


WRITERS: dict[str, Callable[[Sequence[Result]], str]] = {
    "md": as_markdown, "json": as_json, "jsonl": as_json_lines, "csv": as_csv,
}  # fmt: skip
