"""`localinfer bench` on a tiny model: table, JSON, plot and usage errors."""

import csv
import json
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny import tiny_llama, tiny_qwen3moe

from cli.files.output_files import writable_path, write_atomically
from cli.measure import bench_results
from cli.measure.plot import plot
from localinfer.errors import LocalInferError, UsageError
from localinfer.evaluation.benchmark import BenchmarkedModel, BenchmarkResult, BenchmarkTest
from localinfer.evaluation.roofline import Roofline, evaluation_cost
from localinfer.gguf.reader import open_gguf
from localinfer.graph.ops.cost import NO_COST, Cost
from localinfer.options import Options
from localinfer.runtime.engine import Engine

Run = Callable[..., tuple[int, str, str]]
ROOF = Roofline(threads=2, bandwidth=20e9, dots=100e9, fmas=50e9, pairs=50e9)
SUBJECT = BenchmarkedModel("tiny.gguf", "tiny", 1 << 20, 1000, "CPU", Options())


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_llama(tmp_path / "tiny.gguf")


def answer(depth: int = 0, seconds: float = 2.0) -> BenchmarkResult:
    """Return the result of a run: four tokens in two seconds, 10 GB for each."""
    cost = Cost(nbytes=40 * 10**9, dots=10**9)
    return BenchmarkResult(SUBJECT, BenchmarkTest(0, 4, depth, 2), [seconds] * 2, cost, ROOF)


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]


def test_generation_fraction_of_bandwidth() -> None:
    assert answer().per_second(answer().cost.nbytes) == 20e9
    assert answer().bandwidth_fraction == 1.0
    heading, _, row = cells(bench_results.as_markdown([answer(seconds=4.0)]))
    assert heading[:7] == ["model", "size", "params", "backend", "threads", "test", "t/s"]
    assert row[5:] == ["tg4", "1.00 ± 0.00", "10.0 GB/s", "50 %"]


def test_prompt_fraction_of_peak_arithmetic() -> None:
    amount = Cost(nbytes=1, dots=150 * 10**9, fmas=25 * 10**9)
    prompt = BenchmarkResult(SUBJECT, BenchmarkTest(512, 0, 0, 2), [4.0], amount, ROOF)
    assert prompt.peak_fraction == pytest.approx((1.5 + 0.5) / 4)
    assert cells(bench_results.as_markdown([prompt]))[2][7:] == ["43.8 GMAC/s", "50 %"]


def test_experts_from_the_storage(run: Run, tmp_path: Path) -> None:
    """The results say how often experts were cached and predicted, and how fast the storage was."""
    path = tiny_qwen3moe(tmp_path / "experts.gguf", n_layer=4)
    test = "bench", path, "-p", 0, "-n", 8, "-r", 2, "-t", 1, "-ub", 8
    code, out, err = run(*test, "-o", "json", "--memory", "9M")
    assert code == 0
    (found,) = json.loads(out)
    assert 0 < found["expert_cached_fraction"] < 1
    assert 0 < found["expert_predicted_fraction"] < 1
    assert found["storage_bytes_per_second"] > 0 < found["storage_wait_seconds"]
    assert "warning: memory: of 16.9 MiB of weights, 963,968 bytes stay in memory" in err
    assert " % were predicted; the storage read " in err
    code, out, err = run(*test, "-o", "json")
    assert "expert_cached_fraction" not in json.loads(out)[0]
    assert "storage" not in err


def test_overridden_metadata(run: Run, model: Path) -> None:
    """The benchmark runs the model with other metadata: here a context that needs scaled RoPE, and a wrong one."""
    test = "bench", model, "-p", 4, "-n", 0, "-r", 1, "-t", 1, "-o", "json"
    code, out, _ = run(*test, "--rope-scaling", "yarn", "--rope-scale", 4, "--override-kv", "general.size_label=str:9B")
    assert code == 0
    assert json.loads(out)[0]["model_type"].startswith("llama 9B")
    code, out, err = run(*test, "--override-kv", "llama.attention.head_count=int:3")
    assert (code, out) == (2, "")
    assert "head_count: is 3; it must divide the embedding length 256 (an option sets this key)" in err


def test_engine_options(run: Run, model: Path) -> None:
    """Keys and values in Q8_0 need about half the bytes of F16."""
    actual = []
    for kind in ("f16", "q8_0"):
        chosen = "--precision", "high", "-ctk", kind, "-ctv", kind
        code, out, _ = run("bench", model, "-p", 0, "-n", 1, "-d", 300, "-r", 1, "-t", 1, "-o", "json", *chosen)
        assert code == 0
        actual += json.loads(out)
    assert [(each["precision"], each["type_k"], each["type_v"]) for each in actual] == [
        ("high", "f16", "f16"), ("high", "q8_0", "q8_0")
    ]  # fmt: skip
    n_values = 2 * 2 * 128 * (300 + 2)  # two layers, keys and values of 2 x 64; 32 of them take 34 bytes, not 64
    assert actual[0]["bytes"] - actual[1]["bytes"] == n_values * 2 - n_values * 34 // 32


def test_table_and_json_of_a_model(run: Run, model: Path) -> None:
    arguments = "-p", 5, "-n", "2,0", "-d", "0,3", "-t", "1,2", "-r", "2"
    code, out, err = run("bench", model, *arguments)
    assert code == 0
    assert [row[5] for row in cells(out)[2:]] == ["pp5", "tg2", "pp5 @ d3", "tg2 @ d3"] * 2
    assert all(row[8].endswith(" %") for row in cells(out)[2:])
    assert [line[:17] for line in err.splitlines() if line.startswith("peak")] == [
        "peak of 1 thread,",
        "peak of 2 threads",
    ]

    actual = json.loads(run("bench", model, *arguments, "-o", "json")[1])
    engine = Engine.load(open_gguf(model), Options(ctx_size=8, threads=1))
    prompt, first, second = (evaluation_cost(engine.graph, *work) for work in ((5, 3), (1, 3), (1, 4)))
    engine.close()
    assert [(each["bytes"], each["macs"]) for each in actual[2:4]] == [
        (amount.nbytes, amount.macs) for amount in (prompt, first + second)
    ]
    for each in actual:
        mean = each["avg_ts"] / (each["n_prompt"] or each["n_gen"])
        assert each["bytes_per_second"] == pytest.approx(each["bytes"] * mean)
        fraction = each["bytes_per_second"] / each["machine_bytes_per_second"]
        assert each["bandwidth_fraction"] == pytest.approx(fraction)


def test_several_models_and_both_kinds_in_one_test(run: Run, model: Path, tmp_path: Path) -> None:
    other = tiny_llama(tmp_path / "other.gguf", n_layer=1)
    code, out, _ = run(
        "bench", "-m", model, "-m", other, "-p", 0, "-n", 0, "-pg", "5,2", "-pg", "3,1", "-r", 1, "-o", "csv"
    )
    assert code == 0
    rows = list(csv.DictReader(out.splitlines()))
    assert [(row["model_filename"], row["test"]) for row in rows] == [
        (str(path), test) for path in (model, other) for test in ("pp5+tg2", "pp3+tg1")
    ]
    engine = Engine.load(open_gguf(model), Options(ctx_size=8, threads=1))
    amounts = sum((evaluation_cost(engine.graph, *work) for work in ((5, 0), (1, 5), (1, 6))), NO_COST)
    engine.close()
    assert int(rows[0]["bytes"]) == amounts.nbytes
    code, out, _ = run("bench", model, "-p", 2, "-n", 0, "-r", 1, "-o", "jsonl", "-ub", 1, "-ngl", "99", "-fa", "0,1")
    assert [json.loads(line)["n_ubatch"] for line in out.splitlines()] == [1]


@pytest.mark.parametrize("ending", [".png", ".svg"])
def test_plot(tmp_path: Path, ending: str) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"depth{ending}"
    path.write_text("before")
    prompt = BenchmarkResult(SUBJECT, BenchmarkTest(512, 0, 0, 2), [4.0], Cost(), ROOF)
    plot(path, [answer(100), answer(), prompt])
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG" if ending == ".png" else b"<?xml")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("depth.pdf", "must end in .png or .svg, not"),
        ("missing/depth.svg", "No such file or directory"),
        ("folder.svg", "not a regular file"),
        ("depth\0.svg", "null"),
    ],
)
def test_unwritable_plot_is_reported_first(run: Run, tmp_path: Path, name: str, problem: str) -> None:
    (tmp_path / "folder.svg").mkdir()
    code, out, err = run("bench", tmp_path / "no-model.gguf", "--plot", tmp_path / name)
    assert (code, out) == (2, "")
    assert err.startswith("error: --plot: ")
    assert problem in err
    assert err.count("\n") == 1


def test_without_matplotlib(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, err = run("bench", "no-model.gguf", "--plot", tmp_path / "depth.svg")
    assert code == 2
    assert err == "error: --plot: requires matplotlib (extra `plot`): python -m pip install matplotlib\n"


def test_sql() -> None:
    database = sqlite3.connect(":memory:")
    database.executescript(bench_results.as_sql([answer(), answer(depth=5)]))
    rows = database.execute("SELECT test, avg_ts, n_depth, samples_ts FROM llama_bench").fetchall()
    assert rows == [("tg4", 2.0, 0, "[2.0, 2.0]"), ("tg4 @ d5", 2.0, 5, "[2.0, 2.0]")]


def test_lists_of_options(run: Run, model: Path) -> None:
    """Each combination is measured, and the table says which it is."""
    code, out, _ = run("bench", model, "-p", 4, "-n", 0, "-r", 1, "-t", 1, "-b", 4, "-ub", "2,4", "-ctk", "f16,q8_0")
    assert code == 0
    names = [row[5] for row in cells(out)[2:]]
    assert names == ["pp4, ub2, K f16", "pp4, ub2, K q8_0", "pp4, ub4, K f16", "pp4, ub4, K q8_0"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["-o", "xml"],
        ["-pg", "5"],
        ["-r", "0"],
        ["-p", "0", "-n", "0"],
        ["-d", "-1"],
        ["-t", "x"],
        ["-b", "0"],
        ["-ctk", "q9"],
        ["-ub", "64,x"],
    ],
)
def test_usage(run: Run, arguments: list[str]) -> None:
    code, out, err = run("bench", "no-model.gguf", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_output_file_is_replaced_atomically(tmp_path: Path) -> None:
    path = writable_path("--plot", str(tmp_path / "file"))
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    missing = tmp_path / "gone"
    missing.mkdir()
    later = writable_path("--plot", str(missing / "file"))
    missing.rmdir()
    with pytest.raises(LocalInferError, match="No such file"):
        write_atomically(later, b"three")
    with pytest.raises(UsageError, match="--plot"):
        writable_path("--plot", str(later))
    assert list(tmp_path.iterdir()) == [path]


def test_narrow_terminal(monkeypatch: pytest.MonkeyPatch, run: Run, model: Path) -> None:
    """What the rows have in common is above them, so that no line is longer than the terminal."""
    monkeypatch.setattr("cli.terminal.screen.output_columns", lambda: 80)
    code, out, _ = run("bench", model, "-p", 2, "-n", 1, "-r", 1, "-t", "1,2")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    title, empty, heading, _, *rows = out.splitlines()
    assert title.startswith("llama Q8_0, 1.3 MiB, 1.25 M parameters, CPU ")
    assert title.endswith(", 1 thread")
    assert empty == ""
    assert cells(heading) == [["test", "t/s", "work", "of peak"]]
    assert [cells(row)[0][0] for row in rows[:2]] == ["pp2", "tg1"]
    assert rows[3].endswith("2 threads")
    monkeypatch.setattr("cli.terminal.screen.output_columns", lambda: bench_results.TABLE_COLUMNS)
    assert cells(run("bench", model, "-p", 2, "-n", 0, "-r", 1)[1])[0][0] == "model"
