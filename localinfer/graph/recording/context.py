"""The context that a graph is built for."""

from typing import NamedTuple


class Context(NamedTuple):
    """The context length, context shift and cache types, and whether attention is causal: see
    `localinfer.graph.cache.ring_buffer`."""

    n_ctx: int
    sinks: int = 0
    context_shift: bool = False  # overwrite the oldest positions when the context is full
    k_type: str = "f16"
    v_type: str = "f16"
    causal: bool = True
    draft_head: bool = False  # build the MTP head, too
    media: bool = False  # rows of images and sounds may take the place of token embeddings
    encoder_decoder: bool = False  # sequences have the tokens of an encoder, and then those of a decoder
    predicts_experts: bool = False  # each layer predicts which experts the next one will choose
    diffusion: bool = False  # the output layer predicts masked tokens, with attention in both directions
