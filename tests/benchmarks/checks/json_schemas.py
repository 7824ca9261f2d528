"""Checks structured output with JSON schemas from a folder: how many are accepted, and how many answers are valid.

    python tests/benchmarks/checks/json_schemas.py path/to/schemas --model smollm2 --predict 1000 --parallel 8

The folder holds JSON schemas (*.json), such as a sample of SchemaStore or JSONSchemaBench. For each one that is
accepted, the model writes a document, and `jsonschema` validates it, with the draft that the schema names. Documents
that were closed at the limit of tokens are counted separately, because a model may never end a list; `--closing-bias`
makes tokens that end strings, lists and objects more probable, so that more documents are finished. Documents are cut
off where the limit leaves no room for a valid one. Prints what was refused and why, and a Markdown table.
"""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

import jsonschema
from jsonschema.validators import validator_for
from referencing import Registry

sys.path[:0] = [str(Path(__file__).parents[3]), str(Path(__file__).parent)]

from concurrent_runs import run_all  # noqa: E402

import localinfer  # noqa: E402
from localinfer import ConstraintError, IncompleteOutputError, InvalidOutputError, Model  # noqa: E402

CLOSING = '"]}'


def closing_tokens(model: Model) -> list[int]:
    """Return the tokens of which each character ends a string, a list or an object, or is white space behind it."""
    texts = ((id, model.detokenize([id])) for id in range(model.n_vocab))
    return [id for id, text in texts if text.strip() and text[0] in CLOSING and set(text) <= set(f"{CLOSING} \n")]


def outcome(model: Model, schema: object, n_predict: int, bias: dict[str, float]) -> tuple[str, str]:
    """Return what became of a schema, and the error or the document."""
    messages = [{"role": "user", "content": "Write a JSON document with example values. Be brief."}]
    options = {"json_schema": json.dumps(schema), "n_predict": n_predict, "temp": 0.8, "seed": 1, "logit_bias": bias}
    text = ""
    try:
        stream = model.stream_chat(messages, **options)  # type: ignore[arg-type]
        for piece in stream:
            text += piece.text
    except IncompleteOutputError:
        return "cut off", text
    except InvalidOutputError as error:
        return "invalid, reported", str(error)
    except ConstraintError as error:
        return "refused" if not text else "too complex", str(error)
    draft = validator_for(schema, default=jsonschema.Draft202012Validator)
    problem = jsonschema.exceptions.best_match(draft(schema, registry=Registry()).iter_errors(json.loads(text)))
    if problem:
        return "invalid, not reported", f"{problem.message}: {text}"
    return "closed" if stream.stats.closed_at_limit else "valid", text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--predict", type=int, default=300, help="maximum number of tokens of a document")
    parser.add_argument("--closing-bias", type=float, default=0.0, help="added to logits of tokens that end a value")
    parser.add_argument("--parallel", type=int, default=8, help="documents that are written together")
    parser.add_argument("-t", "--threads", type=int, default=2)
    arguments = parser.parse_args()
    counts: Counter[str] = Counter()
    n_ctx, paths = arguments.predict + 100, sorted(arguments.folder.glob("*.json"))
    options = {"threads": arguments.threads, "ctx_size": n_ctx, "parallel": arguments.parallel}
    with localinfer.load(arguments.model, **options) as model:
        bias = {str(id): arguments.closing_bias for id in closing_tokens(model)} if arguments.closing_bias else {}

        def run(handle: Model, path: Path) -> tuple[str, str]:
            return outcome(handle, json.loads(path.read_text("utf-8-sig")), arguments.predict, bias)

        for path, (kind, detail) in zip(paths, run_all(model, run, paths), strict=True):
            counts[kind] += 1
            if kind not in ("valid", "closed", "cut off"):
                print(f"{path.name}: {kind}: {detail[:300]}", flush=True)
            print(f"\r{dict(counts)}", end="", file=sys.stderr, flush=True)
    total, n_valid = counts.total(), counts["valid"] + counts["closed"]
    n_documents = n_valid + counts["invalid, not reported"]
    print("\n| schemas | accepted | valid | of these closed at the limit "
          "| invalid, exit code 6 | cut off | too complex |")  # fmt: skip
    print("|---:|---:|---:|---:|---:|---:|---:|")
    print(f"| {total} | {total - counts['refused']} | {n_valid} of {n_documents} | {counts['closed']} "
          f"| {counts['invalid, reported']} | {counts['cut off']} | {counts['too complex']} |")  # fmt: skip


if __name__ == "__main__":
    main()
