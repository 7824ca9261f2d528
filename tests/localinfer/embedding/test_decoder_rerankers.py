"""Rerankers that are decoders compute what the generative model in the same checkpoint computes."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import as_f32, edit_json
from locations import DATA
from reranker_checkpoints import CONTROL, FAMILIES, checkpoint
from safetensors.numpy import load_file, save_file

import localinfer
from localinfer.conversion import open_checkpoint
from localinfer.errors import LocalInferError, UnsupportedError, UsageError

EXACT = {"threads": 1, "precision": "high", "cache_type_k": "f32", "cache_type_v": "f32"}
QUERY = "What is a panda?"
DOCUMENTS = ["It is a bear.", "It is a fish, {query} or not.", "", " naïve?\n"]
QWEN3 = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct"
    ' provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: {}\n'
    "<Query>: {}\n<Document>: {}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
MXBAI = (
    (
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\n"
    ),
    (
        "You are a search relevance expert who evaluates how well documents match search queries. For each"
        " query-document pair, carefully analyze the semantic relationship between them, then provide your binary"
        " relevance judgment (0 for not relevant, 1 for relevant).\nRelevance:"
    ),
    "<|im_end|>\n<|im_start|>assistant\n",
)
BGE_TASK = (
    "Given a query A and a passage B, determine whether the passage contains an answer to the query by providing a "
    "prediction of either 'Yes' or 'No'."
)
QWEN3_TASK = "Given a web search query, retrieve relevant passages that answer the query"


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The reranker, and the generative model of the same weights; the name and the ids of the answers."""
    reference, tokens, control, answers = FAMILIES[request.param]
    folder = tmp_path_factory.mktemp("reranker")
    path = checkpoint(reference, folder / request.param, tokens, control)
    reranker = as_f32(path, folder / "reranker.gguf")
    generative = as_f32(path.rename(folder / "plain"), folder / "plain.gguf")
    vocabulary = json.loads((folder / "plain" / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    with localinfer.load(reranker, **EXACT) as one, localinfer.load(generative, **EXACT) as other:
        yield one, other, request.param, [vocabulary[each] for each in answers]


def prompt_ids(model: localinfer.Model, name: str, document: str, instruction: str) -> list[int]:
    """Return the tokens of the prompt as the authors of the model make it."""
    control = {"add_special": False, "parse_special": True}
    if "Qwen3" in name:
        return model.tokenize(QWEN3.format(instruction or QWEN3_TASK, QUERY, document), **control)
    if "mxbai" in name:
        before = f"instruction: {instruction}\n" if instruction else ""
        texts = (f"{before}query: {QUERY}", "\n", f"document: {document}", "\n")
        pieces = (MXBAI[0], *texts, *MXBAI[1:])
    else:
        pieces = ("<bos>", f"A: {QUERY}", "\n", f"B: {document}", "\n", instruction or BGE_TASK)
    return [id for piece in pieces for id in model.tokenize(piece, **control)]


@pytest.mark.parametrize("instruction", ["", "Find animals: {document}"])
def test_scores_are_logits_of_the_answers(pair: Any, instruction: str) -> None:
    reranker, generative, name, answers = pair
    expected = []
    for document in DOCUMENTS:
        ids = prompt_ids(generative, name, document, instruction)
        logits = generative.logits(ids)[-1][answers].astype(np.float64)
        probability = np.exp(logits[0]) / np.exp(logits).sum()
        expected.append(probability if "Qwen3" in name else logits[0] - logits[1:].sum())
    scores = {each.index: each.score for each in reranker.rerank(QUERY, DOCUMENTS, instruction=instruction)}
    np.testing.assert_allclose([scores[i] for i in range(len(DOCUMENTS))], expected, rtol=0, atol=1e-4)


def test_sigmoid_leaves_probabilities_as_they_are(pair: Any) -> None:
    reranker, _, name, _ = pair
    plain, mapped = (reranker.rerank(QUERY, DOCUMENTS, sigmoid=sigmoid) for sigmoid in (False, True))
    scores = np.array([each.score for each in plain])
    expected = scores if "Qwen3" in name else 1 / (1 + np.exp(-scores))
    np.testing.assert_allclose([each.score for each in mapped], expected, atol=1e-6)


def test_a_cut_document_keeps_the_end_of_the_prompt(pair: Any, tmp_path: Path) -> None:
    reranker, generative, name, _ = pair
    n_ctx = 2 * len(prompt_ids(generative, name, "", ""))
    whole = prompt_ids(generative, name, "a" * n_ctx, "")
    with localinfer.load(reranker.engine.file.path, ctx_size=n_ctx, **EXACT) as model:
        room = model.engine.n_ctx - (len(whole) - n_ctx)
        [expected] = model.rerank(QUERY, ["a" * room])
        with pytest.warns(UserWarning, match="its end is dropped"):
            [cut] = model.rerank(QUERY, ["a" * (room + 50)], truncate=True)
    assert cut.score == expected.score


def test_qwen3_with_a_label(tmp_path: Path) -> None:
    """The probability of "yes" is the sigmoid of the label's logit, as sentence-transformers has it."""
    path = checkpoint("qwen3", tmp_path / "plain", ("yes", "no"), CONTROL)
    weights = load_file(path / "model.safetensors")
    plain = as_f32(path, tmp_path / "plain.gguf")
    label = np.random.default_rng(0).normal(size=(1, weights["model.norm.weight"].size)).astype(np.float32)
    save_file(weights | {"score.weight": label}, path / "model.safetensors")
    edit_json(path / "config.json", lambda values: values.update(
        architectures=["Qwen3ForSequenceClassification"], id2label={"0": "LABEL_0"}))  # fmt: skip
    with localinfer.load(plain, **EXACT) as model:
        ids = [prompt_ids(model, "Qwen3", document, "") for document in DOCUMENTS]
        logits = model.embed(ids, pooling="last", normalize=False) @ label[0]
    with localinfer.load(as_f32(path, tmp_path / "label.gguf"), **EXACT) as model:
        scores = {each.index: each.score for each in model.rerank(QUERY, DOCUMENTS)}
    np.testing.assert_allclose([scores[i] for i in range(4)], 1 / (1 + np.exp(-logits)), atol=1e-4)


def test_keys_are_those_of_llama_cpp(tmp_path: Path) -> None:
    path = checkpoint("qwen3", tmp_path / "plain", ("yes", "no"), CONTROL)
    (path / "README.md").write_text("---\nlicense: mit\n---\n\n# Qwen3-Reranker-0.6B\n", encoding="utf-8")
    source = open_checkpoint(path)
    assert source.fields["qwen3.pooling_type"].value == 4
    assert source.fields["tokenizer.chat_template.rerank"].value.decode() == QWEN3.format(
        QWEN3_TASK, "{query}", "{document}"
    )
    assert b"yes" in source.fields["qwen3.classifier.output_labels"].data
    assert source.tensors["cls.output.weight"].shape == (2, 96)
    assert "output.weight" not in source.tensors


def test_a_reranker_needs_the_tokens_of_its_answers(tmp_path: Path) -> None:
    path = checkpoint("qwen3", tmp_path / "Tiny-Qwen3-Reranker", ("yes",), CONTROL)
    with pytest.raises(LocalInferError, match=r"has no token no$"):
        open_checkpoint(path)


def test_queries_keys_and_values_in_one_matrix(tmp_path: Path) -> None:
    """jina-reranker-v2 has the weights of an XLM-R under other names."""
    folder = Path(shutil.copytree(DATA / "reranker", tmp_path / "jina"))
    names = {
        "embeddings.LayerNorm": "emb_ln", "encoder.layer.": "encoder.layers.",
        "attention.output.dense": "mixer.out_proj", "attention.output.LayerNorm": "norm1",
        "intermediate.dense": "mlp.fc1", "output.dense": "mlp.fc2",
        "output.LayerNorm": "norm2",
    }  # fmt: skip
    weights: dict[str, Any] = {}
    for stored, values in load_file(folder / "model.safetensors").items():
        name = stored
        for old, new in names.items():
            name = name.replace(old, new)
        layer, kind, part = name.partition(".attention.self.")
        if kind:
            weights.setdefault(f"{layer}.mixer.Wqkv.{part.partition('.')[2]}", {})[part] = values
        else:
            weights[name] = values
    for name, parts in weights.items():
        if isinstance(parts, dict):
            ending = name.rpartition(".")[2]
            weights[name] = np.concatenate([parts[f"{each}.{ending}"] for each in ("query", "key", "value")])
    save_file(weights, folder / "model.safetensors")
    edit_json(folder / "config.json", lambda values: values.update(use_flash_attn=True))
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    with localinfer.load(as_f32(folder, tmp_path / "jina.gguf"), **EXACT) as model:
        scores = {each.index: each.score for each in model.rerank(QUERY, expected["documents"])}
        with pytest.raises(UsageError, match=r"--instruction.*takes none"):
            model.rerank(QUERY, ["a"], instruction="Find animals")
    expected_scores = expected["scores"][QUERY]
    np.testing.assert_allclose([scores[i] for i in range(len(scores))], expected_scores, rtol=0, atol=1e-4)


def test_a_classifier_of_several_classes_is_no_reranker(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(DATA / "reranker", tmp_path / "classes"))
    weights = load_file(folder / "model.safetensors")
    for name in ("classifier.out_proj.weight", "classifier.out_proj.bias"):
        weights[name] = np.concatenate([weights[name], -weights[name]])
    save_file(weights, folder / "model.safetensors")
    edit_json(folder / "config.json", lambda values: values.update(id2label={"0": "entails", "1": "contradicts"}))
    with localinfer.load(as_f32(folder, tmp_path / "classes.gguf"), **EXACT) as model:
        assert list(model.metadata["bert.classifier.output_labels"]) == [b"entails", b"contradicts"]
        [[first, second]] = model.embed(["a"], pooling="rank")
        assert first == pytest.approx(-second)
        with pytest.raises(UnsupportedError, match="a classifier of 2 labels"):
            model.rerank(QUERY, ["a"])
