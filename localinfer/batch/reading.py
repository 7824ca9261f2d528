"""The lines of a batch's input become requests of OpenAI's API. A line may be any of these:

    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [...]}}
    {"messages": [{"role": "user", "content": "Hello"}], "temperature": 0}
    {"prompt": "Hello", "system": "You are brief.", "schema": {"type": "object"}}
    "Hello"
    Hello

A line that makes no sense becomes a request with a `problem`, which is its answer.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

from localinfer.errors import LocalInferError
from localinfer.server.fields import Fields, get, value_of
from localinfer.server.problems import Problem, bad
from localinfer.text import printable

Format = Literal["jsonl", "text"]

CHAT, TEXTS = "/v1/chat/completions", "/v1/completions"
URLS = (CHAT, TEXTS, "/v1/embeddings", "/v1/responses")
ENDINGS: dict[str, Format] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".txt": "text"}
SHORT_NAMES = {"schema": "json_schema", "temp": "temperature"}  # of fields in plain lines -> their names in the API
DIGEST_BYTES = 12
LONGEST_ID = 100  # characters of a custom_id that are shown


@dataclass(frozen=True, slots=True)
class Request:
    """What one line asks for."""

    number: int  # of the line, from 1
    custom_id: str
    url: str
    body: Fields
    problem: Problem | None = None  # why the line cannot be answered

    @property
    def digest(self) -> str:
        """A digest of what is asked. Spaces in the line, and the order of its fields, make no difference."""
        asked = json.dumps([self.custom_id, self.url, self.body], sort_keys=True)
        return blake2b(asked.encode(), digest_size=DIGEST_BYTES).hexdigest()

    @property
    def beginning(self) -> str:
        """A text to sort requests by: those that show the model the same beginning come to stand side by side."""
        told = [self.body.get(name) for name in ("tools", "instructions", "messages", "prompt", "input")]
        return json.dumps([self.url, *told]) if self.problem is None else ""


def requests_of(content: bytes, name: str, format: Format, *, raw: bool = False) -> list[Request]:
    """A request for each line that is not empty, in their order. With `raw`, plain prompts are continued, not answered.

    LocalInferError if there are none, or if two have the same custom_id: nobody could tell their answers apart.
    """
    requests = [request_of(number, line, format, raw=raw) for number, line in filled_lines(content)]
    if not requests:
        raise LocalInferError(f"{name}: there are no requests in it")
    first: dict[str, int] = {}
    for each in requests:
        if (number := first.setdefault(each.custom_id, each.number)) != each.number:
            id = printable(each.custom_id, LONGEST_ID)
            raise LocalInferError(f"{name}: lines {number} and {each.number} have the same custom_id, {id}")
    return requests


def format_of(content: bytes, name: str) -> Format:
    """The format, by the ending of the file's name; if that does not tell, by the first line: "jsonl" if that is a JSON
    object or string."""
    for ending, format in ENDINGS.items():
        if name.lower().endswith(ending):
            return format
    first = next((line for _, line in filled_lines(content)), b"")
    try:
        return "jsonl" if isinstance(json.loads(first), dict | str) else "text"
    except (ValueError, RecursionError):
        return "text"


def filled_lines(content: bytes) -> Iterator[tuple[int, bytes]]:
    """(number, line) for each line that has more than spaces in it."""
    lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")  # the mark that some editors put in front of UTF-8
    return ((number, line) for number, each in enumerate(lines, 1) if (line := each.removesuffix(b"\r")).strip())


def request_of(number: int, line: bytes, format: Format, *, raw: bool) -> Request:
    """The request of one line; with a `problem` if it makes no sense."""
    named = f"line-{number}"
    value: Any = None
    try:
        value = line.decode() if format == "text" else value_of(line)
        fields = {"prompt": value} if isinstance(value, str) else value
        if not isinstance(fields, dict):
            raise Problem(400, "a line must be a JSON object, or a JSON string")
        named = get(fields, "custom_id", str, named)
        url, body = batched(fields) if "url" in fields or "body" in fields else plain(fields, raw=raw)
        return Request(number, named, url, body)
    except UnicodeDecodeError as error:
        return Request(number, named, "", {"line": repr(line)}, Problem(400, f"not UTF-8 at byte {error.start}"))
    except Problem as problem:
        return Request(number, named, "", {"line": repr(line)}, problem)


def batched(fields: Fields) -> tuple[str, Fields]:
    """URL and body of a line in OpenAI's batch format."""
    if get(fields, "method", str, "POST").upper() != "POST":
        raise bad("method", "must be POST")
    url, body = get(fields, "url", str, ""), get(fields, "body", dict, {})
    if url not in URLS:
        raise Problem(404, f"url: must be {', '.join(URLS[:-1])} or {URLS[-1]}", "url", "invalid_url")
    return url, body


def plain(fields: Fields, *, raw: bool) -> tuple[str, Fields]:
    """URL and body of a line with `messages`, or with a `prompt`, which is a user's message, or, if `raw`, a text to
    continue."""
    raw = get(fields, "raw", bool, raw)
    body = {SHORT_NAMES.get(name, name): value for name, value in fields.items() if name not in ("custom_id", "raw")}
    if "messages" in body:
        return CHAT, body
    if "prompt" not in body:
        raise Problem(400, "there is neither url and body, nor messages, nor a prompt")
    if raw:
        return TEXTS, body
    prompt, system = body.pop("prompt"), body.pop("system", None)
    if not isinstance(prompt, str):
        raise bad("prompt", "must be a text")
    before = [{"role": "system", "content": system}] if system is not None else []
    return CHAT, body | {"messages": [*before, {"role": "user", "content": prompt}]}
