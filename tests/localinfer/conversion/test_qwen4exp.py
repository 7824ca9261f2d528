"""Checkpoints of Qwen4-Exp: other forms that are converted likewise, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference_models
from safetensors.numpy import load_file, save_file

from localinfer.conversion import open_checkpoint
from localinfer.errors import LocalInferError, UnsupportedError

Tensors = dict[str, Any]
PLE = "model.layers.1.ple.ple_embedding"
SHARDS = [f"{PLE}.ngram_embedding.shard_{number}.weight" for number in range(3)]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return reference_models.checkpoint("qwen4exp", tmp_path)


def contents(folder: Path) -> dict[str, Any]:
    """Return the shapes and bytes of the tensors, and the keys of the architecture."""
    source = open_checkpoint(folder)
    keys = {key: field.data for key, field in source.fields.items() if key.startswith("qwen4exp.")}
    return keys | {name: (each.shape, each.load().tobytes()) for name, each in source.tensors.items()}


def change(folder: Path, tensors: Callable[[Tensors], Tensors] = dict, **keys: Any) -> None:
    """Change tensors, and keys of config.json."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | keys), encoding="utf-8")
    save_file(tensors(load_file(folder / "model.safetensors")), folder / "model.safetensors")


def joined(tensors: Tensors) -> Tensors:
    table = np.concatenate([tensors.pop(name) for name in SHARDS])
    return tensors | {f"{PLE}.ngram_embedding.weight": table}


def of_vision_model(tensors: Tensors) -> Tensors:
    return {name.replace("model.", "model.language_model.", 1): each for name, each in tensors.items()}


def with_mtp(tensors: Tensors) -> Tensors:
    return tensors | {"mtp.fc.weight": np.zeros((96, 192), np.float32)}


@pytest.mark.parametrize(
    ("tensors", "keys"),
    [
        (joined, {}),
        (of_vision_model, {"architectures": ["Qwen4ExpForConditionalGeneration"]}),
        (with_mtp, {}),
        (dict, {"eos_token_id": [32, 5]}),
        (dict, {"layer_types": ["linear_attention", "linear_attention", "indexed_attention", "indexed_attention"]}),
    ],
    ids=["whole table", "vision model", "MTP layer", "several ends", "names of transformers"],
)
def test_other_forms_have_the_same_content(
    tensors: Callable[[Tensors], Tensors], keys: dict[str, Any], checkpoint: Path
) -> None:
    expected = contents(checkpoint)
    change(checkpoint, tensors, **keys)
    assert contents(checkpoint) == expected


def without(name: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {key: each for key, each in tensors.items() if key != name}


def with_floats(tensors: Tensors) -> Tensors:
    return tensors | {f"{PLE}.layer_multipliers": np.ones(4, np.float32)}


def with_negatives(tensors: Tensors) -> Tensors:
    return tensors | {f"{PLE}.layer_multipliers": -np.ones(4, np.int64)}


def with_short_rows(tensors: Tensors) -> Tensors:
    return tensors | {SHARDS[1]: np.zeros((67, 16), np.float32)}


@pytest.mark.parametrize(
    ("tensors", "keys", "kind", "problem"),
    [
        (dict, {"ple_layer_ids": [1, 2]}, UnsupportedError, "ple_layer_ids: other than the number of one layer"),
        (dict, {"ple_layer_ids": [5]}, UnsupportedError, "ple_layer_ids: other than the number of one layer"),
        (dict, {"output_gate_type": None}, UnsupportedError, "output_gate_type: 'silu' is not supported"),
        (dict, {"indexer_kv_heads": 2}, UnsupportedError, "indexer_kv_heads: other than 1"),
        (dict, {"hc_count": 17}, LocalInferError, "hc_count"),
        (dict, {"eos_token_id": 300}, LocalInferError, "eos_token_id: must be the id of a token"),
        (dict, {"ple_embed_dim": 64}, LocalInferError, "ple_embed_dim: is 64; it must be a multiple of 3"),
        (dict, {"ngram_vocab_size_base": 70}, LocalInferError, r"has shape \[200, 32\]"),
        (without(f"{PLE}.layer_multipliers"), {}, LocalInferError, "layer_multipliers: is missing"),
        (without(SHARDS[2]), {}, LocalInferError, r"has shape \[134, 32\], not \[200, 32\]"),
        (with_floats, {}, UnsupportedError, "type F32 is not supported"),
        (with_negatives, {}, UnsupportedError, "has numbers below 0"),
        (with_short_rows, {}, LocalInferError, "has another type or length of rows"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused(
    tensors: Callable[[Tensors], Tensors], keys: dict[str, Any], kind: type[Exception], problem: str, checkpoint: Path
) -> None:
    change(checkpoint, tensors, **keys)
    with pytest.raises(kind, match=problem):
        open_checkpoint(checkpoint)
