"""Grammars and schemas that would keep the server busy for minutes, or crash it."""

import contextlib
import http.client
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server_process import ServerProcess

MESSAGES = [{"role": "user", "content": "Hello"}]
CHAT = "/v1/chat/completions"
ALTERNATIVES = "root ::= " + " | ".join(f'"word {number}"' for number in range(60_000))  # takes minutes to analyse
CHAIN = {"$ref": "#/$defs/0", "$defs": {str(number): {"anyOf": [{"$ref": f"#/$defs/{number + 1}"}, {}]}
         for number in range(5000)} | {"5000": {}}}  # fmt: skip  # overflows the stack of llguidance


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": MESSAGES, "max_tokens": 2000, "seed": 1} | fields


def schema(value: object) -> dict[str, Any]:
    return chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": value}})


BUSY = chat(grammar=ALTERNATIVES)


@pytest.fixture(scope="module")
def server(tiny: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tiny, "--parallel", "1", "--timeout", "2") as served:
        yield served


@pytest.fixture(scope="module")
def patient_server(tiny: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tiny, "--parallel", "1") as served:
        yield served


def seconds_until_idle(server: ServerProcess) -> float:
    start = time.monotonic()
    while server.get("/slots").body[0]["is_processing"]:
        assert time.monotonic() - start < 60
        time.sleep(0.02)
    return time.monotonic() - start


def start_request(server: ServerProcess, body: object) -> http.client.HTTPConnection:
    """Send a request, and return when its slot is busy."""
    connection = server.connection()
    connection.request("POST", CHAT, json.dumps(body))
    while not server.get("/slots").body[0]["is_processing"]:
        time.sleep(0.02)
    return connection


@pytest.mark.parametrize("body", [
    chat(grammar="root ::= root"), chat(grammar="root ::= a\na ::= root"), schema({"$ref": "#"}), schema({"not": {}}),
    schema({"properties": {"a": {"$ref": "#/properties/a"}}}), schema(CHAIN),
    schema({"type": "string", "pattern": "("}), chat(regex="("),
])  # fmt: skip
def test_malformed_constraints(patient_server: ServerProcess, body: object) -> None:
    response = patient_server.post(CHAT, body)
    assert (response.status, response.body["error"]["code"]) == (400, "invalid_schema")
    assert patient_server.post(CHAT, chat(max_tokens=1)).status == 200


def test_timeout_ends_the_compilation_of_a_grammar(server: ServerProcess) -> None:
    start = time.monotonic()
    response = server.post(CHAT, BUSY)
    assert (response.status, response.body["error"]["code"]) == (503, "timeout")
    assert time.monotonic() - start < 9
    assert not server.get("/slots").body[0]["is_processing"]


def test_ambiguous_grammar(server: ServerProcess) -> None:
    """The number of ways to parse a text grows exponentially."""
    start = time.monotonic()
    response = server.post(CHAT, chat(grammar='root ::= s\ns ::= s s s | s s | "a" | ""'))
    assert response.status in (200, 400)
    assert time.monotonic() - start < 9


def test_disconnect_ends_the_compilation_of_a_grammar(tiny: Path) -> None:
    with ServerProcess(tiny, "--parallel", "1") as server:
        connection = start_request(server, BUSY)
        assert server.get("/health").status == 200
        connection.close()
        assert seconds_until_idle(server) < 8  # the limit of CPU time is 10 s
        assert server.post(CHAT, chat(max_tokens=1)).status == 200


@pytest.mark.parametrize(("signals", "limit"), [(1, 6), (2, 3)])
def test_signals_end_a_busy_server(tiny: Path, signals: int, limit: float) -> None:
    with ServerProcess(tiny, "--parallel", "1") as server, contextlib.closing(start_request(server, BUSY)):
        for _ in range(signals):
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
        start = time.monotonic()
        server.process.wait(60)
        assert time.monotonic() - start < limit


def test_schema_that_no_answer_matches(patient_server: ServerProcess) -> None:
    body = schema({"type": "array", "items": {"const": 1}, "minItems": 2, "uniqueItems": True, "maxItems": 2})
    assert patient_server.post(CHAT, body).status == 400  # there are not two different items


def test_answer_that_violates_its_schema(patient_server: ServerProcess) -> None:
    body = schema({"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 1}, "minItems": 2,
                   "uniqueItems": True, "maxItems": 2})  # fmt: skip
    response = patient_server.post(CHAT, body)
    error = response.body["error"]
    assert (response.status, error["type"], error["code"]) == (422, "invalid_output_error", "schema_violation")
    assert error["param"] == "response_format.json_schema.schema"
    assert error["message"].startswith("response_format.json_schema.schema: the answer does not match the schema: #: ")
    assert error["message"].endswith("(schema: #/uniqueItems)")
