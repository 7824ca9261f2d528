"""Checkpoints with quantized weights have the values that their codes and scales mean."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import as_f32
from quantized_formats import FORMATS, FP8, both, compressed, fp8_blocks, fp8_rows, gptq
from stored_tensors import StoredTensor, folder_of

from localinfer.conversion import open_checkpoint
from localinfer.conversion.tensor_formats.safetensors_file import read_file
from localinfer.conversion.tensor_formats.scaled_matrices import join_matrices
from localinfer.errors import LocalInferError, UnsupportedError
from localinfer.gguf.reader import open_gguf

CASES = [("llama2", kind) for kind in FORMATS] + [("deepseek3", kind) for kind in ("FP8, blocks", "int4", "GPTQ")]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_values_equal_the_definition(name: str, kind: str, tmp_path: Path) -> None:
    """Covers matrices with permuted rows, experts that are stacked, and a matrix that is divided into two."""
    config, quantized = FORMATS[kind]
    plain, stored = both(name, quantized)
    expected = open_checkpoint(folder_of(name, tmp_path / "plain", plain)).tensors
    actual = open_checkpoint(folder_of(name, tmp_path / "stored", stored, quantization_config=config)).tensors
    assert actual.keys() == expected.keys()
    for key, tensor in actual.items():
        assert (tensor.type, tensor.shape) == (expected[key].type, expected[key].shape)
        np.testing.assert_array_equal(tensor.load().view(np.float32), expected[key].load().view(np.float32))


@pytest.mark.parametrize("kind", ["FP8, blocks", "int4"])
def test_a_quantized_checkpoint_becomes_a_file(kind: str, tmp_path: Path) -> None:
    """Scales of an 8-bit KV cache, of older and newer programs, are not used."""
    config, quantized = FORMATS[kind]
    plain, stored = both("qwen3moe", quantized)
    cache = {"k_scale": "F32", "k_proj.output_scale": "F32"}
    stored |= {f"model.layers.0.self_attn.{key}": (kind, np.ones(1, np.float32)) for key, kind in cache.items()}
    one = open_gguf(as_f32(folder_of("qwen3moe", tmp_path / "plain", plain), tmp_path / "plain.gguf"))
    other = folder_of("qwen3moe", tmp_path / "stored", stored, quantization_config=config)
    for key, tensor in open_gguf(as_f32(other, tmp_path / "stored.gguf")).tensors.items():
        np.testing.assert_array_equal(tensor.data, one.tensors[key].data)


def test_experts_that_are_one_tensor(tmp_path: Path) -> None:
    """Scales of blocks have a first dimension for the expert."""
    rng = np.random.default_rng(3)
    parts = [fp8_blocks(rng, (96, 160)) for _ in range(3)]
    codes, scales = (np.stack([each[0][key][1] for each in parts]) for key in ("weight", "weight_scale_inv"))
    stored = {"experts.down_proj": ("F8_E4M3", codes), "experts.down_proj_scale_inv": ("F32", scales)}
    path = folder_of("llama2", tmp_path / "experts", stored)
    joined = join_matrices({each.name: each for each in read_file(path / "model.safetensors")}, (64, 128))
    assert list(joined) == ["experts.down_proj"]
    expected = np.stack([values for _, values in parts]).astype(np.float32)
    np.testing.assert_array_equal(joined["experts.down_proj"].load().view(np.float32).reshape(3, 96, 160), expected)


KEY = "model.layers.1.self_attn.q_proj"


@pytest.mark.parametrize(
    ("kind", "key", "values", "problem"),
    [
        ("FP8, blocks", "weight_scale_inv", ("F32", np.ones((2, 2), np.float32)), "has shape [2, 2]; [96, 96] values"),
        ("FP8, blocks", "weight_scale_inv", ("I32", np.ones((2, 1), np.int32)), "is I32; it must be one of F32"),
        ("FP8, blocks", "weight_scale_inv", None, "weight: is F8_E4M3 without weight_scale"),
        ("FP8, rows", "weight_scale", ("F32", np.ones((97, 1), np.float32)), "has shape [97, 1]"),
        ("int4", "weight_scale", None, "weight_packed: has no weight_scale"),
        ("int4", "weight_packed", ("I32", np.zeros((96, 11), np.int32)), "has 96 columns in 11 words"),
        ("int4", "weight_packed", ("I32", np.zeros((95, 12), np.int32)), "is I32 [95, 12], not I32 [96, 12]"),
        ("int4", "weight_shape", ("I64", np.array([96], np.int64)), "is I64 [1], not I64 or I32 [2]"),
        ("int4", "weight_scale", ("F32", np.ones((96, 7), np.float32)), "has 96 columns, which are not 7 groups"),
        ("int4", "weight_scale", ("F32", np.ones((96, 0), np.float32)), "has 96 columns, which are not 0 groups"),
        ("MXFP4", "weight_scale", ("U8", np.ones((96, 2), np.uint8)), "is U8 [96, 2], not U8 or F8_E8M0 [96, 3]"),
        ("GPTQ", "qzeros", None, "qweight: is no matrix with scales and qzeros"),
        ("GPTQ", "qzeros", ("I32", np.zeros((3, 9), np.int32)), "qweight: has integers of 3 bits"),
        ("GPTQ", "g_idx", ("I32", np.zeros(95, np.int32)), "g_idx: is I32 [95]"),
        ("AWQ", "qweight", ("I32", np.zeros((96, 24), np.int32)), "is I32 [96, 24], not I32 [96, 12]"),
    ],
)
def test_invalid_matrices(kind: str, key: str, values: StoredTensor | None, problem: str, tmp_path: Path) -> None:
    config, quantized = FORMATS[kind]
    stored = both("llama2", quantized)[1] | ({f"{KEY}.{key}": values} if values else {})
    stored = {name: each for name, each in stored.items() if values or name != f"{KEY}.{key}"}
    with pytest.raises(LocalInferError, match=r"model.safetensors: tensor model.layers.1.self_attn.q_proj") as caught:
        open_checkpoint(folder_of("llama2", tmp_path / "odd", stored, quantization_config=config))
    assert problem in str(caught.value)


def test_a_group_that_does_not_exist(tmp_path: Path) -> None:
    stored = both("llama2", gptq)[1] | {f"{KEY}.g_idx": ("I32", np.full(96, 3, np.int32))}
    folder = folder_of("llama2", tmp_path / "odd", stored, quantization_config=FORMATS["GPTQ"][0])
    with pytest.raises(LocalInferError, match=r"q_proj.g_idx: has a group that is not one of 3"):
        open_checkpoint(folder).tensors["blk.1.attn_q.weight"].load()


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "quantization_config: .*'bitsandbytes' are not sup"),
        ({"quant_method": "bitnet"}, "quantization_config: .*'bitnet' are not supported, only awq, compressed-tens"),
        (compressed("marlin-24"), "quantization_config.format: 'marlin-24' is not supported"),
        ({"quant_method": "awq", "version": "gemv"}, "quantization_config.version: 'gemv' is not supported"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "quantization_config.quant_algo: 'W4A8_AWQ' is not s"),
    ],
)
def test_methods_that_are_not_supported(config: dict[str, Any], problem: str, tmp_path: Path) -> None:
    folder = folder_of("llama2", tmp_path / "odd", both("llama2", fp8_rows)[0], quantization_config=config)
    with pytest.raises(UnsupportedError, match=problem):
        open_checkpoint(folder)


@pytest.mark.parametrize("block", [[64], [0, 128], ["64", 128], [64, 1 << 20]])
def test_blocks_that_are_no_sizes(block: list[Any], tmp_path: Path) -> None:
    config = FP8 | {"weight_block_size": block}
    folder = folder_of("llama2", tmp_path / "odd", both("llama2", fp8_blocks)[1], quantization_config=config)
    with pytest.raises(LocalInferError, match="weight_block_size: must be two numbers"):
        open_checkpoint(folder)
