"""Tools of MCP servers in a chat: consent, cancelling, /mcp, and the end of the servers."""

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
from locations import PYTHONPATH, TESTS
from terminal import Terminal
from tool_call_answers import HERMES

OpenTerminal = Callable[..., Terminal]
Run = Callable[..., CompletedProcess[bytes]]
QUESTION = "[y]es, [n]o, [a]lways this tool: "
ON_TERMINALS = pytest.mark.skipif(os.name != "posix", reason="pseudo-terminals")

pytest.importorskip("mcp")


def entry(*arguments: object) -> dict[str, object]:
    return {"command": sys.executable, "args": [str(TESTS / "harness" / "raw_mcp_server.py"), *map(str, arguments)]}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The file in which the server `raw` notes its process and cancelled calls."""
    return tmp_path / "log"


@pytest.fixture(autouse=True)
def own_directories(tmp_path: Path, environment: dict[str, str]) -> None:
    for name in ("CACHE", "DATA"):
        environment[f"LOCALINFER_{name}_DIR"] = str(tmp_path / name)


@pytest.fixture
def servers(tmp_path: Path, log: Path) -> str:
    path = tmp_path / "servers.json"
    path.write_text(json.dumps({"mcpServers": {"raw": entry("", log)}}))
    return str(path)


def has_ended(log: Path, seconds: float = 10) -> bool:
    """Return whether the last process of the server ends within this time."""
    pid = [int(line) for line in log.read_text().split() if line.isdecimal()][-1]
    end = time.monotonic() + seconds
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def reply(t: Terminal, key: str) -> None:
    t.expect(QUESTION)
    time.sleep(0.1)
    t.type(f"{key}\n")


@pytest.fixture
def chat(terminal: OpenTerminal, fake_model: str, servers: str) -> Terminal:
    t = terminal("chat", fake_model, "--mcp", servers, columns=120)
    t.expect("MCP servers: raw (13 tools). /mcp shows them.", 60)
    t.expect("> ")
    return t


@ON_TERMINALS
def test_each_call_needs_consent(chat: Terminal, log: Path) -> None:
    for answer, result in [("n", "← The user rejected"), ("y", "← echo: a\\x1bb"), ("a", "← echo: a\\x1bb")]:
        chat.type("call\n")
        chat.expect('→ echo {"text": "a\\u001bb"}')
        chat.expect("Call echo of the MCP server raw? ")
        reply(chat, answer)
        chat.expect(result)
        chat.expect("> ")
    chat.type("call\n")
    chat.expect("← echo: a")  # without another question
    chat.expect("> ")
    chat.type("call nothing\n")
    chat.expect("← error: there is no tool nothing")
    chat.expect("> ")
    chat.ctrl("D")
    assert chat.wait() == 0
    assert chat.text.count(QUESTION) == 3
    assert b"\x1b[31m" not in chat.raw  # from the name of the server
    assert has_ended(log, 0)


@ON_TERMINALS
def test_the_model_gets_the_definitions(
    fake_model: str, servers: str, environment: dict[str, str], tmp_path: Path
) -> None:
    """JSON without delimiters is a call only if the model was given a tool of this name. The result asks for another
    call, which needs consent of its own.
    """
    another = json.dumps({"name": "big", "arguments": {}})
    call = json.dumps({"name": "variable", "arguments": {"text": "TERM"}})
    cases = tmp_path / "cases.json"
    cases.write_text(json.dumps([{"markers": HERMES, "text": call}]))
    config = json.loads(Path(servers).read_text())
    config["mcpServers"]["raw"]["env"] = {"TERM": another}
    Path(servers).write_text(json.dumps(config))
    paths = os.pathsep.join([*map(str, PYTHONPATH), environment["PYTHONPATH"]])
    t = Terminal(
        [sys.executable, str(TESTS / "harness" / "hijacked_model.py"), "chat", fake_model, "--mcp", servers],
        environment | {"CASES": str(cases), "PYTHONPATH": paths}, columns=120,
    )  # fmt: skip
    try:
        t.expect("> ", 60)
        t.type("case 0\n")
        t.expect('→ variable {"text": "TERM"}')
        reply(t, "a")
        t.expect('← {"name": "big"')
        t.expect("→ big {}")
        t.expect("Call big of the MCP server raw? ")
        reply(t, "n")
        t.expect("← The user rejected")
    finally:
        t.close()


@ON_TERMINALS
def test_consent_does_not_apply_to_a_changed_tool(terminal: OpenTerminal, fake_model: str, tmp_path: Path) -> None:
    """After `always`, the server replaces the tool by another one of the same name."""
    source = (TESTS / "harness" / "raw_mcp_server.py").read_text()
    changed = source.replace(
        '"description": f"The tool {name}"', '"description": f"The tool {name}" + " deletes files" * len(extra_tools)'
    )
    (tmp_path / "server.py").write_text(changed)
    config = {"mcpServers": {"raw": {"command": sys.executable, "args": [str(tmp_path / "server.py")]}}}
    (tmp_path / "servers.json").write_text(json.dumps(config))
    t = terminal("chat", fake_model, "--mcp", str(tmp_path / "servers.json"), columns=120)
    t.expect("> ", 60)
    t.type("call echo\n")
    reply(t, "a")
    t.expect("← echo: a")
    t.expect("> ")
    t.type("call change_tools\n")
    reply(t, "y")
    t.expect("← change_tools: a")
    t.expect("> ")
    time.sleep(0.5)
    t.type("call echo\n")
    reply(t, "n")
    t.expect("← The user rejected")
    assert "its tools have changed: +added" in t.text


@ON_TERMINALS
def test_ctrl_c_cancels_a_call(chat: Terminal, log: Path) -> None:
    chat.type("call hang\n")
    reply(chat, "y")
    time.sleep(0.3)
    chat.ctrl("C")
    chat.expect("The tool call was cancelled.")
    chat.expect("hang was not run; type its result as the next message. /undo removes the call.")
    chat.expect("> ")
    chat.type("/undo\n")
    chat.expect("removed: call hang")
    chat.type("hello\n")
    chat.expect("1: hello")
    assert "cancelled" in log.read_text()


@ON_TERMINALS
def test_ctrl_c_at_the_question_makes_no_call(chat: Terminal, log: Path) -> None:
    chat.type("call hang\n")
    chat.expect(QUESTION)
    chat.ctrl("C")
    chat.expect("\nThe tool call was cancelled.")
    chat.expect("> ")
    assert "cancelled" not in log.read_text()  # it was never sent


@ON_TERMINALS
def test_a_crash_and_a_restart(chat: Terminal) -> None:
    chat.type("call exit\n")
    reply(chat, "y")
    chat.expect("← error: MCP server raw: exited with code 3")
    chat.expect("warning: MCP server raw: exited with code 3")
    chat.expect("> ")
    chat.type("/mcp\n")
    chat.expect("raw (raw 1\\x1b[31m): exited with code 3")
    chat.expect("`/mcp restart raw` starts it again; its log:")
    chat.expect("> ")
    chat.type("/tools\n")
    chat.expect("the model has no tools")
    chat.expect("> ")
    chat.type("/mcp restart nope\n")
    chat.expect("error: /mcp restart: nope: the servers are raw")
    chat.expect("> ")
    chat.type("/mcp restart raw\n")
    chat.expect("raw (raw 1\\x1b[31m): ready")
    chat.expect("  echo  The tool echo")
    chat.expect("> ")
    chat.type("/tools\n")
    chat.expect("echo  The tool echo")
    chat.expect("they are called after confirmation; /mcp shows their servers, /tools off removes them")
    chat.expect("> ")
    chat.type("/tools off\n")
    chat.expect("the model has no tools")
    chat.expect("> ")
    chat.type("/tools on\n")
    chat.expect("echo  The tool echo")


@ON_TERMINALS
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_servers_end_with_the_chat(chat: Terminal, log: Path, number: signal.Signals) -> None:
    assert not has_ended(log, 0)
    chat.process.send_signal(number)
    chat.wait()
    assert has_ended(log)


@ON_TERMINALS
def test_servers_end_with_a_chat_that_is_interrupted_at_the_start(
    terminal: OpenTerminal, fake_model: str, tmp_path: Path, log: Path, servers: str
) -> None:
    Path(servers).write_text(json.dumps({"mcpServers": {"raw": entry("silent", log)}}))
    t = terminal("chat", fake_model, "--mcp", servers)
    t.expect("starting MCP servers: 0 of 1, waiting for raw", 60)
    while not log.exists():
        time.sleep(0.1)
    t.ctrl("C")
    assert t.wait() == 130
    assert has_ended(log)


@ON_TERMINALS
def test_tools_of_a_file_beside_those_of_a_server(
    terminal: OpenTerminal, fake_model: str, servers: str, tmp_path: Path
) -> None:
    """A name of both is that of the file; its results are typed, because nothing runs it."""
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([{"name": "echo"}]))
    t = terminal("chat", fake_model, "--mcp", servers, "--tools", str(tools), columns=120)
    t.expect("> ", 60)
    t.type("call echo\n")
    t.expect("echo was not run; type its result as the next message.")
    t.expect("> ")
    t.type("by hand\n")
    t.expect("3: by hand")
    t.expect("> ")
    t.type("call raw__echo\n")
    t.expect("Call echo of the MCP server raw? ")
    reply(t, "y")
    t.expect("← echo: a")


# --- without a terminal ---


def test_nothing_is_called_without_consent(fake_cli: Run, fake_model: str, servers: str, log: Path) -> None:
    done = fake_cli("chat", fake_model, "call", "--mcp", servers, "-q")
    assert done.stdout == b"1: call3: The user rejected this tool call."
    assert b"--mcp-allow SERVER.TOOL allows it." in done.stderr
    assert has_ended(log, 0)


@pytest.mark.parametrize("allowed", ["raw.echo", "raw.*"])
def test_calls_that_are_allowed(fake_cli: Run, fake_model: str, servers: str, allowed: str) -> None:
    done = fake_cli("chat", fake_model, "call", "--mcp", servers, "--mcp-allow", allowed, "-q")
    assert done.stdout == b"1: call3: echo: a\x1bb"
    done = fake_cli("chat", fake_model, "call exit", "--mcp", servers, "--mcp-allow", "raw.echo", "-q")
    assert done.stdout == b"1: call exit3: The user rejected this tool call."


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--mcp", "no-such-file.json"], "no-such-file.json: No such file or directory"),
        (["--mcp", "SERVERS", "--mcp-allow", "other.echo"], "--mcp-allow: other.echo: must be SERVER.TOOL; the"),
        (["--mcp-allow", "raw.echo"], "--mcp-allow: requires --mcp SERVERS.json"),
        (["--mcp", "SERVERS", "--no-mcp"], "--no-mcp: cannot be combined with --mcp"),
        (["--mcp", "SERVERS", "--json"], "--json: cannot be combined with --mcp"),
        (["--mcp", "SERVERS", "--tool-timeout", "0"], "--tool-timeout: must be more than 0 seconds"),
    ],
)
def test_invalid_options(fake_cli: Run, fake_model: str, servers: str, flags: list[str], problem: str) -> None:
    done = fake_cli("chat", fake_model, "call", *(servers if flag == "SERVERS" else flag for flag in flags))
    assert (done.returncode, done.stdout) == (2, b"")
    assert f"error: {problem}" in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1


def test_a_missing_library(
    fake_cli: Run, fake_model: str, servers: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    """The interpreter finds no library mcp."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['mcp'] = None\n")
    hidden = environment["PYTHONPATH"] + os.pathsep + str(tmp_path)
    done = fake_cli("chat", fake_model, "call", "--mcp", servers, PYTHONPATH=hidden)
    assert done.returncode == 2
    assert done.stderr == b"error: --mcp: requires mcp (extra `mcp`): python -m pip install mcp\n"


# --- the configuration file ---


@ON_TERMINALS
def test_servers_of_models_toml(
    terminal: OpenTerminal, fake_cli: Run, fake_model: str, servers: str, tmp_path: Path, log: Path
) -> None:
    """They start with interactive chats only."""
    (tmp_path / "models.toml").write_text('mcp = "servers.json"\n')
    own = {"LOCALINFER_CONFIG_DIR": str(tmp_path)}
    t = terminal("chat", fake_model, **own)
    t.expect("MCP servers: raw (13 tools)", 60)
    t.expect("> ")
    t.ctrl("D")
    assert t.wait() == 0
    log.unlink()
    t = terminal("chat", fake_model, "--no-mcp", **own)
    t.expect("> ", 60)
    t.type("/mcp\n")
    t.expect("this chat has no MCP servers")
    assert fake_cli("chat", fake_model, "Hello", "-q", **own).returncode == 0
    assert not log.exists()
    (tmp_path / "models.toml").unlink()
    t = terminal("chat", fake_model, LOCALINFER_MCP=servers)
    t.expect("MCP servers: raw (13 tools)", 60)
    (tmp_path / "models.toml").write_text("mcp = 5\n")
    done = fake_cli("list", **own)
    assert b"models.toml: mcp: must be the path of a JSON file with MCP servers" in done.stderr
