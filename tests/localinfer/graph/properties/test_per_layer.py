"""Values that differ between layers, and what MTP layers have of them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import tiny_llama

from localinfer.gguf.reader import open_gguf
from localinfer.graph.properties.attention import AttentionHeads
from localinfer.graph.properties.hyperparameters import Hyperparameters
from localinfer.graph.properties.model_properties import Block, ModelProperties
from localinfer.graph.properties.mtp import MtpSpec, mtp_entry, read_mtp_block
from localinfer.graph.properties.per_layer import PerLayer

HEADS = AttentionHeads(2, 1, 32, 32)
LAYERS, MTP_LAYER = [Block(number, HEADS) for number in range(2)], Block(2, HEADS, is_mtp=True)
KINDS = [False, True]  # of the layers: without a window, and with one


def properties(path: Path, **metadata: Any) -> ModelProperties:
    """Return the properties of a model with two layers and an MTP layer."""
    f = open_gguf(tiny_llama(path / "m.gguf", n_layer=3))
    given = {f"llama.attention.{key}": np.array(value) for key, value in metadata.items()}
    with_head = replace(f, metadata={**f.metadata, "llama.nextn_predict_layers": 1, **given})
    return ModelProperties(with_head, Hyperparameters(with_head))


def test_a_layer_has_its_own_value() -> None:
    specs = PerLayer(["first", "second"], mtp="head")
    assert [specs[blk] for blk in (*LAYERS, MTP_LAYER)] == ["first", "second", "head"]


def test_an_mtp_layer_never_has_the_value_of_another_layer() -> None:
    with pytest.raises(AssertionError, match="no value for MTP layers"):
        PerLayer([1, 2, 3])[MTP_LAYER]


@pytest.mark.parametrize("mtp", [None, False, True])
def test_values_are_chosen_by_flags(mtp: bool | None) -> None:
    chosen = PerLayer(KINDS, mtp).choose("local", "full")
    assert chosen == PerLayer(["full", "local"], None if mtp is None else "local" if mtp else "full")


@pytest.mark.parametrize("windowed", KINDS)
def test_heads_of_the_mtp_layer_are_those_of_its_kind_of_layer(windowed: bool, tmp_path: Path) -> None:
    """The file has no entry for it."""
    found = properties(tmp_path, head_count_kv=[1, 2], sliding_window_pattern=KINDS)
    blk = read_mtp_block(found, MtpSpec(windowed=windowed))
    assert (blk.number, blk.is_mtp, blk.heads) == (2, True, found.attention_heads[int(windowed)])


def test_heads_of_the_mtp_layer_are_those_of_the_file(tmp_path: Path) -> None:
    found = properties(tmp_path, head_count_kv=[1, 1, 2], sliding_window_pattern=[*KINDS, True])
    assert read_mtp_block(found, MtpSpec()).heads == replace(found.attention_heads[0], count_kv=2)


def test_heads_of_the_mtp_layer_without_a_layer_of_its_kind(tmp_path: Path) -> None:
    found = properties(tmp_path, head_count_kv=[1, 2], sliding_window_pattern=[True, True])
    assert read_mtp_block(found, MtpSpec()).heads == found.attention_heads[1]


def test_an_array_may_have_no_entry_of_the_mtp_layer(tmp_path: Path) -> None:
    found = properties(tmp_path, clamp_kqv=[1.0, 2.0], scale=[1.0, 2.0, 3.0])
    entries = [mtp_entry(found.hparams, f"attention.{key}", 2) for key in ("clamp_kqv", "scale", "max")]
    assert entries == [None, 3.0, None]
