"""The properties of the MTP head, a layer after the others: see `localinfer.graph.recording.mtp`."""

from typing import NamedTuple

import numpy as np

from localinfer.graph.properties.attention import read_attention_heads
from localinfer.graph.properties.hyperparameters import Hyperparameters
from localinfer.graph.properties.model_properties import Block, ModelProperties
from localinfer.graph.properties.tensors import Tensors

WINDOWS = "attention.sliding_window_pattern"
HEAD_ARRAYS = ("attention.head_count", "attention.head_count_kv", WINDOWS)


class MtpSpec(NamedTuple):
    """How the MTP head differs from a layer: the output norm of the model, and the scale and cap of its logits.

    With `normed_states`, the hidden states that the head reads are those after a norm: the output norm, or the head's
    own. Otherwise they are the residual stream.
    """

    norm: str = "output_norm"
    scale: float = 1.0
    cap: float = 0.0
    normed_states: bool = True


def read_mtp_block(properties: ModelProperties) -> Block:
    """Return the first MTP layer. It has the heads that the file states for it, or those of the last layer with
    attention."""
    hparams, number = properties.hparams, properties.block_count
    blocks = number + mtp_layers(hparams)
    if {blocks} == {len(each) for key in HEAD_ARRAYS if isinstance(each := array(hparams, key), np.ndarray)}:
        return Block(number, read_attention_heads(hparams, properties.embedding_length, blocks)[number])
    return Block(number, next(heads for heads in reversed(properties.attention_heads) if heads.count_kv))


def read_mtp_windows(properties: ModelProperties) -> list[bool]:
    """Return whether the MTP layers have a sliding window, if the file states it for them."""
    flags, number = array(properties.hparams, WINDOWS), properties.block_count
    return [bool(flag) for flag in flags[number:]] if isinstance(flags, np.ndarray) else []


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
