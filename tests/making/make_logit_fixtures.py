"""Write tests/data/logits_*.json: llama.cpp's logits at some positions of data/varied.txt.

    python tests/making/make_logit_fixtures.py logits_smollm2 path/to/smollm2.gguf
    python tests/making/make_logit_fixtures.py logits_gemma3 path/to/gemma3-270m.gguf

Needs the dependency groups `test` and `bench`. Each position has the 20 most probable tokens as [id, logit] and the
logsumexp of all logits, so that probabilities can be compared too. llama.cpp rounds activations to 8 bits, and its
order of summation depends on the batch size: batches of 512 and of 1 are both recorded, and their difference is the
tolerance of a comparison. `exact` is the result of naive.py in float64.
"""

import argparse
import hashlib
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.append(str(Path(__file__).parents[1]))
from locations import DATA, PYTHONPATH

sys.path[:0] = PYTHONPATH

from llama_cpp_engine import Llama  # noqa: E402

from localinfer import naive  # noqa: E402
from localinfer.gguf.reader import open_gguf  # noqa: E402

N_TOKENS = 768  # beyond gemma3's window of 512
POSITIONS = (0, 1, 2, 7, 31, 100, 255, 400, 511, 512, 640, 767)
BATCHES = (512, 1)
TOP = 20


def main() -> None:
    """Compute and write one file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("model", type=Path)
    arguments = parser.parse_args()
    target = DATA / f"{arguments.name}.json"
    target.write_text(compact(fixture(arguments.model)))
    print(target)


def fixture(path: Path) -> dict[str, object]:
    """Return the content of the file."""
    with Llama(path, threads=2, n_ctx=N_TOKENS) as llama:
        tokens = llama.tokenize((DATA / "varied.txt").read_text(encoding="utf-8"))[:N_TOKENS]
        actual: dict[str, object] = {}
        for batch in BATCHES:
            llama.rewind(0)
            chunks = [llama.logits(tokens[i : i + batch]).copy() for i in range(0, len(tokens), batch)]
            actual[f"batch {batch}"] = recorded(np.concatenate(chunks)[list(POSITIONS)])
    model = naive.Model(open_gguf(path))
    last = naive.final_hidden_states(model, tokens)[list(POSITIONS)]
    actual["exact"] = recorded(np.concatenate([*naive.output(model, last)], axis=1))
    return {
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "made by": f"llama-cpp-python {version('llama-cpp-python')}, {Path(__file__).name}",
        "tokens": tokens,
        **actual,
    }


def recorded(logits: NDArray[Any]) -> dict[str, object]:
    """Return the most probable tokens by position; `logits` has a row for each of POSITIONS."""
    return {str(position): best(row) for position, row in zip(POSITIONS, logits, strict=True)}


def best(logits: NDArray[Any]) -> dict[str, object]:
    """Return the most probable tokens of one position, best first."""
    ids = np.argsort(-logits, kind="stable")[:TOP]
    peak = float(logits.max())
    total = peak + float(np.log(np.exp(logits.astype(np.float64) - peak).sum()))
    return {"logsumexp": round(total, 4), "top": [[int(i), round(float(logits[i]), 4)] for i in ids]}


def compact(value: dict[str, object]) -> str:
    """Return JSON with one line per key and per position."""

    def line(item: object) -> str:
        return json.dumps(item, separators=(",", ":"))

    def block(item: object) -> str:
        if not isinstance(item, dict):
            return line(item)
        return "{\n" + ",\n".join(f'  "{key}":{line(each)}' for key, each in item.items()) + "}"

    return "{\n" + ",\n".join(f'"{key}":{block(each)}' for key, each in value.items()) + "}\n"


if __name__ == "__main__":
    main()
