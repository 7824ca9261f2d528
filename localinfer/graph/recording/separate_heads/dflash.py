"""The DFlash draft head (Chen et al., 2026), which has its own file and drafts a block of tokens at once.

    features = inputs of some layers of the model, concatenated
    g = norm(fc . features)
    block = embeddings of the last token and of mask tokens in the places of the tokens after it
    layers like those of Qwen3 (or Gemma 4), with keys and values of the block and, of the tokens before it, of g
    logits of each mask token from norm(x)

The tokens of a block attend to all tokens before it and to each other, or with causal attention to those before them.
When the model evaluates tokens, the head computes g, and with it the keys and values of all its layers. A token of the
text replaces what a block wrote to its position.

DSpark (DeepSeek, 2026) adds a Markov head (`separate_heads.dspark`). In most of its heads, each token of a block
predicts the next one, so that the token of the text counts as well. Its output layer may have a reduced vocabulary, as
that of an EAGLE-3 head. The layers of a head for DeepSeek-V4 are that model's (`separate_heads.deepseek4`).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from localinfer.graph.attention import rope_of_file, with_window
from localinfer.graph.decoder import POST_NORMS, add_branch
from localinfer.graph.feed_forward import feed_forward, read_activation
from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.properties.attention import AttentionSpec
from localinfer.graph.properties.model_properties import Block
from localinfer.graph.recording.attention import HeadNorms, LayerAttention
from localinfer.graph.recording.draft_head import DraftBlockHead, select_draft_rows
from localinfer.graph.recording.graph_builder import GraphBuilder
from localinfer.graph.recording.model_graph import ModelGraph
from localinfer.graph.recording.separate_heads.deepseek4 import STREAMS, StreamLayers
from localinfer.graph.recording.separate_heads.dflash2 import PROJECTION, BranchConvolution, build_selector
from localinfer.graph.recording.separate_heads.dspark import MARKOV, build_markov_head
from localinfer.graph.recording.separate_heads.eagle3 import embed, read_token_ids, target_layers

NAME = "dflash."  # prefix of the head's caches and ops
MAX_BLOCK = 256  # tokens
MAX_FEATURES = 64  # layers
MASK_TOKEN = "tokenizer.ggml.mask_token_id"


def feature_layers(head: ModelGraph, model: ModelGraph) -> Sequence[int]:
    """Return the layers whose inputs the head uses; the number after the last one stands for its output.

    Raises LocalInferError if the head belongs to a model of another shape.
    """
    if head.embedding_length != model.embedding_length:
        what = f"is {head.embedding_length}; the model's embedding has {model.embedding_length} values"
        raise head.hparams.error("embedding_length", what)
    key = head.hparams.full_name("target_layers")
    count = len(head.f.get(key, np.ndarray))
    if not 1 <= count <= MAX_FEATURES:
        raise head.hparams.error("target_layers", f"has {count} layers; it must have 1 to {MAX_FEATURES}")
    return target_layers(head, model, count)


class HeadLayers(Protocol):
    """The layers of a head."""

    def store(self, states: Buffer) -> None:
        """Write the keys and values of the text's tokens, which have these states."""

    def apply(self, embedded: Buffer) -> Buffer:
        """Return the states of a block, whose tokens have these embeddings."""


class Layers:
    """Layers like those of Qwen3 or Gemma 4."""

    def __init__(self, head: GraphBuilder) -> None:
        self._head, self._layers = head, read_layers(head)

    def store(self, states: Buffer) -> None:
        for layer, blk in zip(self._layers, self._head.blocks(), strict=True):
            self._head.model.attention.store(layer, *keys_and_values(self._head, states, blk))

    def apply(self, embedded: Buffer) -> Buffer:
        for layer, blk in zip(self._layers, self._head.blocks(), strict=True):
            apply_layer(self._head, embedded, layer, blk)
        return embedded


def build_dflash_head(head: GraphBuilder, target: GraphBuilder) -> DraftBlockHead:
    """Build the head after the output layer of the target model. The inputs of the chosen layers must have been
    captured."""
    model, own = target.model, head.model
    graph, features, start_op = model.graph, model.captured_inputs, len(model.graph.ops)
    assert features is not None
    own.ids, own.attention, own.layer_prefix = model.ids, model.attention, NAME
    has_streams = head.hparams.has(STREAMS)
    layers: HeadLayers = StreamLayers(head) if has_streams else Layers(head)
    with graph.reuse_buffers():
        layers.store(head.norm(head.matmul(features, "fc", head.embedding_length), "enc.output_norm"))
    embed_op = len(graph.ops)
    y = layers.apply(embed(own, model, head.hparams.positive("embedding_scale", 1.0)))
    block_size = min(head.hparams.count("block_size", minimum=2, maximum=MAX_BLOCK), graph.batch)
    draft_rows, drafts = select_draft_rows(graph, y, block_size)
    owner = head if own.tensors.has(f"{own.output_matrix}.weight") else target
    states, token_ids = head.norm(drafts, "output_norm"), read_token_ids(own, model.n_vocab)
    logits = owner.matmul(states, owner.model.output_matrix, model.n_vocab if token_ids is None else len(token_ids))
    scale_logits(head, logits)
    if has_streams:  # the confidence head reads the states before the norm
        states = drafts
    elif own.tensors.has(f"{PROJECTION}.weight"):
        states = head.matmul(states, PROJECTION, head.hparams.count("selector_rank"))
    end_op, mask_token = len(graph.ops), read_mask_token(head, model.n_vocab)
    is_causal = head.hparams.flag("attention.causal", default=False)
    first_row = 0 if own.tensors.has(MARKOV) and head.hparams.flag("sample_from_anchor", default=True) else 1
    markov = build_markov_head(head, states, model.n_vocab, logits.n)
    selector = build_selector(head, model.n_vocab, logits.n)
    own.reject_unused()
    return DraftBlockHead(
        start_op,
        embed_op,
        end_op,
        draft_rows,
        states,
        logits,
        drafts.rows,
        block_size,
        first_row,
        mask_token,
        token_ids,
        markov,
        selector,
        is_causal,
    )


def scale_logits(head: GraphBuilder, logits: Buffer) -> None:
    """Scale and cap logits as the model does, for probabilities and a selector. A Markov head adds to logits as they
    are, as in llama.cpp."""
    scale, cap = head.hparams.positive("logit_scale", 1.0), head.hparams.number("final_logit_softcapping", 0.0)
    if not head.tensors.has(MARKOV) and (scale != 1.0 or cap):
        head.soft_cap(logits, scale, cap)


def apply_layer(head: GraphBuilder, x: Buffer, layer: LayerAttention, blk: Block) -> None:
    """Apply a layer to the states of a block. In a head for Gemma 4, branches have norms, and layers a scale."""
    around_attention, around_ffn = (BranchConvolution(head, blk, branch) for branch in ("attn", "ffn"))
    h = around_attention.before(head.norm(x, f"{blk}attn_norm"))
    value_scale = head.hparams.positive("attention.value_scale", 1.0)
    q = head.matmul(h, f"{blk}attn_q", blk.heads.count * blk.heads.key)
    a = head.model.attention.attend(layer, q, *keys_and_values(head, h, blk))
    if value_scale != 1:
        head.scale(a, value_scale)
    norms = {name: name if head.tensors.has(f"{blk}{name}.weight") else None for name in POST_NORMS.values()}
    add_branch(head, x, around_attention.after(a, "attn_output"), blk, norms[POST_NORMS["attention"]])
    h = around_ffn.before(head.norm(x, f"{blk}ffn_norm"))
    f = feed_forward(head, h, blk, read_activation(head, "silu"))
    add_branch(head, x, around_ffn.after(f, "ffn_down"), blk, norms[POST_NORMS["feed_forward"]])
    if head.tensors.has(f"{blk}layer_output_scale.weight"):
        head.scale(x, head.tensors.scalar(f"{blk}layer_output_scale.weight"))


def read_layers(head: GraphBuilder) -> list[LayerAttention]:
    """Return the attention of each layer."""
    scale = head.hparams.positive("attention.scale") if head.hparams.has("attention.scale") else None
    spec, layers = AttentionSpec(rope_of_file(head, "halves"), head_norm="before_rope", scale=scale), []
    specs = with_window(head, spec)
    for number, (heads, spec) in enumerate(zip(head.model.attention_heads, specs.values, strict=True)):
        blk = Block(number, heads)
        norms = (head.tensors.vector(f"{blk}attn_{name}_norm.weight", heads.key) for name in "qk")
        if spec.rope and spec.rope.n_rot > heads.key:
            what = f"is {spec.rope.n_rot}; heads have {heads.key} values"
            raise head.hparams.error("rope.dimension_count", what)
        sinks = f"{blk}attn_sinks.weight"
        scores = head.tensors.vector(sinks, heads.count) if head.tensors.has(sinks) else None
        spec = replace(spec, sinks=scores is not None)
        name = f"{head.model.layer_prefix}{blk}"
        layers.append(LayerAttention(name, heads, spec, HeadNorms("before_rope", *norms), sink_scores=scores))
    return layers


def keys_and_values(head: GraphBuilder, x: Buffer, blk: Block) -> tuple[Buffer, Buffer]:
    """Return the keys and values of a layer for its input, or for the states of the text's tokens. In a head for Gemma
    4, the values are the normalized keys."""
    n, heads = blk.heads.count_kv, blk.heads
    k = head.matmul(x, f"{blk}attn_k", n * heads.key)
    if not head.tensors.has(f"{blk}attn_v.weight"):
        return k, head.norm_groups(k, heads.value)
    return k, head.matmul(x, f"{blk}attn_v", n * heads.value)


def read_mask_token(head: GraphBuilder, n_vocab: int) -> int:
    """Return the id of the mask token. Raises LocalInferError unless it is in the vocabulary."""
    id = head.model.f.get(MASK_TOKEN, int)
    if not 0 <= id < n_vocab:
        raise head.model.f.error(MASK_TOKEN, f"is {id}; it must be 0 to {n_vocab - 1}")
    return id
