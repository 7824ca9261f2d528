"""The results of `localinfer bench`, as the Markdown table of llama-bench, JSON, JSON Lines or CSV."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from cli.terminal import screen

if TYPE_CHECKING:
    from localinfer.evaluation.benchmark import BenchmarkResult
    from localinfer.evaluation.roofline import Roofline

# Heading, alignment, width. The first seven columns are those of llama-bench.
Column = tuple[str, str, int]
COLUMNS: list[Column] = [
    ("model", "<", 24), ("size", ">", 10), ("params", ">", 9), ("backend", "<", 14), ("threads", ">", 7),
    ("test", ">", 14), ("t/s", ">", 18), ("work", ">", 12), ("of peak", ">", 7),
]  # fmt: skip
TABLE_COLUMNS = sum(width + 3 for _, _, width in COLUMNS) + 1
N_COMMON = 5  # columns that describe the model and the machine, not the test
LISTED = {  # options that may have several values: how the name of a test shows them
    "batch_size": "b", "ubatch_size": "ub", "cache_type_k": "K ", "cache_type_v": "V ",
}  # fmt: skip
TABLE = "llama_bench"
SQL_TYPES = {bool: "INTEGER", int: "INTEGER", float: "REAL"}


def as_markdown(results: Sequence["BenchmarkResult"]) -> str:
    """Return the table of llama-bench, with the throughput that bounds each test: arithmetic or memory bandwidth."""
    return markdown_table(COLUMNS, markdown_rows(results))


def as_narrow_markdown(results: Sequence["BenchmarkResult"]) -> str:
    """Return a table for each model and number of threads, which a narrow terminal can show, below a line with what
    the rows have in common."""
    tables = []
    for common, rows in groupby(markdown_rows(results), lambda row: row[:N_COMMON]):
        model, size, params, backend, threads = common
        title = f"{model}, {size}, {params} parameters, {backend}, {threads} thread{'s' * (threads != '1')}"
        tables.append(f"{title}\n\n{markdown_table(COLUMNS[N_COMMON:], (row[N_COMMON:] for row in rows))}")
    return "\n".join(tables)


def markdown_table(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> str:
    rule = "|".join("-" * (width + 1) + ("-" if side == "<" else ":") for _, side, width in columns)
    heading = table_line(columns, [heading for heading, _, _ in columns])
    return "".join([heading, f"|{rule}|\n", *(table_line(columns, row) for row in rows)])


def markdown_rows(results: Sequence["BenchmarkResult"]) -> Iterator[list[str]]:
    """Yield the cells of each result, in the order of COLUMNS."""
    varied = [name for name in LISTED if len({getattr(each.model.options, name) for each in results}) > 1]
    for result in results:
        model = result.model
        yield [
            screen.one_line(model.name), screen.mib(model.size), f"{model.params / 1e6:.2f} M", model.backend,
            str(result.test.threads), test_name(result, varied), f"{result.mean:.2f} ± {result.deviation:.2f}",
            *work_cells(result),
        ]  # fmt: skip


def test_name(result: "BenchmarkResult", varied: Sequence[str]) -> str:
    """Return the name of a test with those options in which the results differ."""
    settings = (f"{LISTED[name]}{getattr(result.model.options, name)}" for name in varied)
    return ", ".join([result.test.name, *settings])


def work_cells(result: "BenchmarkResult") -> tuple[str, str]:
    """Return the throughput that bounds the test and its fraction of the peak; empty for pg tests, which have two."""
    if result.test.kind == "pg":
        return "", ""
    if result.test.kind == "pp":
        return f"{result.per_second(result.cost.macs) / 1e9:.1f} GMAC/s", f"{100 * result.peak_fraction:.0f} %"
    return f"{result.per_second(result.cost.nbytes) / 1e9:.1f} GB/s", f"{100 * result.bandwidth_fraction:.0f} %"


def table_line(columns: Sequence[Column], cells: Sequence[str]) -> str:
    padded = (f"{cell:{side}{width}}" for cell, (_, side, width) in zip(cells, columns, strict=True))
    return f"| {' | '.join(padded)} |\n"


def peak_line(roofline: "Roofline") -> str:
    """Return a line with the measured peak throughputs, the reference of the column "of peak"."""
    threads = f"{roofline.threads} thread{'s' * (roofline.threads != 1)}"
    return (
        f"peak of {threads}, measured: {roofline.bandwidth / 1e9:.1f} GB/s read, {roofline.dots / 1e9:.0f} GMAC/s "
        f"of small integers, {roofline.fmas / 1e9:.0f} of floats, {roofline.pairs / 1e9:.0f} of bfloat16"
    )


def expert_lines(results: Sequence["BenchmarkResult"]) -> Iterator[str]:
    """Yield a line for each test of a model whose experts are read from the storage."""
    for result in results:
        if found := result.experts:
            waited = found.wait_seconds / sum(result.seconds)
            yield (
                f"{result.test.name}: {100 * found.cached_share:.0f} % of the experts were cached, "
                f"{100 * found.predicted_share:.0f} % were predicted; the storage read "
                f"{found.bandwidth / 1e9:.1f} GB/s, and {100 * waited:.0f} % of the time went into waiting for it"
            )


def as_object(result: "BenchmarkResult") -> dict[str, object]:
    """Return a result with the field names of llama-bench. Bytes and multiply-accumulates are per repetition."""
    model, options, test, roofline = result.model, result.model.options, result.test, result.roofline
    return {
        "model_filename": model.file, "model_type": screen.one_line(model.name), "model_size": model.size,
        "model_n_params": model.params, "backend": model.backend, "n_batch": options.batch_size,
        "n_ubatch": options.ubatch_size, "type_k": options.cache_type_k, "type_v": options.cache_type_v,
        "precision": options.precision, "n_threads": test.threads, "test": test.name, "n_prompt": test.n_prompt,
        "n_gen": test.n_gen, "n_depth": test.depth, "avg_ts": result.mean, "stddev_ts": result.deviation,
        "samples_ns": [round(each * 1e9) for each in result.seconds], "samples_ts": result.rates,
        "bytes": result.cost.nbytes, "bytes_per_second": result.per_second(result.cost.nbytes),
        "macs": result.cost.macs, "macs_per_second": result.per_second(result.cost.macs),
        "bandwidth_fraction": result.bandwidth_fraction, "peak_fraction": result.peak_fraction,
        "machine_bytes_per_second": roofline.bandwidth, "machine_int_macs_per_second": roofline.dots,
        "machine_float_macs_per_second": roofline.fmas, "machine_bfloat16_macs_per_second": roofline.pairs,
    }  # fmt: skip


def as_full_object(result: "BenchmarkResult") -> dict[str, object]:
    """Return a result with what only some models have, for formats whose objects may differ: how experts were read from
    the storage."""
    if not (found := result.experts):
        return as_object(result)
    return as_object(result) | {
        "expert_cached_fraction": found.cached_share, "expert_predicted_fraction": found.predicted_share,
        "storage_bytes_per_second": found.bandwidth, "storage_wait_seconds": found.wait_seconds,
    }  # fmt: skip


def as_json(results: Sequence["BenchmarkResult"]) -> str:
    """Return a JSON array with one object per test."""
    return json.dumps([as_full_object(result) for result in results], indent=2) + "\n"


def as_json_lines(results: Sequence["BenchmarkResult"]) -> str:
    """Return JSON Lines with one object per test."""
    return "".join(json.dumps(as_full_object(result)) + "\n" for result in results)


def as_csv(results: Sequence["BenchmarkResult"]) -> str:
    """Return CSV with a header and a row per test, without the lists of single measurements."""
    rows = [
        {name: value for name, value in as_object(result).items() if not isinstance(value, list)} for result in results
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_sql(results: Sequence["BenchmarkResult"]) -> str:
    """Return statements that create a table and insert the results, as llama-bench writes them."""
    rows = [as_object(result) for result in results]
    columns = [f"  {name} {SQL_TYPES.get(type(value), 'TEXT')}" for name, value in rows[0].items()]
    statements = ["CREATE TABLE IF NOT EXISTS {} (\n{}\n);\n".format(TABLE, ",\n".join(columns))]
    for row in rows:
        values = ", ".join(map(sql_value, row.values()))
        statements.append(f"INSERT INTO {TABLE} ({', '.join(row)}) VALUES ({values});")
    return "\n".join(statements) + "\n"


def sql_value(value: object) -> str:
    """Return a value as an SQL literal; lists become JSON."""
    if isinstance(value, bool | int | float):
        return repr(int(value) if isinstance(value, bool) else value)
    text = value if isinstance(value, str) else json.dumps(value)
    return "'" + text.replace("'", "''") + "'"


WRITERS: dict[str, Callable[[Sequence["BenchmarkResult"]], str]] = {
    "md": as_markdown, "json": as_json, "jsonl": as_json_lines, "csv": as_csv, "sql": as_sql,
}  # fmt: skip
