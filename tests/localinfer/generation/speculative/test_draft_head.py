"""Draft heads: speculative decoding does not change the text, in separate and concurrent runs."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import draft_head_models
import numpy as np
import pytest
import reference_models
import separate_heads
from checkpoints import as_type
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from speculative_helpers import HIGH_TEMPERATURE, PROMPT, evaluate_draft_head, generate, make_draft_length_model
from tiny import tiny_llama

import localinfer
from localinfer import GenerationResult, Model
from localinfer.errors import UnsupportedError, UsageError
from localinfer.generation.speculative.draft_head import DraftHead
from localinfer.gguf.reader import open_gguf
from localinfer.options import Options
from localinfer.runtime.engine import Engine
from localinfer.runtime.graph_building import Extensions

SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {"temp": 0},
    "sampled": HIGH_TEMPERATURE,
    "penalties": {"temp": 0, "repeat_penalty": 1.2},
}
EXACT = Options(ctx_size=128, threads=1, precision="high")
OPTIONS: dict[str, Any] = {"n_predict": 80, "ignore_eos": True}


MODELS_WITH_HEADS = [
    "glm4moe", "qwen35", "deepseek4", "hy_v4", "eagle3", "gemma4-assistant", "dflash", "dflash-window", "dflash2",
    "dspark", "dspark-reduced", "dspark-gemma4", "dspark-deepseek4",
]  # fmt: skip


@pytest.fixture(scope="module", params=MODELS_WITH_HEADS)
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return a model with a head, or the two files of a pair."""
    folder = tmp_path_factory.mktemp("model")
    if request.param in separate_heads.NAMES:
        pair = draft_head_models.write_model_and_head(request.param, folder, "Q8_0")
        return {"path_or_name": str(pair.model), "spec_draft_model": str(pair.head)}
    return {"path_or_name": str(draft_head_models.write_with_mtp_head(request.param, folder, "Q8_0"))}


@pytest.fixture
def free_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make draft tokens free, so that many are drafted."""
    monkeypatch.setattr(
        "localinfer.generation.speculative.speculative_decoder.DraftLengthModel", make_draft_length_model
    )
    monkeypatch.setattr(DraftHead, "_relative_cost", 0.01)


@pytest.fixture
def model(files: dict[str, Any], free_drafts: None) -> Iterator[Model]:
    with localinfer.load(**files, ctx_size=128, threads=1, parallel=3, spec_draft_n_min=2) as opened:
        yield opened


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("spec_type", ["draft-mtp", "ngram,draft-mtp"])
def test_speculative_decoding_does_not_change_the_text(sampling: str, spec_type: str, model: Model) -> None:
    options = OPTIONS | SAMPLING[sampling]
    alone = generate(model, spec_type="none", **options)
    assert alone.stats.drafted_tokens == 0
    assert generate(model, spec_type=spec_type, **options).tokens == alone.tokens
    again = generate(model, spec_type=spec_type, **options)
    assert again.tokens == alone.tokens
    assert again.stats.drafted_tokens > 0


def test_concurrent_text_is_the_same(model: Model) -> None:
    option_sets = [OPTIONS | sampling for sampling in SAMPLING.values()]
    alone = [generate(model, spec_type="none", **options).tokens for options in option_sets]
    model.engine.reset()

    def run(number: int) -> GenerationResult:
        return model.concurrent(number).generate(PROMPT, spec_type="draft-mtp", **option_sets[number])

    with ThreadPoolExecutor(len(option_sets)) as threads:
        results = list(threads.map(run, range(len(option_sets))))
    assert [result.tokens for result in results] == alone
    assert sum(result.stats.drafted_tokens for result in results) > 0


MARKOV = "markov_head.markov_w{}.weight"
STEPS, N_EMBD = 2, 96  # draft tokens of each draft that a head learns; the embedding length of reference models


@pytest.mark.parametrize("name", ["gemma4-assistant", "dflash", "dspark"])
def test_drafts_of_a_head_that_knows_the_text_are_accepted(name: str, tmp_path: Path, free_drafts: None) -> None:
    """The output layer is fitted to the states after each token of the text, which are the logits of an identity. So is
    the Markov head of DSpark, to its rows of the tokens before."""
    target = reference_models.checkpoint(separate_heads.read_description(name)["model"], tmp_path)
    model, head = as_type(target, tmp_path / "model.gguf", "F32"), separate_heads.checkpoint(name, tmp_path)
    options: dict[str, Any] = {"n_predict": 30, "ignore_eos": True, "temp": 0}
    with localinfer.load(model, ctx_size=128, threads=1) as opened:
        alone = generate(opened, spec_type="none", **options)
        text = [*opened.engine.sequence.tokens, alone.tokens[-1]]
    size = separate_heads.read_description(name)["config"].get("hidden_size", 64)
    file = with_output(head, np.eye(reference_models.N_VOCAB, size, dtype=np.float32), target)
    first = len(text) - len(alone.tokens)
    with contextlib.closing(Engine.load(open_gguf(model), EXACT, extensions=Extensions(open_gguf(file)))) as engine:
        states = [each for at in range(first, len(text) - STEPS) for each in states_after(engine, text, at)]
    following = [text[at + step] for at in range(first, len(text) - STEPS) for step in range(1, STEPS + 1)]
    inputs = np.array(states)[:, :size].astype(np.float64)
    if name == "dspark":
        before = [text[at + step] for at in range(first, len(text) - STEPS) for step in range(STEPS)]
        inputs = np.hstack([inputs, separate_heads.weights(name)[MARKOV.format(1)][before]])
    file = with_output(head, fitted_output(inputs, following), target)
    with localinfer.load(model, spec_draft_model=str(file), ctx_size=128, threads=1, precision="high") as opened:
        options["spec_type"] = "draft-mtp" if name == "gemma4-assistant" else f"draft-{name}"
        result = generate(opened, spec_draft_n_max=STEPS, **options)
    assert result.tokens == alone.tokens
    assert len({*alone.tokens}) > 3
    assert result.stats.accepted_tokens > len(text) / 3


@pytest.mark.parametrize("name", ["deepseek32", "deepseek4", "dots3note-narrow", "glm-dsa", "hy_v4"])
def test_drafts_of_an_mtp_head_that_knows_the_text_are_accepted(name: str, tmp_path: Path, free_drafts: None) -> None:
    """The output layer of the head is fitted likewise. The text goes on from a snapshot, which has no hidden states."""
    checkpoint, options = draft_head_models.checkpoint(name, tmp_path), {"ignore_eos": True, "temp": 0}
    opened: dict[str, Any] = {"ctx_size": 128, "threads": 1, "precision": "high"}
    model = with_mtp_output(checkpoint, np.eye(reference_models.N_VOCAB, N_EMBD, dtype=np.float32))
    with localinfer.load(model, **opened) as plain:
        alone = generate(plain, spec_type="none", n_predict=40, **options)
        text = [*plain.engine.sequence.tokens, alone.tokens[-1]]
    with contextlib.closing(Engine.load(open_gguf(model), EXACT)) as engine:
        places = range(len(PROMPT), len(text) - STEPS)
        states = [each[:N_EMBD].astype(np.float64) for at in places for each in states_after(engine, text, at)]
    following = [text[at + step] for at in places for step in range(1, STEPS + 1)]
    model = with_mtp_output(checkpoint, fitted_output(np.array(states), following))
    with localinfer.load(model, **opened, spec_draft_n_max=STEPS, spec_type="draft-mtp") as drafting:
        first = generate(drafting, n_predict=20, **options)
        drafting.save_cache(tmp_path / "cache")
        drafting.engine.reset()
        drafting.load_cache(tmp_path / "cache")
        second = drafting.generate([*PROMPT, *first.tokens], n_predict=20, **options)
    assert [*first.tokens, *second.tokens] == alone.tokens
    assert len({*alone.tokens}) > 3
    assert min(each.stats.accepted_tokens for each in (first, second)) > 20 / 3


def with_mtp_output(checkpoint: Path, matrix: NDArray[np.float32]) -> Path:
    """Convert a model whose MTP head has this output layer."""
    path, out = checkpoint / "model.safetensors", checkpoint / "model.gguf"
    tensors = load_file(path)
    [norm] = [each for each in tensors if each.endswith(".enorm.weight")]
    save_file({**tensors, norm.replace("enorm", "shared_head.head"): np.ascontiguousarray(matrix)}, path)
    out.unlink(missing_ok=True)
    return as_type(checkpoint, out, "F32")


def fitted_output(states: NDArray[np.float64], following: list[int]) -> NDArray[np.float32]:
    """Return the output layer that makes these tokens of the states, (n_vocab, n)."""
    fitted = np.linalg.lstsq(states, np.eye(reference_models.N_VOCAB)[following], rcond=1e-6)[0]
    return fitted.T.astype(np.float32)


def with_output(head: Path, matrix: NDArray[np.float32], target: Path) -> Path:
    """Convert a head with this output layer, which is the embedding of an assistant of Gemma 4. That of DSpark has its
    own output layer beside an own embedding only, and columns of its Markov head behind those of its states."""
    tensors, of_target = load_file(head / "model.safetensors"), load_file(target / "model.safetensors")
    name = "model.embed_tokens.weight" if "model.embed_tokens.weight" in tensors else "lm_head.weight"
    if MARKOV.format(2) in tensors:
        n = tensors["norm.weight"].size
        tensors["embed_tokens.weight"] = of_target["model.embed_tokens.weight"]
        if matrix.shape[1] > n:
            tensors[MARKOV.format(2)] = np.ascontiguousarray(matrix[:, n:])
        matrix = matrix[:, :n]
    save_file({**tensors, name: np.ascontiguousarray(matrix)}, head / "model.safetensors")
    out = head / "head.gguf"
    out.unlink(missing_ok=True)
    return as_type(head, out, "F32", target=target)


def states_after(engine: Engine, text: list[int], at: int) -> list[NDArray[np.float32]]:
    """Return the states, or the logits of an identity, of the draft tokens after the token at a position."""
    engine.evaluate(text[engine.n_past : at])
    if engine.compiled_graph.model_graph.draft_block:
        return list(engine.draft_head.evaluate_block(engine.sequence, text[at], at).states[:STEPS])
    states, before = [], None
    for step in range(STEPS):
        logits, before = evaluate_draft_head(engine, text[at + step], at, before)
        states.append(logits.copy())
    return states


@pytest.mark.parametrize(("bias", "is_drafted"), [(-30.0, False), (30.0, True)])
def test_confidence_head_decides_how_much_is_drafted(
    bias: float, is_drafted: bool, tmp_path: Path, free_drafts: None
) -> None:
    """The probabilities of the tokens themselves are all below the minimum."""
    pair = draft_head_models.write_model_and_head("dspark", tmp_path, "Q8_0")
    overwrite(pair.head, "conf_proj.bias", bias)
    options: dict[str, Any] = {**OPTIONS, "temp": 0, "spec_type": "draft-dspark", "spec_draft_p_min": 0.5}
    with localinfer.load(pair.model, spec_draft_model=str(pair.head), ctx_size=128, threads=1) as model:
        assert (generate(model, **options).stats.drafted_tokens > 0) == is_drafted


def overwrite(path: Path, name: str, value: float) -> None:
    """Set all values of a tensor of F32."""
    tensor = open_gguf(path).tensors[name]
    with path.open("r+b") as file:
        file.seek(tensor.offset)
        file.write(np.full(tensor.shape, value, np.float32).tobytes())


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_bad_head_only_stops_drafting(value: float, tmp_path: Path, free_drafts: None) -> None:
    pair = draft_head_models.write_model_and_head("eagle3", tmp_path, "Q8_0")
    overwrite(pair.head, "output_norm.weight", value)
    options: dict[str, Any] = {**OPTIONS, "temp": 0}
    with localinfer.load(pair.model, spec_draft_model=str(pair.head), ctx_size=128, threads=1) as model:
        alone = generate(model, spec_type="none", **options)
        result = generate(model, spec_type="draft-mtp", **options)
        assert result.tokens == alone.tokens
        assert result.stats.drafted_tokens == 0


def test_model_without_a_head(tmp_path: Path) -> None:
    with localinfer.load(tiny_llama(tmp_path / "m.gguf"), ctx_size=64, threads=1) as model:
        assert not model.engine.compiled_graph.has_draft_head
        assert generate(model, spec_type="draft-mtp", n_predict=20).stats.drafted_tokens == 0


def test_snapshot_belongs_to_model_and_head(tmp_path: Path) -> None:
    """A model with a head rejects a snapshot that was written without the head."""
    pair, cache_file = draft_head_models.write_model_and_head("eagle3", tmp_path, "Q8_0"), tmp_path / "cache"
    load_options: dict[str, Any] = {"ctx_size": 64, "threads": 1}
    with localinfer.load(pair.model, **load_options) as model:
        generate(model, n_predict=20)
        model.save_cache(cache_file)
    with localinfer.load(pair.model, spec_draft_model=str(pair.head), **load_options) as model:
        with pytest.warns(UserWarning, match="belongs to another model"):
            assert model.load_cache(cache_file) == 0
        generate(model, n_predict=20)
        model.save_cache(cache_file)
        assert model.load_cache(cache_file) > 0


def test_head_is_rejected_as_a_model(tmp_path: Path) -> None:
    pair = draft_head_models.write_model_and_head("eagle3", tmp_path)
    with pytest.raises(
        UnsupportedError, match="'eagle3' is a draft head for another model: pass it as spec_draft_model"
    ):
        localinfer.load(pair.head)


def test_spec_type_must_match_the_head(tmp_path: Path) -> None:
    """A head needs a head type, and a draft model needs draft-simple; the type none accepts both."""
    pair, draft = draft_head_models.write_model_and_head("eagle3", tmp_path), tiny_llama(tmp_path / "draft.gguf")
    with pytest.raises(UsageError, match=r"^spec_type ngram,draft-simple: .* is a draft head; use draft-eagle3$"):
        localinfer.load(pair.model, spec_draft_model=str(pair.head), spec_type="ngram,draft-simple")
    with pytest.raises(UsageError, match=r"^spec_type draft-eagle3: .* is a draft model; use draft-simple$"):
        localinfer.load(tiny_llama(tmp_path / "m.gguf"), spec_draft_model=str(draft), spec_type="draft-eagle3")
    localinfer.load(pair.model, spec_draft_model=str(pair.head), spec_type="none").close()
    spark = draft_head_models.write_model_and_head("dspark", tmp_path / "dspark")
    with pytest.raises(UsageError, match=r"dspark\.gguf is a draft head; use draft-dspark$"):
        localinfer.load(spark.model, spec_draft_model=str(spark.head), spec_type="draft-simple")


def test_head_must_have_the_same_vocabulary(tmp_path: Path) -> None:
    pair, other = draft_head_models.write_model_and_head("eagle3", tmp_path), tiny_llama(tmp_path / "other.gguf")
    with pytest.raises(UsageError, match=r"cannot draft for other\.gguf"):
        localinfer.load(other, spec_draft_model=str(pair.head))
