"""Qwen4-Exp: texts that part after a common beginning, models without n-grams, other types of tensors, and files that
are refused."""

import re
from contextlib import closing
from dataclasses import replace
from typing import Any

import checkpoints
import numpy as np
import pytest
import reference_models

from localinfer import naive
from localinfer.errors import LocalInferError
from localinfer.gguf.reader import GGUF, open_gguf
from localinfer.options import Options
from localinfer.runtime.engine import Engine
from quant.ggml import TYPE_NUMBERS

EXACT = Options(ctx_size=512, threads=1, precision="high", cache_type_k="f32", cache_type_v="f32")
IDS = np.random.default_rng(4).integers(0, 256, 300).tolist()
FILTER = "blk.1.ple_conv1d.weight"
NGRAMS = re.compile(r"per_layer_token_embd\.weight|blk\.1\.ple_.*")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> GGUF:
    folder = tmp_path_factory.mktemp("model")
    return open_gguf(checkpoints.as_f32(reference_models.checkpoint("qwen4exp", folder), folder / "model.gguf"))


def expected(file: GGUF, ids: list[int]) -> Any:
    model = naive.Model(file)
    model.ctx_size = EXACT.ctx_size
    return naive.forward(model, ids)


def test_another_text_after_a_common_beginning_has_its_own_runs(file: GGUF) -> None:
    other = [*IDS[:90], *IDS[200:260]]
    with closing(Engine.load(file, replace(EXACT, parallel=2))) as running:
        alone = running.logits(other)
        running.reset()
        running.evaluate(IDS[:90])
        fork = running.sequence.fork()
        running.evaluate(IDS[90:])
        running.sequence = fork
        np.testing.assert_array_equal(running.logits(other[90:]), alone[90:])


def test_a_model_may_have_no_ngrams(file: GGUF) -> None:
    metadata = {key: value for key, value in file.metadata.items() if ".ple." not in key}
    metadata.pop("qwen4exp.embedding_length_per_layer_input")
    tensors = {name: tensor for name, tensor in file.tensors.items() if not NGRAMS.fullmatch(name)}
    without = replace(file, metadata=metadata, tensors=tensors)
    with closing(Engine.load(without, EXACT)) as running:
        logits = running.logits(IDS[:60])
    np.testing.assert_allclose(logits, expected(without, IDS[:60]), rtol=0, atol=1e-4)
    assert np.abs(logits - expected(file, IDS[:60])).max() > 0.1


def test_the_filter_of_ngrams_may_have_another_type(file: GGUF) -> None:
    """llama.cpp's converter gives it the type of matrices. The values of the reference model are exact in F16."""
    weight = file.tensors[FILTER]
    halves = weight.data.view(np.float32).astype(np.float16).view(np.uint8)
    changed = replace(weight, type=TYPE_NUMBERS["F16"], data=halves)
    with closing(Engine.load(replace(file, tensors={**file.tensors, FILTER: changed}), EXACT)) as running:
        np.testing.assert_allclose(running.logits(IDS[:60]), expected(file, IDS[:60]), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("attention.compress_ratios", np.array([0, 0, 4], np.int32), "must have 0 or a number from 2"),
        ("attention.compress_ratios", np.array([0, 0, 4, 2000], np.int32), "2000 is not supported"),
        ("attention.indexer.top_k", 26, "is 26; it must be a multiple of 4"),
        ("attention.indexer.key_length", 32, r"indexer\.q_proj\.weight: has shape"),
        ("hyper_connection.count", 3, r"ple_key\.weight: has shape|hc_attn_norm\.weight: has shape"),
        ("ple.layers", np.array([1, 0], np.int32), "another array than that of the number of one layer"),
        ("ple.layers", np.array([4], np.int32), "has layer 4; there are 4"),
        ("ple.ngram_size", 9, "it must be 2 to 8"),
        ("ple.heads_per_ngram", 2, "must have 6 integers"),
        ("ple.layer_multipliers", np.full(4, 1 << 62, np.uint64), "must have 4 integers from 0 to"),
        ("ple.head_vocab_sizes", np.array([61, 0, 71], np.uint64), "has a 0"),
        ("ple.head_offsets", np.array([0, 61, 1 << 30], np.uint64), "it must have 1073741895 rows or more"),
        ("ple.head_offsets", np.array([0, 61, (1 << 31) - 1], np.uint64), "has rows up to"),
        ("ple.eos_token_id", 264, "it must be 0 to 263"),
    ],
)
def test_other_metadata_is_refused(key: str, value: Any, problem: str, file: GGUF) -> None:
    changed = replace(file, metadata={**file.metadata, f"qwen4exp.{key}": value})
    with pytest.raises(LocalInferError, match=problem):
        Engine.load(changed, EXACT)
