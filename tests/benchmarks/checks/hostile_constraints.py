"""Times how fast a server ends hostile requests: after --timeout, after the client left, after SIGTERM; and `/health`.

    python tests/benchmarks/checks/hostile_constraints.py path/to/model.gguf

The requests have grammars and schemas that take minutes or overflow a stack, and prompts of megabytes. The limits are
1 s after the timeout, 1 s after the client left, 3.5 s after SIGTERM and 1 s after a second one, and 0.1 s for
`/health` in the meantime. Names of requests as further arguments select some. Prints a Markdown table; the exit code is
1 if a limit is exceeded.
"""

import json
import signal
import sys
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).parents[3]
sys.path[:0] = [str(CHECKOUT), str(CHECKOUT / "tests"), str(CHECKOUT / "tests" / "harness")]

from server_process import ServerProcess  # noqa: E402

PATH = "/v1/chat/completions"
TIMEOUT = 3.0
HEAD_START = 1.5  # seconds until a client leaves
LIMITS = {"timeout": 1.0, "health": 0.1, "left": 1.0, "SIGTERM": 3.5, "two SIGTERM": 1.0}


def schema(value: object) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": value}}}


def any_of_objects(number: int) -> dict[str, Any]:
    return {"anyOf": [{"type": "object", "properties": {f"p{number}_{n}": {"const": n}}} for n in range(4)]}


CASES = {
    "60,000 alternatives": {"grammar": "root ::= " + " | ".join(f'"word {n}"' for n in range(60_000))},
    "ambiguous grammar": {"grammar": 'root ::= s\ns ::= s s s | s s | "a" | ""'},
    "300 optional parts": {"grammar": f'root ::= {" ".join(["(x? y? s)?"] * 300)}\nx ::= "a"\ny ::= "b"\n'
                                      's ::= "(" s ")" | ""'},
    "nested parentheses": {"grammar": f'root ::= {"(" * 3000}"a"{")" * 3000}'},
    "nested repetitions": {"regex": "(((a{1,99}){1,99}){1,99}b?){1,99}c"},
    "text of 1 MB": schema({"const": "x y " * 250_000}),
    "30,000 unique items": schema({
        "type": "array", "uniqueItems": True, "items": {"enum": [f"w{n}" for n in range(30_000)]}}),
    "product of schemas": schema({"allOf": [any_of_objects(number) for number in range(7)]}),
    "chain of references": schema({"$ref": "#/$defs/0", "$defs": {
        str(n): {"anyOf": [{"$ref": f"#/$defs/{n + 1}"}, {}]} for n in range(3000)} | {"3000": {}}}),
    "endless pattern": schema({"type": "string", "not": {"pattern": "^(a+)+$"}}),
    "message of 4 MB": {"messages": [{"role": "user", "content": "Hello the <|im_end|> \n" * 190_000}]},
    "100,000 messages": {"messages": [{"role": ("user", "assistant")[n % 2], "content": f"Hello {n}"}
                                      for n in range(100_001)]},
}  # fmt: skip


def request(constraint: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4000, "seed": 1, **constraint}


def send(server: ServerProcess, constraint: dict[str, Any]) -> tuple[HTTPConnection, float]:
    """Send a request. Return its connection after HEAD_START, and the longest time of `/health` in the meantime."""
    connection, longest = server.connection(), 0.0
    connection.request("POST", PATH, json.dumps(request(constraint)))
    end = time.monotonic() + HEAD_START
    while (start := time.monotonic()) < end:
        server.get("/health")
        longest = max(longest, time.monotonic() - start)
        time.sleep(0.01)
    return connection, longest


def seconds_until_idle(server: ServerProcess) -> float:
    start = time.monotonic()
    while server.get("/slots").body[0]["is_processing"]:
        time.sleep(0.01)
    return time.monotonic() - start


def seconds_until_exit(model: str, constraint: dict[str, Any], signals: int) -> float:
    with ServerProcess(model, "--parallel", "1", "-c", "8192") as server:
        connection, _ = send(server, constraint)
        for number in range(signals):
            time.sleep(0.2 * number)
            start = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
        server.process.wait()
        connection.close()
        return time.monotonic() - start


def main() -> None:
    model, *names = sys.argv[1:]
    worst = dict.fromkeys(LIMITS, 0.0)
    print(f"| request | status | {' | '.join(f'{name} (s)' for name in LIMITS)} |\n|---{'|---:' * (len(LIMITS) + 1)}|")
    with ServerProcess(model, "--parallel", "1", "--timeout", TIMEOUT, "-c", "8192") as server:  # type: ignore[arg-type]
        server.post(PATH, request({"max_tokens": 1}))
        for name, constraint in ((name, CASES[name]) for name in names or CASES):
            start = time.monotonic()
            status = server.post(PATH, request(constraint)).status
            seconds = {"timeout": max(0.0, time.monotonic() - start - TIMEOUT)}
            connection, seconds["health"] = send(server, constraint)
            connection.close()
            seconds["left"] = seconds_until_idle(server)
            seconds["SIGTERM"] = seconds_until_exit(model, constraint, 1)
            seconds["two SIGTERM"] = seconds_until_exit(model, constraint, 2)
            print(f"| {name} | {status} | {' | '.join(f'{value:.2f}' for value in seconds.values())} |", flush=True)
            worst = {each: max(worst[each], seconds[each]) for each in worst}
    sys.exit(any(worst[each] > limit for each, limit in LIMITS.items()))


if __name__ == "__main__":
    main()
