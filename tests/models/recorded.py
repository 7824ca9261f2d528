"""The JSON files of data/ that are compressed."""

import json
import lzma
from typing import Any

from locations import DATA


def read(name: str) -> Any:
    """Return the value of data/NAME.json.xz."""
    return json.loads(lzma.decompress((DATA / f"{name}.json.xz").read_bytes()))


def write(name: str, value: Any) -> None:
    """Write a value to data/NAME.json.xz."""
    text = json.dumps(value, separators=(",", ":")) + "\n"
    (DATA / f"{name}.json.xz").write_bytes(lzma.compress(text.encode(), preset=9))
