"""Runs beside each other take their steps before they are asked for: what comes of it is what comes without that."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from tiny import tiny_llama

import localinfer
from localinfer.errors import ContextOverflow
from localinfer.model import Model, Piece

PROMPT = [1, 5, 6, 7, 5, 6, 7, 5, 6]
LIVELY: dict[str, Any] = {"temp": 1.0, "seed": 3, "n_predict": 30}
WAYS: dict[str, dict[str, Any]] = {
    "greedy": LIVELY | {"temp": 0.0},
    "drawn": LIVELY,
    "until the context is full": LIVELY | {"n_predict": -1, "ignore_eos": True},
    "probabilities": LIVELY | {"logprobs": 2},
    "own sampler": LIVELY | {"sampler": lambda logits, ids: int(logits.argmax()) if len(ids) % 2 else 7},
    "penalties": LIVELY | {"repeat_penalty": 1.3, "dry_multiplier": 1.0},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path = tiny_llama(tmp_path_factory.mktemp("model") / "tiny.gguf")
    with localinfer.load(path, threads=2, ctx_size=96, parallel=2) as opened:
        yield opened


def run(model: Model, **options: Any) -> tuple[Any, ...]:
    """Pieces, how the run ended, and what is remembered of it."""
    pieces: list[Piece] = []
    with contextlib.suppress(ContextOverflow):
        pieces.extend(model.generate(PROMPT, **options))
    return pieces, model.stats.generated_tokens, model.stats.finish_reason, list(model._session.tokens)


@pytest.mark.parametrize("guessers", ["none", "ngram"])
@pytest.mark.parametrize("way", WAYS)
def test_a_run_beside_others_is_that_of_one_alone(way: str, guessers: str, model: Model) -> None:
    options = WAYS[way] | {"spec_type": guessers}
    assert run(model.beside(0), **options) == run(model, **options)


def test_what_was_begun_behind_a_stop_text_never_was(model: Model) -> None:
    pieces, *_ = run(model, **LIVELY, spec_type="none")
    stop = next(piece.text for piece in pieces[5:] if piece.text.strip())
    options = LIVELY | {"stop": (stop,), "spec_type": "none"}
    found = run(model.beside(0), **options)
    assert found == run(model, **options)
    assert found[1] < len(pieces)


def test_what_was_begun_for_who_left_never_was(model: Model) -> None:
    """And the next run goes on from what was given."""
    lane = model.beside(0)
    pieces = lane.generate(PROMPT, **LIVELY)
    given = [next(pieces).id for _ in range(4)]
    pieces.close()  # type: ignore[attr-defined]
    assert lane._session.tokens == [*PROMPT, *given[:3]]
    list(lane.generate([*PROMPT, *given], **LIVELY))
    assert lane.stats.reused_tokens == len(PROMPT) + 3
