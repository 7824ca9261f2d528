"""Matrices with a number that their products are multiplied with, as files have it beside NVFP4: here each matrix of a
proof is divided by a power of two, so that nothing is rounded, and has that for its number."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import naive
import numpy as np
import proofs
import pytest

from localinfer.checkpoint import open_checkpoint
from localinfer.engine.engine import Engine
from localinfer.errors import LocalInferError
from localinfer.files.gguf import open_gguf
from localinfer.files.source import SourceTensor
from localinfer.options import Options
from localinfer.quantizing.quantize import encoders, quantize

EXACT = Options(ctx_size=128, threads=1, precision="high", cache_type_k="f32", cache_type_v="f32")
F32 = 0
WITHOUT = ("token_embd", "ffn_gate_inp", "norm")  # no matrices, or such as nobody has a number for
FACTORS = np.float32([0.5, 4.0, 0.125])


def with_factors(tensors: Mapping[str, SourceTensor]) -> Iterator[SourceTensor]:
    """Tensors and their numbers, one for each expert."""
    for number, (name, tensor) in enumerate(tensors.items()):
        if len(tensor.shape) == 1 or any(part in name for part in WITHOUT):
            yield tensor
            continue
        count = tensor.shape[0] if "_exps" in name else 1
        factors = np.resize(FACTORS, number + count)[number:]

        def divided(tensor: SourceTensor = tensor, factors: np.ndarray = factors) -> np.ndarray:
            matrices = tensor.load().view(np.float32).reshape(len(factors), -1)
            return (matrices / factors[:, None]).reshape(-1).view(np.uint8)

        yield replace(tensor, load=divided)
        for ending, values in ((".scale", factors), (".input_scale", np.full(count, 7, np.float32))):
            yield SourceTensor(name.replace(".weight", ending), (count,), F32, lambda v=values: v.view(np.uint8))


def written(name: str, folder: Path) -> Path:
    """The GGUF file of a proof."""
    source, path = open_checkpoint(proofs.checkpoint(name, folder)), folder / f"{name}.gguf"
    tensors = {tensor.name: tensor for tensor in with_factors(source.tensors)}
    quantize(replace(source, tensors=tensors), path, dict.fromkeys(tensors, F32), encoder_of=encoders("fast", {}))
    return path


@pytest.mark.parametrize("name", ["llama-biases", "phi3", "qwen2moe", "llama4"])
def test_products_are_multiplied_with_their_factors(name: str, tmp_path: Path) -> None:
    """Of matrices with biases, of parts of one matrix, and of experts: logits are what they are without."""
    proof, path = proofs.expected(name), written(name, tmp_path)
    assert any(tensor.endswith(".scale") for tensor in open_gguf(path).tensors)
    by_oracle = naive.forward(naive.Model(open_gguf(path)), proof.ids)[proof.positions]
    np.testing.assert_allclose(by_oracle, proof.logits, rtol=0, atol=1e-4)
    with closing(Engine(open_gguf(path), EXACT)) as engine:
        whole = engine.logits(proof.ids)
        engine.reset()
        one_by_one = np.concatenate([engine.logits([id]) for id in proof.ids[:40]])
    np.testing.assert_allclose(whole[proof.positions], proof.logits, rtol=0, atol=1e-3)
    np.testing.assert_array_equal(one_by_one, whole[:40])


def test_a_factor_that_is_no_number_is_refused(tmp_path: Path) -> None:
    file, name = open_gguf(written("llama2", tmp_path)), "blk.0.attn_q.scale"
    tensors = {**file.tensors, name: replace(file.tensors[name], data=np.float32([np.nan]).view(np.uint8))}
    with pytest.raises(LocalInferError, match=r"attn_q.scale: is not finite"):
        Engine(replace(file, tensors=tensors), EXACT)
