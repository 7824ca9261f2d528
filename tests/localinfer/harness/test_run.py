"""`localinfer.evaluate`, and outputs that are generated for many prompts."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny import tiny_llama

import localinfer
from localinfer import Model
from localinfer.errors import ContextOverflowError, UsageError
from localinfer.harness.generation import Prompt, generate_outputs

TEXTS = ["the cat", "the dog", "a", "the cat and", "Hello"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("models") / "m.gguf", n_ctx=2048)


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[Model]:
    with localinfer.load(path, ctx_size=64, parallel=3, threads=2, tune=False) as loaded:
        yield loaded


def prompts(model: Model, n_predict: int = 8) -> list[Prompt]:
    return [Prompt(model.tokenize(text), {"n_predict": n_predict, "temp": 0.0}) for text in TEXTS]


def test_outputs_are_those_of_each_prompt_alone(model: Model) -> None:
    expected = [model.concurrent(0).generate(each.ids, **each.options).text for each in prompts(model)]
    assert dict(generate_outputs(model, prompts(model))) == dict(enumerate(expected))
    assert list(generate_outputs(model, [])) == []


def test_closing_ends_all_runs(model: Model) -> None:
    outputs = generate_outputs(model, [Prompt([1], {"n_predict": 1, "temp": 0.0}), *prompts(model, 10**6)])
    assert next(outputs)[0] == 0
    outputs.close()
    assert len(list(generate_outputs(model, prompts(model)[:1]))) == 1


def test_an_error_ends_the_others(model: Model) -> None:
    with pytest.raises(ContextOverflowError):
        list(generate_outputs(model, [*prompts(model), Prompt(list(range(65)), {"n_predict": 1})]))


# --- the Python API ---


def hellaswag(folder: Path, count: int = 5) -> Path:
    path = folder / "hellaswag.txt"
    path.write_text("".join(f"Context {n}: he\n{n % 4}\nfalls.\nturns.\nsings.\neats.\n" for n in range(count)))
    return path


def test_evaluate(path: Path, tmp_path: Path) -> None:
    progress = list[int]()
    found = localinfer.evaluate(
        path, "hellaswag", [hellaswag(tmp_path)], limit=4, threads=2,
        progress=lambda done, total, scores: progress.append(done),
    )  # fmt: skip
    assert found.scores["acc"].n_items == len(found.items) == 4
    assert found.scores["acc"].n_correct == sum(each.correct["acc"] for each in found.items)
    assert progress == [1, 2, 3, 4]


def test_evaluate_generated_answers(path: Path, tmp_path: Path) -> None:
    questions = tmp_path / "test.jsonl"
    questions.write_text("".join(json.dumps({"question": f"{n}?", "answer": "#### 1"}) + "\n" for n in range(3)))
    found = localinfer.evaluate(path, "gsm8k", [questions], num_fewshot=1, fewshot_files=[questions], threads=2)
    assert [set(each.details) for each in found.items] == [{"output"}] * 3


def test_errors(path: Path, tmp_path: Path) -> None:
    file = hellaswag(tmp_path)
    with pytest.raises(UsageError, match="task: truth: must be one of hellaswag, winogrande"):
        localinfer.evaluate(path, "truth", [file])
    with pytest.raises(UsageError, match="humaneval: executes Python programs that the model writes; --run-code"):
        localinfer.evaluate(path, "humaneval", [file])
    with pytest.raises(ContextOverflowError, match="--ctx-size: the longest item has"):
        localinfer.evaluate(path, "hellaswag", [file], ctx_size=4)
