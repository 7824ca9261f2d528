"""JSON encoding of responses. Characters that UTF-8 cannot encode, such as lone surrogates, become question marks."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from uuid import uuid4

Event = Mapping[str, Any]
EncodedEvent = Event | bytes  # bytes: already encoded as JSON
ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def dump_json(value: object) -> bytes:
    """Encode a value as JSON in UTF-8. Bytes are returned unchanged."""
    return value if isinstance(value, bytes) else ENCODE(value).encode("utf-8", "replace")


def dump_list(items: Iterable[object]) -> bytes:
    """Encode a list as JSON, one element at a time.

    The encoder keeps other threads, and so the event loop, from running until it is done. Between two elements, they
    run.
    """
    return b"[%b]" % b",".join(map(dump_json, items))


class EventTemplate:
    """A JSON template for events that differ in one string. The common text is encoded once."""

    def __init__(self, event: Callable[[str], Event]) -> None:
        placeholder = uuid4().hex
        self._before, self._after = dump_json(event(placeholder)).split(dump_json(placeholder))

    def render(self, text: str) -> bytes:
        """Return the encoded event with this text."""
        return self._before + dump_json(text) + self._after
