"""The results of `localinfer bench`, as the Markdown table of llama-bench, JSON, JSON Lines or CSV."""

import csv
import io
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cli import screen
from localinfer.graph.cost import Cost
from localinfer.options import Options

if TYPE_CHECKING:
    from localinfer.evaluation.roofline import Roofline

# Heading, alignment, width. The first seven columns are those of llama-bench.
COLUMNS = [
    ("model", "<", 24), ("size", ">", 10), ("params", ">", 9), ("backend", "<", 14), ("threads", ">", 7),
    ("test", ">", 14), ("t/s", ">", 18), ("work", ">", 12), ("of peak", ">", 7),
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Test:
    """A test: `n_prompt` tokens of prefill, then `n_gen` of decode, after `depth` tokens of context."""

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
class BenchModel:
    """The model columns of the table."""

    file: str
    model: str
    size: int  # bytes, all tensors
    params: int
    backend: str
    options: Options


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a test: measured times, the cost of one repetition, and the roofline for its number of threads."""

    model: BenchModel
    test: Test
    seconds: list[float]  # of each repetition
    amount: Cost
    roofline: "Roofline"

    @property
    def rates(self) -> list[float]:
        """Tokens per second of each repetition."""
        return [self.test.tokens / each for each in self.seconds]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.rates)

    @property
    def deviation(self) -> float:
        return statistics.stdev(self.rates) if len(self.rates) > 1 else 0.0

    def per_second(self, amount: float) -> float:
        """Return the rate per second of an amount that is given per repetition."""
        return amount * self.mean / self.test.tokens

    @property
    def bandwidth_share(self) -> float:
        """The share of the time that reading the bytes takes at peak bandwidth."""
        return self.per_second(self.roofline.memory_time(self.amount))

    @property
    def peak_share(self) -> float:
        """The share of the time that the multiply-accumulates take at peak throughput."""
        return self.per_second(self.roofline.compute_time(self.amount))


def as_markdown(results: Sequence[Result]) -> str:
    """Return the table of llama-bench, with the throughput that bounds each test: arithmetic or memory bandwidth."""
    rule = "|".join("-" * (width + 1) + ("-" if side == "<" else ":") for _, side, width in COLUMNS)
    lines = [table_line([heading for heading, _, _ in COLUMNS]), f"|{rule}|\n"]
    for result in results:
        subject = result.model
        lines.append(table_line([
            subject.model, screen.mib(subject.size), f"{subject.params / 1e6:.2f} M", subject.backend,
            str(result.test.threads), result.test.name, f"{result.mean:.2f} ± {result.deviation:.2f}",
            *work_cells(result),
        ]))  # fmt: skip
    return "".join(lines)


def work_cells(result: Result) -> tuple[str, str]:
    """Return the throughput that bounds the test and its share of the peak; empty for pg tests, which have two."""
    if result.test.kind == "pg":
        return "", ""
    if result.test.kind == "pp":
        return f"{result.per_second(result.amount.macs) / 1e9:.1f} GMAC/s", f"{100 * result.peak_share:.0f} %"
    return f"{result.per_second(result.amount.nbytes) / 1e9:.1f} GB/s", f"{100 * result.bandwidth_share:.0f} %"


def table_line(cells: Sequence[str]) -> str:
    padded = (f"{cell:{side}{width}}" for cell, (_, side, width) in zip(cells, COLUMNS, strict=True))
    return f"| {' | '.join(padded)} |\n"


def peak_line(roofline: "Roofline") -> str:
    """Return a line with the measured peak throughputs, the reference of the column "of peak"."""
    threads = f"{roofline.threads} thread{'s' * (roofline.threads != 1)}"
    return (
        f"peak of {threads}, measured: {roofline.bandwidth / 1e9:.1f} GB/s read, {roofline.dots / 1e9:.0f} GMAC/s "
        f"of small integers, {roofline.fmas / 1e9:.0f} of floats, {roofline.pairs / 1e9:.0f} of bfloat16"
    )


def as_object(result: Result) -> dict[str, object]:
    """Return a result with the field names of llama-bench. Bytes and multiply-accumulates are per repetition."""
    subject, options, test, roofline = result.model, result.model.options, result.test, result.roofline
    return {
        "model_filename": subject.file, "model_type": subject.model, "model_size": subject.size,
        "model_n_params": subject.params, "backend": subject.backend, "n_batch": options.batch_size,
        "n_ubatch": options.ubatch_size, "type_k": options.cache_type_k, "type_v": options.cache_type_v,
        "precision": options.precision, "n_threads": test.threads, "test": test.name, "n_prompt": test.n_prompt,
        "n_gen": test.n_gen, "n_depth": test.depth, "avg_ts": result.mean, "stddev_ts": result.deviation,
        "samples_ns": [round(each * 1e9) for each in result.seconds], "samples_ts": result.rates,
        "bytes": result.amount.nbytes, "bytes_per_second": result.per_second(result.amount.nbytes),
        "macs": result.amount.macs, "macs_per_second": result.per_second(result.amount.macs),
        "bandwidth_share": result.bandwidth_share, "peak_share": result.peak_share,
        "machine_bytes_per_second": roofline.bandwidth, "machine_int_macs_per_second": roofline.dots,
        "machine_float_macs_per_second": roofline.fmas, "machine_bfloat16_macs_per_second": roofline.pairs,
    }  # fmt: skip


def as_json(results: Sequence[Result]) -> str:
    """Return a JSON array with one object per test."""
    return json.dumps([as_object(result) for result in results], indent=2) + "\n"


def as_json_lines(results: Sequence[Result]) -> str:
    """Return JSON Lines with one object per test."""
    return "".join(json.dumps(as_object(result)) + "\n" for result in results)


def as_csv(results: Sequence[Result]) -> str:
    """Return CSV with a header and a row per test, without the lists of single measurements."""
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
