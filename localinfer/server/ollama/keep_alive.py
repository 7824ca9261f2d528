"""Ollama's `keep_alive` field: how long an idle model stays loaded after a response."""

import math
import re

from localinfer.escaping import printable
from localinfer.server.http.api_errors import field_error
from localinfer.server.requests.request_fields import Fields

SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
DURATION_COMPONENT = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(h|ms|m|s|us|µs|ns)")
MAX_DURATION_CHARS = 64
DURATION = re.compile(rf"([+-]?)((?:{DURATION_COMPONENT.pattern})+|0)")


def parse_keep_alive(fields: Fields) -> float | None:
    """Return the seconds that the model stays loaded: infinity for a negative value, None if the field is absent.

    The field is a number of seconds or a Go duration such as 1h30m. Raises APIError (400) for anything else.
    """
    value = fields.get("keep_alive")
    if value is None:
        return None
    seconds = parse_duration(value)
    if seconds is None:
        problem = f"must be a number of seconds or a duration such as 10m or 1h30m, not {printable(repr(value), 40)}"
        raise field_error("keep_alive", problem)
    return seconds if seconds >= 0 else math.inf


def parse_duration(value: object) -> float | None:
    """Return a number or a Go duration in seconds; None if it is invalid."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(max(-1, min(value, 10**12)))
    match = DURATION.fullmatch(value) if isinstance(value, str) and len(value) <= MAX_DURATION_CHARS else None
    if match is None:
        return None
    seconds = sum(float(number) * SECONDS[unit] for number, unit in DURATION_COMPONENT.findall(match[2]))
    return -seconds if match[1] == "-" else seconds
