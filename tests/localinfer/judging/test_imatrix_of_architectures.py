"""Importance matrices of every architecture: sums for each matrix that will be quantized, wherever it stands."""

from contextlib import closing
from pathlib import Path

import checkpoints
import numpy as np
import proofs
import pytest

from localinfer.checkpoint import open_checkpoint
from localinfer.engine.engine import Engine
from localinfer.files.gguf import open_gguf
from localinfer.files.imatrix_file import write_imatrix
from localinfer.judging.imatrix import Collector
from localinfer.options import Options
from localinfer.quantizing.mixture import Request, mix
from localinfer.quantizing.quantize import encoders, quantize
from localinfer.quantizing.recipe_rules import EMBEDDINGS

EXACT = Options(ctx_size=128, threads=1, precision="high", cache_type_k="f32", cache_type_v="f32")

# Layers that look at the keys and values of others, which have matrices for their own none the less.
IDLE = {"gemma3n-25": [f"blk.{layer}.attn_{each}.weight" for layer in range(20, 25) for each in "kv"]}


@pytest.mark.parametrize("name", [*proofs.NAMES, *proofs.ENCODERS])
def test_no_matrix_is_forgotten(name: str, tmp_path: Path) -> None:
    """But tables that rows are only taken from. With its sums the model is quantized, and answers."""
    source, ids = open_checkpoint(proofs.checkpoint(name, tmp_path)), proofs.expected(name).ids
    with closing(Engine(open_gguf(checkpoints.as_f32(source.path, tmp_path / "f32.gguf")), EXACT)) as engine:
        collector = Collector(engine, head=True)
        assert [*collector.read([np.array(ids, np.int32)])] == [1]
    write_imatrix(tmp_path / "imatrix.gguf", collector.matrix("text"))
    mixture = mix(source, Request("Q8_0", imatrix=tmp_path / "imatrix.gguf"))
    assert mixture.problem is None
    assert mixture.unweighted == IDLE.get(name, [])
    rounded = {tensor for tensor, type in mixture.types.items() if type != checkpoints.F32}
    assert rounded - {*mixture.importance} <= {*EMBEDDINGS, *IDLE.get(name, [])}
    assert {each for each in rounded & {*mixture.importance} if len(source.tensors[each].shape) == 2} <= {
        *mixture.directions
    }
    out = tmp_path / "q8_0.gguf"
    quantize(source, out, mixture.types, encoder_of=encoders("fast", mixture.importance), fields=mixture.fields)
    if name not in proofs.ENCODERS:
        with closing(Engine(open_gguf(out), EXACT)) as engine:
            assert np.isfinite(engine.evaluate(ids[:8])).all()
