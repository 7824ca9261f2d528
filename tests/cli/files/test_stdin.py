"""Reading stdin next to another prompt: shells, silent pipes and loops."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from locations import FAKE_CLI
from terminal import Terminal

pytestmark = pytest.mark.skipif(os.name != "posix", reason="shells")

Done = subprocess.CompletedProcess[str]
Shell = Callable[[str], Done]
FakeCli = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def shell(environment: dict[str, str], fake_model: str, tmp_path: Path) -> Shell:
    """Return a function that runs a script in which $ask is `generate` with the fake model: it repeats its prompt."""
    (tmp_path / "lines").write_text("one\ntwo\nthree\n")
    (tmp_path / "more").write_text("four\n")

    def run(script: str) -> Done:
        ask = f"ask='{' '.join(FAKE_CLI)} generate {fake_model} -q'; cd {tmp_path}"
        return subprocess.run(
            ["bash", "-c", f"{ask}\n{script}"],
            env=environment, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    return run


@pytest.mark.parametrize(
    ("script", "expected"),
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
        ("$ask -p first -p second", "first second"),
        ("$ask -f more -f lines", "four one two three"),
        ("echo piped | $ask -f more -p a -f lines --prompt=b -f -", "a b four one two three piped"),
        ("(sleep 3; echo late) | $ask -p given -f -", "given late"),
    ],
)
def test_prompt_of_a_script(shell: Shell, script: str, expected: str) -> None:
    done = shell(script)
    assert (done.returncode, done.stdout) == (0, expected), done.stderr


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the system does not report whose stdin it is")
@pytest.mark.parametrize(
    "script",
    [
        'while read -r line; do $ask -p "$line"; echo; done < lines',
        'cat lines | while read -r line; do $ask -p "$line"; echo; done',
    ],
)
def test_stdin_of_a_loop_is_not_consumed(shell: Shell, script: str) -> None:
    done = shell(script)
    assert done.stdout.split() == ["one", "two", "three"]
    assert "stdin is shared with the shell" in done.stderr


def test_no_input(shell: Shell) -> None:
    begin = time.monotonic()
    done = shell("exec 3< <(sleep 20); $ask -p given <&3; kill $!")
    assert done.stdout == "given"
    assert "warning: no data on stdin within 2 s" in done.stderr
    assert time.monotonic() - begin < 15


def test_silent_pipe(environment: dict[str, str], fake_model: str) -> None:
    process = subprocess.Popen(
        [*FAKE_CLI, "generate", fake_model, "-q", "-p", "given"],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout
    assert process.stdout.read() == b"given"
    process.communicate()


def test_stdin_shared_with_a_wrapper_program(environment: dict[str, str], fake_model: str) -> None:
    """A program that starts localinfer with its own stdin, such as timeout or sudo, is not a loop."""
    command = [sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])"]
    done = subprocess.run(
        [*command, *FAKE_CLI, "generate", fake_model, "-q", "-p", "given"],
        env=environment,
        input=b"piped",
        capture_output=True,
    )
    assert done.stdout == b"given piped"


@pytest.fixture
def default_model(fake_model: str, tmp_path: Path) -> dict[str, str]:
    """Return the environment in which the fake model is the default one."""
    (tmp_path / "models.toml").write_text('default = "mine"\n[models.mine]\npath = "fake.gguf"\n')
    return {"LOCALINFER_CONFIG_DIR": str(tmp_path)}


class TestChat:
    def test_default_model(self, fake_cli: FakeCli, default_model: dict[str, str]) -> None:
        assert fake_cli("Why is it?", **default_model).stdout == b"1: Why is it?"
        assert fake_cli("chat", "Why is it?", stdin=b"piped", **default_model).stdout == b"1: Why is it?|piped"
        assert fake_cli("generate", "-p", "It is", **default_model).stdout == b"It is"
        assert fake_cli("generate", "It is", "-n", "1", **default_model).stdout == b"It"

    @pytest.mark.parametrize("options", [["--continue"], ["--session", "one"]])
    def test_question_for_a_session(
        self, fake_cli: FakeCli, fake_model: str, tmp_path: Path, options: list[str]
    ) -> None:
        (tmp_path / "sessions").mkdir()
        lines = [{"localinfer": 1, "model": fake_model}, {"role": "user", "content": "Hello"}]
        (tmp_path / "sessions" / "one.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        done = fake_cli("chat", *options, "And in Go?", LOCALINFER_DATA_DIR=str(tmp_path))
        assert done.stdout.endswith(b": And in Go?"), done.stderr

    def test_question_that_names_a_file(self, fake_cli: FakeCli, fake_model: str, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").touch()
        done = fake_cli("chat", fake_model, f"What is in {tmp_path}/notes.txt?")
        assert f"-f {tmp_path}/notes.txt sends its text, too" in done.stderr.decode()

    def test_question_that_names_an_image(
        self, fake_cli: FakeCli, terminal: Callable[..., Terminal], fake_model: str, tmp_path: Path
    ) -> None:
        """Its text cannot be sent, so that is not proposed."""
        (tmp_path / "photo.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0")
        done = fake_cli("chat", fake_model, f"What is in {tmp_path}/photo.png?")
        assert (done.returncode, done.stdout) == (0, f"1: What is in {tmp_path}/photo.png?".encode())
        assert "photo.png, which is not sent: it is not a text in UTF-8" in done.stderr.decode()
        opened = terminal("chat", fake_model, f"What is in {tmp_path}/photo.png?", columns=300)
        opened.expect("which is not sent")
        opened.expect("1: What is in")
        assert opened.wait() == 0

    @pytest.mark.parametrize("typed", ["y", "n"])
    def test_file_is_sent_after_confirmation(
        self, terminal: Callable[..., Terminal], fake_model: str, tmp_path: Path, typed: str
    ) -> None:
        (tmp_path / "notes.txt").write_text("Buy milk.\n")
        opened = terminal("chat", fake_model, f"What is in {tmp_path}/notes.txt?")
        opened.expect("[y/N]")
        opened.type(f"{typed}\n")
        opened.expect("1: What is in")
        opened.expect("t/s")
        assert ("milk" in opened.text) == (typed == "y")

    def test_question(self, fake_cli: FakeCli, fake_model: str) -> None:
        assert fake_cli("chat", fake_model, "Why", "is", "it?").stdout == b"1: Why is it?"
        assert fake_cli("run", fake_model, "Why?", "-p", "Please", stdin=b"file\n").stdout == b"1: Why?|Please|file"
        assert fake_cli(fake_model, "Why?").stdout == b"1: Why?"
        assert fake_cli("-m", fake_model, "-p", "Why?", "-st", "-ngl", "9").stdout == b"1: Why?"
        assert fake_cli("chat", fake_model, "-p", "Why?", "-p", "Where?").stdout == b"1: Why?|Where?"

    def test_file_and_system_prompt(
        self, fake_cli: FakeCli, fake_model: str, tmp_path: Path
    ) -> None:
        (tmp_path / "question").write_text("Why?\n")
        (tmp_path / "system").write_text("Be brief.\n")
        arguments = ["-f", str(tmp_path / "question"), "-sysf", str(tmp_path / "system"), "-q"]
        done = fake_cli("chat", fake_model, *arguments, "-o", str(tmp_path / "output"))
        assert done.stdout == b"1: Why? (Be brief.)"
        assert b"t/s" not in done.stderr
        assert (tmp_path / "output").read_text() == "User:\nWhy?\n\nAssistant:\n1: Why? (Be brief.)\n\n"

    def test_escapes(self, fake_cli: FakeCli, fake_model: str) -> None:
        prompt = r"one\ntwo\t\\n\x41\xc3\xa9\q"
        assert fake_cli("chat", fake_model, prompt, "-e").stdout.decode() == "1: one|two \\nAé\\q"
        done = fake_cli("chat", fake_model, prompt)
        assert done.stdout.decode() == f"1: {prompt}"
        assert b"use -e to make it a newline" in done.stderr
        assert b"with -e" not in fake_cli("chat", fake_model, prompt, "--no-escape").stderr
