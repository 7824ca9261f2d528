"""The properties of the MTP head, a layer after the others: see `localinfer.graph.recording.operations.mtp`."""

from typing import NamedTuple

import numpy as np

from localinfer.graph.properties.attention import read_attention_heads
from localinfer.graph.properties.hyper_connections import HyperConnections
from localinfer.graph.properties.hyperparameters import Hyperparameters
from localinfer.graph.properties.model_properties import Block, ModelProperties
from localinfer.graph.properties.sliding_window import sliding_window_layers
from localinfer.graph.properties.tensors import Tensors

WINDOWS = "attention.sliding_window_pattern"
HEAD_ARRAYS = ("attention.head_count", "attention.head_count_kv", WINDOWS)


class MtpSpec(NamedTuple):
    """How the MTP head differs from a layer: the output norm of the model, and the scale and cap of its logits.

    With `normed_states`, the hidden states that the head reads are those after a norm: the output norm, or the head's
    own. Otherwise they are the residual stream, or all residual streams if the head has them, too (`streams`). The
    attention of the layer may have a sliding window (`windowed`).
    """

    norm: str = "output_norm"
    scale: float = 1.0
    cap: float = 0.0
    normed_states: bool = True
    streams: HyperConnections | None = None
    windowed: bool = False


def read_mtp_block(properties: ModelProperties, spec: MtpSpec) -> Block:
    """Return the first MTP layer. It has the heads that the file states for it, or those of the last layer with
    attention, if possible of one with a sliding window as well, or without. Raises LocalInferError if it has none."""
    hparams, number = properties.hparams, properties.block_count
    blocks = number + mtp_layers(hparams)
    arrays = [each for key in HEAD_ARRAYS if isinstance(each := array(hparams, key), np.ndarray)]
    if number < blocks and {blocks} == {len(each) for each in arrays}:
        candidates = [read_attention_heads(hparams, properties.embedding_length, blocks)[number]]
    else:
        sliding = sliding_window_layers(hparams, number, 0)
        last = [*zip(properties.attention_heads, sliding, strict=True)][::-1]
        candidates = [heads for heads, kind in last if kind == spec.windowed] + [heads for heads, _ in last]
    found = next((heads for heads in candidates if heads.count_kv), None)
    if found is None:
        raise hparams.error("attention.head_count_kv", "is 0 in the MTP layer; there must be at least one")
    return Block(number, found, is_mtp=True)


def mtp_entry(hparams: Hyperparameters, key: str, blocks: int) -> float | None:
    """Return the entry of the first MTP layer in an array with an entry for each layer; None: the file has none."""
    values = array(hparams, key)
    return float(values[blocks]) if isinstance(values, np.ndarray) and len(values) > blocks else None


def mtp_norm(tensors: Tensors, blk: Block, spec: MtpSpec) -> str:
    """Return the norm before the output layer of the MTP head: one of its own, or the model's."""
    own = (f"{blk}nextn.shared_head_norm", f"{blk}layer_output_norm")
    return next((name for name in own if tensors.has(f"{name}.weight")), spec.norm)


def mtp_layers(hparams: Hyperparameters) -> int:
    """Return the number of MTP layers."""
    return hparams.count("nextn_predict_layers", 0, minimum=0)


def array(hparams: Hyperparameters, key: str) -> object:
    """Return the value of a key, which is an array if the file has a value for each layer."""
    return hparams.f.metadata.get(hparams.full_name(key))
