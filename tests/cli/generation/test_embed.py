"""Options of `localinfer embed` that llama-embedding and sentence-transformers have."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from checkpoints import as_f32
from sentence_transformers_files import encoder
from tiny import tiny_llama

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_llama(tmp_path / "tiny.gguf")


def test_separator(run: Run, model: Path) -> None:
    def embeddings(*arguments: str) -> list[object]:
        code, out, err = run("embed", model, "-c", 64, "-t", 1, "--pooling", "last", *arguments)
        assert code == 0, err
        return [json.loads(line) for line in out.splitlines()]

    assert embeddings("-p", "one<#>two", "--embd-separator", "<#>") == embeddings("-p", "one", "-p", "two")


def test_attention(run: Run, model: Path) -> None:
    code, _, err = run("embed", model, "-c", 64, "-t", 1, "-p", "one", "--attention", "non-causal")
    assert (code, "--attention non-causal: the attention of this model is causal" in err) == (3, True)
    assert run("embed", model, "-c", 64, "-t", 1, "-p", "one", "--attention", "causal")[0] == 0


@pytest.fixture(scope="module")
def prompted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prompted")
    return as_f32(encoder(folder, default="query"), folder / "prompted.gguf")


def test_prompts_and_dimensions(run: Run, prompted: Path) -> None:
    def embedding(*arguments: object) -> list[float]:
        code, out, err = run("embed", prompted, "-t", 1, "-p", "a bear", "--dimensions", 8, *arguments)
        assert code == 0, err
        [line] = map(json.loads, out.splitlines())
        assert len(line["embedding"]) == 8
        return list(line["embedding"])

    assert embedding() == embedding("--prompt-name", "query") == embedding("--prompt-prefix", "query: ")
    assert embedding("--prompt-name", "document") == embedding("--prompt-prefix", "") != embedding()
    assert "prompt before each text: 'query: '" in run("embed", prompted, "-t", 1, "-p", "a bear")[2]


def test_vectors_of_tokens(run: Run, prompted: Path, tmp_path: Path) -> None:
    arguments = ("embed", prompted, "-t", 1, "--pooling", "none", "--prompt-prefix", "")
    code, out, _ = run(*arguments, "-p", "a bear", "-p", "fish")
    rows = [np.array(json.loads(line)["embedding"]) for line in out.splitlines()]
    assert (code, [each.shape for each in rows]) == (0, [(6, 96), (4, 96)])
    np.testing.assert_allclose(np.linalg.norm(rows[0], axis=1), 1, rtol=1e-6)
    out_path = tmp_path / "rows.npy"
    assert run(*arguments, "-p", "a bear", "-o", out_path)[0] == 0
    np.testing.assert_allclose(np.load(out_path), rows[0], rtol=1e-6)
    code, _, err = run(*arguments, "-p", "a bear", "-p", "fish", "-o", out_path)
    assert (code, "--pooling none: a .npy file has the vectors of one text" in err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--dimensions", 97), 2, "--dimensions): must be at most 96, the length of the embeddings"),
        (("--prompt-name", "passage"), 2, "--prompt-name): 'passage': the model file has query, document"),
        (("--prompt-name", "query", "--prompt-prefix", "x"), 2, "--prompt-prefix) is given, too"),
        (("--pooling", "rank"), 3, "has no classification head for reranking"),
        (("--pooling", "max"), 2, "pooling: must be none, mean, cls, last, rank, not max"),
    ],
)
def test_errors_are_one_line(
    run: Run, prompted: Path, arguments: tuple[object, ...], code: int, message: str
) -> None:
    actual, out, err = run("embed", prompted, "-t", 1, "-p", "a bear", *arguments)
    assert (actual, out) == (code, "")
    assert message in err.splitlines()[-1]


def test_a_generative_model_does_not_rerank(run: Run, model: Path) -> None:
    code, _, err = run("rerank", model, "-c", 64, "-t", 1, "query", "document")
    assert (code, "has no classification head for reranking" in err) == (3, True)
