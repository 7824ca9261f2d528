"""The kernel cache: damaged, foreign or unwritable files and races only cost a compilation."""

import errno
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from locations import CHECKOUT
from tiny import tiny_llama

from localinfer.gguf.reader import open_gguf
from localinfer.model import LoadedModel
from localinfer.options import Options
from localinfer.runtime.requirements import required_kernels
from quant.jit import kernel_cache
from quant.jit.compiler import compile_kernel
from quant.jit.kernel import Kernel

KERNEL = Kernel("localinfer.kernels.residual", "gather_rows", ("tokens", "x", "numbers", "n", "y"))
OTHER = Kernel("localinfer.kernels.residual", "add_bias", ("tokens", "bias", "n", "x"))

PROGRAM = """
import sys
from pathlib import Path
from quant.jit import loader
from quant.jit.kernel import Kernel
kernel = Kernel.from_json(sys.argv[2])
reports = []
found, warnings = loader.load_kernels([kernel], Path(sys.argv[1]), lambda *report: reports.append(report))
assert found[kernel]
print("compiled" if reports else "cached", "numba" in sys.modules, *warnings)
"""


def load_in_process(
    root: Path, kernel: Kernel = KERNEL, program: Path = CHECKOUT, **environment: str
) -> "subprocess.Popen[str]":
    """Start another process that loads the kernel."""
    command = [sys.executable, "-c", PROGRAM, str(root), kernel.to_json()]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=program, env=os.environ | environment, stdout=pipe, stderr=pipe, text=True)


def output_of(process: "subprocess.Popen[str]") -> str:
    """Return the process's output. It must succeed."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out.strip()


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kernel cache with the kernel, which another process has compiled."""
    root = tmp_path_factory.mktemp("compiled") / "jit"
    assert output_of(load_in_process(root)) == "compiled False"
    return root


@pytest.fixture
def cache(compiled: Path, tmp_path: Path) -> Path:
    """A kernel cache with the kernel, for one test."""
    return Path(shutil.copytree(compiled, tmp_path / "jit"))


def objects(root: Path) -> list[Path]:
    """Return the cached object files."""
    return sorted(root.glob("*/*.o"))


def test_kernel_is_compiled_once_without_importing_numba(tmp_path: Path) -> None:
    assert output_of(load_in_process(tmp_path)) == "compiled False"
    assert output_of(load_in_process(tmp_path)) == "cached False"
    [folder] = tmp_path.iterdir()
    assert folder.stat().st_mode & 0o077 == 0
    assert [path.name for path in folder.iterdir()] == [f"{KERNEL.symbol}.o"]


def test_folder_named_quant_in_current_directory_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "quant").mkdir()
    (tmp_path / "quant" / "__init__.py").write_text("raise SystemExit('a folder of the user')")
    command = [sys.executable, "-P", "-c", PROGRAM, str(tmp_path / "cache"), KERNEL.to_json()]
    completed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert completed.stdout.strip() == "compiled False", completed.stderr


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "random"])
def test_a_damaged_kernel_is_compiled_again(cache: Path, damage: str) -> None:
    [path] = objects(cache)
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    path.write_bytes({"empty": b"", "cut": whole[:-9], "flipped": bytes(flipped), "random": b"?" * 999}[damage])
    assert output_of(load_in_process(cache)) == "compiled False"
    assert path.read_bytes() == whole


def test_another_kernels_object_is_compiled_again(cache: Path) -> None:
    assert output_of(load_in_process(cache, OTHER)) == "compiled False"
    [folder] = cache.iterdir()
    object_file = folder / f"{KERNEL.symbol}.o"
    whole = object_file.read_bytes()
    shutil.copy(folder / f"{OTHER.symbol}.o", object_file)
    assert output_of(load_in_process(cache)) == "compiled False"
    assert object_file.read_bytes() == whole


def test_object_without_the_symbol_is_compiled_again(tmp_path: Path) -> None:
    """The digest is correct in both cases."""
    files = kernel_cache.KernelCache(tmp_path)
    files.write(KERNEL.symbol, b"?" * 999)
    assert output_of(load_in_process(tmp_path)) == "compiled False"
    files.write(KERNEL.symbol, compile_kernel(OTHER) + KERNEL.symbol.encode())
    assert output_of(load_in_process(tmp_path)) == "compiled False"
    assert output_of(load_in_process(tmp_path)) == "cached False"


FORGERIES = """
import random, sys
from pathlib import Path
from quant.jit import loader
from quant.jit.kernel import Kernel
from quant.jit.kernel_cache import KernelCache
kernel, files = Kernel.from_json(sys.argv[2]), KernelCache(Path(sys.argv[1]))
whole, choose, outcomes = files.read(kernel.symbol), random.Random(0), set()
for _ in range(300):
    forged = bytearray(whole)
    for _ in range(choose.randint(1, 3)):
        size, value = choose.choice((1, 2, 4, 8)), choose.choice((0, 1, 2**7, 2**31, 2**32 - 1, 2**63, len(whole)))
        at = choose.choice((choose.randrange(64), choose.randrange(len(whole)))) // size * size
        forged[at : at + size] = (value % 2 ** (8 * size)).to_bytes(size, "little")
    forged = forged[: choose.randrange(len(whole))] if choose.random() < 0.1 else forged
    files.write(kernel.symbol, bytes(forged))
    outcomes.add(bool(loader.load_cached([kernel], files)))
    loader.LOADED_KERNELS.clear()
print(sorted(outcomes), *files.warnings)
"""


def test_forged_objects_with_a_valid_digest_do_not_crash_the_loader(cache: Path) -> None:
    """They are refused, or loaded without being run. The loader is not LLVM's, which trusts its input."""
    command = [sys.executable, "-c", FORGERIES, str(cache), KERNEL.to_json()]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[False, True]"), done.stderr


def test_pipe_instead_of_a_kernel_does_not_block(cache: Path) -> None:
    [path] = objects(cache)
    path.unlink()
    os.mkfifo(path)
    assert output_of(load_in_process(cache)) == "compiled False"
    assert path.is_file()


def test_concurrent_processes_all_load_the_kernel(tmp_path: Path) -> None:
    racers = [load_in_process(tmp_path) for _ in range(4)]
    assert {output_of(racer) for racer in racers} <= {"compiled False", "cached False"}
    assert len(objects(tmp_path)) == 1
    assert not list(tmp_path.glob("*/.writing-*"))


def test_cache_that_cannot_be_created_causes_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file")
    output = output_of(load_in_process(tmp_path / "file" / "jit"))
    assert output.startswith("compiled False")
    assert "kernel cache not used" in output


def test_cache_writable_by_others_is_not_used(cache: Path) -> None:
    [folder] = cache.iterdir()
    folder.chmod(0o777)
    output = output_of(load_in_process(cache))
    assert output.startswith("compiled False")
    assert "others can write to it" in output


def test_mode_bits_of_windows_say_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows reports that everyone may write to every folder."""
    (tmp_path / "jit").mkdir()
    (tmp_path / "jit").chmod(0o777)
    monkeypatch.setattr(sys, "platform", "win32")
    files = kernel_cache.KernelCache(tmp_path / "jit")
    assert (files.directory is not None, files.warnings) == (True, [])


def test_kernel_that_another_process_reads_on_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows does not replace an open file. The cache is still used, and no temporary file remains."""

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Access is denied")

    code = KERNEL.symbol.encode()
    files = kernel_cache.KernelCache(tmp_path / "jit")
    files.write(KERNEL.symbol, code)
    monkeypatch.setattr(os, "replace", refuse)
    monkeypatch.setattr(sys, "platform", "win32")
    files.write(KERNEL.symbol, code)
    assert (files.read(KERNEL.symbol), files.warnings) == (code, [])
    assert [path.name for path in (tmp_path / "jit").glob("*/*")] == [f"{KERNEL.symbol}.o"]
    files.write(KERNEL._replace(function="other").symbol, code)
    [warning] = files.warnings
    assert warning.endswith(f"{kernel_cache.cache_key()}: kernel cache not written: Access is denied")


def test_another_cpu_has_its_own_kernels(cache: Path) -> None:
    other = {"NUMBA_CPU_NAME": "x86-64-v2", "NUMBA_CPU_FEATURES": ""}
    if platform.machine() == "x86_64":
        assert output_of(load_in_process(cache, **other)) == "compiled False"
        assert len(objects(cache)) == 2


def test_another_source_version_has_its_own_kernels(cache: Path, tmp_path: Path) -> None:
    """One changed line in any source file of kernels makes another version."""
    for package in ("quant", "localinfer"):
        shutil.copytree(CHECKOUT / package, tmp_path / "upgraded" / package)
    with (tmp_path / "upgraded" / "localinfer" / "quantization" / "recipes.py").open("a") as file:
        file.write("# no kernel")
    assert output_of(load_in_process(cache, program=tmp_path / "upgraded")) == "cached False"
    with (tmp_path / "upgraded" / "quant" / "jit" / "vectors.py").open("a") as file:
        file.write("# changed")
    assert output_of(load_in_process(cache, program=tmp_path / "upgraded")) == "compiled False"
    assert len(objects(cache)) == 2


def test_unused_directories_are_removed_for_a_new_version(tmp_path: Path) -> None:
    now = time.time() - 1  # file systems have clocks of their own
    ages = {f"{number:024x}": now - 24 * 3600 * number for number in range(kernel_cache.MAX_OLD_DIRECTORIES + 8)}
    for name, used in ages.items():
        (tmp_path / name).mkdir(mode=0o700)
        (tmp_path / name / "kernel.o").touch()
        os.utime(tmp_path / name, (used, used))
    (tmp_path / "not-ours").mkdir()
    kernel_cache.KernelCache(tmp_path)
    remaining = {path.name for path in tmp_path.iterdir()} - {"not-ours", kernel_cache.cache_key()}
    assert remaining == {name for number, name in enumerate(ages) if number < kernel_cache.MAX_OLD_DIRECTORIES - 1}
    assert (tmp_path / "not-ours").is_dir()
    assert kernel_cache.cache_directories(tmp_path)[0].name == kernel_cache.cache_key()


def test_recently_used_directories_are_all_kept(tmp_path: Path) -> None:
    for number in range(3 * kernel_cache.MAX_OLD_DIRECTORIES):
        (tmp_path / f"{number:024x}").mkdir(mode=0o700)
    kernel_cache.KernelCache(tmp_path)
    assert len(kernel_cache.cache_directories(tmp_path)) == 3 * kernel_cache.MAX_OLD_DIRECTORIES + 1


def test_use_updates_modification_time(tmp_path: Path) -> None:
    directory = kernel_cache.KernelCache(tmp_path).directory
    assert directory is not None
    os.utime(directory, (0, 0))
    kernel_cache.KernelCache(tmp_path)
    assert time.time() - directory.stat().st_mtime < 60


def test_batch_size_1_compiles_no_matmul_kernels(tmp_path: Path) -> None:
    f = open_gguf(tiny_llama(tmp_path / "m.gguf"))
    one, many = (set(required_kernels(f, Options(ctx_size=64, batch_size=size))) for size in (1, 64))
    assert one < many
    assert {kernel.function for kernel in many - one} >= {"matmul", "attention"}
    with LoadedModel(f, Options(ctx_size=64, batch_size=1)) as alone, LoadedModel(f, Options(ctx_size=64)) as batched:
        assert (alone.logits([5, 6, 7]) == batched.logits([5, 6, 7])).all()


def test_wrong_kernel_arguments_raise_type_error() -> None:
    wrong = Kernel(KERNEL.module, KERNEL.function, ("something", "other"))
    with pytest.raises(TypeError, match="gather_rows has no argument"):
        compile_kernel(wrong)


def test_compiler_failure_is_reported(tmp_path: Path) -> None:
    wrong = Kernel(KERNEL.module, KERNEL.function, ("something", "other"))
    process = load_in_process(tmp_path, wrong)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "the kernel compiler failed: TypeError" in err
    assert not objects(tmp_path)


def test_kernel_json_round_trip() -> None:
    kernel = Kernel("m", "f", ("a", "eps"), frozenset({"eps"}), (("tile", 12), ("format_module", "q8_0")))
    assert Kernel.from_json(kernel.to_json()) == kernel
