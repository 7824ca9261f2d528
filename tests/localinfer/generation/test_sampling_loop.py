"""Concurrent runs, whose steps start early, give the same results as separate runs."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from tiny import tiny_llama

import localinfer
from localinfer import Model, Piece
from localinfer.errors import ContextOverflowError

PROMPT = [1, 5, 6, 7, 5, 6, 7, 5, 6]
SAMPLED: dict[str, Any] = {"temp": 1.0, "seed": 3, "n_predict": 30}
SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": SAMPLED | {"temp": 0.0},
    "sampled": SAMPLED,
    "until the context is full": SAMPLED | {"n_predict": -1, "ignore_eos": True},
    "probabilities": SAMPLED | {"logprobs": 2},
    "custom sampler": SAMPLED | {"sampler": lambda logits, ids: int(logits.argmax()) if len(ids) % 2 else 7},
    "penalties": SAMPLED | {"repeat_penalty": 1.3, "dry_multiplier": 1.0},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path = tiny_llama(tmp_path_factory.mktemp("model") / "tiny.gguf")
    with localinfer.load(path, threads=2, ctx_size=96, parallel=2) as opened:
        yield opened


def run(model: Model, **options: Any) -> tuple[Any, ...]:
    """Return the pieces, the end of the run, and the cached tokens."""
    pieces: list[Piece] = []
    stream = model.stream(PROMPT, **options)
    with contextlib.suppress(ContextOverflowError):
        pieces.extend(stream)
    return pieces, stream.stats.generated_tokens, stream.stats.finish_reason, list(model._session.tokens)


@pytest.mark.parametrize("drafters", ["none", "ngram"])
@pytest.mark.parametrize("sampling", SAMPLING)
def test_concurrent_run_is_identical_to_a_separate_one(sampling: str, drafters: str, model: Model) -> None:
    options = SAMPLING[sampling] | {"spec_type": drafters}
    assert run(model.concurrent(0), **options) == run(model, **options)


def test_steps_after_a_stop_string_are_discarded(model: Model) -> None:
    pieces, *_ = run(model, **SAMPLED, spec_type="none")
    stop = next(piece.text for piece in pieces[5:] if piece.text.strip())
    options = SAMPLED | {"stop": (stop,), "spec_type": "none"}
    actual = run(model.concurrent(0), **options)
    assert actual == run(model, **options)
    assert actual[1] < len(pieces)


def test_steps_of_an_abandoned_run_are_discarded(model: Model) -> None:
    """The next run continues after the yielded tokens."""
    scheduled = model.concurrent(0)
    pieces = scheduled.stream(PROMPT, **SAMPLED)
    received = [next(pieces).id for _ in range(4)]
    pieces.close()  # type: ignore[attr-defined]
    assert scheduled._session.tokens == [*PROMPT, *received[:3]]
    assert scheduled.generate([*PROMPT, *received], **SAMPLED).stats.reused_tokens == len(PROMPT) + 3
