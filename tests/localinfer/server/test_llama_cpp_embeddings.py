"""Embeddings and reranking in the formats of llama.cpp's server."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference_models
import sentence_transformers_files
from checkpoints import as_f32
from locations import DATA
from server_process import ServerProcess

from localinfer import load

DOCUMENTS = ["a bear", "What is a panda?", "It is black and white"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder")
    return as_f32(reference_models.checkpoint("bert", folder), folder / "encoder.gguf")


@pytest.fixture(scope="module")
def embedding(encoder: Path) -> Iterator[ServerProcess]:
    with ServerProcess(encoder, "--parallel", "1") as served:
        yield served


@pytest.fixture(scope="module")
def reranking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    path = as_f32(DATA / "reranker", tmp_path_factory.mktemp("reranker") / "reranker.gguf")
    with ServerProcess(path, "--parallel", "1") as served:
        yield served


def vectors(server: ServerProcess, text: Any, **fields: Any) -> list[Any]:
    answer = server.post("/v1/embeddings", {"input": text, **fields})
    assert answer.status == 200, answer.body
    return [each["embedding"] for each in answer.body["data"]]


def test_inputs_in_every_form(embedding: ServerProcess) -> None:
    [expected] = vectors(embedding, "Hello world")
    ids = embedding.post("/tokenize", {"content": "Hello world", "add_special": True}).body["tokens"]
    content = {"content": [{"type": "text", "text": "Hello "}, {"type": "text", "text": "world"}]}
    for text in (ids, {"prompt_string": "Hello world"}, content):
        assert vectors(embedding, text) == [expected]
    assert vectors(embedding, ["Hello world", content, ids])[2] == expected
    assert len(vectors(embedding, [*ids, "more"])) == 1
    for wrong in ([], {"content": "x"}, {"content": [{"type": "image_url"}]}, None):
        assert embedding.post("/v1/embeddings", {"input": wrong}).status == 400, wrong


def test_dimensions(embedding: ServerProcess) -> None:
    [whole], [cut] = vectors(embedding, "Hello"), vectors(embedding, "Hello", dimensions=8)
    np.testing.assert_allclose(cut, np.array(whole[:8]) / np.linalg.norm(whole[:8]), rtol=1e-5)
    assert embedding.post("/v1/embeddings", {"input": "Hello", "dimensions": len(whole) + 1}).status == 400


@pytest.mark.parametrize(("path", "name"), [("/embedding", "content"), ("/embeddings", "input")])
def test_own_format(embedding: ServerProcess, path: str, name: str) -> None:
    body = embedding.post(path, {name: ["a", "b"]}).body
    assert [each["index"] for each in body] == [0, 1]
    assert [each["embedding"][0] for each in body] == vectors(embedding, ["a", "b"])
    [plain] = embedding.post(path, {name: "a", "embd_normalize": -1}).body
    vector = np.array(plain["embedding"][0])
    np.testing.assert_allclose(vector / np.linalg.norm(vector), vectors(embedding, "a")[0], rtol=1e-5)


def test_embeddings_of_tokens(encoder: Path) -> None:
    """Their mean is the embedding of the text."""
    with ServerProcess(encoder, "--parallel", "1", "--pooling", "none") as served, load(encoder) as model:
        [answer] = served.post("/embeddings", {"input": "Hello world"}).body
        rows = np.array(answer["embedding"])
        assert len(rows) == len(model.tokenize("Hello world"))
        [pooled] = model.embed("Hello world", pooling="mean", normalize=False)
        np.testing.assert_allclose(rows.mean(0), pooled, atol=1e-5)
        assert served.post("/v1/embeddings", {"input": "Hello"}).status == 400


def test_embedded_tokens_are_counted(embedding: ServerProcess) -> None:
    def count() -> float:
        lines = embedding.get("/metrics").body.decode().splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith("llamacpp:prompt_tokens_total "))

    before = count()
    n_tokens = embedding.post("/v1/embeddings", {"input": "Hello world"}).body["usage"]["prompt_tokens"]
    assert count() == before + n_tokens


@pytest.mark.parametrize("path", ["/rerank", "/reranking", "/v1/rerank", "/v1/reranking"])
def test_rerank(reranking: ServerProcess, path: str) -> None:
    body = reranking.post(path, {"query": "panda", "documents": DOCUMENTS, "top_n": 2}).body
    scores = [each["relevance_score"] for each in body["results"]]
    assert len(scores) == 2
    assert scores == sorted(scores, reverse=True)
    assert body["usage"]["prompt_tokens"] > 0


def test_rerank_in_the_format_of_text_embeddings_inference(reranking: ServerProcess) -> None:
    request = {"query": "panda", "texts": DOCUMENTS, "return_text": True}
    results = reranking.post("/rerank", request).body
    by_jina = reranking.post("/rerank", {"query": "panda", "documents": DOCUMENTS}).body["results"]
    assert [(each["index"], each["score"]) for each in results] == [
        (each["index"], each["relevance_score"]) for each in by_jina
    ]
    assert [each["text"] for each in results] == [DOCUMENTS[each["index"]] for each in results]


@pytest.mark.parametrize(
    "fields", [{"documents": []}, {"documents": 5}, {"documents": [1]}, {"query": ""}, {"query": 5}, {"top_n": 0}]
)
def test_invalid_rerank_requests(reranking: ServerProcess, fields: dict[str, object]) -> None:
    assert reranking.post("/rerank", {"query": "panda", "documents": DOCUMENTS} | fields).status == 400


def test_scores_between_0_and_1(reranking: ServerProcess) -> None:
    def scores(**fields: Any) -> list[float]:
        results = reranking.post("/rerank", {"query": "panda", "texts": DOCUMENTS, **fields}).body
        return [each["score"] for each in results]

    assert scores() == scores(raw_scores=True)
    np.testing.assert_allclose(scores(raw_scores=False), 1 / (1 + np.exp(-np.array(scores()))), rtol=1e-5)


def test_an_instruction_that_the_reranker_does_not_take(reranking: ServerProcess) -> None:
    answer = reranking.post("/rerank", {"query": "panda", "documents": DOCUMENTS, "instruction": "Find animals"})
    assert (answer.status, "takes none" in str(answer.body["error"])) == (400, True)


def test_named_prompts(tmp_path: Path) -> None:
    path = as_f32(sentence_transformers_files.encoder(tmp_path), tmp_path / "prompted.gguf")
    with ServerProcess(path, "--parallel", "1") as served:
        assert vectors(served, "a bear", prompt_name="query") == vectors(served, "query: a bear")
        own = served.post("/embeddings", {"input": "a bear", "prompt_name": "query"}).body
        assert own[0]["embedding"] == vectors(served, "query: a bear")
        assert served.post("/v1/embeddings", {"input": "a bear", "prompt_name": "passage"}).status == 400


def test_ollama_cuts_texts_to_the_context(encoder: Path) -> None:
    with ServerProcess(encoder, "--parallel", "1", "--ctx-size", "32") as served:
        answer = served.post("/api/embed", {"input": "long " * 50, "dimensions": 8})
        assert (answer.status, len(answer.body["embeddings"][0])) == (200, 8)
        assert answer.body["prompt_eval_count"] == 32
        assert served.post("/api/embed", {"input": "long " * 50, "truncate": False}).status == 400
        assert served.post("/v1/embeddings", {"input": "long " * 50}).status == 400


def test_model_without_a_classifier(embedding: ServerProcess) -> None:
    assert embedding.post("/rerank", {"query": "panda", "documents": DOCUMENTS}).status == 501
