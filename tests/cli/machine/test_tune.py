"""`localinfer tune`: the table, the JSON object, and what is stored."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny import tiny_llama

from localinfer.runtime.row_access import row_access_timing, tuning, tuning_table
from quant.matmul.layout import has_two_conversions
from quant.matmul.row_access import CANDIDATES

Run = Callable[..., tuple[int, str, str]]


SIMILAR = "of the ways within 3% of the fastest"


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuning_table.TuningTable:
    """An empty tuning table, and a limit below which even tiny matrices are tuned."""
    empty = tuning_table.TuningTable(tmp_path / "jit")
    monkeypatch.setattr(tuning_table, "TuningTable", lambda jit_dir: empty)
    monkeypatch.setattr(tuning, "MIN_SHAPE_BYTES", 1)
    monkeypatch.setattr(row_access_timing, "TOLERANCE", 1e9)  # rounds of a busy machine agree, too
    return empty


def test_table(run: Run, tmp_path: Path, stored: tuning_table.TuningTable) -> None:
    code, out, err = run("tune", tiny_llama(tmp_path / "m.gguf"), "-t", 2)
    assert (code, err.splitlines()[-1]) == (0, f"stored in {stored.path}")
    title, heading, *rows = out.partition("\n\n")[0].splitlines()
    assert title == "GB/s by block format and columns of a row"
    assert heading.split() == ["Q8_0", "256", "Q8_0", "512"]
    assert [row.strip().startswith(str(access)) for row, access in zip(rows, CANDIDATES, strict=True)]
    assert sum(row.count("*") for row in rows) == 2
    assert out.splitlines()[len(rows) + 3] == f"* chosen: {SIMILAR}, the one that is fastest with one thread alone"
    assert len(stored.read(2)) == 2


def test_note_of_one_thread(run: Run, tmp_path: Path, stored: tuning_table.TuningTable) -> None:
    code, out, _ = run("tune", tiny_llama(tmp_path / "m.gguf"), "-t", 1)
    assert (code, f"* chosen: {SIMILAR}, the first\n" in out) == (0, True)


def test_json(run: Run, tmp_path: Path, stored: tuning_table.TuningTable) -> None:
    code, out, _ = run("tune", tiny_llama(tmp_path / "m.gguf"), "-t", 1, "--json")
    found = json.loads(out)
    assert (code, found["threads"], found["rounds_agree"]) == (0, 1, True)
    for shape in found["shapes"]:
        named = [each.keys() & {"streams", "neighbouring_rows"} for each in shape["bytes_per_second"]]
        assert named == [{"neighbouring_rows" if each.neighbours else "streams"} for each in CANDIDATES]
        rates = [each["bytes_per_second"] for each in shape["bytes_per_second"]]
        first = next(n for n, rate in enumerate(rates) if rate >= max(rates) / (1 + row_access_timing.SIMILAR))
        chosen = shape["chosen"] | {"bytes_per_second": rates[first], "one_thread": rates[first]}
        assert shape["bytes_per_second"][first] == chosen
    assert len(stored.read(1)) == len(found["shapes"])


@pytest.mark.skipif(not has_two_conversions(passes=1), reason="register tiles have one way on this CPU")
def test_ways_of_prefill(run: Run, tmp_path: Path, stored: tuning_table.TuningTable) -> None:
    code, out, _ = run("tune", tiny_llama(tmp_path / "m.gguf"), "--precision", "fast")
    lines = [line.partition(": ") for line in out.splitlines() if line.startswith("prefill, ")]
    assert (code, [names for _, _, names in lines]) == (0, ["Q8_0"])
    assert {way for way, _, _ in lines} <= {"prefill, subtraction", "prefill, stored shift"}
    code, out, _ = run("tune", tiny_llama(tmp_path / "m.gguf"), "--precision", "fast", "--json")
    assert {type(shape["prefill_subtracts"]) for shape in json.loads(out)["shapes"]} == {bool}


def test_disturbed_measurement(
    run: Run, tmp_path: Path, stored: tuning_table.TuningTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_access_timing, "TOLERANCE", -1)
    monkeypatch.setattr(row_access_timing, "MAX_SECONDS", 0)
    code, _, err = run("tune", tiny_llama(tmp_path / "m.gguf"))
    assert code == 0
    assert "warning: another program disturbed the measurement; the next run of the model measures again\n" in err
    assert {tuned.disturbed for tuned in stored.read_all().values()} == {1}


def test_small_model(run: Run, tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "m.gguf")
    code, out, err = run("tune", path)
    assert (code, out) == (0, "")
    assert err.endswith(f"{path}: all matrices are so small that tuning makes no difference\n")


def test_missing_model(run: Run, tmp_path: Path) -> None:
    code, out, err = run("tune", tmp_path / "missing.gguf")
    assert (code, out) == (3, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
