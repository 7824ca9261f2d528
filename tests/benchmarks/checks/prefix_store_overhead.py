"""Measures what the prefix store costs when nothing is restored: prefill and decode with it and without it, in turns.

    python tests/benchmarks/checks/prefix_store_overhead.py smollm2 qwen2.5-coder-1.5b --rounds 7

Each round evaluates a new prompt of 2,048 tokens and decodes 128 more, with and without the store, which lies in a
temporary directory. The files of a prompt are written while its text is generated. Prints the median ratio of the
times, with its smallest and largest value.

A ratio shows less than the machine varies by. Therefore the processor time of the store itself is measured, too: what
evaluation waits for (looking for stored prefixes, copying pages), and what the writing thread takes, as a share of the
time of prefill or decode on all threads. Nothing else should run on the machine.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, thread_time
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[2]))
from locations import PYTHONPATH

sys.path[:0] = PYTHONPATH

import localinfer  # noqa: E402
from localinfer import paths  # noqa: E402
from localinfer.machine.resources import default_threads  # noqa: E402
from localinfer.model.loaded_model import LoadedModel  # noqa: E402
from localinfer.prefix_store.store import PrefixStore  # noqa: E402
from localinfer.prefix_store.writer import Writer  # noqa: E402

PROMPT_TOKENS, TEXT_TOKENS = 2048, 128


class StoreTime:
    """The processor time of the store: seconds that evaluation waited for it, and seconds of its writing thread."""

    def __init__(self) -> None:
        self.waited = self.written = 0.0
        for name in ("restore", "save"):
            setattr(PrefixStore, name, self._timed(getattr(PrefixStore, name), "waited"))
        setattr(Writer, "_write", self._timed(Writer._write, "written"))  # noqa: B010 (mypy rejects an assignment)

    def _timed(self, function: Callable[..., Any], attribute: str) -> Callable[..., Any]:
        def timed(*arguments: Any, **keywords: Any) -> Any:
            start = thread_time()
            try:
                return function(*arguments, **keywords)
            finally:
                setattr(self, attribute, getattr(self, attribute) + thread_time() - start)

        return timed

    def take(self) -> np.ndarray[Any, Any]:
        """Return both times since the last call."""
        taken = np.array([self.waited, self.written])
        self.waited = self.written = 0.0
        return taken


def seconds(model: localinfer.Model, prompt: Sequence[int]) -> tuple[float, float]:
    """Return the time until the first token, and that of the other tokens."""
    start = perf_counter()
    pieces = model.stream(prompt, n_predict=TEXT_TOKENS, ignore_eos=True, temp=0)
    next(pieces)
    first = perf_counter()
    list(pieces)
    return first - start, perf_counter() - first


def measure(name: str, rounds: int, store_time: StoreTime) -> None:
    """Measure a model, and print the results."""
    random, ratios, shares = np.random.default_rng(0), [], []
    with (
        localinfer.load(name, ctx_size=4096, prefix_store=True) as stored,
        localinfer.load(name, ctx_size=4096, prefix_store=False) as plain,
    ):
        for number in range(rounds + 1):
            prompt = random.integers(0, min(stored.n_vocab, 30_000), PROMPT_TOKENS).tolist()
            models = (stored, plain) if number % 2 else (plain, stored)
            times = {model: np.array(seconds(model, prompt)) for model in models}
            assert isinstance(stored, LoadedModel)
            assert stored.prefix_store is not None
            stored.prefix_store.close()  # everything is written
            waited, written = store_time.take()
            prefill, decode = times[plain]
            ratios.append(times[stored] / times[plain])
            shares.append((waited / prefill, written / (default_threads() * decode)))
    for what, values in zip(("prefill", "decode"), zip(*ratios[1:], strict=True), strict=True):
        print(f"{name:24}{what:8} {np.median(values):.3f}  ({min(values):.3f} to {max(values):.3f})", flush=True)
    waited, written = np.median(shares[1:], axis=0)
    print(f"{name:24}evaluation waits for {waited:.2%} of prefill, writing takes {written:.2%} of decode", flush=True)


def main() -> None:
    """Measure models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="+", help="files, or names of models")
    parser.add_argument("--rounds", type=int, default=7, help="pairs of runs")
    arguments = parser.parse_args()
    store_time = StoreTime()
    with TemporaryDirectory() as folder:
        for name, directory in ("jit", paths.jit_dir()), ("models", paths.models_dir()):
            (Path(folder) / name).symlink_to(directory)
        os.environ["LOCALINFER_CACHE_DIR"] = folder
        for name in arguments.models:
            measure(name, arguments.rounds, store_time)


if __name__ == "__main__":
    main()
