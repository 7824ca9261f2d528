"""LoRA adapters as PEFT saves them, compared with the logits that PEFT computes."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import peft_adapters
import pytest
import reference_models
from numpy.typing import NDArray

from localinfer.adapters import open_adapters
from localinfer.adapters.merging import merge_adapters
from localinfer.gguf.gguf_source import from_gguf
from localinfer.gguf.reader import open_gguf
from localinfer.options import Options
from localinfer.quantization.quantize import make_encoder_factory, quantize
from localinfer.runtime.engine import Engine
from localinfer.runtime.graph_building import Extensions

EXACT = Options(threads=2, ctx_size=128, precision="high", cache_type_k="f32", cache_type_v="f32", tune=False)
ModelFile = Callable[[str], Path]


def logits(path: Path, ids: list[int], **options: object) -> NDArray[np.float32]:
    """Return the logits of a model with the adapters of these options."""
    f, chosen = open_gguf(path), Options(**(vars_of(EXACT) | options))  # type: ignore[arg-type]
    with closing(Engine.load(f, chosen, extensions=Extensions(adapters=open_adapters(f, chosen)))) as engine:
        engine.use_adapters(engine.runner.default_scales)
        return engine.logits(ids)


def vars_of(options: Options) -> dict[str, object]:
    return {name: getattr(options, name) for name in options.__slots__}


@pytest.mark.parametrize("name", peft_adapters.NAMES)
def test_logits_agree_with_peft(name: str, reference_file: ModelFile, tmp_path: Path) -> None:
    reference, path = reference_models.expected(name), peft_adapters.write(name, tmp_path)
    expected = peft_adapters.expected(name)
    whole = logits(reference_file(name), reference.ids, lora=(str(path),))[reference.positions]
    np.testing.assert_allclose(whole, expected["whole"], rtol=0, atol=1e-4)
    assert np.abs(whole[:, reference.columns] - reference.logits).max() > 0.5  # the adapter matters
    given = f"{path / 'adapter_model.safetensors'}:{expected['scale']}"
    scaled = logits(reference_file(name), reference.ids, lora_scaled=(given,))[reference.positions]
    np.testing.assert_allclose(scaled, expected["scaled"], rtol=0, atol=1e-4)


def test_several_adapters_agree_with_peft(reference_file: ModelFile, tmp_path: Path) -> None:
    reference, path = reference_models.expected("llama3"), peft_adapters.write("llama3", tmp_path)
    both = logits(reference_file("llama3"), reference.ids, lora=(str(path), str(path / "second")))[reference.positions]
    np.testing.assert_allclose(both, peft_adapters.expected("llama3")["both"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["llama3", "gemma3"])  # gemma3 has an output layer that shares the embeddings
def test_merged_adapters_give_the_same_logits(name: str, reference_file: ModelFile, tmp_path: Path) -> None:
    reference = reference_models.expected(name)
    source = merge_adapters(from_gguf(reference_file(name)), [(peft_adapters.write(name, tmp_path), 1.0)])
    types = {name: tensor.type for name, tensor in source.tensors.items()}
    quantize(source, tmp_path / "merged.gguf", types, encoder_factory=make_encoder_factory("fast", {}))
    merged = logits(tmp_path / "merged.gguf", reference.ids)[reference.positions]
    np.testing.assert_allclose(merged, peft_adapters.expected(name)["whole"], rtol=0, atol=1e-4)
