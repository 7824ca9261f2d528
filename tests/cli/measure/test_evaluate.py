"""The command `localinfer eval`: what it prints, resumes and refuses."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny import tiny_llama

from cli.app import COMMANDS
from cli.measure.evaluate import TASK_NAMES
from localinfer.evaluation.tasks import TASKS

Run = Callable[..., tuple[int, str, str]]
N_ITEMS = 6


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("models") / "m.gguf", n_ctx=2048)


@pytest.fixture
def items(tmp_path: Path) -> Path:
    path = tmp_path / "items.txt"
    path.write_text("".join(f"Context {n}: he\n{n % 4}\nfalls.\nturns.\nsings.\neats.\n" for n in range(N_ITEMS)))
    return path


def test_the_help_names_all_tasks() -> None:
    assert list(TASK_NAMES) == list(TASKS)
    assert "eval" in COMMANDS


def test_scores_as_text(run: Run, model: Path, items: Path) -> None:
    code, out, _ = run("eval", model, "hellaswag", items, "-t", 2)
    title, *rows = out.splitlines()
    assert (code, title) == (0, f"HellaSwag, {N_ITEMS} items")
    assert [row.split()[0] for row in rows] == ["acc_norm", "acc_norm_tokens", "acc"]
    assert all(f"of {N_ITEMS}  95 %: " in row for row in rows)


def test_scores_by_subject(run: Run, model: Path, tmp_path: Path) -> None:
    files = [tmp_path / f"{name}_test.csv" for name in ("law", "art")]
    for number, file in enumerate(files):
        file.write_text("Why?,1,2,3,4,A\n" * (number + 1))
    code, out, _ = run("eval", model, "mmlu", *files, "-t", 2)
    lines = out.splitlines()
    assert (code, lines[0]) == (0, "acc by subject")
    assert [line.split()[0] for line in lines[1:3]] == ["art", "law"]
    assert ["+/-" in line for line in lines[1:3]] == [True, False]  # one item has no standard error
    assert lines[4] == "MMLU, 3 items"
    code, out, _ = run("eval", model, "mmlu", *files, "-t", 2, "--json")
    found = json.loads(out)
    assert {name: each["items"] for name, each in found["groups"].items()} == {"art": 2, "law": 1}
    assert found["groups"]["law"]["metrics"]["acc"]["stderr"] is None  # of one item


def test_an_evaluation_is_resumed(run: Run, model: Path, items: Path, tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"
    code, _, _ = run("eval", model, "hellaswag", items, "-t", 2, "--limit", 2, "-o", out)
    first = out.read_text()
    assert (code, len(first.splitlines())) == (0, 2)
    code, text, err = run("eval", model, "hellaswag", items, "-t", 1, "-o", out, "--json")
    assert (code, f"2 of {N_ITEMS} items are done" in err) == (0, True)
    assert out.read_text().startswith(first)
    assert len(out.read_text().splitlines()) == N_ITEMS
    metrics = json.loads(text)["metrics"]
    results = [json.loads(line) for line in out.read_text().splitlines()]
    for name, each in metrics.items():
        assert each["value"] == sum(line["correct"][name] for line in results) / N_ITEMS
    assert json.loads(run("eval", model, "hellaswag", items, "-t", 2, "--json")[1])["metrics"] == metrics
    complete = out.read_text()
    arguments = ["-o", out, "--json", "--precision", "high"]  # as by default
    assert run("eval", model, "hellaswag", items, *arguments)[1] == text  # nothing is left to evaluate
    code, _, err = run("eval", model, "hellaswag", items, "-o", out, "--precision", "fast")
    assert (code, "was made with another model, task or other options; --restart" in err) == (2, True)
    assert out.read_text() == complete


def test_an_interrupted_evaluation(model: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    """It ends at once, says how to resume, and keeps complete results."""
    items, out = tmp_path / "items.txt", tmp_path / "results.jsonl"
    items.write_text("".join(f"Context {n}: he\n{n % 4}\nfalls.\nturns.\nsings.\neats.\n" for n in range(1000)))
    command = [sys.executable, "-m", "cli", "eval", str(model), "hellaswag", str(items), "-o", str(out), "--no-shuffle"]
    process = subprocess.Popen(
        command, env=environment | {"LOCALINFER_TUNE": "0"}, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    while process.poll() is None and (not out.exists() or out.read_bytes().count(b"\n") < 5):
        pass
    process.terminate()
    text, err = process.communicate(timeout=30)
    assert (process.returncode, text) == (143, "")
    assert "items are done; run the same command to resume" in err
    assert all(json.loads(line)["id"].startswith("eval-") for line in out.read_text().splitlines())


def test_generated_code_is_run_only_on_request(run: Run, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "HumanEval.jsonl"
    item = {"prompt": "def one():\n    return 1\n", "entry_point": "one", "test": "def check(f):\n    pass\n"}
    path.write_text(json.dumps(item))
    code, out, err = run("eval", model, "humaneval", path)
    assert (code, out) == (2, "")
    assert "humaneval: executes Python programs that the model writes; --run-code allows it" in err
    code, out, _ = run("eval", model, "humaneval", path, "--run-code", "-t", 2)
    assert (code, out.splitlines()[0]) == (0, "HumanEval, 1 items")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["truth", "items.txt"], 2, "task: truth: must be one of hellaswag, winogrande, arc"),
        (["hellaswag", "none.txt"], 1, "none.txt: No such file or directory"),
        (["arc", "items.txt"], 1, "items.txt: line 1: is no JSON object"),
        (["hellaswag", "items.txt", "--restart"], 2, "--restart: requires -o FILE"),
        (["hellaswag", "items.txt", "-o", "none/out"], 2, "--output: none/out: No such file or directory"),
        (["hellaswag", "items.txt", "-o", "items.txt"], 2, "items.txt: is an input file"),
        (["hellaswag", "items.txt", "-c", "4"], 5, "--ctx-size: the longest item has"),
        (["gsm8k", "q.jsonl"], 2, "the few-shot files have 0 examples, not 5; name more with --fewshot-file"),
        (["hellaswag"], 2, "FILE"),
    ],
)
def test_errors(
    arguments: list[str], code: int, message: str, run: Run, model: Path, items: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(items.parent)
    (items.parent / "q.jsonl").write_text('{"question": "?", "answer": "#### 1"}\n')
    before = items.read_bytes()
    actual, out, err = run("eval", model, *arguments)
    assert (actual, out) == (code, "")
    assert message in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert items.read_bytes() == before
    assert sorted(path.name for path in items.parent.iterdir()) == ["items.txt", "q.jsonl"]


def test_a_missing_model(run: Run, items: Path) -> None:
    assert run("eval", "none.gguf", "hellaswag", items)[0] == 3


@pytest.mark.parametrize("flag", ["--hellaswag", "--winogrande", "--multiple-choice"])
def test_flags_of_llama_perplexity(flag: str, run: Run, model: Path, items: Path) -> None:
    code, _, err = run("perplexity", model, "-f", items, flag)
    assert (code, "use `localinfer eval MODEL TASK FILE`" in err) == (3, True)
