"""Files of published models that do not state their sliding window are told from others by their hyperparameters."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import checkpoints
import pytest
import reference_models
from tiny import tiny_llama

import localinfer
from localinfer.conversion import open_checkpoint
from localinfer.gguf.reader import open_gguf
from localinfer.gguf.source import Field
from localinfer.graph.properties.hyperparameters import Hyperparameters
from localinfer.graph.properties.published_windows import missing_window_warnings
from localinfer.quantization.quantize import make_encoder_factory, quantize

Values = dict[str, Any]
MISTRAL: Values = {
    "block_count": 32, "embedding_length": 4096, "feed_forward_length": 14_336, "attention.head_count": 32,
    "attention.head_count_kv": 8, "rope.freq_base": 10_000.0, "context_length": 32_768,
}  # fmt: skip
LITE = MISTRAL | {"rope.freq_base": 1e6}
PHI: Values = {"block_count": 32, "context_length": 4096}


def warned(folder: Path, architecture: str, values: Values, n_ctx: int = 32_768, name: str = "") -> list[str]:
    """Return the warnings about a file with these hyperparameters."""
    keys = {f"{architecture}.{key}": value for key, value in values.items()}
    path = tiny_llama(
        folder / "model.gguf", n_layer=1, **{"general.architecture": architecture, "general.name": name, **keys}
    )
    return missing_window_warnings(Hyperparameters(open_gguf(path)), n_ctx)


@pytest.mark.parametrize(
    ("architecture", "values", "name", "window"),
    [
        ("starcoder2", {"context_length": 16_384}, "", 4096),
        ("llama", MISTRAL, "mistralai_mistral-7b-v0.1", 4096),
        ("llama", MISTRAL | {"context_length": 8192}, "Openchat 3.5", 4096),
        ("llama", MISTRAL | {"expert_count": 0, "rope.scaling.type": "none"}, "", 4096),
        ("llama", LITE, "amazon_MistralLite", 16_384),
        ("phi3", PHI, "Phi3", 2047),
        ("phi3", PHI | {"block_count": 40}, "", 2047),
    ],
)
def test_published_models_are_recognized(
    architecture: str, values: Values, name: str, window: int, tmp_path: Path
) -> None:
    (message,) = warned(tmp_path, architecture, values, name=name)
    assert f"{architecture}.attention.sliding_window: is missing; " in message
    assert f"trained with a sliding window of {window} tokens" in message
    assert f"--override-kv {architecture}.attention.sliding_window=int:{window} sets it for a run" in message
    assert not warned(tmp_path, architecture, values, window, name)  # the context is not longer
    assert warned(tmp_path, architecture, values, window + 1, name)


@pytest.mark.parametrize(
    ("architecture", "values", "name"),
    [
        ("starcoder2", {"attention.sliding_window": 4096}, ""),
        ("starcoder2", {"attention.sliding_window": 0}, ""),
        ("llama", MISTRAL | {"attention.sliding_window": 0}, ""),
        ("llama", LITE, "Mistral-7B-Instruct-v0.3"),
        ("llama", MISTRAL | {"rope.freq_base": 5e5}, "Meta-Llama-3-8B"),
        ("llama", MISTRAL | {"expert_count": 8}, "Mixtral-8x7B-v0.1"),
        ("llama", MISTRAL | {"rope.scaling.type": "yarn"}, "Yarn-Mistral-7b-128k"),
        ("llama", MISTRAL | {"block_count": 48}, "SOLAR-10.7B"),
        ("llama", MISTRAL | {"feed_forward_length": 11_008}, "Llama-2-7B"),
        ("llama", MISTRAL | {"feed_forward_length": [14_336] * 32}, ""),
        ("phi3", PHI | {"attention.sliding_window": 2047}, ""),
        ("phi3", PHI | {"context_length": 131_072}, "Phi-3-mini-128k"),
        ("phi3", PHI | {"context_length": 16_384, "block_count": 40}, "phi-4"),
        ("qwen2", MISTRAL, ""),
    ],
)
def test_other_models_are_not(architecture: str, values: Values, name: str, tmp_path: Path) -> None:
    assert not warned(tmp_path, architecture, values, 1 << 20, name)


def starcoder2(folder: Path, window: int | None) -> Path:
    """Write a StarCoder2 file whose window is this, or that does not state whether it has one."""
    checkpoint = reference_models.checkpoint("starcoder2", folder)
    changes = {"sliding_window": window, "max_position_embeddings": 16_384}
    checkpoints.edit_json(checkpoint / "config.json", lambda config: config.update(changes))
    source, path = open_checkpoint(checkpoint), folder / "model.gguf"
    key = "starcoder2.attention.sliding_window"
    assert source.fields[key] == Field.uint32(window or 0)
    fields = {name: field for name, field in source.fields.items() if window is not None or name != key}
    types = {each.name: each.type for each in source.tensors.values()}
    quantize(replace(source, fields=fields), path, types, encoder_factory=make_encoder_factory("fast", {}))
    return path


@pytest.mark.parametrize(("window", "n_ctx", "expected"), [(None, 8192, 1), (None, 4096, 0), (4096, 8192, 0)])
def test_loading_warns(window: int | None, n_ctx: int, expected: int, tmp_path: Path) -> None:
    path = starcoder2(tmp_path, window)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        localinfer.load(path, ctx_size=n_ctx, threads=1).close()
    messages = [str(each.message) for each in caught if "sliding_window" in str(each.message)]
    assert len(messages) == expected
