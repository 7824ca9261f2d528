"""Compares models in files of llama.cpp's converter with transformers: logits, hidden states and scores of rerankers.

    pip download --no-deps --no-binary :all: llama-cpp-python && tar xf llama_cpp_python-*.tar.gz
    python tests/benchmarks/checks/converted_by_llama_cpp.py llama_cpp_python-*/vendor/llama.cpp
    python tests/benchmarks/checks/converted_by_llama_cpp.py llama_cpp_python-*/vendor/llama.cpp bert gemma2

The checkpoints are those of `converted_cases.py`, with random weights. "exact" is the largest difference of the naive
implementation in float64, "engine" that of the engine with `--precision high`; both are relative to the largest
magnitude of what transformers computes in float32, if that exceeds 1.

Files of some architectures do not state the sliding window of their checkpoint, so that nobody can compute what the
model does. They count separately: PUBLISHED says whether there are published models of the kind, and the script
replaces the hyperparameters of the tiny file by theirs to see whether loading it gives a warning. Exits with 1 if a
model differs that is not in KNOWN, or if a warning is missing. Needs torch, transformers and sentencepiece.
"""

import argparse
import contextlib
import io
import json
import subprocess
import sys
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.append(str(Path(__file__).parents[2]))
from locations import PYTHONPATH

sys.path[:0] = PYTHONPATH

from converted_cases import CASES, Case  # noqa: E402

LIMIT = 1e-4
KNOWN = {
    "arcee": "refused: no such architecture",
    "eurobert": "refused: no such architecture",
    "bert-scores": "refused: the file lacks the pooler",
}
# Models whose files do not state the window: hyperparameters of the published models, None if these have no window.
PUBLISHED: dict[str, dict[str, int] | None] = {
    "mistral-window": {
        "block_count": 32, "embedding_length": 4096, "feed_forward_length": 14_336, "attention.head_count": 32,
        "attention.head_count_kv": 8, "context_length": 32_768,
    },
    "starcoder2-window": {"context_length": 16_384},
    **dict.fromkeys(("mixtral-window", "qwen2-window", "qwen3-window", "qwen3moe-window", "smollm3-window")),
}  # fmt: skip
AGREES, DIFFERS = "agree", "others"
WARNED, UNPUBLISHED = "window not stated: warned", "window not stated, and no published model has one"
Floats = NDArray[np.float32]
EXACT = {"threads": 2, "precision": "high", "cache_type_k": "f32", "cache_type_v": "f32"}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("llama_cpp", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--folder", type=Path, help="where checkpoints and files stay")
    parser.add_argument("--oracle", action="store_true", help="the naive implementation only, which compiles nothing")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        names = options.names or list(CASES)
        missing = [name for name in names if not (folder / name / "result.json").exists()]
        if missing:
            maker = Path(__file__).with_name("make_converted.py")
            subprocess.run([sys.executable, maker, options.llama_cpp, folder, *missing], check=True)
        print("| model | family | exact | engine | |\n|---|---|---|---|---|", flush=True)
        outcomes = {name: report(name, CASES[name], folder / name, options.oracle) for name in names}
    for outcome in (AGREES, WARNED, UNPUBLISHED, DIFFERS):
        such = [name for name in names if outcomes[name] == outcome]
        print(f"{outcome}: {len(such)}" + ("" if outcome == AGREES else f" ({', '.join(such)})"))
    sys.exit(any(outcomes[name] == DIFFERS for name in names if name not in KNOWN))


def report(name: str, case: Case, folder: Path, oracle: bool) -> str:
    """Print the row of a case, and return its outcome."""
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    exact = engine = float("nan")
    notes = [result["problem"]] if "problem" in result else []
    if not notes:
        with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("always")
            try:
                exact = difference(exact_output(case, folder), folder)
                engine = exact if oracle else difference(engine_output(case, folder), folder)
            except Exception as error:
                notes.append(f"{type(error).__name__}: {error}".replace(str(folder), name)[:200])
        notes += [str(each.message).replace(str(folder), name) for each in caught if each.category is UserWarning]
    notes += [KNOWN[name]] if name in KNOWN else []
    outcome = AGREES if exact < LIMIT and engine < LIMIT else DIFFERS
    if outcome == DIFFERS and name in PUBLISHED:
        outcome = window_outcome(folder / "model.gguf", PUBLISHED[name])
        notes.append(outcome)
    print(f"| {name} | {case.family} | {exact:.1e} | {engine:.1e} | {'; '.join(notes)} |", flush=True)
    return outcome


def window_outcome(path: Path, published: dict[str, int] | None) -> str:
    """Return whether a file does not state its window, and would be warned of with these hyperparameters."""
    from localinfer.gguf.reader import open_gguf
    from localinfer.graph.properties.hyperparameters import Hyperparameters
    from localinfer.graph.properties.published_windows import missing_window_warnings

    f = open_gguf(path)
    prefix = f.get("general.architecture", str)
    if f"{prefix}.attention.sliding_window" in f.metadata:
        return DIFFERS
    given = published or {}
    f = replace(f, metadata=dict(f.metadata) | {f"{prefix}.{key}": value for key, value in given.items()})
    warned = missing_window_warnings(Hyperparameters(f), given.get("context_length", 1 << 20))
    return DIFFERS if bool(warned) != (published is not None) else WARNED if warned else UNPUBLISHED


def difference(actual: Any, folder: Path) -> float:
    expected = np.load(folder / "expected.npy")
    return float(np.abs(actual - expected).max() / max(1, np.abs(expected).max()))


def exact_output(case: Case, folder: Path) -> Any:
    """Return what the naive implementation computes."""
    from localinfer import naive
    from localinfer.gguf.reader import open_gguf

    if case.kind == "scores":
        return np.load(folder / "expected.npy")  # the naive implementation has no classifier
    model = naive.Model(open_gguf(folder / "model.gguf"))
    ids = np.load(folder / "ids.npy").tolist()
    return naive.forward(model, ids) if case.kind == "logits" else naive.final_hidden_states(model, ids)


def engine_output(case: Case, folder: Path) -> Any:
    """Return what the engine computes."""
    import localinfer
    from localinfer.gguf.reader import open_gguf
    from localinfer.options import Options
    from localinfer.runtime.engine import Engine

    path = folder / "model.gguf"
    if case.kind == "scores":
        pairs = json.loads((folder / "pairs.json").read_text(encoding="utf-8"))
        with localinfer.load(path, **EXACT) as model:
            return [model.rerank(query, [document])[0].score for query, document in pairs]
    ids = np.load(folder / "ids.npy")
    with contextlib.closing(Engine.load(open_gguf(path), Options(ctx_size=256, **EXACT))) as running:
        if case.kind == "logits":
            return running.logits(ids).copy()
        running.runner.evaluate_packed(running.sequence, [ids])
        return running.runner.hidden_states(np.arange(len(ids), dtype=np.int32)).copy()


if __name__ == "__main__":
    main()
