"""Tools of a chat: what the model is told of them, and who runs what it calls."""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from terminal import Terminal

from cli.chat import tool_process
from cli.chat.tools import schemas_from, shown_call, shown_result
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


def test_what_fails_is_told() -> None:
    assert python("import sys; print('half'); sys.exit('no such city')") == "error: exit code 1\nhalf\nno such city"
    assert tool_process.run(["/nowhere/tool"], "echo", "{}", 5).startswith("error: /nowhere/tool cannot be run: ")
    assert python("") == ""


def test_large_output_is_cut_and_large_input_need_not_be_read() -> None:
    result = python("print('a' * 1_000_000)", arguments=json.dumps({"text": "b" * 1_000_000}))
    assert result.startswith("a" * tool_process.OUTPUT_LIMIT + "\n[cut: 1,000,00")
    assert len(result) < tool_process.OUTPUT_LIMIT + 50


@pytest.mark.skipif(os.name != "posix", reason="groups of processes")
def test_a_tool_that_takes_too_long_ends_with_all_that_it_has_started() -> None:
    """What it has started holds its stdout for ever: that there is a result shows that it has ended."""
    start = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(9999)'])"
    assert python(f"{start}; print(1, flush=True); time.sleep(9999)", seconds=3) == "error: no result within 3 s\n1"
    assert python(f"{start}; print(1)", seconds=60) == "1"


# --- the list of tools ---


@pytest.mark.parametrize("tools", [[ECHO], {"tools": [ECHO]}, ECHO, [{"type": "function", "function": ECHO}]])
def test_lists_of_tools(tmp_path: Path, tools: object) -> None:
    (tmp_path / "tools.json").write_text(json.dumps(tools))
    assert schemas_from(str(tmp_path / "tools.json")) == [{"type": "function", "function": ECHO}]


@pytest.mark.parametrize(
    ("tools", "problem"),
    [
        ([], "must be a list of tools"),
        ("echo", "must be a list of tools"),
        ([ECHO, {}], r"\[1\]: must be a function with a name"),
        ([{"name": "--help"}], r"\[0\]\.name: must be a word"),
        ([{"name": "echo", "parameters": []}], r"\[0\]\.parameters: must be a JSON schema"),
    ],
)
def test_what_is_no_list_of_tools(tmp_path: Path, tools: object, problem: str) -> None:
    (tmp_path / "tools.json").write_text(json.dumps(tools))
    with pytest.raises(UsageError, match=problem):
        schemas_from(str(tmp_path / "tools.json"))


def test_what_is_shown() -> None:
    call = {"function": {"name": "echo", "arguments": {"text": "a\n\x1b[2J"}}}
    assert shown_call(call) == '→ echo {"text": "a\\n\\u001b[2J"}'
    assert shown_result("21\ndegrees") == "← 21 degrees"
    assert shown_result("") == "← (nothing)"
    assert shown_result("a\n" * 900) == "← a a a ... (900 lines, 1,800 characters)"


# --- in a chat ---

ON_TERMINALS = pytest.mark.skipif(os.name != "posix", reason="pseudo-terminals")


@ON_TERMINALS
def test_calls_are_asked_for(terminal: OpenTerminal, own: str, tools: str, echo: str) -> None:
    t = terminal("chat", own, "--tools", tools, "--tool-exec", echo, "--session", "calls")
    t.expect("> ")
    for answer, result in [("n", "← The user does not want"), ("y", "← got a\\x1bb for echo"), ("a", "← got")]:
        t.type("call\n")
        t.expect('→ echo {"text": "a\\u001bb"}')
        t.expect("[y]es, [n]o, [a]lways this tool: ")
        time.sleep(0.1)
        t.type(f"{answer}\n")
        t.expect(result)
        t.expect(f"{answer and ''}: ")  # the answer to the result: the number of messages, and what the last one says
        t.expect("> ")
    t.type("call\n")
    t.expect("← got a")  # not asked for again
    t.expect("> ")
    t.type("call nothing\n")
    t.expect("← error: there is no tool nothing")
    t.expect("> ")
    t.press("D")
    assert t.code() == 0
    assert t.seen.count("[y]es") == 3
    t = terminal("chat", own, "--session", "calls")
    t.expect("20 messages")
    t.type("again\n")
    t.expect("21: again")


@ON_TERMINALS
def test_what_is_typed_before_a_question_is_no_answer_to_it(
    terminal: OpenTerminal, own: str, tools: str, echo: str
) -> None:
    t = terminal("chat", own, "--tools", tools, "--tool-exec", echo)
    t.expect("> ")
    t.type("call echo slowly slowly slowly slowly slowly\n")
    t.expect("slowly")
    t.type("y\ny\ny\n")
    t.expect("[a]lways this tool: ")
    time.sleep(0.3)
    assert "←" not in t.seen
    t.type("\n")
    t.expect("← The user does not want")


@ON_TERMINALS
def test_a_model_that_calls_the_same_again_and_again(terminal: OpenTerminal, own: str, tools: str) -> None:
    """The stand-in calls because the result says so."""
    t = terminal("chat", own, "--tools", tools, "--tool-exec", "/bin/echo call")
    t.expect("> ")
    t.type("call\n")
    t.expect("[a]lways this tool: ")
    time.sleep(0.1)
    t.type("a\n")
    t.expect("The same call again and again: it is not run any more.")
    assert t.seen.count("← call echo") == 3
    t.expect("echo has not been run: what you type next is its result.")
    t.type("enough\n")
    t.expect("9: enough")


@ON_TERMINALS
def test_without_a_command_the_user_tells_the_result(terminal: OpenTerminal, own: str, tools: str) -> None:
    t = terminal("chat", own, "--tools", tools)
    t.expect("> ")
    t.type("call\n")
    t.expect("echo has not been run: what you type next is its result.")
    t.expect("> ")
    t.type("by hand\n")
    t.expect("3: by hand")
    t.expect("> ")
    t.type("/undo\n")
    t.expect("forgotten: call")


def test_one_question_as_json(talker: Run, own: str, tools: str) -> None:
    done = talker("chat", own, "call", "--json", "--tools", tools, "-q")
    [call] = json.loads(done.stdout)["tool_calls"]
    assert call["function"] == {"name": "echo", "arguments": {"text": "a\x1bb"}}


def test_calls_are_no_text(talker: Run, own: str, tools: str) -> None:
    done = talker("chat", own, "call", "--tools", tools, "-q")
    assert done.stdout == b"1: call"
    assert done.stderr.decode().endswith('→ echo {"text": "a\\u001bb"}\n')


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--tools", "FILE", "--tool-exec", sys.executable], b"nobody can be asked here"),
        (["--tool-exec", sys.executable], b"--tools FILE says which there are"),
        (["--tools", "FILE", "--json", "--tool-exec", sys.executable], b"nobody can be asked here"),
    ],
)
def test_a_pipe_runs_nothing(talker: Run, own: str, tools: str, flags: list[str], problem: bytes) -> None:
    done = talker("chat", own, "call", *(tools if flag == "FILE" else flag for flag in flags))
    assert done.returncode == 2
    assert problem in done.stderr
    assert not done.stdout
