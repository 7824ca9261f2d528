"""The kernel cache: what is damaged, foreign, unwritable or raced for only costs a compilation."""

import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from places import CHECKOUT
from tiny import tiny_llama

from localinfer.engine.program import kernels
from localinfer.files.gguf import open_gguf
from localinfer.model import Model
from localinfer.options import Options
from quant.jit import kernel_cache
from quant.jit.compiler import compile_kernel
from quant.jit.kernel import Kernel

KERNEL = Kernel("localinfer.ops.residual", "pick", ("tokens", "x", "numbers", "n", "y"))

PROGRAM = """
import sys
from pathlib import Path
from quant.jit import loader
from quant.jit.kernel import Kernel
kernel = Kernel.from_json(sys.argv[2])
reports = []
found, warnings = loader.addresses([kernel], Path(sys.argv[1]), lambda *report: reports.append(report))
assert found[kernel]
print("compiled" if reports else "cached", "numba" in sys.modules, *warnings)
"""


def load_elsewhere(
    root: Path, kernel: Kernel = KERNEL, program: Path = CHECKOUT, **environment: str
) -> "subprocess.Popen[str]":
    """Another process that wants the kernel."""
    command = [sys.executable, "-c", PROGRAM, str(root), kernel.to_json()]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=program, env=os.environ | environment, stdout=pipe, stderr=pipe, text=True)


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


def test_a_folder_named_quant_in_the_current_directory_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "quant").mkdir()
    (tmp_path / "quant" / "__init__.py").write_text("raise SystemExit('a folder of the user')")
    command = [sys.executable, "-P", "-c", PROGRAM, str(tmp_path / "cache"), KERNEL.to_json()]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert told.stdout.strip() == "compiled False", told.stderr


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


def test_another_kernels_object_is_compiled_again(tmp_path: Path) -> None:
    other = Kernel("localinfer.ops.residual", "add_bias", ("tokens", "bias", "n", "x"))
    for kernel in KERNEL, other:
        assert answer(load_elsewhere(tmp_path, kernel)) == "compiled False"
    [folder] = tmp_path.iterdir()
    mine = folder / f"{KERNEL.symbol}.o"
    whole = mine.read_bytes()
    shutil.copy(folder / f"{other.symbol}.o", mine)
    assert answer(load_elsewhere(tmp_path)) == "compiled False"
    assert mine.read_bytes() == whole


def test_what_defines_no_such_kernel_is_compiled_again(tmp_path: Path) -> None:
    """However right its digest is."""
    files = kernel_cache.Cache(tmp_path)
    files.write(KERNEL, b"?" * 999)
    assert answer(load_elsewhere(tmp_path)) == "compiled False"
    other = compile_kernel(Kernel("localinfer.ops.residual", "add_bias", ("tokens", "bias", "n", "x")))
    files.write(KERNEL, other + KERNEL.symbol.encode())
    assert answer(load_elsewhere(tmp_path)) == "compiled False"
    assert answer(load_elsewhere(tmp_path)) == "cached False"


def test_a_pipe_in_the_place_of_a_kernel_is_not_waited_for(tmp_path: Path) -> None:
    assert answer(load_elsewhere(tmp_path)) == "compiled False"
    [path] = objects(tmp_path)
    path.unlink()
    os.mkfifo(path)
    assert answer(load_elsewhere(tmp_path)) == "compiled False"
    assert path.is_file()


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
    if platform.machine() == "x86_64":
        assert answer(load_elsewhere(tmp_path, **other)) == "compiled False"
        assert len(objects(tmp_path)) == 2


def test_another_version_has_kernels_of_its_own(tmp_path: Path) -> None:
    """One changed line in any file that kernels come from is another version."""
    for package in ("quant", "localinfer"):
        shutil.copytree(CHECKOUT / package, tmp_path / "upgraded" / package)
    assert answer(load_elsewhere(tmp_path / "jit")) == "compiled False"
    with (tmp_path / "upgraded" / "localinfer" / "quantizing" / "recipes.py").open("a") as file:
        file.write("# no kernel")
    assert answer(load_elsewhere(tmp_path / "jit", program=tmp_path / "upgraded")) == "cached False"
    with (tmp_path / "upgraded" / "quant" / "jit" / "vectors.py").open("a") as file:
        file.write("# changed")
    assert answer(load_elsewhere(tmp_path / "jit", program=tmp_path / "upgraded")) == "compiled False"
    assert len(objects(tmp_path / "jit")) == 2


def test_what_was_not_used_lately_is_removed_when_a_new_version_comes(tmp_path: Path) -> None:
    now = time.time() - 1  # file systems have clocks of their own
    ages = {f"{number:024x}": now - 24 * 3600 * number for number in range(kernel_cache.KEPT + 8)}
    for name, used in ages.items():
        (tmp_path / name).mkdir(mode=0o700)
        (tmp_path / name / "kernel.o").touch()
        os.utime(tmp_path / name, (used, used))
    (tmp_path / "not-ours").mkdir()
    kernel_cache.Cache(tmp_path)
    kept = {path.name for path in tmp_path.iterdir()} - {"not-ours", kernel_cache.cache_key()}
    assert kept == {name for number, name in enumerate(ages) if number < kernel_cache.KEPT - 1}
    assert (tmp_path / "not-ours").is_dir()
    assert kernel_cache.generations(tmp_path)[0].name == kernel_cache.cache_key()


def test_what_was_used_this_week_is_kept_however_much_it_is(tmp_path: Path) -> None:
    for number in range(3 * kernel_cache.KEPT):
        (tmp_path / f"{number:024x}").mkdir(mode=0o700)
    kernel_cache.Cache(tmp_path)
    assert len(kernel_cache.generations(tmp_path)) == 3 * kernel_cache.KEPT + 1


def test_a_use_is_remembered(tmp_path: Path) -> None:
    directory = kernel_cache.Cache(tmp_path).directory
    assert directory is not None
    os.utime(directory, (0, 0))
    kernel_cache.Cache(tmp_path)
    assert time.time() - directory.stat().st_mtime < 60


def test_few_tokens_need_no_kernels_for_many(tmp_path: Path) -> None:
    f = open_gguf(tiny_llama(tmp_path / "m.gguf"))
    one, many = (set(kernels(f, Options(ctx_size=64, batch_size=size))) for size in (1, 64))
    assert one < many
    assert {kernel.function for kernel in many - one} >= {"matmul", "attention"}
    with Model(f, Options(ctx_size=64, batch_size=1)) as alone, Model(f, Options(ctx_size=64)) as together:
        assert (alone.logits([5, 6, 7]) == together.logits([5, 6, 7])).all()


def test_an_argument_that_a_kernel_does_not_take_is_noticed() -> None:
    wrong = Kernel(KERNEL.module, KERNEL.function, ("something", "else"))
    with pytest.raises(TypeError, match="takes"):
        compile_kernel(wrong)


def test_a_compiler_that_fails_says_why(tmp_path: Path) -> None:
    wrong = Kernel(KERNEL.module, KERNEL.function, ("something", "else"))
    process = load_elsewhere(tmp_path, wrong)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "the kernel compiler failed: TypeError" in err
    assert not objects(tmp_path)


def test_a_kernel_survives_its_line_of_json() -> None:
    kernel = Kernel("m", "f", ("a", "eps"), frozenset({"eps"}), (("tile", 12), ("room", "q8_0")))
    assert Kernel.from_json(kernel.to_json()) == kernel
