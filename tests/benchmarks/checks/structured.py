"""Checks structured output: how many JSON documents are valid, and the cost of the constraint.

    python tests/benchmarks/checks/structured.py smollm2 path/to/model.gguf --schemas 200
    python tests/benchmarks/checks/structured.py path/to/model.gguf --schemas 0 --cost 9

For each number, a random schema is generated, the model writes a document, and `jsonschema` validates it. Documents
that reach the token limit are counted separately, because a model may never end a list. The cost is measured by forcing
the tokens of one document: runs with and without the schema are interleaved, and the ratio is the median over adjacent
runs. Prints a Markdown table.
"""

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import numpy as np

sys.path[:0] = [str(Path(__file__).parents[3]), str(Path(__file__).parents[2] / "oracles")]

from random_schemas import random_schema  # noqa: E402

import localinfer  # noqa: E402
from localinfer import IncompleteOutputError, Model, UnsupportedError  # noqa: E402

PROMPT = "A book as JSON: "
N_PREDICT = 400
DOCUMENT = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 60},
        "year": {"type": "integer", "minimum": 1900, "maximum": 2100},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}, "minItems": 4, "maxItems": 8},
        "author": {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 30}, "alive": {"type": "boolean"}},
            "required": ["name", "alive"],
            "additionalProperties": False,
        },
    },
    "required": ["title", "year", "tags", "author"],
    "additionalProperties": False,
}


def generate_document(model: Model, schema: dict[str, Any], **options: Any) -> str:
    """Generate a document, with the chat template if the model has one."""
    request = f"Write a JSON document that fits this JSON schema:\n{json.dumps(schema)}\n"
    try:
        run = model.stream_chat([{"role": "user", "content": request}], schema=schema, **options)
    except UnsupportedError:
        run = model.stream(request, schema=schema, **options)
    return "".join(piece.text for piece in run)


def count_outcomes(model: Model, numbers: Sequence[int]) -> Counter[str]:
    """Count valid, truncated and invalid documents."""
    actual: Counter[str] = Counter()
    for number in numbers:
        print(f"\r{dict(actual)}", end="", file=sys.stderr, flush=True)  # it takes a while
        schema = random_schema(np.random.default_rng(number))
        try:
            text = generate_document(model, schema, seed=number, n_predict=N_PREDICT, temp=0.8)
            jsonschema.validate(json.loads(text), schema)
            actual["valid"] += 1
        except IncompleteOutputError:
            actual["cut off"] += 1
        except (ValueError, jsonschema.ValidationError) as error:
            actual["wrong"] += 1
            print(f"\n{number}: {error}: {text!r} of {json.dumps(schema)}", file=sys.stderr)
    return actual


class Cost(NamedTuple):
    """Return the seconds per token without the schema, and the ratios of wall-clock and CPU time with it."""

    seconds: float
    longer: float
    more: float


def cost(model: Model, runs: int) -> Cost:
    ids = [piece.id for piece in model.stream(PROMPT, schema=DOCUMENT, temp=0.7, seed=1, n_predict=N_PREDICT)]
    prompt = model.tokenize(PROMPT)

    def spent(**options: Any) -> tuple[float, float]:
        """Return the wall-clock and CPU time of all tokens but the first, whose time includes the prefill."""
        pieces = model.stream(prompt, n_predict=len(ids), sampler=lambda _, all: ids[len(all) - len(prompt)], **options)
        next(pieces)
        wall, cpu = time.perf_counter(), time.process_time()
        assert len(list(pieces)) == len(ids) - 1
        return time.perf_counter() - wall, time.process_time() - cpu

    spent(schema=DOCUMENT)
    pairs = [(spent(schema=DOCUMENT), spent()) for _ in range(runs)]
    longer, more = (statistics.median(held[n] / free[n] for held, free in pairs) for n in (0, 1))
    return Cost(statistics.median(free[0] for _, free in pairs) / (len(ids) - 1), longer, more)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--schemas", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="number of the first schema")
    parser.add_argument("--cost", type=int, default=5, help="pairs of runs")
    parser.add_argument("-t", "--threads", type=int, default=2)
    pieces = parser.parse_args()
    print(
        "| model | vocabulary | valid, of complete ones | truncated | ms per token | time with a schema | CPU time |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name in pieces.models:
        with localinfer.load(name, threads=pieces.threads, ctx_size=2048) as model:
            actual = count_outcomes(model, range(pieces.first, pieces.first + pieces.schemas))
            print(file=sys.stderr)
            costs = cost(model, pieces.cost) if pieces.cost else Cost(0, 0, 0)
            valid = f"{actual['valid']} of {actual['valid'] + actual['wrong']}"
            times = f"{1000 * costs.seconds:.1f} | {costs.longer:.3f} | {costs.more:.3f}"
            print(f"| {name} | {model.n_vocab} | {valid} | {actual['cut off']} | {times} |", flush=True)


if __name__ == "__main__":
    main()
