"""What `localinfer bench` found: as llama-bench's table, as JSON, beside what the machine can do at best."""

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
    """`tokens` of a prompt or of an answer, behind `depth` others, on `threads` threads."""

    kind: str  # "pp" or "tg"
    tokens: int
    depth: int
    threads: int

    @property
    def name(self) -> str:
        return f"{self.kind}{self.tokens}" + (f" @ d{self.depth}" if self.depth else "")


@dataclass(frozen=True, slots=True)
class Result:
    """What a test measured; what there was to do in one repetition; what so many threads can do at best."""

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


@dataclass(frozen=True, slots=True)
class Subject:
    """The model's columns of the table."""

    model: str
    size: int  # bytes of all tensors
    params: int
    backend: str
    options: Options


def as_markdown(subject: Subject, results: Sequence[Result]) -> str:
    """llama-bench's table. A prompt is bound by arithmetic and an answer by memory: each has its own kind of work."""
    rule = "|".join("-" * (width + 1) + ("-" if side == "<" else ":") for _, side, width in COLUMNS)
    lines = [table_line([heading for heading, _, _ in COLUMNS]), f"|{rule}|\n"]
    for result in results:
        if result.test.kind == "pp":
            work, share = f"{result.a_second(result.amount.macs) / 1e9:.1f} GMAC/s", result.peak_share
        else:
            work, share = f"{result.a_second(result.amount.nbytes) / 1e9:.1f} GB/s", result.bandwidth_share
        lines.append(table_line([
            subject.model, screen.mib(subject.size), f"{subject.params / 1e6:.2f} M", subject.backend,
            str(result.test.threads), result.test.name, f"{result.mean:.2f} ± {result.deviation:.2f}",
            work, f"{100 * share:.0f} %",
        ]))  # fmt: skip
    return "".join(lines)


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


def as_json(subject: Subject, results: Sequence[Result]) -> str:
    """One object a test, with llama-bench's names; bytes and multiply-accumulates are of one repetition."""
    objects = [
        {
            "model_type": subject.model, "model_size": subject.size, "model_n_params": subject.params,
            "backend": subject.backend, "n_batch": subject.options.batch_size,
            "type_k": subject.options.cache_type_k, "type_v": subject.options.cache_type_v,
            "precision": subject.options.precision, "n_threads": result.test.threads, "test": result.test.name,
            "n_prompt": result.test.tokens if result.test.kind == "pp" else 0,
            "n_gen": result.test.tokens if result.test.kind == "tg" else 0,
            "n_depth": result.test.depth, "avg_ts": result.mean, "stddev_ts": result.deviation,
            "samples_ns": [round(each * 1e9) for each in result.seconds], "samples_ts": result.rates,
            "bytes": result.amount.nbytes, "bytes_per_second": result.a_second(result.amount.nbytes),
            "macs": result.amount.macs, "macs_per_second": result.a_second(result.amount.macs),
            "bandwidth_share": result.bandwidth_share, "peak_share": result.peak_share,
            "machine_bytes_per_second": result.roofline.bandwidth,
            "machine_int_macs_per_second": result.roofline.dots,
            "machine_float_macs_per_second": result.roofline.fmas,
            "machine_bfloat16_macs_per_second": result.roofline.pairs,
        }
        for result in results
    ]  # fmt: skip
    return json.dumps(objects, indent=2) + "\n"


WRITERS: dict[str, Callable[[Subject, Sequence[Result]], str]] = {"md": as_markdown, "json": as_json}
