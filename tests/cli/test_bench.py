"""`localinfer bench` on a tiny model: its table, its JSON, its picture, and what it refuses before it measures."""

import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny import tiny_llama

from cli import __main__
from cli.files import promised, write_whole
from cli.measuring import results
from cli.measuring.plot import plot
from cli.measuring.results import Result, Subject
from localinfer.engine.engine import Engine
from localinfer.errors import LocalInferError, UsageError
from localinfer.files.gguf import open_gguf
from localinfer.judging.roofline import Roofline
from localinfer.options import Options
from localinfer.plan.work import Amount

Run = Callable[..., tuple[int, str, str]]
ROOF = Roofline(threads=2, bandwidth=20e9, dots=100e9, fmas=50e9, pairs=50e9)
SUBJECT = Subject("tiny.gguf", "tiny", 1 << 20, 1000, "CPU", Options())


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """A command line in this process: exit code, stdout, stderr."""

    def command(*arguments: object) -> tuple[int, str, str]:
        code = __main__.run([str(argument) for argument in arguments])
        return (code, *capsys.readouterr())

    return command


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_llama(tmp_path / "tiny.gguf")


def answer(depth: int = 0, seconds: float = 2.0) -> Result:
    """Four tokens in two seconds, 10 GB for each."""
    return Result(SUBJECT, results.Test(0, 4, depth, 2), [seconds] * 2, Amount(nbytes=40 * 10**9, dots=10**9), ROOF)


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]


def test_an_answer_is_held_against_bandwidth() -> None:
    assert answer().a_second(answer().amount.nbytes) == 20e9
    assert answer().bandwidth_share == 1.0
    heading, _, row = cells(results.as_markdown([answer(seconds=4.0)]))
    assert heading[:7] == ["model", "size", "params", "backend", "threads", "test", "t/s"]
    assert row[5:] == ["tg4", "1.00 ± 0.00", "10.0 GB/s", "50 %"]


def test_a_prompt_is_held_against_arithmetic_of_both_kinds() -> None:
    amount = Amount(nbytes=1, dots=150 * 10**9, fmas=25 * 10**9)
    prompt = Result(SUBJECT, results.Test(512, 0, 0, 2), [4.0], amount, ROOF)
    assert prompt.peak_share == pytest.approx((1.5 + 0.5) / 4)
    assert cells(results.as_markdown([prompt]))[2][7:] == ["43.8 GMAC/s", "50 %"]


def test_what_an_engine_can_be_told(run: Run, model: Path) -> None:
    """Keys and values of a byte are half as many bytes."""
    found = []
    for kind in ("f16", "q8_0"):
        chosen = "--precision", "high", "-ctk", kind, "-ctv", kind
        code, out, _ = run("bench", model, "-p", 0, "-n", 1, "-d", 300, "-r", 1, "-t", 1, "-o", "json", *chosen)
        assert code == 0
        found += json.loads(out)
    assert [(each["precision"], each["type_k"], each["type_v"]) for each in found] == [
        ("high", "f16", "f16"), ("high", "q8_0", "q8_0")
    ]  # fmt: skip
    cells = 2 * 2 * 128 * (300 + 2)  # two layers, keys and values of 2 x 64; 34 bytes hold 32 of them, not 64
    assert found[0]["bytes"] - found[1]["bytes"] == cells * 2 - cells * 34 // 32


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

    found = json.loads(run("bench", model, *arguments, "-o", "json")[1])
    engine = Engine(open_gguf(model), Options(ctx_size=8, threads=1))
    prompt, tokens = engine.amount(5, 3), engine.amount(1, 3) + engine.amount(1, 4)
    engine.close()
    assert [(each["bytes"], each["macs"]) for each in found[2:4]] == [
        (amount.nbytes, amount.macs) for amount in (prompt, tokens)
    ]
    for each in found:
        mean = each["avg_ts"] / (each["n_prompt"] or each["n_gen"])
        assert each["bytes_per_second"] == pytest.approx(each["bytes"] * mean)
        share = each["bytes_per_second"] / each["machine_bytes_per_second"]
        assert each["bandwidth_share"] == pytest.approx(share)


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
    engine = Engine(open_gguf(model), Options(ctx_size=8, threads=1))
    amounts = engine.amount(5, 0) + engine.amount(1, 5) + engine.amount(1, 6)
    engine.close()
    assert int(rows[0]["bytes"]) == amounts.nbytes
    code, out, _ = run("bench", model, "-p", 2, "-n", 0, "-r", 1, "-o", "jsonl", "-ub", 1, "-ngl", "99", "-fa", "0,1")
    assert [json.loads(line)["n_ubatch"] for line in out.splitlines()] == [1]


@pytest.mark.parametrize("ending", [".png", ".svg"])
def test_plot(tmp_path: Path, ending: str) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"depth{ending}"
    path.write_text("before")
    prompt = Result(SUBJECT, results.Test(512, 0, 0, 2), [4.0], Amount(), ROOF)
    plot(path, [answer(100), answer(), prompt])
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG" if ending == ".png" else b"<?xml")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("depth.pdf", "must be a name that ends in .png or .svg, not"),
        ("missing/depth.svg", "No such file or directory"),
        ("folder.svg", "is there, and is no file"),
        ("depth\0.svg", "null"),
    ],
)
def test_a_picture_that_cannot_be_written_is_told_first(run: Run, tmp_path: Path, name: str, problem: str) -> None:
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
    assert err == "error: --plot: needs matplotlib, the extra `plot`: python -m pip install matplotlib\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["-o", "sql"],
        ["-pg", "5"],
        ["-r", "0"],
        ["-p", "0", "-n", "0"],
        ["-d", "-1"],
        ["-t", "x"],
        ["-b", "0"],
        ["-ctk", "q9"],
    ],
)
def test_usage(run: Run, arguments: list[str]) -> None:
    code, out, err = run("bench", "no-model.gguf", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = promised("--plot", str(tmp_path / "file"))
    write_whole(path, b"one")
    write_whole(path, b"two")
    assert path.read_bytes() == b"two"
    gone = tmp_path / "gone"
    gone.mkdir()
    later = promised("--plot", str(gone / "file"))
    gone.rmdir()
    with pytest.raises(LocalInferError, match="No such file"):
        write_whole(later, b"three")
    with pytest.raises(UsageError, match="--plot"):
        promised("--plot", str(later))
    assert list(tmp_path.iterdir()) == [path]
