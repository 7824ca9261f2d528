"""Reranking scores equal those of transformers for the tiny XLM-R model in data/reranker."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from checkpoints import as_f32
from safetensors.numpy import save_file
from tokenizer_texts import tricky

import localinfer
from cli.__main__ import run
from localinfer.errors import ContextOverflowError, UnsupportedError
from localinfer.gguf.gguf_source import from_gguf
from localinfer.quantization.quantize import make_encoder_factory, quantize

FOLDER = Path(__file__).parents[2] / "data" / "reranker"
EXPECTED: dict[str, Any] = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))
DOCUMENTS: list[str] = EXPECTED["documents"]
EXACT = {"threads": 1, "precision": "high", "cache_type_k": "f32", "cache_type_v": "f32"}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return as_f32(FOLDER, tmp_path_factory.mktemp("reranker") / "reranker.gguf")


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[localinfer.Model]:
    with localinfer.load(path, **EXACT) as opened:
        yield opened


def test_ids_are_those_of_sentencepiece(model: localinfer.Model) -> None:
    for text, ids in EXPECTED["ids"].items():
        assert model.tokenize(text, add_special=False) == ids, repr(text)


def test_ids_are_those_of_tokenizers(model: localinfer.Model) -> None:
    """Only for texts without white space other than " ", which this small vocabulary does not normalize."""
    reference = tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    for text in (text for text in tricky() if not any(each.isspace() for each in text.replace(" ", ""))):
        assert model.tokenize(text, parse_special=True) == reference.encode(text).ids, repr(text)


@pytest.mark.parametrize("query", EXPECTED["scores"])
def test_scores_are_those_of_transformers(query: str, model: localinfer.Model) -> None:
    """Includes empty texts, which consist of special tokens only."""
    ranked = model.rerank(query, DOCUMENTS)
    assert [each.score for each in ranked] == sorted((each.score for each in ranked), reverse=True)
    assert all(each.document == DOCUMENTS[each.index] for each in ranked)
    scores = [each.score for each in sorted(ranked, key=lambda each: each.index)]
    np.testing.assert_allclose(scores, EXPECTED["scores"][query], rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("pair", "separator"),
    [("<s> $A </s> </s> $B </s>", [2, 2]), ("<s> $A </s> $B </s>", [2]), ("<s> $A </s> $B:1 </s>:1", [2])],
)
def test_pairs_are_joined_by_the_template_of_the_tokenizer(pair: str, separator: list[int], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FOLDER, tmp_path / "reranker"))
    reference = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    reference.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", pair=pair, special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    reference.save(str(folder / "tokenizer.json"))
    with localinfer.load(as_f32(folder, tmp_path / "reranker.gguf"), **EXACT) as model:
        assert model.tokenizer.pair_separator(default=False) == separator
        ids = reference.encode("What is a panda?", "It is a bear.").ids
        [[score]] = model.embed([ids], pooling="rank")
        assert model.rerank("What is a panda?", ["It is a bear."])[0].score == score


def test_a_roberta_whose_file_states_nothing_has_two_separators(path: Path, tmp_path: Path) -> None:
    """Files of llama.cpp's earlier converters, for example of bge-reranker-v2-m3."""
    source = from_gguf(path)
    fields = {key: value for key, value in source.fields.items() if "add_sep" not in key}
    types = {name: tensor.type for name, tensor in source.tensors.items()}
    older = tmp_path / "older.gguf"
    quantize(replace(source, fields=fields), older, types, encoder_factory=make_encoder_factory("fast", {}))
    query = "What is a panda?"
    with localinfer.load(older, **EXACT) as model:
        scores = {each.document: each.score for each in model.rerank(query, DOCUMENTS)}
    assert [scores[each] for each in DOCUMENTS] == pytest.approx(EXPECTED["scores"][query], abs=1e-4)


def test_a_bert_without_pooler_has_no_scores(path: Path, tmp_path: Path) -> None:
    """As llama.cpp's converter writes BertForSequenceClassification."""
    source = from_gguf(path)
    tensors = {name: tensor for name, tensor in source.tensors.items() if name not in ("cls.weight", "cls.bias")}
    types = {name: tensor.type for name, tensor in tensors.items()}
    lacking = tmp_path / "lacking.gguf"
    quantize(replace(source, tensors=tensors), lacking, types, encoder_factory=make_encoder_factory("fast", {}))
    with localinfer.load(lacking, **EXACT) as model, pytest.raises(UnsupportedError, match="drops BERT's pooler"):
        model.rerank("What?", ["It is a bear."])


def test_long_document_is_truncated_on_request(model: localinfer.Model) -> None:
    long = "It is a bear. " * 40
    with pytest.raises(ContextOverflowError, match="text 2: is too large"):
        model.rerank("What?", ["short", long])
    with pytest.warns(UserWarning, match="its end is dropped"):
        scores = {each.index: each.score for each in model.rerank("What?", ["short", long], truncate=True)}
    assert np.isfinite(list(scores.values())).all()
    assert scores[0] == pytest.approx(model.rerank("What?", ["short"])[0].score, abs=1e-6)


def test_command_sorts_by_score(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = "What is a panda?"
    assert run(["rerank", str(path), query, *DOCUMENTS[:4], "--json", "--top-n", "3"]) == 0
    best = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    order = np.argsort(EXPECTED["scores"][query][:4])[::-1][:3]
    assert [each["index"] for each in best] == order.tolist()
    assert [each["document"] for each in best] == [DOCUMENTS[index] for index in order]


def gte_reranker(folder: Path) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    """Write a checkpoint of the class of gte-multilingual-reranker-base over this one, and return its tensors."""
    rng, n, n_ff = np.random.default_rng(0), 32, 64
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    own = {
        "architectures": ["NewForSequenceClassification"], "model_type": "new", "num_hidden_layers": 1,
        "position_embedding_type": "rope", "rope_theta": 2e4, "rope_scaling": {"type": "ntk", "factor": 8.0},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config | own), encoding="utf-8")
    layer = "new.encoder.layer.0"
    shapes = {
        "new.embeddings.word_embeddings.weight": (config["vocab_size"], n),
        "new.embeddings.token_type_embeddings.weight": (1, n),
        f"{layer}.attention.qkv_proj.weight": (3 * n, n), f"{layer}.attention.qkv_proj.bias": (3 * n,),
        f"{layer}.attention.o_proj.weight": (n, n), f"{layer}.attention.o_proj.bias": (n,),
        f"{layer}.mlp.up_gate_proj.weight": (2 * n_ff, n),
        f"{layer}.mlp.down_proj.weight": (n, n_ff), f"{layer}.mlp.down_proj.bias": (n,),
        "new.pooler.dense.weight": (n, n), "new.pooler.dense.bias": (n,),
        "classifier.weight": (1, n), "classifier.bias": (1,),
    }  # fmt: skip
    for norm in ("new.embeddings.LayerNorm", f"{layer}.attn_ln", f"{layer}.mlp_ln"):
        shapes |= {f"{norm}.weight": (n,), f"{norm}.bias": (n,)}
    tensors = {name: rng.normal(0, shape[-1] ** -0.5, shape).astype(np.float32) for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    return tensors


def test_scores_of_gte_are_those_of_its_pooler_and_classifier(tmp_path: Path) -> None:
    """The states of its encoder are compared with transformers elsewhere."""
    folder = Path(shutil.copytree(FOLDER, tmp_path / "gte"))
    tensors = gte_reranker(folder)
    reference = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    query, document = "What is a panda?", "It is a bear."
    with localinfer.load(as_f32(folder, tmp_path / "gte.gguf"), **EXACT) as model:
        [state] = model.embed([reference.encode(query, document).ids], pooling="cls", normalize=False)
        [ranked] = model.rerank(query, [document])
    dense = np.tanh(tensors["new.pooler.dense.weight"] @ state + tensors["new.pooler.dense.bias"])
    [score] = tensors["classifier.weight"] @ dense + tensors["classifier.bias"]
    assert ranked.score == pytest.approx(score, abs=1e-4)
