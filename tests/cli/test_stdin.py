"""What stdin is to a command that may have its text elsewhere: shells, pipes that nothing comes from, loops."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from places import TALKER

pytestmark = pytest.mark.skipif(os.name != "posix", reason="shells")

Done = subprocess.CompletedProcess[str]
Shell = Callable[[str], Done]


@pytest.fixture
def shell(environment: dict[str, str], own: str, tmp_path: Path) -> Shell:
    """A script in which $ask is `generate` of the stand-in, whose model says what it is asked."""
    (tmp_path / "lines").write_text("one\ntwo\nthree\n")

    def run(script: str) -> Done:
        ask = f"ask='{' '.join(TALKER)} generate {own} -q'; cd {tmp_path}"
        return subprocess.run(
            ["bash", "-c", f"{ask}\n{script}"],
            env=environment, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    return run


@pytest.mark.parametrize(
    ("script", "asked"),
    [
        ("echo piped | $ask -p given", "given piped"),
        ("printf '' | $ask -p given", "given"),
        ("$ask -p given < lines", "given one two three"),
        ("$ask < lines", "one two three"),
        ("$ask -p given < /dev/null", "given"),
        ("echo piped | $ask -p given --no-stdin", "given"),
        ("echo piped | $ask -p given -f -", "given piped"),
        ("echo piped | $ask -p -", "piped"),
        ("echo piped | $ask -f - --no-stdin -p given", "given"),
        ("printf '' | $ask", ""),
        ("(sleep 3; echo late) | $ask -p given -f -", "given late"),
    ],
)
def test_what_is_asked(shell: Shell, script: str, asked: str) -> None:
    done = shell(script)
    assert (done.returncode, done.stdout) == (0, asked), done.stderr


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the system does not tell whose stdin it is")
@pytest.mark.parametrize(
    "script",
    [
        'while read -r line; do $ask -p "$line"; echo; done < lines',
        'cat lines | while read -r line; do $ask -p "$line"; echo; done',
    ],
)
def test_a_loop_keeps_its_lines(shell: Shell, script: str) -> None:
    done = shell(script)
    assert done.stdout.split() == ["one", "two", "three"]
    assert "stdin is left to the shell" in done.stderr


def test_nothing_comes(shell: Shell) -> None:
    begin = time.monotonic()
    done = shell("exec 3< <(sleep 20); $ask -p given <&3; kill $!")
    assert done.stdout == "given"
    assert "warning: stdin is a pipe that nothing comes from" in done.stderr
    assert time.monotonic() - begin < 15


def test_a_program_that_keeps_a_pipe_open(environment: dict[str, str], own: str) -> None:
    process = subprocess.Popen(
        [*TALKER, "generate", own, "-q", "-p", "given"],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout
    assert process.stdout.read() == b"given"
    process.communicate()


def test_shared_only_with_a_shell(environment: dict[str, str], own: str) -> None:
    """A program that starts us and hands on its stdin, such as timeout or sudo, is no loop."""
    command = [sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])"]
    done = subprocess.run(
        [*command, *TALKER, "generate", own, "-q", "-p", "given"], env=environment, input=b"piped", capture_output=True
    )
    assert done.stdout == b"given piped"


class TestChat:
    def test_question(self, talker: Callable[..., subprocess.CompletedProcess[bytes]], own: str) -> None:
        assert talker("chat", own, "Why", "is", "it?").stdout == b"1: Why is it?"
        assert talker("run", own, "Why?", "-p", "Please", stdin=b"file\n").stdout == b"1: Why?|Please|file"
        assert talker(own, "Why?").stdout == b"1: Why?"
        assert talker("-m", own, "-p", "Why?", "-st", "-ngl", "9").stdout == b"1: Why?"

    def test_file_and_system_prompt(
        self, talker: Callable[..., subprocess.CompletedProcess[bytes]], own: str, tmp_path: Path
    ) -> None:
        (tmp_path / "question").write_text("Why?\n")
        (tmp_path / "system").write_text("Be brief.\n")
        arguments = ["-f", str(tmp_path / "question"), "-sysf", str(tmp_path / "system"), "-q"]
        done = talker("chat", own, *arguments, "-o", str(tmp_path / "said"))
        assert done.stdout == b"1: Why? (Be brief.)"
        assert b"t/s" not in done.stderr
        assert (tmp_path / "said").read_text() == "User:\nWhy?\n\nAssistant:\n1: Why? (Be brief.)\n\n"

    def test_escapes(self, talker: Callable[..., subprocess.CompletedProcess[bytes]], own: str) -> None:
        asked = r"one\ntwo\t\\n\x41\xc3\xa9\q"
        assert talker("chat", own, asked, "-e").stdout.decode() == "1: one|two \\nAé\\q"
        done = talker("chat", own, asked)
        assert done.stdout.decode() == f"1: {asked}"
        assert b"with -e it is a new line" in done.stderr
        assert b"with -e" not in talker("chat", own, asked, "--no-escape").stderr
