"""Checks MCP with programs of npm: the chat's client with two servers of the MCP project, and `localinfer mcp` with the
inspector of the MCP project, over stdio and over HTTP.

The packages are installed in FOLDER, which needs node and npm, and takes a minute.

    python tests/benchmarks/checks/mcp_programs.py FOLDER
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
from locations import CHECKOUT, PYTHONPATH

sys.path[:0] = PYTHONPATH

from answering_model import ANSWER, answering_model  # noqa: E402

from localinfer.mcp.client.client import McpClient  # noqa: E402
from localinfer.mcp.client.server_config import parse_servers  # noqa: E402

PACKAGES = [f"@modelcontextprotocol/{name}" for name in ("server-everything", "server-filesystem", "inspector")]
SECONDS = 300


def install(folder: Path) -> Path:
    """Install the packages and return the directory of their programs."""
    folder.mkdir(parents=True, exist_ok=True)
    npm = shutil.which("npm")
    assert npm, "npm is not installed"
    subprocess.run([npm, "install", "--no-audit", "--no-fund", "--silent", *PACKAGES], cwd=folder, check=True)
    return folder / "node_modules" / ".bin"


def check_servers(programs: Path, folder: Path) -> None:
    """Call tools of both servers."""
    notes = folder / "notes"
    notes.mkdir(exist_ok=True)
    (notes / "todo.txt").write_text("Buy milk")
    entries = {
        "files": {"command": str(programs / "mcp-server-filesystem"), "args": [str(notes)]},
        "everything": {"command": str(programs / "mcp-server-everything")},
    }
    with McpClient(parse_servers({"mcpServers": entries}, "check", os.environ)) as client:
        client.wait_until_started(lambda *_: None)
        assert [server.state for server in client.servers] == ["ready", "ready"], client.take_notices()
        tools = client.tools()
        read, echo, image = tools["read_text_file"], tools["echo"], tools["get-tiny-image"]
        assert client.call(read, {"path": str(notes / "todo.txt")}, 20) == "Buy milk"
        assert client.call(read, {"path": "/etc/passwd"}, 20).startswith("error: Access denied")
        assert client.call(echo, {"message": "Grüße"}, 20) == "Echo: Grüße"
        assert "[image/png: images and audio are not supported]" in client.call(image, {}, 20)
        slow = tools["trigger-long-running-operation"]
        assert client.call(slow, {"duration": 20, "steps": 5}, 1) == "error: no result within 1 s"
        assert client.call(echo, {"message": "x"}, 20) == "Echo: x"
        for server in client.servers:
            print(f"{server.name} ({server.title}): {len(server.tools)} tools")


def inspect(programs: Path, target: list[str], *call: str) -> dict[str, object]:
    """Return the answer to a request of the inspector."""
    done = subprocess.run(
        [str(programs / "mcp-inspector"), "--cli", *target, "--method", *call], capture_output=True, text=True,
        timeout=SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def check_inspector(programs: Path, folder: Path) -> None:
    """List and call the tools of `localinfer mcp`."""
    model = str(answering_model(folder / "model.gguf"))
    command = [sys.executable, "-m", "localinfer", "mcp", model]
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    server = subprocess.Popen([*command, "--http", "0"], stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert server.stderr
        url = server.stderr.readline().removeprefix("listening on ").strip()
        stdio = [*command, "-e", f"PYTHONPATH={CHECKOUT}"]
        for target in (stdio, [url, "--transport", "http"]):
            listed = inspect(programs, target, "tools/list")["tools"]
            assert [each["name"] for each in listed] == ["generate", "list_models"]  # type: ignore[attr-defined]
            call = ["tools/call", "--tool-name", "generate", "--tool-arg", "prompt=Hi", "--tool-arg", "max_tokens=50"]
            answer = inspect(programs, target, *call)
            assert answer["structuredContent"]["text"] == ANSWER, answer  # type: ignore[index]
            print(f"inspector: {'HTTP' if target[0] == url else 'stdio'} works")
    finally:
        server.terminate()
        server.communicate(timeout=20)


if __name__ == "__main__":
    where = Path(sys.argv[1]).absolute()
    found = install(where)
    check_servers(found, where)
    check_inspector(found, where)
