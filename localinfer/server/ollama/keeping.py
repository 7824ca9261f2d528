"""`keep_alive`: how long a model stays in memory behind an answer, as Ollama's clients say it."""

import math
import re

from localinfer.server.fields import Fields
from localinfer.server.problems import bad
from localinfer.text import printable

SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(h|ms|m|s|us|µs|ns)")
LONGEST = 64  # characters of a text
DURATION = re.compile(rf"([+-]?)((?:{PART.pattern})+|0)")


def kept_for(fields: Fields) -> float | None:
    """Seconds: a number of them, or a text in Go's way, 1h30m; endless where it is negative; None: nothing is said."""
    given = fields.get("keep_alive")
    if given is None:
        return None
    seconds = seconds_of(given)
    if seconds is None:
        what = f"must be seconds, or a text such as 10m or 1h30m, not {printable(repr(given), 40)}"
        raise bad("keep_alive", what)
    return seconds if seconds >= 0 else math.inf


def seconds_of(given: object) -> float | None:
    if isinstance(given, int | float) and not isinstance(given, bool):
        return float(max(-1, min(given, 10**12)))
    found = DURATION.fullmatch(given) if isinstance(given, str) and len(given) <= LONGEST else None
    if found is None:
        return None
    size = sum(float(number) * SECONDS[unit] for number, unit in PART.findall(found[2]))
    return -size if found[1] == "-" else size
