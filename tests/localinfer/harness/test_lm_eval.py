"""The model for lm-evaluation-harness, with the real package: the same scores as the harness of localinfer."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import tiny_llama

from localinfer.errors import UsageError

pytest.importorskip("lm_eval.api.model", reason="lm-eval, of the extra lm-eval, is not installed")

from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model
from lm_eval.tasks import TaskManager

import localinfer
from localinfer.harness.lm_eval import LocalInferLM

N_CTX = 64
TASK = """
task: local
dataset_path: json
dataset_kwargs: {data_files: {validation: FILE}}
output_type: multiple_choice
validation_split: validation
doc_to_text: "{{activity_label}}: {{ctx_a}} {{ctx_b.capitalize()}}"
doc_to_target: "{{label}}"
doc_to_choice: "endings"
metric_list: [{metric: acc}, {metric: acc_norm}]
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("models") / "m.gguf", n_ctx=2048)


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[LocalInferLM]:
    lm = get_model("localinfer").create_from_arg_string(
        f"pretrained={path},ctx_size={N_CTX},threads=2,tune=False,parallel=4", {"batch_size": 1, "device": "cpu"}
    )
    yield lm
    lm.model.close()


def instances(kind: Any, *arguments: tuple[Any, ...]) -> list[Instance]:
    return [Instance(kind, {}, each, number) for number, each in enumerate(arguments)]


def logprobs(model: LocalInferLM, ids: list[int], first: int) -> np.ndarray[Any, Any]:
    """Return ln p of the tokens from `first` on, from the logits of the text alone."""
    logits = model.model.logits(ids[:-1])[first - 1 :].astype(np.float64)
    scores = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    return scores[np.arange(len(scores)), ids[first:]]


def test_loglikelihood(model: LocalInferLM) -> None:
    pairs = [("the cat", " sat"), ("the cat", " and the"), ("the cat ", "sat"), ("", "the"), ("a" * 90, "b")]
    actual = model.loglikelihood(instances("loglikelihood", *pairs), disable_tqdm=True)
    for (context, continuation), (total, _) in zip(pairs, actual, strict=True):
        n_context = len(model.tok_encode(context.rstrip()))
        ids = model.tok_encode(context + continuation)
        if not n_context:
            ids, n_context = [model.prefix_token_id, *ids], 1
        n_scored = len(ids) - n_context
        ids = ids[-(N_CTX + 1) :]  # a context that is too long loses its first tokens
        assert total == pytest.approx(logprobs(model, ids, len(ids) - n_scored).sum(), abs=1e-5)


def test_loglikelihood_of_what_greedy_decoding_generates(model: LocalInferLM) -> None:
    ids = model.tok_encode("the cat")
    best = int(model.model.logits(ids)[-1].argmax())
    requests = [(None, ids, [best]), (None, ids, [best ^ 1])]
    assert [each for _, each in model._loglikelihood_tokens(requests, disable_tqdm=True)] == [True, False]


def test_loglikelihood_of_long_texts(model: LocalInferLM) -> None:
    """Each token is scored once, with windows that are full."""
    text = "the cat and " * 30
    ids = model.tok_encode(text)
    assert len(ids) > 2 * N_CTX
    [total] = model.loglikelihood_rolling(instances("loglikelihood_rolling", (text,)), disable_tqdm=True)
    whole, expected = [model.prefix_token_id, *ids], 0.0
    for first in range(1, len(whole), N_CTX):
        end = min(first + N_CTX, len(whole))
        window = whole[max(0, end - N_CTX - 1) : end]
        expected += float(logprobs(model, window, len(window) - (end - first)).sum())
    assert total == pytest.approx(expected, abs=1e-4)


def test_generate_until(model: LocalInferLM) -> None:
    settings = {"until": ["\n\n"], "max_gen_toks": 8, "do_sample": False, "temperature": 0.7}
    texts = ["the cat", "a", "the cat and the " * 20]
    actual = model.generate_until(instances("generate_until", *((text, settings) for text in texts)), disable_tqdm=True)
    for text, output in zip(texts, actual, strict=True):
        ids = model.tok_encode(text)[-(N_CTX - 8) :]
        assert output == model.model.concurrent(0).generate(ids, n_predict=8, temp=0.0, stop=["\n\n"]).text
    stop = actual[0][2:4]
    [shorter] = model.generate_until(
        instances("generate_until", (texts[0], settings | {"until": stop})), disable_tqdm=True
    )
    assert shorter == actual[0][: actual[0].index(stop)]


def test_the_harness_finds_the_same_scores(model: LocalInferLM, path: Path, tmp_path: Path) -> None:
    rng, words = np.random.default_rng(0), ["the", "cat", "and", "a", "sat", "Hello"]
    data = tmp_path / "val.jsonl"
    records = []
    for _ in range(12):
        parts = [" ".join(rng.choice(words, 3)) for _ in range(6)]
        fields = {"activity_label": parts[0], "ctx_a": parts[1], "ctx_b": "he", "label": int(rng.integers(4))}
        records.append({**fields, "endings": parts[2:]})
    data.write_text("".join(json.dumps(each) + "\n" for each in records))
    (tmp_path / "local.yaml").write_text(TASK.replace("FILE", str(data)))
    found = simple_evaluate(
        model, tasks=["local"], task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False)
    )["results"]["local"]
    own = localinfer.evaluate(path, "hellaswag", [data], threads=2).scores
    for name in ("acc", "acc_norm"):
        assert found[f"{name},none"] == own[name].value
        assert found[f"{name}_stderr,none"] == pytest.approx(own[name].error)


def test_too_few_sequences(path: Path) -> None:
    with pytest.raises(UsageError, match="parallel: must be at least 3, not 1"):
        LocalInferLM(str(path), parallel=1, ctx_size=N_CTX, tune=False)
