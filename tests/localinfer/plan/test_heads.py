"""Heads are as many, and as long, as the tensors that they are made of: kernels would read past what is there."""

from dataclasses import replace
from pathlib import Path

import proofs
import pytest

from localinfer.checkpoint import open_checkpoint
from localinfer.engine.engine import Engine
from localinfer.errors import LocalInferError
from localinfer.files.gguf import open_gguf
from localinfer.files.source import Field
from localinfer.options import Options
from localinfer.quantizing.quantize import encoders, quantize


def with_count(name: str, key: str, count: int, folder: Path) -> Path:
    """The GGUF file of a proof, which says otherwise of its heads."""
    source, path = open_checkpoint(proofs.checkpoint(name, folder)), folder / "changed.gguf"
    fields = dict(source.fields) | {f"{proofs.architecture(name)}.attention.{key}": Field.uint32(count)}
    types = {each.name: each.type for each in source.tensors.values()}
    quantize(replace(source, fields=fields), path, types, encoder_of=encoders("fast", {}))
    return path


@pytest.mark.parametrize(("name", "count"), [("deepseek2", 2), ("deepseek3", 4), ("glm4moe-lite", 5), ("mistral4", 2)])
def test_a_latent_is_one_key_for_all_heads(name: str, count: int, tmp_path: Path) -> None:
    path = with_count(name, "head_count_kv", count, tmp_path)
    with pytest.raises(LocalInferError, match=r"attention\.head_count_kv: makes \d+ values of a token in blk.0.attn"):
        Engine(open_gguf(path), Options(ctx_size=64, threads=1))
