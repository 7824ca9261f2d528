"""The architecture decides which norms it has: llama.cpp's converter writes both epsilons for some models."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import reference_models

from localinfer import naive
from localinfer.conversion import open_checkpoint
from localinfer.gguf.reader import open_gguf
from localinfer.gguf.source import Field
from localinfer.quantization.quantize import make_encoder_factory, quantize

F32 = 0
RMS, LAYER = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"
WRONG = 0.5  # an epsilon that changes every result


def oracle(name: str, folder: Path, **epsilons: float) -> naive.Model:
    """Return the oracle of a reference model whose file has these epsilons."""
    source = open_checkpoint(reference_models.checkpoint(name, folder))
    architecture = reference_models.architecture(name)
    fields = {key: value for key, value in source.fields.items() if not key.endswith("epsilon")}
    fields |= {f"{architecture}.{key}": Field.float32(value) for key, value in epsilons.items()}
    path = folder / "model.gguf"
    types = dict.fromkeys(source.tensors, F32)
    quantize(replace(source, fields=fields), path, types, encoder_factory=make_encoder_factory("fast", {}))
    return naive.Model(open_gguf(path))


@pytest.mark.parametrize("name", ["modern-bert", "nemotron", "stablelm", "gpt2", "llama3"])
def test_epsilon_of_the_other_kind_changes_nothing(name: str, tmp_path: Path) -> None:
    reference = reference_models.expected(name)
    config = reference_models.read_description(name)["config"]
    eps = next(
        config[key] for key in ("layer_norm_eps", "layer_norm_epsilon", "norm_eps", "rms_norm_eps") if key in config
    )
    own, other = (RMS, LAYER) if name == "llama3" else (LAYER, RMS)
    model = oracle(name, tmp_path, **{own: eps, other: WRONG})
    compute = naive.final_hidden_states if name in reference_models.ENCODERS else naive.forward
    np.testing.assert_allclose(reference.part(compute(model, reference.ids)), reference.logits, rtol=0, atol=1e-4)


def test_epsilon_under_the_key_of_the_other_kind_is_used(tmp_path: Path) -> None:
    """Files of PhiMoE and Nemotron-H have it there."""
    reference = reference_models.expected("stablelm")
    eps = reference_models.read_description("stablelm")["config"]["layer_norm_eps"]
    logits = naive.forward(oracle("stablelm", tmp_path, **{RMS: eps}), reference.ids)
    np.testing.assert_allclose(reference.part(logits), reference.logits, rtol=0, atol=1e-4)
