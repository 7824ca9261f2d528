"""`localinfer batch` end to end: files, messages, exit codes and resumption after interruptions."""

import base64
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import killed_batch
import pytest
from seeing_model import N_TOKENS, picture, write_seeing_model
from terminal import Terminal
from tiny import tiny_llama

from cli import __main__
from cli.generation import batch

Ended = tuple[int, str, str]  # exit code, stdout, stderr
Run = Callable[..., Ended]

REAL = [sys.executable, "-m", "localinfer", "batch"]
PATIENCE = 120.0
LONG = {"max_tokens": 2000, "ignore_eos": True}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf", n_ctx=4096)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    return written(tmp_path, "b", "a", {"prompt": "c", "custom_id": "third"})


def written(folder: Path, *lines: object) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


@pytest.fixture
def run(tiny: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def batch(*words: object) -> Ended:
        code = __main__.run(["batch", str(tiny), *map(str, words), "-t", "1", "-n", "4"])
        return code, *capsys.readouterr()

    return batch


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def texts_of(text: str) -> list[str]:
    return [line["response"]["body"]["choices"][0]["message"]["content"] for line in lines_of(text)]


def ids(out: Path) -> list[str]:
    return [line["custom_id"] for line in lines_of(out.read_text())]


class TestJob:
    def test_from_file_to_file(self, run: Run, prompts: Path, out: Path) -> None:
        code, stdout, stderr = run(prompts, "-o", out)
        assert (code, stdout) == (0, "")
        assert "3 of 3 done, 0 failed" in stderr
        assert ids(out) == ["line-1", "line-2", "third"]
        assert {line["response"]["status_code"] for line in lines_of(out.read_text())} == {200}

    def test_finished_job_is_not_repeated(self, run: Run, prompts: Path, out: Path) -> None:
        run(prompts, "-o", out)
        before = out.read_bytes()
        code, _, stderr = run(prompts, "-o", out)
        assert code == 0
        assert f"{out}: 3 of 3 are done\n" in stderr
        assert out.read_bytes() == before

    def test_to_stdout(self, run: Run, prompts: Path) -> None:
        code, stdout, _ = run(prompts)
        assert code == 0
        assert {line["custom_id"] for line in lines_of(stdout)} == {"line-1", "line-2", "third"}

    def test_invalid_line_does_not_stop_the_job(self, run: Run, tmp_path: Path, out: Path) -> None:
        prompts = written(tmp_path, "a", 5, {"url": "/v1/foo", "body": {}}, {"prompt": "b", "temperature": "hot"}, "c")
        code, _, stderr = run(prompts, "-o", out)
        assert code == 1
        assert f"error: {prompts}: 3 of 5 requests failed, the first is line 2; --retry-failed retries them" in stderr
        actual = lines_of(out.read_text())
        assert [line["response"]["status_code"] for line in actual] == [200, 400, 404, 400, 200]
        assert [line["error"] is None for line in actual] == [True, False, False, False, True]

    def test_retry_failed(self, run: Run, tmp_path: Path, out: Path) -> None:
        prompts = written(tmp_path, "a", 5)
        assert run(prompts, "-o", out)[0] == 1
        first = lines_of(out.read_text())[0]
        code, stdout, _ = run(prompts, "-o", out, "--retry-failed", "--json")
        assert (code, json.loads(stdout)["answered"]) == (1, 1)
        assert lines_of(out.read_text())[0] == first

    def test_json_summary(self, run: Run, prompts: Path, out: Path) -> None:
        code, stdout, stderr = run(prompts, "-o", out, "--json")
        summary = json.loads(stdout)
        usage = [line["response"]["body"]["usage"] for line in lines_of(out.read_text())]
        assert (code, stderr) == (0, "")
        assert summary.pop("seconds") > 0
        assert summary == {
            "output": str(out), "requests": 3, "answered": 3, "earlier": 0, "failed": 0,
            "prompt_tokens": sum(each["prompt_tokens"] for each in usage),
            "cached_tokens": sum(each["prompt_tokens_details"]["cached_tokens"] for each in usage),
            "completion_tokens": sum(each["completion_tokens"] for each in usage),
        }  # fmt: skip

    def test_shared_prefix_is_evaluated_once(self, run: Run, tmp_path: Path, out: Path) -> None:
        shared = "Hello and the other one " * 20
        inputs = [{"prompt": word, "system": shared if n % 2 else "S"} for n, word in enumerate("abcdefgh")]
        _, stdout, _ = run(written(tmp_path, *inputs), "-o", out, "--json")
        summary = json.loads(stdout)
        assert summary["prompt_tokens"] - summary["cached_tokens"] < summary["prompt_tokens"] / 2

    def test_draft_model_does_not_change_answers(self, run: Run, tiny: Path, prompts: Path, out: Path) -> None:
        """A job is also continued with another draft model."""
        settings = ("--ignore-eos", "--temp", "0", "-n", "40", "--spec-draft-n-min", "2")
        assert run(prompts, "-o", out, *settings, "--spec-type", "none")[0] == 0
        plain = out.read_text()
        code, stdout, _ = run(prompts, "-o", out, *settings, "-md", tiny, "--json")
        assert (code, json.loads(stdout)["earlier"], out.read_text()) == (0, 3, plain)
        assert run(prompts, "-o", out, *settings, "-md", tiny, "--restart")[0] == 0
        assert texts_of(out.read_text()) == texts_of(plain)
        assert run(prompts, "-o", out, "-md", "no-such-model")[0] == 3

    def test_lines_of_text(self, run: Run, tmp_path: Path, out: Path) -> None:
        text = tmp_path / "a.txt"
        text.write_text('Hello\n\n{"prompt": "x"}\n')
        assert run(text, "-o", out)[0] == 0
        assert ids(out) == ["line-1", "line-3"]

    def test_options_are_defaults_for_requests(self, run: Run, tmp_path: Path, out: Path) -> None:
        prompts = written(tmp_path, "a", {"prompt": "b", "max_tokens": 2})
        run(prompts, "-o", out, "--ignore-eos", "--raw")
        counts = [line["response"]["body"]["usage"]["completion_tokens"] for line in lines_of(out.read_text())]
        assert counts == [4, 2]


class TestErrors:
    @pytest.mark.parametrize(
        ("content", "code", "message"),
        [
            (None, 1, "prompts.jsonl: No such file or directory"),
            ("", 1, "prompts.jsonl: contains no requests"),
            ('{"prompt": "a", "custom_id": "x"}\n' * 2, 1, "prompts.jsonl: lines 1 and 2 have the same custom_id, x"),
            ('{"prompt": "a", "model": "gpt"}\n', 1, "prompts.jsonl: line 1 requests the model gpt, not "),
        ],
    )
    def test_input(
        self, run: Run, tmp_path: Path, out: Path, content: str | None, code: int, message: str
    ) -> None:
        prompts = tmp_path / "prompts.jsonl"
        if content is not None:
            prompts.write_text(content)
        actual, _, stderr = run(prompts, "-o", out)
        assert actual == code
        assert message in stderr
        assert len(stderr.splitlines()) == 1
        assert not out.exists()

    def test_any_model(self, run: Run, tmp_path: Path, out: Path) -> None:
        prompts = written(tmp_path, {"prompt": "a", "model": "gpt"}, {"prompt": "b", "model": "tiny"})
        assert run(prompts, "-o", out, "--any-model")[0] == 0

    def test_output(self, run: Run, prompts: Path, tmp_path: Path) -> None:
        for name, message in {
            tmp_path / "none" / "out.jsonl": "No such file or directory",
            tmp_path: "not a regular file",
            "/dev/full": "not a regular file",
            prompts: "is an input file; choose another name",
        }.items():
            code, _, stderr = run(prompts, "-o", name)
            assert (code, stderr) == (2, f"error: --output: {name}: {message}\n")

    def test_unrelated_output_is_kept(self, run: Run, prompts: Path, out: Path) -> None:
        out.write_text("my diary\n")
        code, _, stderr = run(prompts, "-o", out)
        assert (code, out.read_text()) == (2, "my diary\n")
        assert stderr.endswith("; --restart starts over and discards the existing output\n")

    def test_other_options(self, run: Run, prompts: Path, out: Path) -> None:
        run(prompts, "-o", out)
        before = out.read_bytes()
        code, _, stderr = run(prompts, "-o", out, "--temp", "0")
        assert (code, out.read_bytes()) == (2, before)
        assert "was made with another model or other options; --restart starts over" in stderr
        assert run(prompts, "-o", out, "--temp", "0", "--restart")[0] == 0
        assert out.read_bytes() != before

    @pytest.mark.parametrize("option", ["--restart", "--retry-failed", "--json"])
    def test_options_that_require_an_output_file(self, run: Run, prompts: Path, option: str) -> None:
        assert run(prompts, option)[0] == 2

    def test_the_disk_is_full(self, tiny: Path, prompts: Path, environment: dict[str, str]) -> None:
        with Path("/dev/full").open("w") as full:
            command = [*REAL, str(tiny), str(prompts), "-n", "2"]
            done = subprocess.run(command, env=environment, stdout=full, stderr=subprocess.PIPE, text=True)
        assert (done.returncode, done.stderr) == (1, "error: cannot write the output: No space left on device\n")

    def test_the_disk_becomes_full(self, tiny: Path, prompts: Path, out: Path, environment: dict[str, str]) -> None:
        command = [*REAL, str(tiny), str(prompts), "-o", str(out), "-n", "2"]
        limited = ["bash", "-c", 'ulimit -f 1; trap "" XFSZ; exec "$@"', "bash", *command]
        done = subprocess.run(limited, env=environment, capture_output=True, text=True)
        assert done.returncode == 1
        assert done.stderr.endswith(f"error: {out}: File too large\n")
        assert f"{out}: 1 of 3 are done; run the same command to resume\n" in done.stderr
        assert len(lines_of(out.read_text())) == 1
        assert subprocess.run(command, env=environment, capture_output=True).returncode == 0
        assert len(ids(out)) == 3

    @pytest.mark.parametrize("stdin", ["closed", "null", "empty"])
    def test_no_input(self, tiny: Path, environment: dict[str, str], stdin: str) -> None:
        line = {"closed": '"$@" <&-', "null": '"$@" </dev/null', "empty": ': | "$@"'}[stdin]
        command = ["bash", "-c", line, "bash", *REAL, str(tiny)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        expected = (1, "stdin: contains no requests") if stdin == "empty" else (2, "no requests: give the name")
        assert (done.returncode, done.stderr.startswith(f"error: {expected[1]}")) == (expected[0], True)

    def test_piped(self, tiny: Path, environment: dict[str, str]) -> None:
        command = [*REAL, str(tiny), "-", "-n", "2", "-q"]
        done = subprocess.run(command, env=environment, input=b'"a"\n"b"\n', capture_output=True)
        assert (done.returncode, len(done.stdout.splitlines())) == (0, 2)


class TestInterrupted:
    @pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    def test_finished_requests_are_kept(
        self, tiny: Path, tmp_path: Path, out: Path, environment: dict[str, str], number: int, code: int
    ) -> None:
        inputs = ["a", {"prompt": "b"} | LONG, {"prompt": "c"} | LONG]
        command = [*REAL, str(tiny), str(written(tmp_path, *inputs)), "-o", str(out), "-n", "2", "-t", "1"]
        process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        until(lambda: killed_batch.count_answers(out) > 0)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=PATIENCE)
        done = killed_batch.count_answers(out)
        assert process.returncode == code
        assert stderr == f"{out}: {done} of 3 are done; run the same command to resume\n"
        assert ids(out)[0] == "line-1"

    def test_in_a_terminal(self, tiny: Path, tmp_path: Path, out: Path, environment: dict[str, str]) -> None:
        inputs = ["a", {"prompt": "b"} | LONG]
        command = [*REAL, str(tiny), str(written(tmp_path, *inputs)), "-o", str(out), "-n", "2", "-t", "1"]
        terminal = Terminal(command, environment, columns=120)
        try:
            terminal.expect("1 of 2, ", PATIENCE)
            terminal.expect(" left", PATIENCE)
            terminal.ctrl("c")
            terminal.expect("1 of 2 are done; run the same command", PATIENCE)
            assert terminal.wait() == 130
        finally:
            terminal.close()

    def test_killed_at_random(self, smollm2: Path, tmp_path: Path, environment: dict[str, str]) -> None:
        """tests/benchmarks/checks/batch_kill.py repeats this any number of times."""
        killed_batch.run_with_kills(str(smollm2), tmp_path, kills=3, seed=15, environment=environment)


def until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end
        time.sleep(0.002)


def test_help_is_light(environment: dict[str, str]) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "localinfer", "batch", "--help"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert "--retry-failed" in done.stdout
    assert not [name for name in ("numpy", "numba", "starlette", "asyncio", "ray") if f"| {name}\n" in done.stderr]


def test_plain_progress_lines(capsys: pytest.CaptureFixture[str]) -> None:
    progress = batch.Progress(10, 10, "requests", quiet=False)
    progress.done, progress.completion_tokens = 5, 500
    for seconds in (9, 11, 15, 21, 23, 60):
        progress.start_time = time.monotonic() - seconds
        progress.report()
    assert capsys.readouterr().err.splitlines() == [
        "5 of 10, 45.5 t/s, 0:11 left", "5 of 10, 21.7 t/s, 0:23 left", "5 of 10, 8.3 t/s, 1:00 left"]  # fmt: skip


# --- images ---


def test_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, photos = write_seeing_model(tmp_path), tmp_path / "photos"
    photos.mkdir()
    (photos / "cat.png").write_bytes(picture())
    urls = [f"data:image/png;base64,{base64.b64encode(picture()).decode()}", "file://cat.png", "file://dog.png"]
    parts = [[{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "the"}] for url in urls]
    prompts = written(tmp_path, *({"messages": [{"role": "user", "content": each}], "max_tokens": 4} for each in parts))
    out = tmp_path / "out.jsonl"
    monkeypatch.setenv("LOCALINFER_THREADS", "1")
    assert __main__.run(["batch", str(model), str(prompts), "-o", str(out), "--media-path", str(photos)]) == 1
    first, second, third = (line["response"] for line in lines_of(out.read_text()))
    assert first["body"]["usage"]["prompt_tokens"] == second["body"]["usage"]["prompt_tokens"] > N_TOKENS
    assert third["status_code"] == 400
    assert third["body"]["error"]["message"].startswith("messages[0].content[0].image_url.url: ")
    refused = __main__.run(["batch", str(model), str(prompts), "-o", str(out), "--media-path", str(photos / "none")])
    assert refused == 2
