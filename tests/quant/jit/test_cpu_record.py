"""What LLVM finds out about the CPU is recorded, and found again for the same CPU only."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from quant.jit import cpu_record

DEPENDENCY = b"source"
PROGRAM = """
import sys
from pathlib import Path
from quant.jit import cpu, cpu_record
cpu_record.keep_in(lambda: Path(sys.argv[1]))
print(cpu.target().isa, cpu.target().rows, *cpu.selected_cpu(), "llvmlite" in sys.modules)
"""


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cpu_record, "_directory", lambda: tmp_path)
    monkeypatch.setattr(cpu_record, "describe_cpu", lambda: "a CPU")
    tmp_path.chmod(0o700)
    return tmp_path


def describe(directory: Path, **environment: str) -> list[str]:
    """Return what another process says about the CPU."""
    command = [sys.executable, "-c", PROGRAM, str(directory)]
    return subprocess.run(
        command, check=True, capture_output=True, text=True, env=os.environ | environment
    ).stdout.split()


def parse(found: dict[str, str]) -> dict[str, str]:
    """Refuse records without a name."""
    return {"name": found["name"]}


def never() -> dict[str, str]:
    raise AssertionError("the record is read")


@pytest.mark.parametrize("damage", ["[", "[]", "{}", "7"])
def test_record_is_read_again(directory: Path, damage: str) -> None:
    assert cpu_record.read_or_make([DEPENDENCY], parse, lambda: {"name": "made"}) == {"name": "made"}
    assert cpu_record.read_or_make([DEPENDENCY], parse, never) == {"name": "made"}
    [path] = directory.iterdir()
    path.write_text(damage)
    assert cpu_record.read_or_make([DEPENDENCY], parse, lambda: {"name": "again"}) == {"name": "again"}
    assert json.loads(path.read_text()) == {"name": "again"}


def test_another_cpu_or_source_has_its_own_record(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu_record.read_or_make([DEPENDENCY], parse, lambda: {"name": "one"})
    assert cpu_record.read_or_make([DEPENDENCY, b"other"], parse, lambda: {"name": "two"}) == {"name": "two"}
    monkeypatch.setattr(cpu_record, "describe_cpu", lambda: "another CPU")
    assert cpu_record.read_or_make([DEPENDENCY], parse, lambda: {"name": "three"}) == {"name": "three"}
    assert len(list(directory.iterdir())) == 3


def test_old_records_are_removed(directory: Path) -> None:
    for number in range(2 * cpu_record.MAX_RECORDS):
        cpu_record.read_or_make([b"%d" % number], parse, lambda: {"name": "made"})
    assert len(list(directory.iterdir())) == cpu_record.MAX_RECORDS


def test_directory_that_others_can_write_to_is_not_used(directory: Path) -> None:
    directory.chmod(0o777)
    assert cpu_record.read_or_make([DEPENDENCY], parse, lambda: {"name": "made"}) == {"name": "made"}
    assert not list(directory.iterdir())


def test_missing_directory_is_created(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_record, "_directory", lambda: directory / "missing")
    assert cpu_record.read_or_make([DEPENDENCY], parse, lambda: {"name": "made"}) == {"name": "made"}
    assert cpu_record.read_or_make([DEPENDENCY], parse, never) == {"name": "made"}
    assert (directory / "missing").stat().st_mode & 0o077 == 0


def test_unknown_cpu_and_unusable_directory_record_nothing(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (directory / "file").touch()
    for unusable in (directory / "file" / "jit", None):
        monkeypatch.setattr(cpu_record, "_directory", lambda unusable=unusable: unusable)
        assert cpu_record.read_or_make([DEPENDENCY], parse, lambda: {"name": "made"}) == {"name": "made"}
    monkeypatch.setattr(cpu_record, "_directory", lambda: directory)
    monkeypatch.setattr(cpu_record, "describe_cpu", lambda: "")
    assert cpu_record.read_or_make([DEPENDENCY], parse, lambda: {"name": "made"}) == {"name": "made"}
    assert [path.name for path in directory.iterdir()] == ["file"]


def test_second_process_does_not_load_llvm(directory: Path) -> None:
    first, second = describe(directory), describe(directory)
    assert (first[-1], second[-1]) == ("True", "False")
    assert first[:-1] == second[:-1]
    [path] = directory.iterdir()
    whole = json.loads(path.read_text())
    path.write_text(json.dumps(whole | {"target": whole["target"] | {"rows": "16"}}))
    assert describe(directory) == first, "a damaged record is not used"
    assert json.loads(path.read_text()) == whole, "it is replaced"


def test_cpu_of_the_environment_is_not_recorded(directory: Path) -> None:
    other = describe(directory, NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="")
    assert other[0] == "generic"
    assert not list(directory.iterdir())


def test_description_does_not_change_with_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(cpu_record, "CPUINFO", tmp_path / "cpuinfo")
    texts = [f"processor : {n}\nmodel name : fast\ncpu MHz : {900 + n}\nflags : a b\nlast" for n in range(2)]
    (tmp_path / "cpuinfo").write_text(texts[0])
    first = cpu_record.describe_cpu()
    (tmp_path / "cpuinfo").write_text(texts[1])
    assert cpu_record.describe_cpu() == first == "flags : a b\nmodel name : fast"
