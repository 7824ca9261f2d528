"""What is sent, in JSON. What is no text in UTF-8 becomes question marks."""

import json
from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

Event = Mapping[str, Any]
Written = Event | bytes  # in JSON already
ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def dumped(value: object) -> bytes:
    return value if isinstance(value, bytes) else ENCODE(value).encode("utf-8", "replace")


class Pattern:
    """Events that differ in one text. What they have in common is written once."""

    def __init__(self, event: Callable[[str], Event]) -> None:
        gap = uuid4().hex
        self._before, self._after = dumped(event(gap)).split(dumped(gap))

    def filled(self, text: str) -> bytes:
        return self._before + dumped(text) + self._after
