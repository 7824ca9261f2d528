"""Tokens that the model file suppresses are never generated, with any sampler chain and in any kind of run."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from speculative_helpers import HIGH_TEMPERATURE, PROMPT
from tiny import Field, tiny_llama

import localinfer
from localinfer import Model

OPTIONS: dict[str, Any] = {"n_predict": 40, "ignore_eos": True}
RUNS: dict[str, dict[str, Any]] = {
    "greedy": {"temp": 0},
    "sampled": HIGH_TEMPERATURE,
    "mirostat": HIGH_TEMPERATURE | {"mirostat": 2},
    "bias of a suppressed token": {"temp": 0, "logit_bias": {5: 100.0, 6: float("inf")}},
    "prompt lookup": {"temp": 0, "spec_type": "ngram"},
    "beam search": {"beams": 3},
}


@pytest.fixture(scope="module")
def unrestricted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "unrestricted.gguf")


@pytest.fixture(scope="module")
def suppressed(unrestricted: Path) -> list[int]:
    """All tokens that the model generates in these runs, and the biased ones."""
    with localinfer.load(unrestricted, threads=1, ctx_size=128) as model:
        return sorted({5, 6}.union(*(model.generate(PROMPT, **OPTIONS, **run).tokens for run in RUNS.values())))


@pytest.fixture(scope="module")
def model(unrestricted: Path, suppressed: list[int]) -> Iterator[Model]:
    """The same model with suppressed tokens; its draft model proposes them."""
    key = {"tokenizer.ggml.suppress_tokens": Field("ARRAY", suppressed, "INT32")}
    path = tiny_llama(unrestricted.with_name("model.gguf"), **key)
    with localinfer.load(path, threads=1, ctx_size=128, parallel=2, spec_draft_model=str(unrestricted)) as opened:
        yield opened


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("is_concurrent", [False, True])
def test_suppressed_tokens_are_never_generated(
    run: str, is_concurrent: bool, model: Model, suppressed: list[int]
) -> None:
    tokens = (model.concurrent(0) if is_concurrent else model).generate(PROMPT, **OPTIONS, **RUNS[run]).tokens
    assert len(tokens) == OPTIONS["n_predict"]
    assert not set(tokens) & set(suppressed)


def test_drafts_of_suppressed_tokens_are_rejected(model: Model, suppressed: list[int]) -> None:
    alone = model.generate(PROMPT, **OPTIONS, temp=0)
    drafted = model.generate(PROMPT, **OPTIONS, temp=0, spec_type="draft-simple", spec_draft_n_min=1)
    assert drafted.tokens == alone.tokens
    assert not set(drafted.tokens) & set(suppressed)


def test_answers_to_messages_have_no_suppressed_tokens(model: Model, suppressed: list[int]) -> None:
    messages = [{"role": "user", "content": "hello"}]
    answer = model.chat(messages, **OPTIONS, temp=0, chat_template="{{ messages[0].content }}")
    assert answer.tokens
    assert not set(answer.tokens) & set(suppressed)


def test_probabilities_are_those_of_the_model(model: Model, suppressed: list[int]) -> None:
    """Log-probabilities are computed before any sampler, so they show the suppressed tokens."""
    [first, *_] = model.generate(PROMPT, n_predict=1, temp=0, logprobs=1).logprobs
    assert first.top[0].id in suppressed
    assert first.id not in suppressed
