"""Tools of a chat: definitions, execution of tool calls, and confirmation by the user."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import psutil
import pytest
from terminal import Terminal

from cli.chat.tool_calls import tool_process
from cli.chat.tool_calls.tools import format_call, format_result, split_windows_command
from cli.files.tool_definitions import read_schemas
from localinfer.errors import UsageError

OpenTerminal = Callable[..., Terminal]
Run = Callable[..., CompletedProcess[bytes]]

ECHO = {"name": "echo", "parameters": {"type": "object", "properties": {"text": {"type": "string"}}}}
REPLY = "import json, sys; print('got', json.load(sys.stdin)['text'], 'for', sys.argv[1])"


@pytest.fixture
def tools(tmp_path: Path) -> str:
    path = tmp_path / "tools.json"
    path.write_text(json.dumps([ECHO]))
    return str(path)


@pytest.fixture
def echo(tmp_path: Path) -> str:
    path = tmp_path / "echo.py"
    path.write_text(REPLY)
    return f"{sys.executable} {path}"


# --- the process ---


def python(code: str, name: str = "echo", arguments: str = "{}", seconds: float = 20) -> str:
    return tool_process.run([sys.executable, "-c", code], name, arguments, seconds)


def test_a_tool_gets_name_and_arguments() -> None:
    assert python(REPLY, arguments='{"text": "Grüße"}') == "got Grüße for echo"


def test_errors_are_reported_to_the_model() -> None:
    assert python("import sys; print('half'); sys.exit('no such city')") == "error: exit code 1\nhalf\nno such city"
    assert tool_process.run(["/nowhere/tool"], "echo", "{}", 5).startswith("error: /nowhere/tool cannot be run: ")
    assert python("") == ""


def test_large_output_is_truncated_and_large_input_may_be_ignored() -> None:
    result = python("print('a' * 1_000_000)", arguments=json.dumps({"text": "b" * 1_000_000}))
    assert result.startswith("a" * tool_process.OUTPUT_LIMIT + "\n[truncated: 1,000,00")
    assert len(result) < tool_process.OUTPUT_LIMIT + 50


@pytest.mark.skipif(os.name != "posix", reason="groups of processes")
def test_timeout_kills_a_tool_and_its_children() -> None:
    """The child process keeps stdout open: a result is returned only if the child was killed too."""
    start = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(9999)'])"
    assert python(f"{start}; print(1, flush=True); time.sleep(9999)", seconds=3) == "error: no result within 3 s\n1"
    assert python(f"{start}; print(1)", seconds=60) == "1"


@pytest.mark.skipif(os.name != "posix", reason="needs a shell")
@pytest.mark.parametrize("fails", [False, True])
def test_timeout_kills_a_tool_and_its_children_on_windows(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    """The first of two child processes may end, or belong to another user, before it is killed."""
    killed: list[int] = []
    kill = psutil.Process.kill

    def kill_or_fail(process: psutil.Process) -> None:
        killed.append(process.pid)
        kill(process)
        if fails and len(killed) == 1:
            raise psutil.NoSuchProcess(process.pid)

    monkeypatch.delattr(os, "killpg", raising=False)
    monkeypatch.setattr(psutil.Process, "kill", kill_or_fail)
    command = ["sh", "-c", "sleep 60 & sleep 60 & echo 1; wait"]
    assert tool_process.run(command, "echo", "{}", 1) == "error: no result within 1 s\n1"
    assert len(killed) == 2


# --- the list of tools ---


@pytest.mark.parametrize("tools", [[ECHO], {"tools": [ECHO]}, ECHO, [{"type": "function", "function": ECHO}]])
def test_tool_lists(tmp_path: Path, tools: object) -> None:
    (tmp_path / "tools.json").write_text(json.dumps(tools))
    assert read_schemas(str(tmp_path / "tools.json")) == [{"type": "function", "function": ECHO}]


@pytest.mark.parametrize(
    ("tools", "problem"),
    [
        ([], "must be a list of tool definitions"),
        ("echo", "must be a list of tool definitions"),
        ([ECHO, {}], r"\[1\]: must be a function with a name"),
        ([{"name": "--help"}], r"\[0\]\.name: must be a word"),
        ([{"name": "echo", "parameters": []}], r"\[0\]\.parameters: must be a JSON schema"),
    ],
)
def test_invalid_tool_lists(tmp_path: Path, tools: object, problem: str) -> None:
    (tmp_path / "tools.json").write_text(json.dumps(tools))
    with pytest.raises(UsageError, match=problem):
        read_schemas(str(tmp_path / "tools.json"))


def test_display_of_calls() -> None:
    call = {"function": {"name": "echo", "arguments": {"text": "a\n\x1b[2J"}}}
    assert format_call(call) == '→ echo {"text": "a\\n\\u001b[2J"}'
    assert format_result("21\ndegrees") == "← 21 degrees"
    assert format_result("") == "← (nothing)"
    assert format_result("a\n" * 900) == "← a a a ... (900 lines, 1,800 characters)"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (r"C:\tools\run.exe --quiet", [r"C:\tools\run.exe", "--quiet"]),
        (r'"C:\Program Files\a tool.exe"  --name="x y"', [r"C:\Program Files\a tool.exe", "--name=x y"]),
    ],
)
def test_commands_on_windows(command: str, words: list[str]) -> None:
    assert split_windows_command(command) == words
    with pytest.raises(ValueError, match="No closing quotation"):
        split_windows_command(command + ' "')


# --- in a chat ---

ON_TERMINALS = pytest.mark.skipif(os.name != "posix", reason="pseudo-terminals")


@ON_TERMINALS
def test_calls_require_confirmation(terminal: OpenTerminal, fake_model: str, tools: str, echo: str) -> None:
    t = terminal("chat", fake_model, "--tools", tools, "--tool-exec", echo, "--session", "calls")
    t.expect("> ")
    for answer, result in [("n", "← The user rejected"), ("y", "← got a\\x1bb for echo"), ("a", "← got")]:
        t.type("call\n")
        t.expect('→ echo {"text": "a\\u001bb"}')
        t.expect("[y]es, [n]o, [a]lways this tool: ")
        time.sleep(0.1)
        t.type(f"{answer}\n")
        t.expect(result)
        t.expect(f"{answer and ''}: ")  # the answer to the result: the number of messages and the last message
        t.expect("> ")
    t.type("call\n")
    t.expect("← got a")  # without another confirmation
    t.expect("> ")
    t.type("call nothing\n")
    t.expect("← error: there is no tool nothing")
    t.expect("> ")
    t.ctrl("D")
    assert t.wait() == 0
    assert t.text.count("[y]es") == 3
    t = terminal("chat", fake_model, "--session", "calls")
    t.expect("20 messages")
    t.type("again\n")
    t.expect("21: again")


@ON_TERMINALS
def test_typed_ahead_input_is_discarded(
    terminal: OpenTerminal, fake_model: str, tools: str, echo: str
) -> None:
    t = terminal("chat", fake_model, "--tools", tools, "--tool-exec", echo)
    t.expect("> ")
    t.type("call echo slowly slowly slowly slowly slowly\n")
    t.expect("slowly")
    t.type("y\ny\ny\n")
    t.expect("[a]lways this tool: ")
    time.sleep(0.3)
    assert "←" not in t.text
    t.type("\n")
    t.expect("← The user rejected")


@ON_TERMINALS
def test_question_is_repeated_after_suspend(terminal: OpenTerminal, fake_model: str, tools: str, echo: str) -> None:
    t = terminal("chat", fake_model, "--tools", tools, "--tool-exec", echo)
    t.expect("> ")
    t.type("call\n")
    t.expect("[a]lways this tool: ")
    for signal_ in (signal.SIGSTOP, signal.SIGCONT):
        t.process.send_signal(signal_)
    t.expect("[a]lways this tool: ")
    time.sleep(0.1)
    t.type("n\n")
    t.expect("← The user rejected")


@ON_TERMINALS
def test_repeated_calls_are_stopped(terminal: OpenTerminal, fake_model: str, tools: str) -> None:
    """The fake model calls the tool again because the result requests it."""
    t = terminal("chat", fake_model, "--tools", tools, "--tool-exec", "/bin/echo call")
    t.expect("> ")
    t.type("call\n")
    t.expect("[a]lways this tool: ")
    time.sleep(0.1)
    t.type("a\n")
    t.expect("The model repeats the same tool call; it is not run again.")
    assert t.text.count("← call echo") == 3
    t.expect("echo was not run; type its result as the next message.")
    t.type("enough\n")
    t.expect("9: enough")


@ON_TERMINALS
def test_user_types_the_result(terminal: OpenTerminal, fake_model: str, tools: str) -> None:
    t = terminal("chat", fake_model, "--tools", tools)
    t.expect("> ")
    t.type("call\n")
    t.expect("echo was not run; type its result as the next message.")
    t.expect("> ")
    t.type("by hand\n")
    t.expect("3: by hand")
    t.expect("> ")
    t.type("/undo\n")
    t.expect("removed: call")


@ON_TERMINALS
def test_a_resumed_session_waits_for_a_result(
    terminal: OpenTerminal, fake_cli: Run, fake_model: str, tmp_path: Path
) -> None:
    own = {"LOCALINFER_DATA_DIR": str(tmp_path)}
    t = terminal("chat", fake_model, "--session", "mine", **own)
    t.expect("> ")
    t.type("call\n")
    t.expect("echo was not run")
    t.expect("> ")
    t.ctrl("d")
    assert t.wait() == 0
    copy = (tmp_path / "sessions" / "mine.jsonl").read_text()
    t = terminal("chat", "--continue", **own)
    t.expect("echo was not run; type its result as the next message.")
    t.expect("> ")
    t.type("/load mine\n")
    t.expect("echo was not run; type its result as the next message.")
    done = fake_cli("chat", "--session", "mine", "by hand", LOCALINFER_DATA_DIR=str(tmp_path))
    assert done.stdout == b"3: by hand"
    assert b"echo was not run; the message is its result\n" in done.stderr
    *lines, last = copy.splitlines()
    answer = json.loads(last)
    several = json.dumps(answer | {"tool_calls": 2 * answer["tool_calls"]})
    (tmp_path / "sessions" / "mine.jsonl").write_text("\n".join([*lines, several, ""]))
    done = fake_cli("chat", "--session", "mine", "by hand", LOCALINFER_DATA_DIR=str(tmp_path))
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"error: the session waits for results of 2 tool calls; continue it without a question" in done.stderr


def test_one_question_as_json(fake_cli: Run, fake_model: str, tools: str) -> None:
    done = fake_cli("chat", fake_model, "call", "--json", "--tools", tools, "-q")
    [call] = json.loads(done.stdout)["tool_calls"]
    assert call["function"] == {"name": "echo", "arguments": {"text": "a\x1bb"}}


def test_calls_are_not_text(fake_cli: Run, fake_model: str, tools: str) -> None:
    done = fake_cli("chat", fake_model, "call", "--tools", tools, "-q")
    assert done.stdout == b"1: call"
    assert done.stderr.decode().endswith('→ echo {"text": "a\\u001bb"}\n')


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--tools", "FILE", "--tool-exec", sys.executable], b"stdin is not a terminal"),
        (["--tool-exec", sys.executable], b"--tool-exec: requires --tools FILE"),
        (["--tools", "FILE", "--json", "--tool-exec", sys.executable], b"stdin is not a terminal"),
    ],
)
def test_tools_require_a_terminal(fake_cli: Run, fake_model: str, tools: str, flags: list[str], problem: bytes) -> None:
    done = fake_cli("chat", fake_model, "call", *(tools if flag == "FILE" else flag for flag in flags))
    assert done.returncode == 2
    assert problem in done.stderr
    assert not done.stdout
