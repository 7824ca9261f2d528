"""Head counts and sizes must match the tensors; otherwise kernels would read out of bounds."""

from dataclasses import replace
from pathlib import Path

import pytest
import reference_models

from localinfer.conversion import open_checkpoint
from localinfer.errors import LocalInferError
from localinfer.gguf.source import Field
from localinfer.quantization.quantize import make_encoder_factory, quantize


def with_count(name: str, key: str, count: int, folder: Path) -> Path:
    """Return the GGUF file of a reference model with another value for a head count."""
    source, path = open_checkpoint(reference_models.checkpoint(name, folder)), folder / "changed.gguf"
    fields = dict(source.fields) | {f"{reference_models.architecture(name)}.attention.{key}": Field.uint32(count)}
    types = {each.name: each.type for each in source.tensors.values()}
    quantize(replace(source, fields=fields), path, types, encoder_factory=make_encoder_factory("fast", {}))
    return path


@pytest.mark.parametrize(("name", "count"), [("deepseek2", 2), ("deepseek3", 4), ("glm4moe-lite", 5), ("mistral4", 2)])
def test_latent_attention_has_one_key_head(name: str, count: int, tmp_path: Path) -> None:
    with pytest.raises(LocalInferError, match=r"attention\.head_count_kv: makes \d+ values of a token in blk.0.attn"):
        with_count(name, "head_count_kv", count, tmp_path)
