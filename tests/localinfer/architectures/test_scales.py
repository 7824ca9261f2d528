"""Matrices with a scale for their products, as in NVFP4 files. Each matrix of a reference model is divided by a power
of two, which is exact, and gets that as its scale."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import reference_models

from localinfer import naive
from localinfer.conversion import open_checkpoint
from localinfer.errors import LocalInferError, UnsupportedError
from localinfer.gguf.reader import open_gguf
from localinfer.gguf.source import SourceTensor
from localinfer.options import Options
from localinfer.quantization.quantize import make_encoder_factory, quantize
from localinfer.runtime.engine import Engine

EXACT = Options(ctx_size=128, threads=1, precision="high", cache_type_k="f32", cache_type_v="f32")
F32 = 0
WITHOUT = ("token_embd", "ffn_gate_inp", "norm", "chexps")  # tensors without a scale
SCALES = np.float32([0.5, 4.0, 0.125])


def with_scales(tensors: Mapping[str, SourceTensor]) -> Iterator[SourceTensor]:
    """Yield the tensors and their scales, one per expert."""
    for number, (name, tensor) in enumerate(tensors.items()):
        if len(tensor.shape) == 1 or any(substring in name for substring in WITHOUT):
            yield tensor
            continue
        count = tensor.shape[0] if "_exps" in name else 1
        factors = np.resize(SCALES, number + count)[number:]

        def divided(tensor: SourceTensor = tensor, factors: np.ndarray = factors) -> np.ndarray:
            matrices = tensor.load().view(np.float32).reshape(len(factors), -1)
            return (matrices / factors[:, None]).reshape(-1).view(np.uint8)

        yield replace(tensor, load=divided)
        for ending, values in ((".scale", factors), (".input_scale", np.full(count, 7, np.float32))):
            yield SourceTensor(name.replace(".weight", ending), (count,), F32, lambda v=values: v.view(np.uint8))


def written(name: str, folder: Path) -> Path:
    """Return the GGUF file of a reference model."""
    source, path = open_checkpoint(reference_models.checkpoint(name, folder)), folder / f"{name}.gguf"
    tensors = {tensor.name: tensor for tensor in with_scales(source.tensors)}
    quantize(
        replace(source, tensors=tensors),
        path,
        dict.fromkeys(tensors, F32),
        encoder_factory=make_encoder_factory("fast", {}),
    )
    return path


@pytest.mark.parametrize("name", ["llama-biases", "phi3", "qwen2moe", "llama4", "grovemoe"])
def test_products_are_multiplied_with_their_scales(name: str, tmp_path: Path) -> None:
    """Logits do not change, for matrices with biases, fused matrices and experts."""
    reference, path = reference_models.expected(name), written(name, tmp_path)
    assert any(tensor.endswith(".scale") for tensor in open_gguf(path).tensors)
    by_oracle = reference.part(naive.forward(naive.Model(open_gguf(path)), reference.ids))
    np.testing.assert_allclose(by_oracle, reference.logits, rtol=0, atol=1e-4)
    with closing(Engine.load(open_gguf(path), EXACT)) as engine:
        whole = engine.logits(reference.ids)
        engine.reset()
        one_by_one = np.concatenate([engine.logits([id]) for id in reference.ids[:40]])
    np.testing.assert_allclose(reference.part(whole), reference.logits, rtol=0, atol=1e-3)
    np.testing.assert_array_equal(one_by_one, whole[:40])


def test_scales_of_adjugate_experts_are_refused(tmp_path: Path) -> None:
    file, name = open_gguf(written("grovemoe", tmp_path)), "blk.0.ffn_up_chexps.scale"
    tensors = {**file.tensors, name: replace(file.tensors["blk.0.ffn_up_exps.scale"], name=name)}
    with pytest.raises(UnsupportedError, match=r"ffn_up_chexps\.scale: is not used by the supported grovemoe"):
        Engine.load(replace(file, tensors=tensors), EXACT)


def test_a_non_finite_scale_is_an_error(tmp_path: Path) -> None:
    file, name = open_gguf(written("llama2", tmp_path)), "blk.0.attn_q.scale"
    tensors = {**file.tensors, name: replace(file.tensors[name], data=np.float32([np.nan]).view(np.uint8))}
    with pytest.raises(LocalInferError, match=r"attn_q.scale: is not finite"):
        Engine.load(replace(file, tensors=tensors), EXACT)
