"""Output files of evaluations: what is resumed, and what is refused."""

import json
from pathlib import Path

import pytest
from tiny import tiny_llama

from localinfer.batch.evaluation_job import EvaluationJob, run_digest
from localinfer.batch.output_file import open_output
from localinfer.errors import LocalInferError, UsageError
from localinfer.evaluation.tasks.results import ItemResult
from localinfer.evaluation.tasks.task import GenerationItem
from localinfer.gguf.reader import open_gguf
from localinfer.options import Options

ITEMS = [GenerationItem(prompt=text, reference={"answer": text}) for text in ("a", "b", "a", "c")]


def job(items: list[GenerationItem] = ITEMS, digest: str = "00000000") -> EvaluationJob:
    return EvaluationJob(items, digest, ["acc"])


def result(correct: bool) -> ItemResult:
    return ItemResult("", {"acc": correct}, {"output": "größer\n"})


def write_results(path: Path, *numbers: int) -> None:
    work = job()
    with open_output(path, restart=False) as output:
        work.resume(output)
        for number in numbers:
            work.add(number, result(number == 1), output)


def resumed(path: Path, work: EvaluationJob) -> EvaluationJob:
    with open_output(path, restart=False) as output:
        work.resume(output)
    return work


def test_a_job_resumes(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    write_results(path, 1)
    write_results(path, 3)
    work = resumed(path, job())
    assert work.pending() == [0, 2]
    assert {number: each.correct["acc"] for number, each in work.results.items()} == {1: True, 3: False}
    assert [json.loads(line)["output"] for line in path.read_bytes().splitlines()] == ["größer\n"] * 2


def test_equal_items_have_the_same_result(tmp_path: Path) -> None:
    write_results(tmp_path / "results.jsonl", 0)
    assert resumed(tmp_path / "results.jsonl", job()).pending() == [1, 3]


def test_more_or_fewer_items(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    write_results(path, 0, 1)
    assert resumed(path, job(ITEMS[:2])).pending() == []
    assert resumed(path, job([*ITEMS[1:], GenerationItem(prompt="d", reference={})])).pending() == [2, 3]


@pytest.mark.parametrize("rest", [b'{"id": "eval-000', b'{"id": "eval-00000000-abc", "gro', b""])
def test_an_incomplete_line_is_removed(rest: bytes, tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    write_results(path, 1)
    complete = path.read_bytes()
    path.write_bytes(complete + rest)
    assert resumed(path, job()).pending() == [0, 2, 3]
    assert path.read_bytes() == complete


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"my diary\n", "has lines that are not results of an evaluation"),
        (b'["a"]\n', "has lines that are not results of an evaluation"),
        (b'{"id": "batch_req_0000000000", "group": "", "correct": {}}\n', "are not results of an evaluation"),
        (b'{"id": "eval-11111111-00", "group": "", "correct": {"acc": true}}\n', "with another model, task or other"),
        (b'{"id": "eval-00000000-00", "group": "", "correct": {"other": true}}\n', "has lines that were changed"),
        (b"my diary", "does not end with a result of an evaluation"),
        (b'{"id": "eval-1', "does not end with a result of an evaluation"),
    ],
)
def test_other_files_are_refused_and_unchanged(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=f"{message}.*; --restart starts over"):
        resumed(path, job())
    assert path.read_bytes() == content
    with open_output(path, restart=True) as output:
        job().resume(output)
    assert path.read_bytes() == b""


def test_two_processes_do_not_write_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with open_output(path, restart=False), pytest.raises(LocalInferError), open_output(path, restart=False):
        pass


def test_the_digest_of_a_run(tmp_path: Path) -> None:
    """Only the model, the task and options that change results change it."""
    f, other = (open_gguf(tiny_llama(tmp_path / f"{seed}.gguf", seed=seed)) for seed in range(2))
    digest = run_digest(f, Options(), "ARC")
    assert run_digest(f, Options(threads=7, ctx_size=99, parallel=5, batch_size=3), "ARC") == digest
    different = [
        run_digest(other, Options(), "ARC"), run_digest(f, Options(), "MMLU"),
        run_digest(f, Options(precision="high"), "ARC"), run_digest(f, Options(cache_type_k="q8_0"), "ARC"),
    ]  # fmt: skip
    assert len({digest, *different}) == 5
