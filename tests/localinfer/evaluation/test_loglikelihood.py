"""Log-likelihoods of groups of texts, against the logits of each text alone, and against the oracle."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import checkpoints
import numpy as np
import pytest
import reference_models
from engine_helpers import engine as open_engine
from tiny import tiny_gemma3, tiny_llama

from localinfer import naive
from localinfer.errors import ContextOverflowError, LocalInferError
from localinfer.evaluation import loglikelihood
from localinfer.evaluation.loglikelihood import ScoredText, TextScore, score_groups
from localinfer.runtime.engine import Engine

N_CTX = 200
Groups = list[list[ScoredText]]


def ids(seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 270, count).tolist()


def question(seed: int, n_context: int, lengths: Sequence[int], before: Sequence[int] = ()) -> list[ScoredText]:
    """Return texts with the same context, behind which each has as many tokens of its own."""
    context = [*before, *ids(seed, n_context)]
    return [ScoredText([*context, *ids(1000 * seed + at, n)], len(context)) for at, n in enumerate(lengths)]


SHOTS = ids(99, 90)  # longer than a batch
GROUPS: dict[str, Groups] = {
    "questions": [question(seed, 10 + seed % 7, [3, 9, 1, 5]) for seed in range(8)],
    "few-shot prompts": [question(seed, 8, [1, 1, 1, 1], SHOTS) for seed in range(4)],
    "the same prefix, and a part of it": [question(1, 0, [4, 5], SHOTS), question(2, 0, [2, 3], SHOTS[:60])],
    "no prefix": [[ScoredText(ids(seed, 9), 1), ScoredText(ids(seed + 50, 12), 4)] for seed in range(4)],
    "the same text twice": [[ScoredText(ids(1, 20), 5), ScoredText(ids(1, 20), 12)]],
    "one text": [[ScoredText(ids(seed, 30), 1)] for seed in range(3)],
    "more texts than sequences": [question(3, 12, [2, 3] * 9), question(4, 5, [1])],
    "no groups": [],
}


def one_by_one(engine: Engine, group: Sequence[ScoredText]) -> list[TextScore]:
    """Evaluate each text alone: ln softmax of its logits in float64."""
    scores = []
    for text in group:
        engine.reset()
        logits = engine.logits(text.ids[:-1])[text.first - 1 :].astype(np.float64)
        scored = text.ids[text.first :]
        logprobs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        picked = logprobs[np.arange(len(scored)), scored]
        scores.append(TextScore(picked, logits.argmax(axis=-1).tolist() == scored))
    engine.reset()
    return scores


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("models") / "m.gguf", n_ctx=2048)


@pytest.fixture(scope="module")
def engines(model: Path) -> Iterator[dict[int, Engine]]:
    """Engines by their number of sequences: with few of them, and small batches, branches must wait."""
    with (
        open_engine(model, ctx_size=N_CTX, parallel=16) as wide,
        open_engine(model, ctx_size=N_CTX, parallel=3, batch_size=24) as narrow,
    ):
        yield {16: wide, 3: narrow}


@pytest.mark.parametrize("parallel", [16, 3])
@pytest.mark.parametrize("name", GROUPS)
def test_scores_are_those_of_each_text_alone(name: str, parallel: int, engines: dict[int, Engine]) -> None:
    groups, engine = GROUPS[name], engines[parallel]
    actual = dict(score_groups(engine, groups))
    assert sorted(actual) == list(range(len(groups)))
    for number, group in enumerate(groups):
        for score, expected in zip(actual[number], one_by_one(engine, group), strict=True):
            np.testing.assert_allclose(score.logprobs, expected.logprobs, rtol=0, atol=2e-6)
            assert score.is_greedy is expected.is_greedy
    assert_no_pages_in_use(engine)


def test_bits_do_not_depend_on_batches(engines: dict[int, Engine]) -> None:
    groups = GROUPS["questions"] + GROUPS["few-shot prompts"]
    wide, narrow = (dict(score_groups(engine, groups)) for engine in engines.values())
    for number in range(len(groups)):
        for one, other in zip(wide[number], narrow[number], strict=True):
            assert one.logprobs.tolist() == other.logprobs.tolist()


def test_scores_agree_with_the_oracle(engines: dict[int, Engine]) -> None:
    group = question(1, 6, [4, 2])
    [(_, scores)] = score_groups(engines[16], [group])
    for text, score in zip(group, scores, strict=True):
        logits = naive.forward(naive.Model(engines[16].file), text.ids[:-1])[text.first - 1 :]
        logprobs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        expected = logprobs[np.arange(len(logprobs)), text.ids[text.first :]]
        np.testing.assert_allclose(score.logprobs, expected, rtol=0, atol=6e-3)


def test_greedy_continuations(engines: dict[int, Engine]) -> None:
    engine, context = engines[16], ids(5, 9)
    engine.reset()
    best = int(engine.evaluate(context).argmax())
    [(_, scores)] = score_groups(engine, [[ScoredText([*context, best], 9), ScoredText([*context, best ^ 1], 9)]])
    assert [score.is_greedy for score in scores] == [True, False]


def recurrent(path: Path) -> Path:
    return checkpoints.as_type(reference_models.checkpoint("mamba2", path.parent), path, "Q8_0")


@pytest.mark.parametrize("write", [tiny_gemma3, recurrent])
def test_sliding_windows_and_recurrent_states(write: Callable[[Path], Path], tmp_path: Path) -> None:
    """The caches of these models cannot rewind to every token."""
    groups = GROUPS["few-shot prompts"][:3] + GROUPS["questions"][:3]
    with open_engine(write(tmp_path / "m.gguf"), ctx_size=N_CTX, parallel=4) as engine:
        for number, scores in score_groups(engine, groups):
            for score, expected in zip(scores, one_by_one(engine, groups[number]), strict=True):
                np.testing.assert_allclose(score.logprobs, expected.logprobs, rtol=0, atol=2e-6)


def test_a_shared_prefix_is_evaluated_once(engines: dict[int, Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    engine, counts = engines[16], list[int]()
    evaluate = engine.runner.evaluate_segments

    def counted(segments, *arguments):  # type: ignore[no-untyped-def]
        counts.append(sum(len(each.ids) for each in segments))
        return evaluate(segments, *arguments)

    monkeypatch.setattr(engine.runner, "evaluate_segments", counted)
    groups = GROUPS["few-shot prompts"]
    assert len(list(score_groups(engine, groups))) == len(groups)
    assert sum(counts) == len(SHOTS) + 8 * len(groups)  # the answers have one token, which is only predicted
    counts.clear()
    assert len(list(score_groups(engine, [question(1, 10, [4, 4])]))) == 1
    assert sum(counts) == 10 + 3 + 3


def test_ending_early_frees_all_pages(engines: dict[int, Engine]) -> None:
    scores = score_groups(engines[3], GROUPS["questions"])
    next(scores)
    scores.close()
    assert_no_pages_in_use(engines[3])


def test_a_text_longer_than_the_context(engines: dict[int, Engine]) -> None:
    assert len(list(score_groups(engines[16], [question(1, N_CTX, [1])]))) == 1  # the last token is only predicted
    with pytest.raises(ContextOverflowError, match="item 2: 201 tokens do not fit into the context of 200"):
        list(score_groups(engines[16], [question(1, 5, [1]), question(1, N_CTX, [2])]))
    assert_no_pages_in_use(engines[16])


def test_weights_that_are_not_finite(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "m.gguf", **{"output_norm.weight": np.full(256, np.nan, np.float32)})
    with (
        open_engine(path, parallel=loglikelihood.MIN_SEQUENCES) as engine,
        pytest.raises(LocalInferError, match=r"m\.gguf: logits: are not finite"),
    ):
        list(score_groups(engine, [question(1, 5, [2])]))


def assert_no_pages_in_use(engine: Engine) -> None:
    engine.reset()
    pools = [ring.pages for ring in engine.compiled_graph.model_graph.attention.rings.values()]
    assert all(pool.n_free == len(pool) for pool in pools)
