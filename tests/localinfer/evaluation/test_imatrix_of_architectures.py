"""Importance matrices of every architecture: sums for each matrix that gets quantized."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import checkpoints
import numpy as np
import pytest
import reference_models

from localinfer.conversion import open_checkpoint
from localinfer.evaluation.imatrix import Collector
from localinfer.gguf.imatrix_file import write_imatrix
from localinfer.gguf.reader import open_gguf
from localinfer.options import Options
from localinfer.quantization.plan import Request, make_plan
from localinfer.quantization.quantize import make_encoder_factory, quantize
from localinfer.quantization.recipe_rules import EMBEDDINGS
from localinfer.runtime.engine import Engine

EXACT = Options(ctx_size=128, threads=1, precision="high", cache_type_k="f32", cache_type_v="f32")

VISUAL = ("vis_attn_qkv", "vis_attn_output", "vis_gate", "vis_up", "vis_down")
IDLE = {
    # Layers that use the keys and values of others but still have (unused) matrices for keys and values.
    "gemma3n-25": [f"blk.{layer}.attn_{each}.weight" for layer in range(20, 25) for each in "kv"],
    # Matrices for the rows of images, which no text has.
    "cogvlm": [f"blk.{layer}.{each}.weight" for layer in range(2) for each in VISUAL],
}


MODELS = reference_models.with_all_matrices([*reference_models.NAMES, *reference_models.ENCODERS])


@pytest.mark.parametrize("name", MODELS)
def test_every_quantized_matrix_has_importance(name: str, tmp_path: Path) -> None:
    """Every matrix except embedding tables has sums; the model is quantized with them and evaluated."""
    source, ids = open_checkpoint(reference_models.checkpoint(name, tmp_path)), reference_models.expected(name).ids
    with closing(Engine.load(open_gguf(checkpoints.as_f32(source.path, tmp_path / "f32.gguf")), EXACT)) as engine:
        collector = Collector(engine, process_output=True)
        assert [*collector.collect([np.array(ids, np.int32)])] == [1]
    write_imatrix(tmp_path / "imatrix.gguf", collector.to_imatrix("text"))
    plan = make_plan(source, Request("Q8_0", imatrix=tmp_path / "imatrix.gguf"))
    assert plan.problem is None
    assert plan.tensors_without_importance == IDLE.get(name, [])
    rounded = {tensor for tensor, type in plan.types.items() if type != source.tensors[tensor].type}
    assert rounded - {*plan.importance} <= {*EMBEDDINGS, *IDLE.get(name, [])}
    assert {each for each in rounded & {*plan.importance} if len(source.tensors[each].shape) == 2} <= {*plan.components}
    out = tmp_path / "q8_0.gguf"
    encoder_factory = make_encoder_factory("fast", plan.importance)
    quantize(replace(source, fields=plan.fields), out, plan.types, encoder_factory=encoder_factory)
    if name not in reference_models.BIDIRECTIONAL:
        with closing(Engine.load(open_gguf(out), EXACT)) as engine:
            assert np.isfinite(engine.evaluate(ids[:8])).all()
