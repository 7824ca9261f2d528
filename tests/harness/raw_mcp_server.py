"""An MCP server over stdio that needs no library, and can misbehave.

  python tests/harness/raw_mcp_server.py [MODE] [FILE]

Its tools do what their names say: see `call`. FILE gets a line for each process that started and each call that was
cancelled. MODE:

  silent     never answers                 exits     exits at once with code 7, after a line on stderr
  garbage    writes text without end       pages     lists tools on pages without end
  stubborn   has a child process, and ignores the end of stdin and SIGTERM
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MODE, LOG = [*sys.argv[1:], "", ""][:2]
NAMES = (
    "echo", "exit", "hang", "text_lines", "flood", "endless_line", "change_tools", "ask", "big", "picture", "fail",
    "structured", "variable",
)  # fmt: skip
ECHO = {"type": "object", "properties": {"text": {"type": "string"}}}
REQUESTS: dict[str, dict[str, Any]] = {
    "sampling/createMessage": {"messages": [], "maxTokens": 5}, "roots/list": {},
    "elicitation/create": {"message": "Password?", "requestedSchema": {"type": "object", "properties": {}}},
}  # fmt: skip
extra_tools: list[str] = []


def send(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def log(line: str) -> None:
    if LOG:
        with Path(LOG).open("a") as file:
            file.write(line + "\n")


def tool(name: str) -> dict[str, Any]:
    return {"name": name, "description": f"The tool {name}", "inputSchema": ECHO}


def tools(cursor: str) -> dict[str, Any]:
    if MODE == "pages":
        number = int(cursor or 0)
        return {"tools": [tool(f"page{number}_{each}") for each in range(100)], "nextCursor": str(number + 1)}
    # One name twice, and one that a model cannot call.
    return {"tools": [tool(name) for name in (*NAMES, *extra_tools, "echo", "not a\x1b[2J name")]}


def text(content: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": content}], **more}


def misbehave(name: str) -> None:
    """Do what the tool of this name does beside its answer, if anything."""
    if name == "exit":
        print("about to exit", file=sys.stderr, flush=True)
        os._exit(3)
    if name == "text_lines":
        sys.stdout.write("Listening on port 80\n\n{}\n" * 20)
    if name == "flood":
        while True:
            send(method="notifications/message", params={"level": "info", "data": "x"})
    if name == "endless_line":
        while True:
            sys.stdout.write("x" * 65536)
    if name == "change_tools":
        extra_tools.append("added")
        send(method="notifications/tools/list_changed")


def call(name: str, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the result of a call, or None if there is none."""
    misbehave(name)
    if name == "hang":
        return None
    if name == "ask":
        for number, (method, params) in enumerate(REQUESTS.items()):
            send(id=f"mine{number}", method=method, params=params)
        return text(" | ".join(sys.stdin.readline().strip() for _ in REQUESTS))
    if name == "big":
        return text("b" * 1_000_000)
    if name == "picture":
        return {"content": [{"type": "image", "data": "aaaa", "mimeType": "image/png"}]}
    if name == "fail":
        return text("no such file", isError=True)
    if name == "structured":
        return {"content": [], "structuredContent": {"degrees": 21}}
    if name == "variable":
        return text(os.environ.get(arguments["text"], "(not set)"))
    return text(f"{name}: {arguments.get('text')}")


def answer(request: Mapping[str, Any]) -> None:
    method, number = request.get("method"), request.get("id")
    params = request.get("params") or {}
    if method == "notifications/cancelled":
        log("cancelled")
    if number is None or not method:
        return
    if method == "initialize":
        capabilities = {"tools": {"listChanged": True}}
        info = {"name": "raw", "version": "1\x1b[31m"}
        result: dict[str, Any] | None = {
            "protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": info
        }  # fmt: skip
    elif method == "tools/list":
        result = tools(params.get("cursor", ""))
    elif method == "tools/call":
        result = call(params["name"], params.get("arguments") or {})
    else:
        send(id=number, error={"code": -32601, "message": "Method not found"})
        return
    if result is not None:
        send(id=number, result=result)


def main() -> None:
    log(str(os.getpid()))
    if MODE == "exits":
        print("no configuration", file=sys.stderr)
        sys.exit(7)
    if MODE == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        log(str(child.pid))
    while MODE == "garbage":
        sys.stdout.write("This is no message.\n")
    for line in sys.stdin:
        if MODE != "silent":
            answer(json.loads(line))
    while MODE in ("stubborn", "silent"):
        time.sleep(1)


if __name__ == "__main__":
    main()
