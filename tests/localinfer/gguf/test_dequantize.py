"""Dequantized tensors equal those of the gguf package."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from tiny import Stored, tiny_gemma3, tiny_llama

from localinfer.errors import UnsupportedError
from localinfer.gguf.dequantize import dequantize
from localinfer.gguf.reader import open_gguf
from quant import FORMATS
from quant.ggml import TYPES


@pytest.mark.parametrize("kind", [kind.name for number, kind in TYPES.items() if number in FORMATS])
def test_tensors_are_arrays(kind: str, tmp_path: Path) -> None:
    f = open_gguf(tiny_gemma3(tmp_path / "m.gguf", type=kind, n_layer=1))
    for tensor in f.tensors.values():
        plain = {"F32": np.float32, "F16": np.float16}.get(tensor.type_name, np.uint8)
        rows = tensor.data.view(plain).reshape(*tensor.shape[:-1], -1)
        expected = gguf.dequantize(rows, gguf.GGMLQuantizationType(tensor.type)).reshape(tensor.shape)
        np.testing.assert_array_equal(dequantize(tensor).view(np.uint32), expected.view(np.uint32))


def test_unsupported_type_is_named(tmp_path: Path) -> None:
    weights = Stored("I8", np.zeros((256, 256), np.uint8))
    f = open_gguf(tiny_llama(tmp_path / "m.gguf", **{"blk.0.attn_q.weight": weights}))
    with pytest.raises(UnsupportedError, match=r"blk\.0\.attn_q\.weight: type I8 is not supported"):
        dequantize(f.tensors["blk.0.attn_q.weight"])
