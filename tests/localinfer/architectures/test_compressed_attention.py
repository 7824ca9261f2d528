"""DeepSeek-V4, GLM-5-Next and Qwen4-Exp: texts with many runs of each kind, and files that are refused."""

from contextlib import closing
from dataclasses import replace
from typing import Any

import checkpoints
import numpy as np
import pytest
import reference_models

from localinfer import naive
from localinfer.errors import LocalInferError, UnsupportedError
from localinfer.gguf.reader import GGUF, open_gguf
from localinfer.options import Options
from localinfer.runtime.engine import Engine

EXACT = Options(ctx_size=512, threads=1, precision="high", cache_type_k="f32", cache_type_v="f32")
IDS = np.random.default_rng(2).integers(0, 256, 300).tolist()
TABLE = "blk.0.ffn_gate_tid2eid.weight"


WITH_RUNS = pytest.mark.parametrize("file", ["deepseek4", "glm5-next", "qwen4exp"], indirect=True)


@pytest.fixture(scope="module")
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> GGUF:
    folder, name = tmp_path_factory.mktemp("model"), getattr(request, "param", "deepseek4")
    return open_gguf(checkpoints.as_f32(reference_models.checkpoint(name, folder), folder / "model.gguf"))


@WITH_RUNS
def test_runs_of_128_and_more_pages_than_one(file: GGUF) -> None:
    """75 runs of 4 positions are more than a page has entries, two of 128 of DeepSeek-V4 are complete, and its window
    of 24 positions wraps around in batches of 16."""
    model = naive.Model(file)
    model.ctx_size = EXACT.ctx_size
    expected = naive.forward(model, IDS)
    for options in (EXACT, replace(EXACT, batch_size=16)):
        with closing(Engine.load(file, options)) as running:
            whole = running.logits(IDS)
            running.reset()
            parts = [running.logits(IDS[a:b]) for a, b in ((0, 3), (3, 128), (128, 129), (129, 255), (255, 300))]
        np.testing.assert_allclose(whole, expected, rtol=0, atol=1e-4)
        np.testing.assert_array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("attention.compress_ratios", np.array([0, 4, 128], np.int32), "must have 0 or a number from 2"),
        ("attention.compress_ratios", np.array([0, 4, 1, 4], np.int32), "must have 0 or a number from 2"),
        ("attention.output_group_count", 3, "output_group_count: 3 is not supported"),
        ("attention.output_lora_rank", 33, "output_lora_rank: 33 is not supported"),
        ("attention.value_length", 32, "is 32, not 64: keys are values"),
        ("hyper_connection.count", 3, "hc_attn_fn.weight: has shape"),
        ("hyper_connection.epsilon", 0.0, "must be above 0"),
    ],
)
def test_other_metadata_is_refused(key: str, value: Any, problem: str, file: GGUF) -> None:
    changed = replace(file, metadata={**file.metadata, f"deepseek4.{key}": value})
    with pytest.raises(LocalInferError, match=problem):
        Engine.load(changed, EXACT)


@pytest.mark.parametrize("number", [-1, 8])
def test_a_table_of_experts_has_numbers_of_experts(number: int, file: GGUF) -> None:
    table = file.tensors[TABLE]
    numbers = table.data.view(np.int32).copy()
    numbers[5] = number
    tensors = {**file.tensors, TABLE: replace(table, data=numbers.view(np.uint8))}
    with pytest.raises(LocalInferError, match="must have numbers of experts, 0 to 7"):
        Engine.load(replace(file, tensors=tensors), EXACT)


@WITH_RUNS
def test_a_context_shift_is_refused(file: GGUF) -> None:
    with pytest.raises(UnsupportedError, match=r"attention.* with ctx_policy ring is not supported"):
        Engine.load(file, replace(EXACT, ctx_policy="ring"))
