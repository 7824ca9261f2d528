"""Models whose layers are applied several times (nanbeige, hrm_text): adapters, and what is refused."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import checkpoints
import numpy as np
import pytest
import reference_models
from lora_adapter import ALPHA, random_pairs

from localinfer import naive
from localinfer.adapters import open_adapters
from localinfer.errors import LocalInferError, UnsupportedError
from localinfer.evaluation.layer_removal import remove_layers
from localinfer.gguf.reader import GGUF, open_gguf
from localinfer.graph.properties.repeated_layers import has_repeated_layers, with_repeated_layers
from localinfer.options import Options
from localinfer.runtime.engine import Engine
from localinfer.runtime.graph_building import Extensions

RANK, MATRIX, SHAPE = 4, "blk.1.ffn_up.weight", (160, 64)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nanbeige")
    checkpoint = reference_models.checkpoint("nanbeige-unnormed", folder)
    return checkpoints.as_type(checkpoint, folder / "model.gguf", "F32")


def merged(f: GGUF, adapter: Path) -> GGUF:
    """Return the model with an adapter added to its matrix."""
    tensors, matrix = open_gguf(adapter).tensors, f.tensors[MATRIX]
    a, b = (each.data.view(np.float32).reshape(each.shape) for each in (tensors[f"{MATRIX}.lora_{k}"] for k in "ab"))
    values = matrix.data.view(np.float32).reshape(SHAPE) + np.float32(ALPHA / RANK) * (b @ a)
    return replace(f, tensors=f.tensors | {MATRIX: replace(matrix, data=values.reshape(-1).view(np.uint8))})


def test_an_adapter_changes_each_pass_over_the_layers(model: Path, tmp_path: Path) -> None:
    adapter = random_pairs(tmp_path / "adapter.gguf", {MATRIX: SHAPE}, rank=RANK, architecture="nanbeige")
    f, ids = open_gguf(model), reference_models.expected("nanbeige-unnormed").ids
    expected = naive.forward(naive.Model(merged(f, adapter)), ids)
    options = Options(
        ctx_size=128, ubatch_size=40, threads=1, precision="high", cache_type_k="f32", cache_type_v="f32",
        lora=(str(adapter),),
    )  # fmt: skip
    adapters = open_adapters(f, options)
    assert adapters is not None
    changed = naive.Model(f)
    changed.use_adapters(adapters)
    np.testing.assert_allclose(naive.forward(changed, ids), expected, rtol=0, atol=1e-4)
    with closing(Engine.load(f, options, extensions=Extensions(adapters=adapters))) as engine:
        np.testing.assert_allclose(engine.logits(ids), expected, rtol=0, atol=1e-3)


def test_tensors_are_repeated_once_and_keep_their_names(model: Path) -> None:
    f = open_gguf(model)
    repeated = with_repeated_layers(f)
    assert not has_repeated_layers(f)
    assert has_repeated_layers(repeated)
    assert with_repeated_layers(repeated) is repeated
    assert repeated.tensors["blk.5.attn_q.weight"] is f.tensors["blk.1.attn_q.weight"]
    assert "blk.6.attn_q.weight" not in repeated.tensors


def test_layers_that_share_tensors_do_not_run_one_by_one(model: Path) -> None:
    chunks = np.ones((1, 8), np.int32)
    refused = pytest.raises(UnsupportedError, match="blocks share more than the residual stream")
    with closing(Engine.load(open_gguf(model), Options(ctx_size=32, threads=1))) as engine, refused:
        next(iter(remove_layers(engine, chunks, 1)))


@pytest.mark.parametrize(("key", "value", "line"), [
    ("hrm.h_cycles", 3, "block_count: must be 18, for 3 times 2 \\+ 1 stacks"),
    ("hrm.l_cycles", 1 << 30, "block_count: must be 4294967300, for 2 times"),
    ("hrm.layers_per_stack", 0, "layers_per_stack: is 0; it must be 1"),
])  # fmt: skip
def test_the_stacks_of_hrm_text_make_up_all_blocks(key: str, value: int, line: str, tmp_path: Path) -> None:
    checkpoint = reference_models.checkpoint("hrm-text", tmp_path)
    f = open_gguf(checkpoints.as_type(checkpoint, tmp_path / "model.gguf", "F32"))
    with pytest.raises(LocalInferError, match=line):
        Engine.load(replace(f, metadata=f.metadata | {f"hrm_text.{key}": value}), Options())


@pytest.mark.parametrize(("loops", "line"), [
    (0, "num_loops: is 0; it must be 1"),
    (513, "num_loops: makes 1026 layers; there may be 1024"),
    (1 << 31, "num_loops: is 2147483648; it must be"),
])  # fmt: skip
@pytest.mark.parametrize("opened", [naive.Model, lambda f: Engine.load(f, Options())])
def test_a_wrong_number_of_passes_is_refused(
    loops: int, line: str, opened: Callable[[GGUF], object], model: Path
) -> None:
    f = open_gguf(model)
    with pytest.raises(LocalInferError, match=line):
        opened(replace(f, metadata=f.metadata | {"nanbeige.num_loops": loops}))
