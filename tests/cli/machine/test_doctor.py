"""`localinfer doctor` and `localinfer warmup`: results, also of a broken installation."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny import tiny_llama

from cli.machine import doctor
from localinfer import paths
from localinfer.evaluation import self_test
from localinfer.evaluation.self_test import FreshProcess, SelfTest
from localinfer.gguf.reader import open_gguf
from localinfer.graph.ops.compute_graph import ProductShape
from localinfer.machine import resources, thread_priority
from localinfer.options import Options
from localinfer.runtime.requirements import required_kernels
from localinfer.runtime.row_access.tuning_table import CANDIDATES, TunedAccess, TuningTable
from localinfer.version import VERSION
from quant.jit import kernel_cache, loader
from quant.jit.cpu import process_triple, target, used_features

Run = Callable[..., tuple[int, str, str]]
DOCTOR = [sys.executable, "-m", "localinfer", "doctor"]


def test_tuning_is_summarized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "jit_dir", lambda: tmp_path)
    assert doctor.check_tuning().text == "nothing measured yet"
    table = TuningTable(tmp_path)
    table.update(2, {ProductShape(0, n, 1): TunedAccess(CANDIDATES[0], n * 1e9) for n in (64, 96)})
    found = doctor.check_tuning()
    assert found.text == "a way of reading chosen for 2 kinds of rows, 64.0 to 96.0 GB/s; --json lists them"
    assert len(doctor.as_object(found)["measured"]) == 2


class TestDoctor:
    def test_checks(self, run: Run) -> None:
        code, out, _ = run("doctor", "--json")
        actual = json.loads(out)
        assert (code, actual["can_run"]) == (0, True)
        assert actual["program"]["version"] == VERSION
        assert actual["cpu"]["instruction_set"] == target().isa
        assert (actual["cpu"]["features"], actual["cpu"]["triple"]) == (used_features(), process_triple())
        assert actual["threads"]["default"] == resources.default_threads()
        assert actual["kernel_cache"]["path"] == str(paths.jit_dir() / kernel_cache.cache_key())
        assert actual["kernel_cache"]["kernels"] >= 3
        assert actual["speed"]["bytes_per_second"] > 1e8
        assert not [name for name, facts in actual.items() if name != "can_run" and "trouble" in facts]

    def test_one_line_per_check(self, run: Run) -> None:
        code, out, _ = run("doctor")
        *lines, empty, verdict = out.splitlines()
        assert (code, empty, verdict) == (0, "", "models can run on this machine")
        assert [line[:13].strip() for line in lines] == list(doctor.CHECKS)
        assert "check failed" not in out

    def test_self_test(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        code, out, _ = run("doctor", "--self-test")
        *lines, empty, verdict = out.splitlines()
        assert (code, empty, verdict) == (0, "", "models can run on this machine")
        assert [line[:13].strip() for line in lines] == [*doctor.CHECKS, *doctor.SELF_TEST_CHECKS]
        assert "check failed" not in out

        monkeypatch.setattr(self_test, "MAX_ERROR", 1e-6)
        monkeypatch.setattr(SelfTest, "run_in_new_process", lambda _: FreshProcess(2, 0.5, is_equal=False))
        code, out, _ = run("doctor", "--self-test", "--json")
        actual = json.loads(out)
        assert (code, actual["can_run"]) == (1, False)
        assert actual["kernels"]["trouble"] == "kernels compute wrong results on this machine"
        assert actual["same_bits"] == {"equal": True, "threads": resources.default_threads()}
        assert actual["new_process"]["trouble"] == "kernels from the cache compute other results"
        speed = actual["small_model"]
        assert speed["prefill_tokens_per_second"] > speed["decode_tokens_per_second"] > 1
        assert len(actual["kernels"]["sha256"]) == 64

    def test_self_test_of_a_machine_that_cannot_run_models(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: object) -> None:
            raise OSError("no space left on device")

        monkeypatch.setattr(self_test, "write_model", fail)
        code, out, _ = run("doctor", "--self-test")
        assert code == 1
        assert "\nkernels       check failed: OSError: no space left on device\n" in out
        assert out.endswith("models cannot run on this machine: kernels\n")

    def test_python_that_macos_translates(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "platform", "darwin")
        monkeypatch.setattr(resources, "_sysctl_text", {"sysctl.proc_translated": "1"}.get)
        assert "macOS translates it" in doctor.check_cpu().text

    @pytest.mark.parametrize(("is_accepted", "word"), [(True, "accepted"), (False, "refused")])
    def test_request_for_performance_cores(
        self, monkeypatch: pytest.MonkeyPatch, is_accepted: bool, word: str
    ) -> None:
        monkeypatch.setattr(sys, "platform", "darwin")
        monkeypatch.setattr(resources, "_sysctl", {"hw.perflevel0.physicalcpu": 4}.get)
        monkeypatch.setattr(thread_priority, "prefer_performance_cores", lambda: is_accepted)
        assert f"the request for performance cores is {word}" in doctor.check_threads().text

    @pytest.mark.skipif(os.name != "posix", reason="mode bits")
    def test_cache_writable_by_others_is_reported(
        self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("LOCALINFER_CACHE_DIR", str(tmp_path))
        (tmp_path / "jit").mkdir()
        (tmp_path / "jit").chmod(0o777)
        code, out, _ = run("doctor")
        assert code == 0
        assert "kernel cache not used: others can write to it" in out

    def test_invalid_setting(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LOCALINFER_THREADS", "many")
        code, out, _ = run("doctor")
        assert code == 1
        assert "LOCALINFER_THREADS: must be" in out
        assert out.endswith("models cannot run on this machine: settings\n")

    @pytest.mark.parametrize("package", ["numpy", "llvmlite"])
    def test_a_package_that_cannot_be_imported(self, environment: dict[str, str], tmp_path: Path, package: str) -> None:
        """The other checks are still reported."""
        (tmp_path / f"{package}.py").write_text("raise ImportError('libgone.so: no such file')")
        broken = environment | {"PYTHONPATH": os.pathsep.join([str(tmp_path), environment["PYTHONPATH"]])}
        done = subprocess.run(DOCTOR, env=broken, capture_output=True, text=True)
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        assert "check failed: ImportError: libgone.so: no such file" in done.stdout
        assert f"localinfer {VERSION}" in done.stdout
        assert "models cannot run on this machine: " in done.stdout.splitlines()[-1]


class TestWarmup:
    def test_compiles_the_kernels_of_a_model_once(self, run: Run, tmp_path: Path) -> None:
        model = tiny_llama(tmp_path / "m.gguf")
        code, out, err = run("warmup", model, "-c", 64)
        assert (code, out) == (0, "")
        expected = required_kernels(open_gguf(model), Options(ctx_size=64))
        assert all(kernel_cache.KernelCache(paths.jit_dir()).read(kernel.symbol) for kernel in expected)
        code, out, err = run("warmup", model, "-c", 64)
        assert (code, out, err) == (0, "", f"{model}: all kernels are cached\n")

    def test_reports_the_number_of_compiled_kernels(self, environment: dict[str, str], tmp_path: Path) -> None:
        model = tiny_llama(tmp_path / "m.gguf")
        expected = required_kernels(open_gguf(model), Options())
        [missing] = [kernel for kernel in expected if kernel.function == "gather_rows"]
        (paths.jit_dir() / kernel_cache.cache_key() / f"{missing.symbol}.o").unlink(missing_ok=True)
        loader.load_kernels([kernel for kernel in expected if kernel is not missing], paths.jit_dir())
        command = [sys.executable, "-m", "localinfer", "warmup", str(model)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0
        assert f"{model}: 1 of {len(expected)} kernels compiled in " in done.stderr

    def test_unusable_cache_directory(
        self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "cache").write_text("a file")
        monkeypatch.setenv("LOCALINFER_CACHE_DIR", str(tmp_path / "cache"))
        code, _, err = run("warmup", tiny_llama(tmp_path / "m.gguf"))
        assert code == 1
        assert err.splitlines()[-1].startswith("error: ")
        assert "kernel cache not used" in err

    @pytest.mark.parametrize(
        ("arguments", "code", "problem"),
        [
            (["no-model.gguf"], 3, "No such file"),
            (["smolm2"], 3, "did you mean smollm2"),
            (["no-model.gguf", "-c", "-1"], 2, "--ctx-size: must be"),
            (["no-model.gguf", "--temp", "1"], 2, "no such option"),
        ],
    )
    def test_errors_are_one_line(self, run: Run, arguments: list[str], code: int, problem: str) -> None:
        actual, out, err = run("warmup", *arguments)
        assert (actual, out, err.count("\n")) == (code, "", 1)
        assert problem in err
