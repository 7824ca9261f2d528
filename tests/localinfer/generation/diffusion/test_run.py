"""Runs of diffusion language models: where an answer ends, its pieces, and options that do not fit."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import checkpoints
import pytest
import reference_models
from tiny import tiny_llama

import localinfer
from localinfer import LocalInferError, Model, UsageError
from localinfer.errors import ContextOverflowError, UnsupportedError
from localinfer.generation.diffusion.denoiser import DiffusionStep

PROMPT = "Attention is"
RUN: dict[str, Any] = {"n_predict": 24, "seed": 3, "diffusion_steps": 8, "diffusion_block_length": 12}
FREE = {"ignore_eos": True, **RUN}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("diffusion")
    return checkpoints.as_type(reference_models.checkpoint("llada", folder), folder / "model.gguf", "Q8_0")


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[Model]:
    with localinfer.load(path, threads=1) as loaded:
        yield loaded


@pytest.fixture
def steps(model: Model) -> Iterator[list[DiffusionStep]]:
    found = list[DiffusionStep]()
    model.on_diffusion_step = found.append
    yield found
    model.on_diffusion_step = None


def test_tokens_depend_on_the_seed_alone(model: Model, path: Path) -> None:
    expected = model.generate(PROMPT, **FREE).tokens
    with localinfer.load(path, threads=2, parallel=2) as other:
        assert other.generate(PROMPT, **FREE).tokens == expected
        assert other.concurrent(0).generate(PROMPT, **FREE).tokens == expected
    assert model.generate(PROMPT, **{**FREE, "seed": 4}).tokens != expected


def test_pieces_come_as_soon_as_all_before_them_are_known(model: Model, steps: list[DiffusionStep]) -> None:
    n_pieces = 0
    for _ in model.stream(PROMPT, **FREE):
        n_pieces += 1
        assert -1 not in steps[-1].ids[:n_pieces]
        assert len(steps) < 8 or n_pieces > 12  # the first block is read before the second one is finished
    assert (n_pieces, len(steps)) == (24, 8)
    assert [(step.number, step.total) for step in steps] == [(number, 8) for number in range(1, 9)]


def test_the_answer_ends_before_an_end_of_generation_token(model: Model, steps: list[DiffusionStep]) -> None:
    """As soon as it is known up to there: the rest of the text would not change it."""
    result = model.generate(PROMPT, **RUN, logit_bias=("256+10000",))
    assert (result.tokens, result.finish_reason, result.stats.generated_tokens) == ([], "stop", 0)
    assert len(steps) < 8
    assert steps[-1].ids[0] == 256


def test_stop_strings_end_the_text(model: Model) -> None:
    whole = model.generate(PROMPT, **FREE)
    letter = next(text for text in whole.text[1:] if whole.text.index(text) > 0)
    stopped = model.generate(PROMPT, **FREE, stop=(letter,))
    assert stopped.text == whole.text[: whole.text.index(letter)]
    assert stopped.finish_reason == "stop"


def test_log_probabilities_are_those_of_the_step_that_unmasked_a_token(model: Model) -> None:
    result = model.generate(PROMPT, **{**FREE, "temp": 0.0}, logprobs=2)
    assert len(result.logprobs) == 24
    assert all(len(each.top) == 2 and each.top[0].logprob >= each.logprob for each in result.logprobs)
    assert result.tokens == model.generate(PROMPT, **{**FREE, "temp": 0.0}).tokens


def test_an_answer_may_have_a_beginning(model: Model) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    template = {"chat_template": "chatml"}
    prefix = model.tokenize("Because", add_special=False)
    result = model.chat(messages, prefix_ids=prefix, **template, **FREE)
    assert result.tokens[: len(prefix)] == prefix
    assert len(result.tokens) == len(prefix) + 24


def test_the_context_limits_the_answer(model: Model) -> None:
    n_free = model.n_ctx - len(model.tokenize(PROMPT))
    pieces = model.stream(PROMPT, **{**FREE, "n_predict": model.n_ctx})
    with pytest.raises(ContextOverflowError, match="the context is full"):
        list(pieces)
    assert pieces.stats.generated_tokens == n_free
    with pytest.raises(ContextOverflowError, match=f"exceeds the available context size of {model.n_ctx}"):
        model.generate([1] * model.n_ctx, **FREE)


@pytest.mark.parametrize(("options", "message"), [
    ({"grammar": 'root ::= "a"'}, r"^grammar \(--grammar\): needs tokens from left to right"),
    ({"json_mode": True}, r"^json_mode \(--json-mode\): needs"),
    ({"beams": 2}, r"^beams \(--beams\): needs"),
    ({"mirostat": 2}, r"^mirostat \(--mirostat\): needs"),
    ({"reasoning_budget": 5}, r"^reasoning_budget \(--reasoning-budget\): needs"),
    ({"spec_type": "ngram"}, r"^spec_type \(--spec-type\): needs"),
    ({"samplers": "top_k;adaptive_p"}, r"^samplers \(--samplers\) adaptive_p: needs"),
    ({"sampler": lambda logits, ids: 1}, "^sampler: needs"),
    ({"diffusion_algorithm": "best"}, "^diffusion_algorithm: must be"),
    ({"diffusion_eps": 0.1, "diffusion_block_length": 4}, "^diffusion_eps: cannot be combined"),
])  # fmt: skip
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], message: str, model: Model) -> None:
    with pytest.raises(UsageError, match=message):
        model.generate(PROMPT, **options)


def test_tools_are_refused(model: Model) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    with pytest.raises(UsageError, match=r"^tools: needs tokens from left to right"):
        model.chat([{"role": "user", "content": "Hello"}], chat_template="chatml", tools=[tool])


def test_other_models_have_no_options_of_diffusion(tmp_path: Path) -> None:
    with (
        localinfer.load(tiny_llama(tmp_path / "llama.gguf"), threads=1) as other,
        pytest.raises(UsageError, match=r"^diffusion_steps \(--diffusion-steps\): llama is not a diffusion"),
    ):
        other.generate(PROMPT, diffusion_steps=4)


PREDICTING: dict[str, Callable[[Model], object]] = {
    "score": lambda model: model.score(PROMPT, [1, 2]),
    "lens": lambda model: model.lens(PROMPT),
    "token_probabilities": lambda model: model.token_probabilities(PROMPT),
}


@pytest.mark.parametrize("name", PREDICTING)
def test_what_needs_next_tokens_is_refused(name: str, model: Model) -> None:
    with pytest.raises(UnsupportedError, match="llada is a diffusion language model"):
        PREDICTING[name](model)


def test_a_mask_token_outside_the_vocabulary_is_refused(path: Path) -> None:
    with (
        localinfer.load(path, threads=1, override_kv=("tokenizer.ggml.mask_token_id=int:9999",)) as other,
        pytest.raises(LocalInferError, match=r"mask_token_id: 9999 is not in the vocabulary of 264 tokens"),
    ):
        other.generate(PROMPT)
