"""The kernel cache: what is damaged, foreign, unwritable or raced for only costs a compilation."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quant import jit
from quant.compiler import compile_kernel

KERNEL = jit.Kernel(
    "localinfer.ops.attention", "nothing", ("tokens", "blocks", "kv_heads", "chunk", "partial", "y", "q_out")
)
HERE = Path(__file__).parent.parent

PROGRAM = """
import sys
from pathlib import Path
from quant import jit
kernel = jit.Kernel.from_json(sys.argv[2])
reports = []
found, warnings = jit.addresses([kernel], Path(sys.argv[1]), lambda *report: reports.append(report))
assert found[kernel]
print("compiled" if reports else "cached", "numba" in sys.modules, *warnings)
"""


def load_elsewhere(root: Path, kernel: jit.Kernel = KERNEL, **environment: str) -> "subprocess.Popen[str]":
    """Another process that wants the kernel."""
    command = [sys.executable, "-c", PROGRAM, str(root), kernel.to_json()]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=HERE, env=os.environ | environment, stdout=pipe, stderr=pipe, text=True)


def answer(process: "subprocess.Popen[str]") -> str:
    """What it says; it must end well."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out.strip()


def objects(root: Path) -> list[Path]:
    """The cached kernels."""
    return sorted(root.glob("*/*.o"))


def test_a_kernel_is_compiled_once_and_numba_stays_away(tmp_path: Path) -> None:
    assert answer(load_elsewhere(tmp_path)) == "compiled False"
    assert answer(load_elsewhere(tmp_path)) == "cached False"
    [folder] = tmp_path.iterdir()
    assert folder.stat().st_mode & 0o077 == 0
    assert [path.name for path in folder.iterdir()] == [f"{KERNEL.symbol}.o"]


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "random"])
def test_a_damaged_kernel_is_compiled_again(tmp_path: Path, damage: str) -> None:
    assert answer(load_elsewhere(tmp_path)) == "compiled False"
    [path] = objects(tmp_path)
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    path.write_bytes({"empty": b"", "cut": whole[:-9], "flipped": bytes(flipped), "random": b"?" * 999}[damage])
    assert answer(load_elsewhere(tmp_path)) == "compiled False"
    assert path.read_bytes() == whole


def test_processes_that_race_for_an_empty_cache_all_get_their_kernel(tmp_path: Path) -> None:
    racers = [load_elsewhere(tmp_path) for _ in range(4)]
    assert {answer(racer) for racer in racers} <= {"compiled False", "cached False"}
    assert len(objects(tmp_path)) == 1
    assert not list(tmp_path.glob("*/.writing-*"))


def test_a_cache_that_cannot_be_made_costs_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    said = answer(load_elsewhere(tmp_path / "file" / "jit"))
    assert said.startswith("compiled False")
    assert "kernel cache not used" in said


def test_a_cache_that_others_can_write_to_is_not_trusted(tmp_path: Path) -> None:
    assert answer(load_elsewhere(tmp_path)) == "compiled False"
    [folder] = tmp_path.iterdir()
    folder.chmod(0o777)
    said = answer(load_elsewhere(tmp_path))
    assert said.startswith("compiled False")
    assert "others can write to it" in said


def test_another_cpu_has_kernels_of_its_own(tmp_path: Path) -> None:
    assert answer(load_elsewhere(tmp_path)) == "compiled False"
    other = {"NUMBA_CPU_NAME": "x86-64-v2", "NUMBA_CPU_FEATURES": ""}
    if jit.cpu.X86:
        assert answer(load_elsewhere(tmp_path, **other)) == "compiled False"
        assert len(objects(tmp_path)) == 2


def test_an_argument_that_a_kernel_does_not_take_is_noticed() -> None:
    wrong = jit.Kernel(KERNEL.module, KERNEL.function, ("something", "else"))
    with pytest.raises(TypeError, match="takes"):
        compile_kernel(wrong)


def test_a_compiler_that_fails_says_why(tmp_path: Path) -> None:
    wrong = jit.Kernel(KERNEL.module, KERNEL.function, ("something", "else"))
    process = load_elsewhere(tmp_path, wrong)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "the kernel compiler failed: TypeError" in err
    assert not objects(tmp_path)


def test_a_kernel_survives_its_line_of_json() -> None:
    kernel = jit.Kernel("m", "f", ("a", "eps"), frozenset({"eps"}), (("tile", 12), ("room", "q8_0")))
    assert jit.Kernel.from_json(kernel.to_json()) == kernel
