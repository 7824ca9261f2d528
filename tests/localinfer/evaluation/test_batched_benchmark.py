"""The benchmark of batched decoding: what it evaluates, its table and its JSON Lines."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny

from localinfer.evaluation.batched_benchmark import BatchedTest, run_test
from localinfer.gguf.reader import open_gguf
from localinfer.options import Options
from localinfer.runtime.engine import Engine

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.tiny_llama(tmp_path_factory.mktemp("batched") / "model.gguf")


@pytest.mark.parametrize("is_shared", [False, True])
def test_batches(model: Path, is_shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each prompt is evaluated once, in full batches, with logits of its last token; then a token of each sequence."""
    engine = Engine.load(open_gguf(model), Options(ctx_size=64, parallel=3, ubatch_size=8, tune=False))
    batches: list[tuple[list[int], list[int]]] = []
    evaluate = engine.runner.evaluate_segments

    def record(segments: Any, rows: Any) -> Any:
        batches.append(([len(each.ids) for each in segments], rows.tolist()))
        return evaluate(segments, rows)

    monkeypatch.setattr(engine.runner, "evaluate_segments", record)
    result = run_test(engine, BatchedTest(5, 2, 3, is_shared))
    engine.close()
    prompts = [([5], [4])] if is_shared else [([5, 3], [4]), ([2, 5], [1, 6])]
    assert batches == [*prompts, *[([1, 1, 1], [0, 1, 2])] * 2]
    assert result.prompt_seconds > 0
    assert result.gen_seconds > 0


def test_output(run: Run, model: Path) -> None:
    tests = ["-c", "200", "-npp", "5,90", "-ntg", "2", "-npl", "1,3", "-ngl", "99", "-t", "2"]
    code, out, _ = run("batched-bench", "-m", model, *tests)
    assert code == 0
    heading, rule, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in out.splitlines()]
    assert heading == ["PP", "TG", "B", "N_KV", "T_PP s", "S_PP t/s", "T_TG s", "S_TG t/s", "T s", "S t/s"]
    assert len(rule) == len(heading)
    assert [row[:4] for row in rows] == [["5", "2", "1", "7"], ["5", "2", "3", "21"], ["90", "2", "1", "92"]]
    code, out, _ = run("batched-bench", model, *tests, "-pps", "--output-format", "jsonl")
    found = [json.loads(line) for line in out.splitlines()]
    sizes = [(each["pp"], each["pl"], each["n_kv"]) for each in found]
    assert sizes == [(5, 1, 7), (5, 3, 11), (90, 1, 92), (90, 3, 96)]
    assert all(each["speed"] == pytest.approx(each["n_kv"] / (each["t_pp"] + each["t_tg"])) for each in found)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["-npl", "0"], "-npp, -npl: must be above 0"),
        (["-npl", "1000"], "-npl: must be whole numbers from 0 to 256"),
        (["-c", "10"], "--ctx-size: no test fits in 10 tokens"),
        (["--output-format", "xml"], "--output-format: must be md or jsonl, not xml"),
    ],
)
def test_usage_errors(run: Run, model: Path, options: list[str], problem: str) -> None:
    code, _, err = run("batched-bench", model, *options)
    assert code == 2
    assert problem in err
