"""The command line as scripts use it: processes, pipes and exit codes. The model is `fake_model.py`."""

import errno
import io
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from locations import FAKE_CLI

from cli import __main__, app
from cli.terminal import screen

Done = subprocess.CompletedProcess[bytes]
Run = Callable[..., Done]

REAL = [sys.executable, "-m", "localinfer"]


def one_error(done: Done, code: int) -> str:
    """Check that a command failed with this exit code, and return its one line on stderr."""
    assert done.returncode == code, done.stderr
    assert done.stdout == b""
    [line] = done.stderr.decode().splitlines()
    assert line.startswith("error: ")
    return line.removeprefix("error: ")


def compiling_line(total: int) -> str:
    """Return the line that announces the compilation of kernels."""
    left = screen.clock(screen.compile_seconds(0, total, 0.0))
    return f"compiling kernels for this CPU (once): 0 of {total}, about {left} left"


class Panic(BaseException):
    """An exception like those of Rust libraries."""


def hidden(cause: Exception) -> Exception:
    """Return an error without a message whose cause is `cause`."""
    error = OSError("not found or not loaded")
    error.__context__ = cause
    return error


@pytest.fixture
def usage_error(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return a function that runs an invalid command line in this process and returns its one line on stderr."""

    def run(*arguments: str) -> str:
        code = __main__.run(list(arguments))
        out, err = capsys.readouterr()
        return one_error(Done(arguments, code, out.encode(), err.encode()), 2)

    return run


class TestStart:
    def test_help_is_light(self, environment: dict[str, str]) -> None:
        listing = [sys.executable, "-X", "importtime", "-m", "localinfer", "--help"]
        done = subprocess.run(listing, env=environment, capture_output=True, text=True)
        assert "Usage: localinfer" in done.stdout
        for heavy in ("numpy", "numba", "llvmlite", "jinja2", "rich"):
            assert not re.search(rf"\| +{heavy}\b", done.stderr)

    @pytest.mark.skipif(os.name != "posix", reason="resource")
    def test_help_is_quick(self, environment: dict[str, str]) -> None:
        """Measured in CPU seconds, so that other work on the machine does not matter."""

        def seconds() -> float:
            usage = resource.getrusage(resource.RUSAGE_CHILDREN)
            return usage.ru_utime + usage.ru_stime

        begin = seconds()
        for _ in range(4):
            subprocess.run([*REAL, "--help"], env=environment, capture_output=True, check=True)
        assert (seconds() - begin) / 4 <= 0.25

    def test_no_arguments_show_the_help(self, fake_cli: Run) -> None:
        assert fake_cli().stdout == fake_cli("-h").stdout == fake_cli("--help").stdout

    @pytest.mark.parametrize("command", app.COMMANDS)
    def test_help_of_a_command(self, fake_cli: Run, command: str) -> None:
        done = fake_cli(command, "-h")
        assert done.returncode == 0, done.stderr
        assert app.COMMANDS[command][1] in " ".join(done.stdout.decode().split())
        shown = done.stdout.decode().replace("<|im_end|>", "").replace("<__media__>", "")
        assert not re.search(r"<\w+>|\{[^\"]", shown), "no types of Python"
        assert "\n  Examples:\n    localinfer " in shown

    def test_help_shows_optional_arguments(self, fake_cli: Run) -> None:
        assert b"quantize [OPTIONS] SOURCE [OUT] TYPE [THREADS]\n" in fake_cli("quantize", "-h").stdout
        assert b"[default: 512]" in fake_cli("perplexity", "-h").stdout
        assert b"--keep" not in fake_cli("perplexity", "-h").stdout

    def test_version(self, fake_cli: Run) -> None:
        assert re.fullmatch(rb"localinfer \d+\.\d+\.\d+\n", fake_cli("--version").stdout)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["bnch"], "bnch: no such command or model; did you mean bench?"),
            (["chat", "--tmp", "1"], "--tmp: no such option of `localinfer chat`; did you mean --temp?"),
            (["generate"], "no prompt: use -p TEXT"),
            (["inspect"], "Missing argument 'MODEL': localinfer inspect [OPTIONS] MODEL; --help describes them"),
            (["quantize"], "localinfer quantize [OPTIONS] SOURCE [OUT] TYPE [THREADS]; --help"),
            (["generate", "m", "-p"], "-p: missing value"),
            (["generate", "smollm2"], "no prompt: use -p TEXT"),
            (["chat"], "no question, and stdin is neither"),
            (["tokenize", "m", "a text"], "unexpected extra argument(s) (a text); -p TEXT takes a text"),
            (["batch", "m", "in.jsonl", "out.jsonl"], "(out.jsonl); -o FILE takes an output file"),
            (["generate", "m", "-j", __file__], "test_cli.py is a file; --json-schema-file reads it"),
            (["generate", "m", "--grammar", __file__], "test_cli.py is a file; --grammar-file reads it"),
        ],
    )
    def test_usage(self, usage_error: Callable[..., str], arguments: list[str], message: str) -> None:
        assert message in usage_error(*arguments)

    @pytest.mark.parametrize("command", ["chat", "generate", "tokenize", "embed"])
    def test_missing_model_comes_before_missing_prompt(self, fake_cli: Run, command: str) -> None:
        done = fake_cli(command, "/nosuch.gguf")
        assert (done.returncode, done.stdout) == (3, b"")
        assert done.stderr == b"error: /nosuch.gguf: No such file or directory\n"

    @pytest.mark.parametrize(
        ("option", "values"),
        {
            "--ctx-size": ["-1", "2147483648", "1e12", "abc", ""],
            "--threads": ["-2", "1000000"],
            "--temp": ["nan", "inf", "-0.5"],
            "--top-p": ["-1", "2", "nan"],
            "--top-k": ["-5"],
            "--min-p": ["1.05"],
            "--repeat-penalty": ["0", "nan"],
            "--seed": ["-2", "18446744073709551616"],
            "--n-predict": ["0", "-3"],
            "--ctx-policy": ["never"],
            "--stop": [""],
        }.items(),
    )
    def test_option_out_of_range(
        self, usage_error: Callable[..., str], fake_model: str, option: str, values: list[str]
    ) -> None:
        for value in values:
            assert usage_error("generate", fake_model, "-p", "x", option, value).startswith(f"{option}: ")

    def test_short_flags_of_llama_cpp(self, fake_cli: Run, fake_model: str) -> None:
        done = fake_cli("chat", fake_model, "-sys", "be brief", "-n", "-1", "-s", "-1", "-c64", stdin=b"Hello")
        assert done.stdout == b"1: Hello (be brief)"

    def test_unexpected_error_is_one_line(self, fake_cli: Run, fake_model: str) -> None:
        done = fake_cli("generate", fake_model, "-p", "crash")
        assert done.returncode == 1
        assert done.stderr.decode().splitlines()[1:] == [
            "error: unexpected ZeroDivisionError: division by zero (--debug shows where)"
        ]

    @pytest.mark.parametrize(
        ("error", "line"),
        [
            (MemoryError(), "not enough memory"),
            (hidden(OSError("liblarge.so: failed to map segment from shared object")), "not enough memory"),
            (RuntimeError("can't start new thread"), "not enough memory"),
            (Panic("ThreadPoolBuildError { kind: IOError }"), "not enough memory"),
            (Panic("wobbly"), "unexpected Panic: wobbly (--debug shows where)"),
            (hidden(OSError("no such library")), "unexpected OSError: not found or not loaded (--debug shows where)"),
        ],
    )
    def test_out_of_memory_errors(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, line: str
    ) -> None:
        def dispatch(arguments: list[str]) -> int:
            raise error

        monkeypatch.setattr(__main__, "dispatch", dispatch)
        assert __main__.run([]) == (4 if "memory" in line else 1)
        assert capsys.readouterr().err == f"error: {line}\n"

    @pytest.mark.parametrize(("before", "after"), [(["--debug"], []), ([], ["--debug"]), ([], [])])
    def test_debug_shows_the_traceback(
        self, fake_cli: Run, fake_model: str, before: list[str], after: list[str]
    ) -> None:
        variable = "0" if before or after else "1"
        done = fake_cli(*before, "generate", fake_model, "-p", "crash", *after, LOCALINFER_DEBUG=variable)
        assert b"Traceback" in done.stderr
        assert done.returncode == 1

    def test_an_interrupt_that_python_converts(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Python 3.11 raises a RuntimeError from an interrupt while it creates a class."""

        def dispatch(_: object) -> int:
            raise RuntimeError("Error calling __set_name__") from KeyboardInterrupt()

        screen.erase_progress()  # of an earlier test
        capsys.readouterr()
        monkeypatch.setattr(__main__, "dispatch", dispatch)
        assert __main__.run([]) == __main__.INTERRUPTED
        assert capsys.readouterr().err == ""

    def test_nan_is_within_no_limits(self, fake_cli: Run) -> None:
        for line in ("serve --timeout nan", "chat --tool-timeout nan", "cache --max-size nan"):
            option = line.split()[1]
            assert one_error(fake_cli(*line.split()), 2) == f"{option}: must be a finite number, not nan"

    def test_control_characters_of_a_name_are_escaped(self, fake_cli: Run) -> None:
        assert "\\x1b[31m" in one_error(fake_cli("generate", "\x1b[31mred\n.gguf", "-p", "x"), 3)


class TestGenerate:
    def test_stdout_is_the_text_and_nothing_else(self, fake_cli: Run, fake_model: str) -> None:
        done = fake_cli("generate", fake_model, "-p", "one wide\ntwo")
        assert done.stdout == "one 😀 two".encode()
        assert done.stderr.decode().splitlines() == [
            compiling_line(3),
            "[ 3 tokens, 12.0 t/s | prompt 3 tokens (1 reused), 4.0 t/s | stop, seed 42 ]",
        ]

    def test_positional_prompt(self, fake_cli: Run, fake_model: str) -> None:
        expected = fake_cli("generate", fake_model, "-p", "one wide").stdout
        assert expected == "one 😀".encode()
        for arguments in ([fake_model, "one wide"], [fake_model, "one", "wide"], ["-m", fake_model, "one wide"]):
            assert fake_cli("generate", *arguments).stdout == expected
        joined = fake_cli("generate", fake_model, "-p", "one\ntwo")
        assert fake_cli("generate", fake_model, "one", "-p", "two").stdout == joined.stdout

    def test_quiet(self, fake_cli: Run, fake_model: str) -> None:
        assert b"t/s" not in fake_cli("generate", fake_model, "-p", "x", "-q").stderr

    def test_argument_then_file_then_stdin(self, fake_cli: Run, fake_model: str, tmp_path: Path) -> None:
        (tmp_path / "prompt").write_bytes(b"\xef\xbb\xbffile\r\n")
        done = fake_cli("generate", fake_model, "-p", "argument", "-f", str(tmp_path / "prompt"), stdin=b"stdin\n")
        assert done.stdout == b"argument file stdin"

    def test_json(self, fake_cli: Run, fake_model: str) -> None:
        answer = json.loads(fake_cli("generate", fake_model, "-p", "a wide", "--json").stdout)
        assert answer == {
            "model": fake_model, "text": "a 😀", "reasoning": "", "tokens": [0, 1], "finish_reason": "stop", "seed": 42,
            "timings": {
                "prompt_tokens": 3, "reused_tokens": 1, "prompt_seconds": 0.5, "generated_tokens": 2,
                "generate_seconds": 0.25, "drafted_tokens": 0, "accepted_tokens": 0, "speedup": 1.0,
            },
        }  # fmt: skip

    def test_special_tokens_on_request(self, fake_cli: Run, fake_model: str) -> None:
        assert fake_cli("generate", fake_model, "-p", "x", "--parse-special").stdout == b"x special"

    def test_context_overflow(self, fake_cli: Run, fake_model: str) -> None:
        done = fake_cli("generate", fake_model, "-p", "overflow")
        assert done.returncode == 5
        assert done.stderr.decode().splitlines()[-1] == "error: context is full: --ctx-size sets a larger one"

    @pytest.mark.parametrize(
        ("content", "message"),
        [(None, "No such file"), ("directory", "Is a directory"), (b"\xff\xfeh\0", "not UTF-8 at byte 0")],
    )
    def test_prompt_files(
        self, fake_cli: Run, fake_model: str, tmp_path: Path, content: bytes | str | None, message: str
    ) -> None:
        path = tmp_path / "prompt"
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif content:
            path.mkdir()
        assert one_error(fake_cli("generate", fake_model, "-f", str(path)), 1).startswith(f"{path}: {message}")

    def test_endless_prompt_file(self, fake_cli: Run, fake_model: str) -> None:
        assert "longer than 67,108,864 bytes" in one_error(fake_cli("generate", fake_model, "-f", "/dev/zero"), 1)

    def test_stdin_that_is_not_utf8(self, fake_cli: Run, fake_model: str) -> None:
        done = fake_cli("generate", fake_model, stdin=b"a\xff b\0c\r\nd")
        assert done.stdout.decode() == "a\N{REPLACEMENT CHARACTER} b\0c d"
        assert b"warning: stdin is not valid UTF-8" in done.stderr

    def test_argument_that_is_not_utf8(self, environment: dict[str, str], fake_model: str) -> None:
        command = [os.fsencode(each) for each in [*FAKE_CLI, "generate", fake_model, "-p"]] + [b"a\xffb"]
        done = subprocess.run(command, env=environment, capture_output=True, stdin=subprocess.DEVNULL)
        assert done.stdout.decode() == "a\N{REPLACEMENT CHARACTER}b"

    @pytest.mark.parametrize("locale", [{"LC_ALL": "C", "PYTHONUTF8": "0"}, {"PYTHONIOENCODING": "ascii"}])
    def test_locale_does_not_matter(self, fake_cli: Run, fake_model: str, locale: dict[str, str]) -> None:
        assert fake_cli("generate", fake_model, "-p", "wide", **locale).stdout == "😀".encode()


@pytest.mark.skipif(os.name != "posix", reason="streams of this kind")
class TestStreams:
    def shell(self, environment: dict[str, str], script: str) -> Done:
        """Run a shell script in which $localinfer is the command with the fake model."""
        command = ["bash", "-c", f"localinfer='{' '.join(FAKE_CLI)}'; {script}"]
        return subprocess.run(command, env=environment, capture_output=True, timeout=30)

    def test_broken_pipe(self, environment: dict[str, str], fake_model: str) -> None:
        begin = time.monotonic()
        prompt = " ".join(["slowly"] * 100)
        done = self.shell(
            environment, f"$localinfer generate {fake_model} -q -p '{prompt}' | head -c 1; exit ${{PIPESTATUS[0]}}")
        assert done.returncode == 141
        assert b"rror" not in done.stderr
        assert time.monotonic() - begin < 5

    def test_broken_pipe_of_windows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A write to a pipe without a reader fails there with EINVAL."""
        error = OSError(errno.EINVAL, "Invalid argument")

        class BrokenPipe(io.StringIO):
            def flush(self) -> None:
                raise error

        monkeypatch.setattr(sys, "platform", "win32")
        assert not __main__.is_broken_pipe(error), "stdout can be written"
        monkeypatch.setattr(sys, "stdout", BrokenPipe())
        assert __main__.is_broken_pipe(error)
        monkeypatch.setattr(sys, "platform", "linux")
        assert not __main__.is_broken_pipe(error)
        monkeypatch.undo()

    @pytest.mark.parametrize("command", ["generate fake.gguf -p x", "--help", "list"])
    def test_full_disk(self, environment: dict[str, str], command: str, fake_model: str) -> None:
        done = self.shell(environment, f"$localinfer {command.replace('fake.gguf', fake_model)} > /dev/full")
        assert done.returncode == 1
        assert done.stderr.decode().splitlines()[-1] == (
            "error: cannot write the output: No space left on device")

    @pytest.mark.parametrize("redirection", [">&-", "<&- >&-", "1</dev/null"])
    @pytest.mark.parametrize("command", ["generate fake.gguf -p x", "--help", "--version", "list", "config"])
    def test_stdout_that_cannot_be_written(
        self, environment: dict[str, str], command: str, redirection: str, fake_model: str
    ) -> None:
        done = self.shell(environment, f"$localinfer {command.replace('fake.gguf', fake_model)} {redirection}")
        assert done.returncode == 1
        assert done.stderr.decode().splitlines()[-1] == "error: cannot write the output: Bad file descriptor"

    def test_closed_stdout_is_no_error_if_nothing_is_written(
        self, environment: dict[str, str], fake_model: str, tmp_path: Path
    ) -> None:
        environment = environment | {"LOCALINFER_CONFIG_DIR": str(tmp_path)}
        done = self.shell(environment, f"$localinfer cp {fake_model} copied >&-")
        assert done.returncode == 0, done.stderr
        assert "copied" in (tmp_path / "models.toml").read_text()

    def test_closed_streams(self, environment: dict[str, str], fake_model: str) -> None:
        assert self.shell(environment, f"$localinfer generate {fake_model} -p x <&-").stdout == b"x"
        assert self.shell(environment, f"$localinfer generate {fake_model} -p x 2>&-").stdout == b"x"
        assert self.shell(environment, f"$localinfer generate {fake_model} -p x <&- 2>&-").stdout == b"x"
        assert self.shell(environment, f"$localinfer generate {fake_model} -p x 2>/dev/full").stdout == b"x"

    def test_no_stdin_is_no_prompt(self, environment: dict[str, str], fake_model: str) -> None:
        assert "no prompt" in one_error(self.shell(environment, f"$localinfer generate {fake_model} <&-"), 2)
        assert "no question" in one_error(self.shell(environment, f"$localinfer chat {fake_model} <&-"), 2)

    @pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    def test_signals(self, environment: dict[str, str], fake_model: str, number: signal.Signals, code: int) -> None:
        process = subprocess.Popen(
            [*FAKE_CLI, "generate", fake_model, "-p", " ".join(["slowly"] * 100)],
            env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout
        assert process.stdout.read(1) == b"s"
        for _ in range(50 if number == signal.SIGINT else 1):  # many signals end the process like one
            process.send_signal(number)
            time.sleep(0.005)
        _, error = process.communicate(timeout=5)
        assert process.returncode == code
        assert error.decode().splitlines() == [compiling_line(3)]

    def test_unraisable_interrupt_is_repeated(self, environment: dict[str, str]) -> None:
        """An interrupt while an import releases its lock: Python reports it as unraisable and continues."""
        program = (
            "import _thread, sys, time, weakref; from cli import __main__\n"
            "def lose(_): _thread.interrupt_main(); time.sleep(9)\n"
            "def run(_): thing = set(); reference = weakref.ref(thing, lose); del thing; time.sleep(9)\n"
            "__main__.run = run; __main__.main()"
        )
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, timeout=8)
        assert (done.returncode, done.stderr) == (130, b"")
