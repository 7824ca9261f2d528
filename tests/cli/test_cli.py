"""The command line as scripts meet it: separate processes, pipes, exit codes. The model is `talker.py`."""

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
from places import TALKER

from cli import __main__, app

Done = subprocess.CompletedProcess[bytes]
Run = Callable[..., Done]

REAL = [sys.executable, "-m", "localinfer"]


def one_error(done: Done, code: int) -> str:
    """The one line on stderr of a command that failed with this code."""
    assert done.returncode == code, done.stderr
    assert done.stdout == b""
    [line] = done.stderr.decode().splitlines()
    assert line.startswith("error: ")
    return line.removeprefix("error: ")


class Panic(BaseException):
    """As libraries in Rust raise it."""


def hidden(cause: Exception) -> Exception:
    """An error that does not tell the reason."""
    error = OSError("not found or not loaded")
    error.__context__ = cause
    return error


@pytest.fixture
def usage_error(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The one line on stderr of a command line that is wrong; in this process, which is quicker."""

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
        """In seconds of the processor: other work on this machine shall not decide it."""

        def seconds() -> float:
            usage = resource.getrusage(resource.RUSAGE_CHILDREN)
            return usage.ru_utime + usage.ru_stime

        begin = seconds()
        for _ in range(4):
            subprocess.run([*REAL, "--help"], env=environment, capture_output=True, check=True)
        assert (seconds() - begin) / 4 <= 0.25

    def test_no_arguments_show_the_help(self, talker: Run) -> None:
        assert talker().stdout == talker("-h").stdout == talker("--help").stdout

    @pytest.mark.parametrize("command", app.COMMANDS)
    def test_help_of_a_command(self, talker: Run, command: str) -> None:
        done = talker(command, "-h")
        assert done.returncode == 0, done.stderr
        assert app.COMMANDS[command][1] in " ".join(done.stdout.decode().split())
        assert not re.search(r"<\w+>|\{[^\"]", done.stdout.decode().replace("<|im_end|>", "")), "no types of Python"

    def test_help_shows_what_may_be_left_out(self, talker: Run) -> None:
        assert b"quantize [OPTIONS] SOURCE [OUT] TYPE [THREADS]\n" in talker("quantize", "-h").stdout
        assert b"[default: 512]" in talker("perplexity", "-h").stdout
        assert b"--keep" not in talker("perplexity", "-h").stdout

    def test_version(self, talker: Run) -> None:
        assert re.fullmatch(rb"localinfer \d+\.\d+\.\d+\n", talker("--version").stdout)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["bnch"], "bnch: neither a command nor a model; did you mean bench?"),
            (["chat", "--tmp", "1"], "--tmp: `localinfer chat` has no such option; did you mean --temp?"),
            (["generate"], "Missing argument 'MODEL'"),
            (["generate", "m", "-p"], "-p: a value is missing"),
            (["generate", "m"], "no prompt: give -p TEXT"),
            (["chat"], "nothing to answer"),
        ],
    )
    def test_usage(self, usage_error: Callable[..., str], arguments: list[str], message: str) -> None:
        assert message in usage_error(*arguments)

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
        self, usage_error: Callable[..., str], own: str, option: str, values: list[str]
    ) -> None:
        for value in values:
            assert usage_error("generate", own, "-p", "x", option, value).startswith(f"{option}: ")

    def test_llama_cpps_short_names(self, talker: Run, own: str) -> None:
        done = talker("chat", own, "-sys", "be brief", "-n", "-1", "-s", "-1", "-c64", stdin=b"Hello")
        assert done.stdout == b"1: Hello (be brief)"

    def test_unexpected_error_is_one_line(self, talker: Run, own: str) -> None:
        done = talker("generate", own, "-p", "crash")
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
    def test_whatever_tells_of_too_little_memory(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, line: str
    ) -> None:
        def dispatch(arguments: list[str]) -> int:
            raise error

        monkeypatch.setattr(__main__, "dispatch", dispatch)
        assert __main__.run([]) == (4 if "memory" in line else 1)
        assert capsys.readouterr().err == f"error: {line}\n"

    @pytest.mark.parametrize("debug", [["--debug"], []])
    def test_debug_shows_where(self, talker: Run, own: str, debug: list[str]) -> None:
        done = talker(*debug, "generate", own, "-p", "crash", LOCALINFER_DEBUG="0" if debug else "1")
        assert b"Traceback" in done.stderr
        assert done.returncode == 1

    def test_control_characters_of_a_name_are_escaped(self, talker: Run) -> None:
        assert "\\x1b[31m" in one_error(talker("generate", "\x1b[31mred\n.gguf", "-p", "x"), 3)


class TestGenerate:
    def test_stdout_is_the_text_and_nothing_else(self, talker: Run, own: str) -> None:
        done = talker("generate", own, "-p", "one wide\ntwo")
        assert done.stdout == "one 😀 two".encode()
        assert done.stderr.decode().splitlines() == [
            "compiling kernels (once) 0/3",
            "[ 3 tokens, 12.0 t/s | prompt 3 tokens (1 reused), 4.0 t/s | stop, seed 42 ]",
        ]

    def test_quiet(self, talker: Run, own: str) -> None:
        assert b"t/s" not in talker("generate", own, "-p", "x", "-q").stderr

    def test_argument_then_file_then_stdin(self, talker: Run, own: str, tmp_path: Path) -> None:
        (tmp_path / "prompt").write_bytes(b"\xef\xbb\xbffile\r\n")
        done = talker("generate", own, "-p", "argument", "-f", str(tmp_path / "prompt"), stdin=b"stdin\n")
        assert done.stdout == b"argument file stdin"

    def test_json(self, talker: Run, own: str) -> None:
        answer = json.loads(talker("generate", own, "-p", "a wide", "--json").stdout)
        assert answer == {
            "model": own, "text": "a 😀", "reasoning": "", "tokens": [0, 1], "finish_reason": "stop", "seed": 42,
            "timings": {
                "prompt_tokens": 3, "reused_tokens": 1, "prompt_seconds": 0.5, "generated_tokens": 2,
                "generate_seconds": 0.25, "drafted_tokens": 0, "accepted_tokens": 0, "gain": 1.0,
            },
        }  # fmt: skip

    def test_special_tokens_on_request(self, talker: Run, own: str) -> None:
        assert talker("generate", own, "-p", "x", "--parse-special").stdout == b"x special"

    def test_context_overflow(self, talker: Run, own: str) -> None:
        done = talker("generate", own, "-p", "overflow")
        assert done.returncode == 5
        assert done.stderr.decode().splitlines()[-1] == "error: context is full: --ctx-size sets a larger one"

    @pytest.mark.parametrize(
        ("content", "message"),
        [(None, "No such file"), ("directory", "Is a directory"), (b"\xff\xfeh\0", "not UTF-8 at byte 0")],
    )
    def test_prompt_files(
        self, talker: Run, own: str, tmp_path: Path, content: bytes | str | None, message: str
    ) -> None:
        path = tmp_path / "prompt"
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif content:
            path.mkdir()
        assert one_error(talker("generate", own, "-f", str(path)), 1).startswith(f"{path}: {message}")

    def test_endless_prompt_file(self, talker: Run, own: str) -> None:
        assert "more than 67,108,864 bytes" in one_error(talker("generate", own, "-f", "/dev/zero"), 1)

    def test_stdin_that_is_not_utf8(self, talker: Run, own: str) -> None:
        done = talker("generate", own, stdin=b"a\xff b\0c\r\nd")
        assert done.stdout.decode() == "a\N{REPLACEMENT CHARACTER} b\0c d"
        assert b"warning: stdin is not UTF-8" in done.stderr

    def test_argument_that_is_not_utf8(self, environment: dict[str, str], own: str) -> None:
        command = [os.fsencode(each) for each in [*TALKER, "generate", own, "-p"]] + [b"a\xffb"]
        done = subprocess.run(command, env=environment, capture_output=True, stdin=subprocess.DEVNULL)
        assert done.stdout.decode() == "a\N{REPLACEMENT CHARACTER}b"

    @pytest.mark.parametrize("locale", [{"LC_ALL": "C", "PYTHONUTF8": "0"}, {"PYTHONIOENCODING": "ascii"}])
    def test_locale_does_not_matter(self, talker: Run, own: str, locale: dict[str, str]) -> None:
        assert talker("generate", own, "-p", "wide", **locale).stdout == "😀".encode()


@pytest.mark.skipif(os.name != "posix", reason="streams of this kind")
class TestStreams:
    def shell(self, environment: dict[str, str], script: str) -> Done:
        """A script in which $localinfer is the stand-in."""
        command = ["bash", "-c", f"localinfer='{' '.join(TALKER)}'; {script}"]
        return subprocess.run(command, env=environment, capture_output=True, timeout=30)

    def test_reader_that_leaves(self, environment: dict[str, str], own: str) -> None:
        begin = time.monotonic()
        prompt = " ".join(["slowly"] * 100)
        done = self.shell(
            environment, f"$localinfer generate {own} -q -p '{prompt}' | head -c 1; exit ${{PIPESTATUS[0]}}")
        assert done.returncode == 141
        assert b"rror" not in done.stderr
        assert time.monotonic() - begin < 5

    @pytest.mark.parametrize("command", ["generate own.gguf -p x", "--help", "list"])
    def test_full_disk(self, environment: dict[str, str], command: str, own: str) -> None:
        done = self.shell(environment, f"$localinfer {command.replace('own.gguf', own)} > /dev/full")
        assert done.returncode == 1
        assert done.stderr.decode().splitlines()[-1] == (
            "error: cannot write the output: No space left on device")

    def test_closed_streams(self, environment: dict[str, str], own: str) -> None:
        assert self.shell(environment, f"$localinfer generate {own} -p x <&-").stdout == b"x"
        assert self.shell(environment, f"$localinfer generate {own} -p x 2>&-").stdout == b"x"
        assert self.shell(environment, f"$localinfer generate {own} -p x <&- 2>&-").stdout == b"x"
        assert self.shell(environment, f"$localinfer generate {own} -p x >&-").returncode in (0, 1)
        assert self.shell(environment, f"$localinfer generate {own} -p x 2>/dev/full").stdout == b"x"

    def test_no_stdin_is_no_prompt(self, environment: dict[str, str], own: str) -> None:
        assert "no prompt" in one_error(self.shell(environment, f"$localinfer generate {own} <&-"), 2)
        assert "nothing to" in one_error(self.shell(environment, f"$localinfer chat {own} <&-"), 2)

    @pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    def test_signals(self, environment: dict[str, str], own: str, number: signal.Signals, code: int) -> None:
        process = subprocess.Popen(
            [*TALKER, "generate", own, "-p", " ".join(["slowly"] * 100)],
            env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout
        assert process.stdout.read(1) == b"s"
        for _ in range(20 if number == signal.SIGINT else 1):  # a storm ends like a single one
            process.send_signal(number)
        _, error = process.communicate(timeout=5)
        assert process.returncode == code
        assert error.decode().splitlines() == ["compiling kernels (once) 0/3"]

    def test_an_interrupt_where_nothing_can_be_raised_is_not_lost(self, environment: dict[str, str]) -> None:
        """As when an import lets go of its lock: Python tells of it, and goes on."""
        program = (
            "import _thread, sys, time, weakref; from cli import __main__\n"
            "def lose(_): _thread.interrupt_main(); time.sleep(9)\n"
            "def run(_): thing = set(); kept = weakref.ref(thing, lose); del thing; time.sleep(9)\n"
            "__main__.run = run; __main__.main()"
        )
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, timeout=8)
        assert (done.returncode, done.stderr) == (130, b"")
