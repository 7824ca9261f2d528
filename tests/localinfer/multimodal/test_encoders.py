"""Every encoder computes the rows that transformers computes, for all of its reference images."""

from pathlib import Path

import gguf
import numpy as np
import projectors
import pytest

from cli import __main__
from localinfer.gguf.dequantize import dequantize
from localinfer.gguf.reader import Tensor, open_gguf
from localinfer.multimodal.encoder_graph.compiled_encoder import CompiledEncoder
from localinfer.multimodal.encoder_graph.encoder_tensors import pad_columns, transpose
from localinfer.multimodal.projector_file import ProjectorFile, open_projector
from localinfer.options import Options

TOLERANCE = 1e-4  # of the largest value


def opened(name: str, folder: Path) -> ProjectorFile:
    """Return the projector file of a reference."""
    model = open_gguf(projectors.language_model(projectors.reference(name), folder))
    return open_projector(projectors.write(name, folder), model)


@pytest.mark.parametrize("name", projectors.NAMES)
def test_rows_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    file = opened(name, tmp_path)
    for case in projectors.reference(name).cases:
        with CompiledEncoder(*file.build(case.grid, Options(threads=2))) as encoder:
            rows = encoder.run(case.patches)
        assert rows.shape == case.rows.shape
        assert np.abs(rows - case.rows).max() <= TOLERANCE * np.abs(case.rows).max()


@pytest.mark.parametrize("name", ["gemma3", "idefics3", "qwen2_5vl"])
def test_a_quantized_file_gives_nearly_the_same_rows(name: str, tmp_path: Path) -> None:
    path, reference, quantized = projectors.write(name, tmp_path), projectors.reference(name), tmp_path / "q8_0.gguf"
    assert __main__.run(["quantize", str(path), str(quantized), "Q8_0"]) == 0
    assert "Q8_0" in {tensor.type_name for tensor in open_gguf(quantized).tensors.values()}
    file = open_projector(quantized, open_gguf(projectors.language_model(reference, tmp_path)))
    for case in reference.cases:
        with CompiledEncoder(*file.build(case.grid, Options(threads=1))) as encoder:
            rows = encoder.run(case.patches)
        assert np.abs(rows - case.rows).max() < 0.05 * np.abs(case.rows).max()


def test_padded_matrices_are_those_of_the_precision(tmp_path: Path) -> None:
    """One file has graphs of both precisions, whose kernels read different multiples of columns of BF16."""
    path, converted = projectors.write("qwen2_5vl", tmp_path), tmp_path / "bf16.gguf"
    assert __main__.run(["quantize", str(path), str(converted), "BF16"]) == 0
    reference = projectors.reference("qwen2_5vl")
    file = open_projector(converted, open_gguf(projectors.language_model(reference, tmp_path)))
    widths = []
    for precision in ("fast", "high", "fast"):
        graph = file.build(reference.cases[0].grid, Options(threads=1, precision=precision))[0].graph
        down = next(each for each in graph.products if each.weight.name == "v.blk.0.ffn_down.weight")
        assert down.x.n == down.weight.shape[1]
        widths.append(down.x.n)
    assert widths == [64, 48, 64]


@pytest.mark.parametrize("name", ["F16", "Q8_0"])
def test_matrices_are_transposed_and_padded(name: str) -> None:
    type = gguf.GGMLQuantizationType[name]
    data = gguf.quantize(np.random.default_rng(0).standard_normal((48, 96), np.float32), type)
    tensor, values = Tensor("matrix", (48, 96), type, data.reshape(-1).view(np.uint8), 0), gguf.dequantize(data, type)
    np.testing.assert_array_equal(dequantize(transpose(tensor)).reshape(96, 48), values.T)
    padded = dequantize(pad_columns(tensor, 128)).reshape(48, 128)
    np.testing.assert_array_equal(padded, np.pad(values, ((0, 0), (0, 32))))
