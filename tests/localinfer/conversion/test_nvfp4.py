"""NVFP4 checkpoints have the same values as the equivalent F32 checkpoints."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from stored_tensors import StoredTensor, folder_of, shapes_of

from localinfer.conversion import open_checkpoint
from localinfer.errors import LocalInferError

E2M1 = np.float32([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
E4M3 = np.float32([(min(e, 1) + m / 8) * 2.0 ** (max(e, 1) - 7) for e in range(16) for m in range(8)])
NVFP4 = 40
ModelOpt = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
Compressed = {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}


def both(name: str, *, compressed: bool = False) -> tuple[dict[str, StoredTensor], dict[str, StoredTensor]]:
    """Return the same tensors twice: in F32, and with the block matrices in NVFP4."""
    plain: dict[str, StoredTensor] = {}
    packed: dict[str, StoredTensor] = {}
    rng = np.random.default_rng(5)
    for key, shape in shapes_of(name, wider=True).items():
        if "_proj" not in key:
            plain[key] = packed[key] = "F32", rng.standard_normal(shape, np.float32)
            continue
        codes = rng.integers(0, 16, shape, np.uint8)
        scales = rng.integers(1, 126, (shape[0], shape[1] // 16), np.uint8)
        factor = np.float32(rng.integers(1, 9) / 16)
        plain[key] = "F32", factor * E2M1[codes] * np.repeat(E4M3[scales], 16, axis=1)
        base = key.removesuffix(".weight")
        packed[f"{key}_packed" if compressed else key] = "U8", codes[:, ::2] | codes[:, 1::2] << 4
        packed[f"{key}_scale"] = "F8_E4M3", scales
        if compressed:
            packed[f"{key}_global_scale"] = "F32", np.float32([1 / factor])
            packed[f"{base}.input_global_scale"] = "F32", np.float32([0.125])
        else:
            packed[f"{key}_scale_2"] = "F32", np.array(factor)
            packed[f"{base}.input_scale"] = "F32", np.array(8, np.float32)
    return plain, packed


@pytest.mark.parametrize("name", ["llama2", "qwen3moe"])
@pytest.mark.parametrize("compressed", [False, True])
def test_values_equal_those_in_f32(compressed: bool, name: str, tmp_path: Path) -> None:
    """Covers matrices with permuted rows, and experts with a scale each."""
    plain, packed = both(name, compressed=compressed)
    expected = open_checkpoint(folder_of(name, tmp_path / "plain", plain, wider=True)).tensors
    config = Compressed if compressed else ModelOpt
    folder = folder_of(name, tmp_path / "packed", packed, wider=True, quantization_config=config)
    actual = open_checkpoint(folder).tensors
    in_blocks = [each for each in actual.values() if each.type == NVFP4]
    assert in_blocks
    for each in in_blocks:
        rows = each.load().reshape(*each.shape[:-1], -1)
        values = gguf.dequantize(rows, gguf.GGMLQuantizationType.NVFP4)
        factors = actual[each.name.replace(".weight", ".scale")].load().view(np.float32)
        inputs = actual[each.name.replace(".weight", ".input_scale")].load().view(np.float32)
        values = values * factors.reshape(-1, *[1] * (values.ndim - 1))
        desired = expected[each.name].load().view(np.float32).reshape(each.shape)
        np.testing.assert_allclose(values, desired, rtol=3e-7)  # the scale was inverted twice
        assert set(inputs.tolist()) == {8.0}
    assert actual.keys() - {each for each in actual if each.endswith("scale")} == expected.keys()


@pytest.mark.parametrize(("key", "values", "problem"), [
    ("weight_scale", ("F8_E4M3", np.zeros((128, 4), np.uint8)), "has shape"),
    ("weight_scale_2", ("F32", np.zeros(2, np.float32)), "is not one number|not one number"),
    ("weight", ("U8", np.zeros((128, 40), np.uint8)), "rows of 64 values"),
])  # fmt: skip
def test_invalid_matrices(key: str, values: StoredTensor, problem: str, tmp_path: Path) -> None:
    packed = both("llama2")[1] | {f"model.layers.0.self_attn.q_proj.{key}": values}
    with pytest.raises(LocalInferError, match=f"q_proj.{key}: .*({problem})"):
        open_checkpoint(folder_of("llama2", tmp_path / "odd", packed, wider=True, quantization_config=ModelOpt))
