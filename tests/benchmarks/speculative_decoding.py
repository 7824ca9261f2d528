"""Measures speculative decoding: rewriting a file with a few changed words, and writing free text.

    python tests/benchmarks/speculative_decoding.py path/to/qwen2.5-coder.gguf smollm2
    python tests/benchmarks/speculative_decoding.py path/to/model.gguf --runs 1 --tokens 300 --tasks rewrite

Runs with and without draft tokens are interleaved, with greedy sampling. The ratio is the median over adjacent runs.
Both must generate the same tokens. The predicted speedup is computed from the measured times of evaluations and the
acceptance rate. Targets: rewriting at least 2 times as fast, free text at least 0.98 times; with a draft model, within
10 % of the predicted speedup. Prints a Markdown table.
"""

import argparse
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]

import localinfer  # noqa: E402
from localinfer import Model  # noqa: E402
from localinfer.generation.pieces import Stats  # noqa: E402

SOURCE = (ROOT / "localinfer" / "generation" / "beams.py").read_text(encoding="utf-8")
TASKS = {
    "rewrite": "Rename the class BeamSearch to Beams, and the word hypothesis to candidate, everywhere in this file. "
    f"Answer with the whole file and nothing else.\n\n```python\n{SOURCE}```",
    "free": "Write a short story about a lighthouse keeper who finds a strange machine on the beach.",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--tokens", type=int, default=600)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--draft", default="", help="a draft model, which then is the only source of draft tokens")
    arguments = parser.parse_args()
    print("| model | task | tokens | without | with | ratio | predicted | drafted | accepted |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|")
    for name in arguments.models:
        load_options = {"ctx_size": 4096, "threads": arguments.threads, "temp": 0, "spec_draft_model": arguments.draft}
        with localinfer.load(name, **load_options) as model:
            for task in arguments.tasks.split(","):
                cells = row(model, task, arguments.tokens, arguments.runs)
                print(f"| {Path(name).stem} | {task} | {cells} |", flush=True)


def row(model: Model, task: str, tokens: int, runs: int) -> str:
    without, speculative = [], []
    guesser = "draft-simple" if model.options.spec_draft_model else "ngram"
    prompt = model.render([{"role": "user", "content": TASKS[task]}]).ids
    for _ in range(runs):
        (plain, first), (ids, second) = (generate(model, prompt, tokens, each) for each in ("none", guesser))
        assert ids == plain, "speculative decoding has changed the text"
        without.append(first)
        speculative.append(second)
    slow, fast = (statistics.median(map(rate, each)) for each in (without, speculative))
    ratio = statistics.median(rate(b) / rate(a) for a, b in zip(without, speculative, strict=True))
    last = speculative[-1]
    return (
        f"{last.generated_tokens} | {slow:.1f} t/s | {fast:.1f} t/s | **{ratio:.2f}** | {last.speedup:.2f} | "
        f"{last.drafted_tokens} | {last.accepted_tokens}"
    )


def generate(model: Model, prompt: list[int], tokens: int, spec_type: str) -> tuple[list[int], Stats]:
    result = model.generate(prompt, n_predict=tokens, spec_type=spec_type)
    return result.tokens, result.stats


def rate(stats: Stats) -> float:
    return stats.generated_tokens / stats.generate_seconds


if __name__ == "__main__":
    main()
