"""Parses the lines of a batch input file into requests of OpenAI's API. A line may have any of these formats:

    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [...]}}
    {"messages": [{"role": "user", "content": "Hello"}], "temperature": 0}
    {"prompt": "Hello", "system": "You are brief.", "schema": {"type": "object"}}
    "Hello"
    Hello

An invalid line becomes a request with an `error`, which is its response.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

from localinfer.errors import LocalInferError
from localinfer.escaping import printable
from localinfer.server.http.api_errors import APIError, field_error
from localinfer.server.requests.request_fields import Fields, get, parse_json

Format = Literal["jsonl", "text"]

CHAT_URL, COMPLETIONS_URL = "/v1/chat/completions", "/v1/completions"
URLS = (CHAT_URL, COMPLETIONS_URL, "/v1/embeddings", "/v1/responses")
FORMAT_BY_SUFFIX: dict[str, Format] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".txt": "text"}
SHORT_NAMES = {"schema": "json_schema", "temp": "temperature"}  # field of a short line -> field of the API
DIGEST_BYTES = 12
MAX_SHOWN_ID_CHARS = 100  # longer ones are shortened in messages


@dataclass(frozen=True, slots=True)
class Request:
    """The request of one line."""

    number: int  # line number, from 1
    custom_id: str
    url: str
    body: Fields
    error: APIError | None = None  # why the line is invalid

    @property
    def digest(self) -> str:
        """A digest of the request. White space and the order of the fields do not change it."""
        content = json.dumps([self.custom_id, self.url, self.body], sort_keys=True)
        return blake2b(content.encode(), digest_size=DIGEST_BYTES).hexdigest()

    @property
    def prefix_sort_key(self) -> str:
        """A sort key that puts requests whose prompts have a common prefix next to each other."""
        prompt = [self.body.get(name) for name in ("tools", "instructions", "messages", "prompt", "input")]
        return json.dumps([self.url, *prompt]) if self.error is None else ""


def parse_requests(content: bytes, name: str, format: Format, *, raw: bool = False) -> list[Request]:
    """Return a request for each nonempty line, in order. With `raw`, short prompts are continued, not answered.

    Raises LocalInferError if there are no requests, or if two have the same custom_id.
    """
    requests = [parse_request(number, line, format, raw=raw) for number, line in nonempty_lines(content)]
    if not requests:
        raise LocalInferError(f"{name}: contains no requests")
    first: dict[str, int] = {}
    for each in requests:
        if (number := first.setdefault(each.custom_id, each.number)) != each.number:
            id = printable(each.custom_id, MAX_SHOWN_ID_CHARS)
            raise LocalInferError(f"{name}: lines {number} and {each.number} have the same custom_id, {id}")
    return requests


def detect_format(content: bytes, name: str) -> Format:
    """Detect the format from the file name's suffix, or else from the first line: "jsonl" for an object or string."""
    for ending, format in FORMAT_BY_SUFFIX.items():
        if name.lower().endswith(ending):
            return format
    first = next((line for _, line in nonempty_lines(content)), b"")
    try:
        return "jsonl" if isinstance(json.loads(first), dict | str) else "text"
    except (ValueError, RecursionError):
        return "text"


def nonempty_lines(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (number, line) for each line that contains more than white space."""
    lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")  # the byte order mark of UTF-8
    return ((number, line) for number, each in enumerate(lines, 1) if (line := each.removesuffix(b"\r")).strip())


def parse_request(number: int, line: bytes, format: Format, *, raw: bool) -> Request:
    """Parse one line. An invalid line becomes a request with an `error`."""
    custom_id = f"line-{number}"
    value: Any = None
    try:
        value = line.decode() if format == "text" else parse_json(line)
        fields = {"prompt": value} if isinstance(value, str) else value
        if not isinstance(fields, dict):
            raise APIError(400, "a line must be a JSON object or a JSON string")
        custom_id = get(fields, "custom_id", str, custom_id)
        url, body = (
            parse_openai_line(fields) if "url" in fields or "body" in fields else parse_short_line(fields, raw=raw)
        )
        return Request(number, custom_id, url, body)
    except UnicodeDecodeError as error:
        return Request(number, custom_id, "", {"line": repr(line)}, APIError(400, f"not UTF-8 at byte {error.start}"))
    except APIError as error:
        return Request(number, custom_id, "", {"line": repr(line)}, error)


def parse_openai_line(fields: Fields) -> tuple[str, Fields]:
    """Return the URL and body of a line in OpenAI's batch format."""
    if get(fields, "method", str, "POST").upper() != "POST":
        raise field_error("method", "must be POST")
    url, body = get(fields, "url", str, ""), get(fields, "body", dict, {})
    if url not in URLS:
        raise APIError(404, f"url: must be {', '.join(URLS[:-1])} or {URLS[-1]}", "url", "invalid_url")
    return url, body


def parse_short_line(fields: Fields, *, raw: bool) -> tuple[str, Fields]:
    """Return the URL and body of a line with `messages` or a `prompt`.

    A prompt is a user message; with `raw`, it is a text to continue.
    """
    raw = get(fields, "raw", bool, raw)
    body = {SHORT_NAMES.get(name, name): value for name, value in fields.items() if name not in ("custom_id", "raw")}
    if "messages" in body:
        return CHAT_URL, body
    if "prompt" not in body:
        raise APIError(400, "needs url and body, messages, or a prompt")
    if raw:
        return COMPLETIONS_URL, body
    prompt, system = body.pop("prompt"), body.pop("system", None)
    if not isinstance(prompt, str):
        raise field_error("prompt", "must be a string")
    system_messages = [{"role": "system", "content": system}] if system is not None else []
    return CHAT_URL, body | {"messages": [*system_messages, {"role": "user", "content": prompt}]}
