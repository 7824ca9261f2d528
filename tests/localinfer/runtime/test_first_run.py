"""The first run of a model: it answers while kernels for large batches are still being compiled."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from engine_helpers import engine
from locations import CHECKOUT
from tiny import tiny_llama

from localinfer.gguf.reader import open_gguf
from localinfer.graph.ops.compute_graph import MAX_SMALL_BATCH
from localinfer.options import Options
from localinfer.runtime.compiled_graph import CompiledGraph
from localinfer.runtime.requirements import required_kernels
from localinfer.runtime.scheduling.request import Request
from localinfer.runtime.scheduling.request_batch import select_batch
from localinfer.runtime.scheduling.scheduled_engine import ScheduledEngine
from localinfer.runtime.scheduling.scheduler import Scheduler
from localinfer.runtime.thread_pool import OnOp
from quant.jit.kernel_cache import KernelCache

IDS = list(range(3, 43))
# Kernels for large batches are held back until the program has seen the state before them: a busy machine may compile
# them sooner than it reaches the next line.
PROGRAM = """
import sys, threading
import numpy as np, localinfer
from quant.jit.background import BackgroundCompilation
may_load, load_compiled = threading.Event(), BackgroundCompilation._run
BackgroundCompilation._run = lambda self: (may_load.wait(), load_compiled(self))
ids = list(range(3, 43))
with localinfer.load(sys.argv[1], threads=1, ctx_size=64, tune=False) as model:
    graph = model.engine.compiled_graph
    assert graph.max_batch == 4
    first = model.logits(ids)
    assert graph.max_batch == 4, "the kernels were compiled before a short prompt was evaluated"
    may_load.set()
    graph.wait_for_kernels()
    assert graph.max_batch == 64
    assert np.array_equal(model.logits(ids), first)
with localinfer.load(sys.argv[1], threads=1, ctx_size=64, tune=False) as model:
    assert model.engine.compiled_graph.max_batch == 64
with localinfer.load(sys.argv[1], threads=1, ctx_size=64, tune=False, cache_type_k="f32"):
    pass
print("ok")
"""


def test_a_model_answers_before_all_kernels_are_compiled(tmp_path: Path) -> None:
    path, cache = tiny_llama(tmp_path / "model.gguf"), tmp_path / "cache"
    environment = os.environ | {"LOCALINFER_CACHE_DIR": str(cache), "PYTHONPATH": str(CHECKOUT)}
    command = [sys.executable, "-c", PROGRAM, str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout == "ok\n", done.stderr
    files = KernelCache(cache / "jit")
    for options in (Options(ctx_size=64), Options(ctx_size=64, cache_type_k="f32")):
        kernels = required_kernels(open_gguf(path), options)
        assert all(files.read(kernel.symbol) for kernel in kernels), "leaving the with block waits for all kernels"


def test_prompts_are_split_while_kernels_are_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with engine(tiny_llama(tmp_path / "model.gguf"), parallel=3) as opened:
        prompts = [IDS, IDS[::-1], IDS[5:]]
        expected = []
        for ids in prompts:
            expected.append(opened.evaluate(ids).copy())
            opened.reset()
        monkeypatch.setattr(CompiledGraph, "max_batch", property(lambda _: MAX_SMALL_BATCH))
        batches: list[int] = []
        run = opened.compiled_graph.run

        def recorded(first: int, end: int, tokens: int, on_op: OnOp | None = None) -> None:
            batches.append(tokens)
            run(first, end, tokens, on_op)

        monkeypatch.setattr(opened.compiled_graph, "run", recorded)
        np.testing.assert_array_equal(opened.evaluate(IDS), expected[0])
        scheduler = Scheduler(opened.runner)
        with ThreadPoolExecutor(3) as threads:
            engines = [ScheduledEngine(scheduler) for _ in prompts]
            logits = list(threads.map(lambda each, ids: each.evaluate(ids).copy(), engines, prompts))
        np.testing.assert_array_equal(logits, expected)
        assert max(batches) == MAX_SMALL_BATCH


def test_decode_steps_are_not_split(tmp_path: Path) -> None:
    """A step with many draft tokens waits for kernels, but is not left in the queue."""
    with engine(tiny_llama(tmp_path / "model.gguf")) as opened:
        step = Request(opened, np.arange(9, dtype=np.int32), np.arange(9), decode_loop=object())  # type: ignore[arg-type]
        [chosen] = select_batch([step], opened.graph, MAX_SMALL_BATCH)
        assert len(chosen.ids) == 9
