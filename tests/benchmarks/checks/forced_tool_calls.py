"""Checks forced tool calls: how many of them name a tool of the request and match its JSON schema.

    python tests/benchmarks/checks/forced_tool_calls.py smollm2 --calls 1000 --parallel 8

There are 40 random schemas. Each request offers three tools; every other one lets the model choose (`required`), the
others name the tool. All are sampled at a temperature of 1.5, and `jsonschema` validates the arguments. Valid calls
that were closed at the limit of tokens are counted separately, because a model may never end a text. Prints a Markdown
table; the exit code is 1 if a call is invalid or cut off.
"""

import argparse
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[2]), str(HERE), str(HERE.parents[1] / "oracles")]

from concurrent_runs import run_all  # noqa: E402
from random_schemas import WORDS, random_schema  # noqa: E402

import localinfer  # noqa: E402
from localinfer import IncompleteOutputError, Model  # noqa: E402

N_SCHEMAS = 40
TEMPERATURE = 1.5
N_PREDICT, N_CTX = 2000, 4096
VALID = ("finished", "closed at the limit")


def tool(number: int) -> dict[str, Any]:
    """Return a tool with a random schema."""
    function = {
        "name": f"{WORDS[number % len(WORDS)]}_{number}",
        "description": f"Store what is known, number {number}",
        "parameters": random_schema(np.random.default_rng(number)),
    }
    return {"type": "function", "function": function}


def outcome(model: Model, tools: list[dict[str, Any]], choice: str, seed: int) -> tuple[str, object]:
    """Return what became of a request, and the problem or the calls."""
    messages = [{"role": "user", "content": "Call one of the tools with example values. Be brief."}]
    options: dict[str, Any] = {"temp": TEMPERATURE, "seed": seed, "n_predict": N_PREDICT, "parallel_tool_calls": False}
    try:
        result = model.chat(messages, tools=tools, tool_choice=choice, **options)
    except IncompleteOutputError:
        return "cut off", ""
    schemas = {each["function"]["name"]: each["function"]["parameters"] for each in tools}
    if len(result.tool_calls) != 1:
        return "invalid", f"{len(result.tool_calls)} calls: {result.text!r}"
    [call] = result.tool_calls
    if call.name not in schemas or choice not in ("required", call.name):
        return "invalid", f"a call of {call.name}, not of {choice}"
    problem = jsonschema.exceptions.best_match(
        jsonschema.Draft202012Validator(schemas[call.name]).iter_errors(call.arguments))  # fmt: skip
    if problem:
        return "invalid", f"{call}: {problem.message}"
    return "closed at the limit" if result.stats.closed_at_limit else "finished", call


def numbered_outcome(n_calls: int, model: Model, number: int) -> tuple[str, str, object]:
    """Run request `number` of `n_calls`; return its tool choice, what became of it, and the problem or the calls."""
    # Requests with the same tools follow each other, so that their prompt is evaluated once.
    first = number * N_SCHEMAS // n_calls
    tools = [tool((first + each) % N_SCHEMAS) for each in range(3)]
    choice = "required" if number % 2 else tools[0]["function"]["name"]
    return ("required" if number % 2 else "named", *outcome(model, tools, choice, number))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--parallel", type=int, default=8, help="requests that are evaluated together")
    parser.add_argument("-t", "--threads", type=int, default=2)
    arguments = parser.parse_args()
    counts: Counter[tuple[str, str]] = Counter()
    options = {"threads": arguments.threads, "ctx_size": N_CTX, "parallel": arguments.parallel}
    with localinfer.load(arguments.model, **options) as model:
        results = run_all(model, partial(numbered_outcome, arguments.calls), range(arguments.calls))
        for number, (choice, kind, detail) in enumerate(results):
            counts[choice, kind] += 1
            if kind not in VALID:
                print(f"{number}: {kind}: {detail}", flush=True)
            if number % 10 == 9:
                print(f"\r{number + 1}: {dict(counts)}", end="", file=sys.stderr, flush=True)
    print("\n| tool_choice | calls | valid | of these closed at the limit | invalid | cut off |")
    print("|---|---:|---:|---:|---:|---:|")
    for choice in ("required", "named"):
        finished, closed, invalid, cut_off = (counts[choice, kind] for kind in (*VALID, "invalid", "cut off"))
        total, valid = finished + closed + invalid + cut_off, finished + closed
        print(f"| {choice} | {total} | {valid} | {closed} | {invalid} | {cut_off} |")
    sys.exit(any(kind not in VALID for _, kind in counts))


if __name__ == "__main__":
    main()
