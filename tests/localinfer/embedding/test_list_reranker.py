"""jina-reranker-v3 reads all documents in one prompt: scores are those of the naive forward pass and of the formulas of
the model's own code, in numpy."""

import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from checkpoints import as_f32
from numpy.typing import NDArray
from reranker_checkpoints import MARKERS, list_reranker
from safetensors.numpy import load_file, save_file

import localinfer
from localinfer import naive
from localinfer.conversion import open_checkpoint
from localinfer.embedding import list_reranking
from localinfer.embedding.list_reranking import ListTemplate
from localinfer.errors import ContextOverflowError, LocalInferError, UnsupportedError
from localinfer.gguf.pooling import RERANK_LIST_DOCUMENT, RERANK_LIST_INSTRUCTION_TEMPLATE, RERANK_LIST_TEMPLATE

EXACT = {"threads": 1, "precision": "high", "cache_type_k": "f32", "cache_type_v": "f32"}
QUERY = "What is a panda?"
DOCUMENTS = ["It is a bear.", "It is a fish, {query} or not.", "", " naïve?\n", "<|embed_token|>bears", "日本語"]
SYSTEM = (
    "<|im_start|>system\n"
    "You are a search relevance expert who can determine a ranking of the passages based on how relevant they are to "
    "the query. If the query is a question, how relevant a passage is depends on how well it answers the question. If "
    "not, try to analyze the intent of the query and assess how well each passage satisfies the intent. If an "
    "instruction is provided, you should follow the instruction when determining the ranking.<|im_end|>\n"
    "<|im_start|>user\n"
)
END = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
Floats = NDArray[np.float64]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return list_reranker(tmp_path_factory.mktemp("reranker") / "tiny")


@pytest.fixture(scope="module")
def file(folder: Path) -> Path:
    return as_f32(folder, folder.parent / "reranker.gguf")


@pytest.fixture(scope="module")
def model(file: Path) -> Iterator[localinfer.Model]:
    with localinfer.load(file, ctx_size=2048, **EXACT) as opened:
        yield opened


def prompt(documents: Sequence[str], instruction: str = "") -> str:
    """Return the prompt of the model's own code."""
    passages = [f'<passage id="{i}">\n{each}<|embed_token|>\n</passage>' for i, each in enumerate(documents)]
    return (
        SYSTEM
        + f"I will provide you with {len(documents)} passages, each indicated by a numerical identifier. Rank the"
        f" passages based on their relevance to query: {QUERY}\n"
        + (f"<instruct>\n{instruction}\n</instruct>\n" if instruction else "")
        + "\n".join(passages)
        + f"\n<query>\n{QUERY}<|rerank_token|>\n</query>{END}"
    )


def vectors(model: localinfer.Model, folder: Path, documents: Sequence[str], instruction: str = "") -> Floats:
    """Return the projected hidden states of the markers: of the documents, and last that of the query."""
    clean = [each.replace("<|embed_token|>", "") for each in documents]
    ids = model.tokenize(prompt(clean, instruction), add_special=False, parse_special=True)
    states = naive.final_hidden_states(naive.Model(model.engine.file), ids)
    markers = [model.tokenize(each, add_special=False, parse_special=True) for each in MARKERS]
    rows = states[[i for i, id in enumerate(ids) if [id] in markers]]
    weights = load_file(folder / "model.safetensors")
    first, second = (weights[f"projector.{number}.weight"].astype(np.float64) for number in (0, 2))
    return np.asarray(np.maximum(rows @ first.T, 0) @ second.T)


def cosines(rows: Floats, query: Floats) -> Floats:
    return np.asarray(rows @ query / np.linalg.norm(rows, axis=1) / np.linalg.norm(query))


def in_order(ranked: Sequence[localinfer.RankedDocument]) -> list[float]:
    scores = {each.index: each.score for each in ranked}
    return [scores[index] for index in range(len(scores))]


@pytest.mark.parametrize("instruction", ["", "Find animals: {documents}"])
def test_scores_are_cosines_of_vectors_of_one_prompt(instruction: str, model: localinfer.Model, folder: Path) -> None:
    *documents, query = vectors(model, folder, DOCUMENTS, instruction)
    scores = in_order(model.rerank(QUERY, DOCUMENTS, instruction=instruction))
    np.testing.assert_allclose(scores, cosines(np.array(documents), query), rtol=0, atol=1e-4)
    mapped = in_order(model.rerank(QUERY, DOCUMENTS, instruction=instruction, sigmoid=True))
    np.testing.assert_allclose(mapped, 1 / (1 + np.exp(-np.array(scores))), atol=1e-6)
    assert np.ptp(scores) > 0.01


def test_longer_lists_are_read_in_blocks(
    model: localinfer.Model, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_reranking, "MAX_DOCUMENTS", 4)
    blocks = [vectors(model, folder, each) for each in (DOCUMENTS[:4], DOCUMENTS[4:])]
    weights = [(1 + cosines(block[:-1], block[-1]).max()) / 2 for block in blocks]
    query = np.average([block[-1] for block in blocks], axis=0, weights=weights)
    expected = cosines(np.concatenate([block[:-1] for block in blocks]), query)
    np.testing.assert_allclose(in_order(model.rerank(QUERY, DOCUMENTS)), expected, rtol=0, atol=1e-4)


def test_blocks_fit_in_the_context(model: localinfer.Model, file: Path) -> None:
    documents = ["bear " * number for number in (10, 85, 5, 5, 90, 1)]
    n_ctx = len(model.tokenize(prompt(["bear " * 100]), add_special=False, parse_special=True))
    expected = [model.rerank(QUERY, part) for part in (documents[:1], documents[1:2])]
    with localinfer.load(file, ctx_size=n_ctx, batch_size=64, **EXACT) as small:
        embedder = small._resources.embedder()
        prompts = [*embedder._list_reranker.prompts(QUERY, documents, "", truncate=False)]
        assert [each.n_documents for each in prompts] == [1, 2, 1, 2]
        assert max(len(each.ids) for each in prompts) <= n_ctx
        assert small.count_rerank_tokens(QUERY, documents) == sum(len(each.ids) for each in prompts)
        alone = [small.rerank(QUERY, part)[0].score for part in (documents[:1], documents[1:2])]
        np.testing.assert_allclose(alone, [each[0].score for each in expected], rtol=0, atol=1e-6)
        with pytest.raises(ContextOverflowError, match=r"text 2: is too large: .* tokens with the query"):
            small.rerank(QUERY, ["a", "bear " * 200])
        with pytest.warns(UserWarning, match="its end is dropped"):
            [cut] = small.rerank(QUERY, ["bear " * 200], truncate=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert cut.score == small.rerank(QUERY, ["bear " * 100])[0].score
        with pytest.raises(ContextOverflowError, match=rf"query: its prompt has .* the context length {n_ctx}"):
            small.rerank("bear " * 1000, ["a"])


def test_no_documents_have_no_scores(model: localinfer.Model) -> None:
    assert model.rerank(QUERY, []) == []


def test_removing_a_marker_makes_no_other() -> None:
    template = ListTemplate("{query}<|q|>", "", "{document}<|d|>")
    assert template.without_markers("<|<|d|>d|> <|<|q|>d|>") == " "


def test_embeddings_of_single_texts_are_refused(model: localinfer.Model) -> None:
    with pytest.raises(UnsupportedError, match="has no scores of single texts; `localinfer rerank` ranks them"):
        model.embed(["a"])


@pytest.mark.parametrize(
    ("key", "text", "problem"),
    [
        (RERANK_LIST_DOCUMENT, "{document}", "rerank_list_document: has no token after {document}"),
        (RERANK_LIST_TEMPLATE, "{documents}{query}", "rerank_list: has no token after {query}"),
        (RERANK_LIST_TEMPLATE, "{documents}{query}<|nothing|>", "'<|nothing|>' is not a token of the vocabulary"),
        (RERANK_LIST_TEMPLATE, "{query}<|rerank_token|>", "has no marker after each document"),
        (RERANK_LIST_TEMPLATE, "{query}<|rerank_token|>{documents}", "has no marker after each document"),
    ],
)
def test_invalid_templates_are_refused(key: str, text: str, problem: str, model: localinfer.Model) -> None:
    f, embedder = model.engine.file, model._resources.embedder()
    changed = replace(f, metadata={**f.metadata, key: text})

    def rerank() -> None:
        template = ListTemplate.read(changed)
        assert template
        reranker = list_reranking.ListReranker(model.engine, model.tokenizer, template, embedder._dense)
        reranker.scores(QUERY, ["a"], "", truncate=False, progress=lambda _: None)

    with pytest.raises(LocalInferError, match=re.escape(problem)):
        rerank()


def test_the_file_has_the_projector_and_the_prompt(folder: Path, tmp_path: Path) -> None:
    source = open_checkpoint(folder)
    assert {name for name in source.tensors if not name.startswith(("blk.", "token_embd", "output_norm"))} == {
        "dense_2.weight", "dense_3.weight",
    }  # fmt: skip
    values = {key: field.value for key, field in source.fields.items()}
    assert [values[f"qwen3.{key}"] for key in ("pooling_type", "dense_2_feat_in", "dense_3_feat_out")] == [4, 96, 40]
    assert values[RERANK_LIST_INSTRUCTION_TEMPLATE] != values[RERANK_LIST_TEMPLATE]
    path = list_reranker(tmp_path / "other")
    weights = load_file(path / "model.safetensors")
    save_file({name: each for name, each in weights.items() if "projector.2" not in name}, path / "model.safetensors")
    with pytest.raises(LocalInferError, match=r"tensor projector\.2\.weight: is missing"):
        open_checkpoint(path)
    save_file({**weights, "projector.2.weight": weights["projector.0.weight"]}, path / "model.safetensors")
    with pytest.raises(LocalInferError, match=r"projector\.2\.weight: has shape .* not 48 columns"):
        open_checkpoint(path)
