"""Random JSON schemas, of which structured output supports all keywords."""

from typing import Any

import numpy as np

WORDS = ["name", "title", "city", "count", "price", "status", "tags", "notes", "author", "size", "color", "started"]


def random_schema(random: np.random.Generator, depth: int = 2) -> dict[str, Any]:
    """Return a random schema of an object with one to five properties."""
    names = random.choice(WORDS, int(random.integers(1, 6)), replace=False).tolist()
    required = [name for name in names if random.random() < 0.7]
    properties = {name: random_property(random, depth) for name in names}
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def random_property(random: np.random.Generator, depth: int) -> dict[str, Any]:
    def some(low: int, high: int) -> int:
        return int(random.integers(low, high))

    flat: list[dict[str, Any]] = [
        {"type": "string", "maxLength": some(3, 40)},
        {"type": "string", "minLength": 2, "maxLength": some(5, 20)},
        {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{1,4}$"},
        {"type": "string", "format": str(random.choice(["date", "uuid", "time"]))},
        {"enum": random.choice(WORDS, some(1, 5), replace=False).tolist()},
        {"const": some(0, 100)},
        {"type": "integer", "minimum": some(-50, 0), "maximum": some(0, 1000)},
        {"type": "number", "minimum": 0, "maximum": some(1, 100)},
        {"type": "boolean"},
        {"type": ["string", "null"], "maxLength": some(2, 20)},
        {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 9}, {"type": "null"}]},
    ]
    if depth and random.random() < 0.35:
        low = some(0, 3)
        items = random_property(random, depth - 1)
        if random.random() < 0.5:
            return random_schema(random, depth - 1)
        return {"type": "array", "items": items, "minItems": low, "maxItems": low + some(0, 4)}
    return flat[some(0, len(flat))]
