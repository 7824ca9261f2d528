"""`localinfer quantize`: arguments, dry run, one-line errors and signals."""

import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from checkpoints import CHECKPOINTS, copy_checkpoint, edit_json
from projector_checkpoints import descriptions, write_checkpoint
from terminal import Terminal
from tiny import tiny_llama

import localinfer
from cli import __main__
from localinfer import naive
from localinfer.gguf.imatrix_file import Entry, Imatrix, write_imatrix
from localinfer.gguf.reader import open_gguf

Run = Callable[..., tuple[int, str, str]]
REAL = [sys.executable, "-m", "localinfer"]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Return a function that runs the command in this process, in a new directory: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> tuple[int, str, str]:
        code = __main__.run(["quantize", *map(str, arguments)])
        return (code, *capsys.readouterr())

    return run


@pytest.fixture
def failure(run: Run, tmp_path: Path) -> Callable[..., str]:
    """Return a function that checks that the command fails and leaves no files, and returns the error."""

    def fail(code: int, *arguments: object) -> str:
        before = names(tmp_path)
        actual, out, err = run(*arguments)
        assert (actual, out) == (code, ""), err
        [line] = err.splitlines()
        assert line.startswith("error: ")
        assert names(tmp_path) == before
        return line.removeprefix("error: ")

    return fail


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_llama(tmp_path / "m.gguf", type="F16", n_layer=1)


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def types(path: Path) -> set[str]:
    return {tensor.type_name for tensor in open_gguf(path).tensors.values()}


class TestArguments:
    def test_out_and_type(self, run: Run, model: Path, tmp_path: Path) -> None:
        code, out, err = run(model, "out.gguf", "q8_0", 2)
        assert (code, out) == (0, "")
        assert types(tmp_path / "out.gguf") == {"F32", "Q8_0"}
        assert "[   1/  11] token_embd.weight" in err
        assert re.search(r"type = +F16, converting to Q8_0 \.\. size = +0\.\d\d MiB -> +0\.\d\d MiB", err)
        assert re.search(r"quant size  = +\d\.\d\d MiB \(8\.\d\d BPW\)", err)

    def test_only_a_type(self, run: Run, model: Path, tmp_path: Path) -> None:
        assert run(model, "7")[0] == 0
        assert types(tmp_path / "ggml-model-Q8_0.gguf") == {"F32", "Q8_0"}

    def test_reports_the_output_path(self, run: Run, model: Path) -> None:
        last = run(model, "Q8_0")[2].splitlines()[-1]
        assert re.fullmatch(rf"{re.escape(str(model.parent))}/ggml-model-Q8_0\.gguf: written in \d+\.\d s", last)

    def test_type_and_threads(self, run: Run, model: Path, tmp_path: Path) -> None:
        assert run(model, "Q8_0", 1)[0] == 0
        assert (tmp_path / "ggml-model-Q8_0.gguf").exists()

    def test_force(self, run: Run, failure: Callable[..., str], model: Path, tmp_path: Path) -> None:
        (tmp_path / "out").write_bytes(b"old")
        assert failure(2, model, "out", "Q8_0") == "out: is there already; force (--force) replaces it"
        assert run(model, "out", "Q8_0", "--force")[0] == 0
        assert types(tmp_path / "out") == {"F32", "Q8_0"}

    def test_link_stays(self, run: Run, model: Path, tmp_path: Path) -> None:
        (tmp_path / "out").symlink_to("target")
        assert run(model, "out", "Q8_0")[0] == 0
        assert (tmp_path / "out").is_symlink()
        assert types(tmp_path / "target") == {"F32", "Q8_0"}

    def test_loop_of_links(self, failure: Callable[..., str], model: Path, tmp_path: Path) -> None:
        (tmp_path / "out").symlink_to("back")
        (tmp_path / "back").symlink_to("out")
        assert failure(2, model, "out", "Q8_0", "--force") == "out: is a symbolic link to itself"
        assert names(tmp_path) == ["back", "m.gguf", "out"]

    def test_type_overrides(self, run: Run, model: Path, tmp_path: Path) -> None:
        options = ["--tensor-type", "attn_[QK]=F32", "--token-embedding-type", "bf16"]
        assert run(model, "out", "Q8_0", *options)[0] == 0
        actual = {name: tensor.type_name for name, tensor in open_gguf(tmp_path / "out").tensors.items()}
        assert actual["blk.0.attn_q.weight"] == "F32"
        assert actual["blk.0.attn_v.weight"] == "Q8_0"
        assert actual["token_embd.weight"] == "BF16"

    def test_best_effort_without_covariances_equals_normal(self, run: Run, model: Path, tmp_path: Path) -> None:
        assert run(model, "normal", "Q4_0")[0] == 0
        code, _, err = run(model, "max", "Q4_0", "--effort", "max")
        assert code == 0
        assert "--effort max: requires an imatrix with covariances or --calibrate; using --effort normal" in err
        assert (tmp_path / "max").read_bytes() == (tmp_path / "normal").read_bytes()

    def test_type_override_file(self, run: Run, model: Path, tmp_path: Path) -> None:
        (tmp_path / "types.txt").write_text("attn_q=f32\nattn_k=bf16")
        assert run(model, "out", "Q8_0", "--tensor-type-file", "types.txt")[0] == 0
        assert types(tmp_path / "out") == {"F32", "BF16", "Q8_0"}

    def test_metadata(self, run: Run, model: Path, tmp_path: Path) -> None:
        settings = ["general.name=str:other", "a.b=int:5", "a.c=float:0.5", "a.d=bool:true"]
        assert run(model, "out", "Q8_0", *(word for each in settings for word in ("--override-kv", each)))[0] == 0
        new, old = open_gguf(tmp_path / "out").metadata, open_gguf(model).metadata
        changed = {"general.name": "other", "a.b": 5, "a.c": 0.5, "a.d": True}
        changed |= {"general.file_type": 7, "general.quantization_version": 2}
        assert {key: new[key] for key in changed} == changed
        assert set(new) == set(old) | set(changed)

    @pytest.mark.parametrize(
        ("words", "problem"),
        [
            (["q9"], "TYPE: q9: no such type; choose one of F32, F16, BF16, Q8_0, Q6_K, Q5_K_M"),
            (["Q4_KM"], "TYPE: Q4_KM: no such type; did you mean Q4_K_M?"),
            ([], "TYPE: missing; choose one of F32, F16"),
            (["out", "Q9"], "TYPE: Q9: no such type"),
            (["out", "Q8_0", "x"], "THREADS: must be a number from 1 to 1024, not x"),
            (["out", "Q8_0", "0"], "THREADS: must be a number"),
            (["Q8_0", "1", "2"], "2: too many arguments"),
            (["Q8_0", "--tensor-type", "x"], "--tensor-type: must be REGEX=TYPE, not 'x'"),
            (["Q8_0", "--tensor-type", "(=Q8_0"], "--tensor-type: '(' is not a regular expression"),
            (["Q8_0", "--tensor-type", "x=Q4_K_M"], "--tensor-type: 'Q4_K_M' is not a tensor type; known types: F32"),
            (["Q8_0", "--tensor-type-file", "none"], "--tensor-type-file: none: No such file"),
            (["Q8_0", "--override-kv", "a=5"], "--override-kv: must be TYPE:VALUE with TYPE one of str, bool, int, "),
            (["Q8_0", "--override-kv", "a=int:x"], "--override-kv: x is not a valid int"),
            (["Q8_0", "--override-kv", "a=int:99999999999"], "--override-kv: 99999999999 is not a valid int"),
            (["Q8_0", "--override-kv", "a=bool:x"], "--override-kv: x is not a valid bool"),
            (["Q8_0", "--override-kv", "general.alignment=int:3"], "--override-kv: general.alignment determines"),
            (["Q8_0", "--effort", "most"], "--effort: must be one of fast, normal, max, not most"),
        ],
    )
    def test_usage(self, failure: Callable[..., str], model: Path, words: list[str], problem: str) -> None:
        assert failure(2, model, *words).startswith(problem)


class TestDryRun:
    def test_table(self, run: Run, model: Path, tmp_path: Path) -> None:
        code, out, err = run(model, "Q4_K_M", "--dry-run")
        assert (code, err) == (0, "")
        assert re.search(r"blk\.0\.attn_q\.weight +256 x 256 +F16 +-> Q4_K +0\.04 MiB +4\.50 bits", out)
        assert re.search(r"\n  Q6_K +\d+,\d+ weights", out)
        assert re.search(r"quant size  = +\d\.\d\d MiB \(\d\.\d\d BPW\)", out)
        assert names(tmp_path) == ["m.gguf"]

    def test_sizes_are_those_of_the_file(self, run: Run, model: Path, tmp_path: Path) -> None:
        predicted = run(model, "Q8_0", "--dry-run")[1].splitlines()[-1]
        assert predicted in run(model, "out", "Q8_0")[2]
        sizes = [tensor.nbytes for tensor in open_gguf(tmp_path / "out").tensors.values()]
        assert f"{sum(sizes) / 2**20:.2f} MiB" in predicted

    def test_type_that_does_not_fit(self, run: Run, tmp_path: Path) -> None:
        unusual = tiny_llama(tmp_path / "odd.gguf", type="F16", n_layer=1, n_ff=96)
        out = run(unusual, "Q4_K_M", "--dry-run")[1]
        assert re.search(r"ffn_down\.weight .* -> Q8_0 +fallback for Q6_K: row length is not a multiple", out)

    def test_problem_is_a_warning(self, run: Run, model: Path) -> None:
        code, out, err = run(model, "IQ2_XS", "--dry-run")
        assert (code, err.count("\n")) == (0, 1)
        assert "IQ2_XS" in out
        assert err.startswith("warning: ")


class TestRefused:
    def test_missing_source(self, failure: Callable[..., str]) -> None:
        assert "gone.gguf" in failure(3, "gone.gguf", "Q8_0")

    def test_broken_source(self, failure: Callable[..., str], model: Path) -> None:
        content = bytearray(model.read_bytes())
        model.write_bytes(content[:-1])
        assert failure(1, model, "Q8_0").startswith(f"{model}: ")

    def test_source_over_itself(self, failure: Callable[..., str], model: Path) -> None:
        assert failure(2, model, model, "Q8_0", "--force") == f"{model}: is the input file {model}; choose another name"

    @pytest.mark.parametrize("out", [".", "no/out"])
    def test_impossible_output_path(self, failure: Callable[..., str], model: Path, out: str) -> None:
        failure(2, model, out, "Q8_0")

    def test_quantized_source(self, run: Run, failure: Callable[..., str], tmp_path: Path) -> None:
        model = tiny_llama(tmp_path / "q.gguf", n_layer=1)
        assert "token_embd.weight: is already Q8_0; allow_requantize" in failure(1, model, "Q4_0")
        assert run(model, "out", "F32", "--allow-requantize")[0] == 0
        assert types(tmp_path / "out") == {"F32"}

    def test_non_finite_values(self, run: Run, tmp_path: Path) -> None:
        values = np.ones((256, 256), np.float32)
        values[200, 7] = np.inf
        model = tiny_llama(tmp_path / "bad.gguf", type="F16", n_layer=1, **{"blk.0.attn_q.weight": values})
        code, _, err = run(model, "out", "Q8_0")
        assert (code, names(tmp_path)) == (1, ["bad.gguf"])
        assert err.splitlines()[-1] == f"error: {model}: blk.0.attn_q.weight: value inf at [200, 7]"

    def test_no_architecture(self, failure: Callable[..., str], tmp_path: Path) -> None:
        model = tiny_llama(tmp_path / "bad.gguf", type="F16", n_layer=1, **{"general.architecture": None})
        assert "general.architecture: is missing" in failure(1, model, "out", "Q8_0")


class TestImatrix:
    @pytest.fixture
    def matrix(self, model: Path, tmp_path: Path) -> Path:
        """Return the path of an importance matrix with entries for all matrices except the token embedding."""
        entries = {
            name: Entry(np.ones((1, tensor.shape[-1]), np.float32), np.ones(1, np.float32))
            for name, tensor in open_gguf(model).tensors.items()
            if len(tensor.shape) > 1 and name.startswith("blk")
        }
        write_imatrix(tmp_path / "imatrix.gguf", Imatrix(entries, ("text.txt",), 3, 512))
        return tmp_path / "imatrix.gguf"

    def test_smallest_types_need_it(self, failure: Callable[..., str], model: Path) -> None:
        line = failure(1, model, "out", "IQ2_XS")
        assert re.search(r"blk\.0\.\w+\.weight: IQ2_XS needs an importance matrix", line)
        assert "`localinfer imatrix MODEL -f TEXT -o FILE` creates one" in line

    def test_metadata_records_the_matrix(self, run: Run, model: Path, matrix: Path, tmp_path: Path) -> None:
        assert run(model, "out", "Q8_0", "--imatrix", matrix)[0] == 0
        actual = {key: value for key, value in open_gguf(tmp_path / "out").metadata.items() if "imatrix" in key}
        assert actual == {
            "quantize.imatrix.file": str(matrix), "quantize.imatrix.dataset": "text.txt",
            "quantize.imatrix.entries_count": 7, "quantize.imatrix.chunks_count": 3,
        }  # fmt: skip

    def test_changes_the_chosen_types(self, run: Run, model: Path, matrix: Path) -> None:
        assert run(model, "IQ2_XS", "--imatrix", matrix, "--dry-run")[2] == ""

    def test_excluded_entries(self, run: Run, model: Path, matrix: Path) -> None:
        options = ["IQ2_XS", "--imatrix", matrix, "--dry-run"]
        assert "blk.0.attn_q.weight: " in run(model, *options, "--exclude-weights", "attn_q")[2]
        assert "blk.0.attn_q.weight: " in run(model, *options, "--include-weights", "ffn")[2]
        assert run(model, *options, "--include-weights", "attn", "--include-weights", "ffn")[2] == ""

    def test_matrices_without_an_entry_are_named(self, run: Run, model: Path, matrix: Path) -> None:
        line = run(model, "out", "Q8_0", "--imatrix", matrix, "--exclude-weights", "attn_q")[2]
        assert "warning: not in the importance matrix: blk.0.attn_q.weight" in line
        assert "not in the importance matrix" not in run(model, "other", "Q8_0", "--imatrix", matrix)[2]

    def test_of_another_model(self, failure: Callable[..., str], model: Path, tmp_path: Path) -> None:
        entry = Entry(np.ones((1, 64), np.float32), np.ones(1, np.float32))
        write_imatrix(tmp_path / "other.gguf", Imatrix({"blk.0.attn_q.weight": entry}))
        line = failure(1, model, "out", "Q8_0", "--imatrix", "other.gguf")
        assert "blk.0.attn_q.weight: has 64 values in the importance matrix, but 256 columns" in line
        write_imatrix(tmp_path / "foreign.gguf", Imatrix({"nothing": entry}))
        line = failure(1, model, "out", "Q8_0", "--imatrix", "foreign.gguf")
        assert "the importance matrix has none of its tensors" in line

    def test_not_an_imatrix_file(self, failure: Callable[..., str], model: Path) -> None:
        assert "not an importance matrix" in failure(1, model, "out", "Q8_0", "--imatrix", model)
        assert "no such file" in failure(3, model, "out", "Q8_0", "--imatrix", "gone")


def test_split_model_is_joined_by_copying(run: Run, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "p.gguf", "llama", split_max_tensors=1)
    for number in range(2):
        writer.add_tensor(f"t{number}.weight", np.full((2, 32), number, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert run("p-00001-of-00002.gguf", "joined.gguf", "copy")[0] == 0
    assert list(open_gguf(tmp_path / "joined.gguf").tensors) == ["t0.weight", "t1.weight"]


@pytest.mark.skipif(os.name != "posix", reason="terminals")
def test_time_left_on_a_terminal(terminal: Callable[..., Terminal], model: Path, tmp_path: Path) -> None:
    shown = terminal("quantize", str(model), str(tmp_path / "out"), "Q8_0")
    shown.expect("█")
    shown.expect(" %  ")
    shown.expect(" left")
    shown.expect(": written in ")
    assert shown.wait() == 0


def test_quantized_model_runs(run: Run, model: Path, tmp_path: Path) -> None:
    assert run(model, "out.gguf", "Q4_K_M")[0] == 0
    tokens = list(range(5, 37))
    with localinfer.load(tmp_path / "out.gguf", threads=1, ctx_size=64) as quantized:
        logits = quantized.logits(tokens)
    exact = naive.forward(naive.Model(open_gguf(model)), tokens)
    assert np.corrcoef(logits.ravel(), exact.ravel())[0, 1] > 0.9


# --- processes ---

SLOW = """
import sys, time
import localinfer.quantization.pipeline
from cli.__main__ import main
from localinfer.quantization.quantize import EncoderFactory

def make_slow_encoder_factory(*_):
    def make_encoder(matrix):
        return lambda x, out: time.sleep(0.5)
    return EncoderFactory(make_encoder)

localinfer.quantization.pipeline.make_encoder_factory = make_slow_encoder_factory
sys.argv[0] = "localinfer"
main()
"""


@pytest.mark.skipif(os.name != "posix", reason="signals")
class TestStopped:
    @pytest.fixture
    def working(self, model: Path, tmp_path: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        """Return a process in the middle of quantizing that replaces an existing file."""
        (tmp_path / "out").write_bytes(b"old")
        command = [sys.executable, "-c", SLOW, "quantize", str(model), str(tmp_path / "out"), "Q8_0", "1", "--force"]
        # Under nohup, SIGHUP would stay ignored.
        heard = partial(signal.signal, signal.SIGHUP, signal.SIG_DFL)
        process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, preexec_fn=heard)
        while not any(tmp_path.glob(".out.tmp-*")):
            assert process.poll() is None, process.stderr and process.stderr.read()
            time.sleep(0.02)
        return process

    @pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
    def test_stops_on_signals(
        self, working: subprocess.Popen[bytes], tmp_path: Path, number: signal.Signals, code: int
    ) -> None:
        begin = time.monotonic()
        working.send_signal(number)
        _, err = working.communicate(timeout=10)
        assert time.monotonic() - begin < 3, "it went on with its work, which takes 4 s"
        assert working.returncode == code
        assert b"Traceback" not in err
        assert names(tmp_path) == ["m.gguf", "out"]
        assert (tmp_path / "out").read_bytes() == b"old"

    def test_killed_then_again(self, working: subprocess.Popen[bytes], run: Run, model: Path, tmp_path: Path) -> None:
        working.kill()
        working.communicate()
        assert (tmp_path / "out").read_bytes() == b"old"
        assert run(model, "out", "Q8_0", "--force")[0] == 0
        assert names(tmp_path) == ["m.gguf", "out"]
        assert types(tmp_path / "out") == {"F32", "Q8_0"}


def without_weights(path: Path, n_tensors: int, shape: tuple[int, int]) -> Path:
    """Write an F16 source whose weights are a hole in a sparse file, so they are zeros."""
    writer = gguf.GGUFWriter(path, "llama")
    size = 2 * shape[0] * shape[1]
    for number in range(n_tensors):
        writer.add_tensor_info(f"blk.{number}.attn_q.weight", shape, np.dtype("f2"), size)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with path.open("r+b") as file:
        file.truncate(-(-path.stat().st_size // 32) * 32 + n_tensors * size)
    return path


# The peak memory of a process includes that of its parent at the fork: a small process starts it.
MEASURE = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stderr=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@pytest.mark.skipif(os.name != "posix", reason="resource")
def test_peak_memory(tmp_path: Path, environment: dict[str, str]) -> None:
    """The limit is the largest tensor as floats and encoded, plus 200 MB; the source is larger."""
    shape = 2048, 2048
    source = without_weights(tmp_path / "m.gguf", 30, shape)
    command = [sys.executable, "-c", MEASURE, *REAL, "quantize", str(source), str(tmp_path / "out"), "Q8_0", "2"]
    peak = 1024 * int(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)
    assert peak < shape[0] * shape[1] * (4 + 34 / 32) + 200e6 < source.stat().st_size


@pytest.mark.skipif(os.name != "posix", reason="resource")
def test_file_size_limit(model: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    """A file size limit has the effect of a full disk."""

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))

    command: Any = [*REAL, "quantize", str(model), str(tmp_path / "out"), "Q8_0"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, preexec_fn=small_files, check=False)
    assert done.returncode == 1
    assert re.fullmatch(
        rf"error: {tmp_path}/out: cannot be written: File too large \([\d,]+ bytes in all\)\n", done.stderr
    )
    assert names(tmp_path) == ["m.gguf"]


# -------------------------------------------------------------------------------------------- checkpoints


def test_checkpoint_becomes_a_model(run: Run, tmp_path: Path) -> None:
    code, _, err = run(CHECKPOINTS / "qwen2", tmp_path / "m.gguf", "Q8_0")
    assert code == 0, err
    types = {tensor.type_name for tensor in open_gguf(tmp_path / "m.gguf").tensors.values()}
    assert types == {"Q8_0", "F32"}


def test_checkpoint_of_another_architecture(failure: Callable[..., str], tmp_path: Path) -> None:
    folder = copy_checkpoint("qwen2", tmp_path)
    edit_json(folder / "config.json", lambda config: config.update(architectures=["GPT9"]))
    assert "'GPT9' is not supported" in failure(3, folder, tmp_path / "m.gguf", "Q8_0")


def test_checkpoint_has_to_be_quantized_before_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.run(["generate", str(CHECKPOINTS / "qwen2"), "-p", "Hello"]) == 1
    assert f"this is a checkpoint; `localinfer quantize {CHECKPOINTS / 'qwen2'} OUT.gguf" in capsys.readouterr().err


def test_dry_run_checks_the_architecture_file(failure: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("x = 1\n", encoding="utf-8")
    arguments = CHECKPOINTS / "qwen2", "out.gguf", "Q8_0", "--architecture", tmp_path / "own.py"
    expected = f"architecture (--architecture): {tmp_path / 'own.py'}: has no function `build`"
    assert failure(2, *arguments, "--dry-run") == failure(2, *arguments) == expected


@pytest.mark.parametrize("option", ["--conversion", "--architecture", "--target-model-dir"])
def test_options_of_checkpoints_need_one(option: str, failure: Callable[..., str], tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "model.gguf")
    (tmp_path / "own.py").touch()
    expected = f"{option}: {model}: must be a checkpoint directory"
    assert failure(2, model, "out.gguf", "Q8_0", option, tmp_path / "own.py") == expected
    expected = f"{option}: cannot be combined with --mmproj, which converts the encoder only"
    assert failure(2, tmp_path, "out.gguf", "F16", "--mmproj", option, tmp_path / "own.py") == expected


# --- encoders ---


def test_mmproj(run: Run, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "seeing", descriptions()["gemma3"])
    assert run(checkpoint, "F16", "--mmproj", "--dry-run")[0] == 0
    code, out, err = run(checkpoint, "F16", "--mmproj")
    assert (code, out) == (0, "")
    f = open_gguf(checkpoint / "mmproj-model-F16.gguf")
    assert (f.metadata["general.type"], f.metadata["clip.projector_type"]) == ("mmproj", "gemma3")
    code, _, err = run(checkpoint, "out.gguf", "Q4_K_M", "--mmproj")
    assert (code, err) == (2, "error: Q4_K_M: an encoder is written as F32, F16, BF16 or Q8_0\n")
    code, _, err = run(checkpoint, "out.gguf", "F16", "--mmproj", "--prune-layers", "1")
    assert (code, err) == (
        2, "error: --prune-layers: cannot be combined with --mmproj, which converts the encoder only\n",
    )  # fmt: skip
    code, _, err = run(tiny_llama(tmp_path / "model.gguf"), "out.gguf", "F16", "--mmproj")
    assert code == 2
    assert "--mmproj: " in err
    assert "must be a checkpoint directory" in err
    assert not (tmp_path / "out.gguf").exists()
    assert __main__.run(["convert_hf_to_gguf.py", str(checkpoint), "--outfile", "new.gguf", "--mmproj"]) == 0
    assert open_gguf(tmp_path / "new.gguf").metadata["general.architecture"] == "clip"
