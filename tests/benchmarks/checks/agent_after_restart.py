"""Measures what a restarted server reads again of an agent's conversation, and the time to its first token.

    python tests/benchmarks/checks/agent_after_restart.py qwen2.5-coder-1.5b gemma3-270m lfm2 qwen35 mamba2

A conversation of 40 turns grows to 8,000 tokens. The server is stopped before the last turn and started again: with the
prefix store, and then without it, whose answer and probabilities must be the same bits. The names of the tests'
reference models (`lfm2`, `qwen35`, `mamba2`, ...) stand for tiny models with random weights. The store lies in a
temporary directory. Needs the dependency group `test`.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).parents[2]))
from locations import CHECKOUT, PYTHONPATH

sys.path[:0] = PYTHONPATH

import checkpoints  # noqa: E402
import reference_models  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402
from server_process import ServerProcess, parse_events  # noqa: E402

from localinfer import paths  # noqa: E402
from localinfer.hub import pull  # noqa: E402

ANSWER_TOKENS, NEW_TOKENS = 16, 48  # of each turn
OPTIONS = {"n_predict": ANSWER_TOKENS, "temperature": 0, "ignore_eos": True, "return_tokens": True, "n_probs": 5}


class Answer(NamedTuple):
    """`read` are the tokens of the prompt that were evaluated."""

    ids: list[int]
    probabilities: list[Any]
    read: int
    first_token_seconds: float


def ask(server: ServerProcess, prompt: list[int]) -> Answer:
    """Stream an answer."""
    ids: list[int] = []
    probabilities, start, first = [], perf_counter(), 0.0
    with server.open("/completion", OPTIONS | {"prompt": prompt, "stream": True}) as response:
        assert response.status == 200, response.read()
        for event in parse_events(response):
            first = first or perf_counter() - start
            ids += event["tokens"]
            probabilities += event.get("completion_probabilities", [])
    return Answer(ids, probabilities, event["timings"]["prompt_n"], first)


def model_file(name: str, folder: Path) -> Path:
    """Return the file of a model, or of a tiny one that is made in `folder`."""
    if name not in reference_models.NAMES:
        return Path(name) if name.endswith(".gguf") else pull.pull(name)
    return checkpoints.as_type(reference_models.checkpoint(name, folder), folder / f"{name}.gguf", "Q8_0")


def measure(name: str, n_turns: int, n_tokens: int, folder: Path) -> list[str]:
    """Return a row of the table: the results of one model."""
    arguments = [model_file(name, folder), "--ctx-size", n_tokens + 512, "--parallel", 1]
    text = "\n".join(path.read_text() for path in sorted((CHECKOUT / "docs").glob("*.md")))
    with ServerProcess(*arguments) as server:
        text_ids = server.post("/tokenize", {"content": text}).body["tokens"][:n_tokens]
        prompt, used = text_ids[: n_tokens - (n_turns - 1) * (ANSWER_TOKENS + NEW_TOKENS)], 0
        used = len(prompt)
        for turn in range(1, n_turns):
            answer = ask(server, prompt)
            note(f"{name}: turn {turn}, {len(prompt)} tokens, {answer.read} read in {answer.first_token_seconds:.1f} s")
            before = len(prompt) + len(answer.ids)
            prompt = [*prompt, *answer.ids, *text_ids[used : used + NEW_TOKENS]]
            used += NEW_TOKENS
    with ServerProcess(*arguments) as server:
        restored = ask(server, prompt)
        again = ask(server, [*prompt, *restored.ids])
    with ServerProcess(*arguments, "--no-prefix-store") as server:
        fresh = ask(server, prompt)
    read_again = restored.read - (len(prompt) - before)
    is_equal = json.dumps(restored[:2]) == json.dumps(fresh[:2])
    seconds = [f"{answer.first_token_seconds:.2f} s" for answer in (restored, again, fresh)]
    return [name, str(len(prompt)), str(read_again), *seconds, "equal" if is_equal else "DIFFERENT"]


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Measure models, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="+", help="files, names of models, or names of reference models")
    parser.add_argument("--turns", type=int, default=40, help="the number of turns")
    parser.add_argument("--tokens", type=int, default=8000, help="the length of the last prompt")
    arguments = parser.parse_args()
    table = Table("model", "prompt", "read again", "first token", "next turn", "without the store", "answer")
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        files = {name: model_file(name, folder) for name in arguments.models}
        (folder / "jit").symlink_to(paths.private_directory(paths.jit_dir()))
        os.environ["LOCALINFER_CACHE_DIR"] = temporary
        for name, path in files.items():
            table.add_row(name, *measure(str(path), arguments.turns, arguments.tokens, folder)[1:])
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
