"""The assistant of a Gemma 4 model (Google, 2026): a draft head of a few layers in a file of its own. It has no keys
and values, but attends to those of the model.

    x = pre_projection . [embedding of the token by the model, hidden state before it]
    layers of Gemma 4, whose queries attend to the keys and values of the model's last layer with, or without, a window
    logits from norm(x), by the embedding of the assistant
    state = post_projection . norm(x)

The hidden state is the model's after its output norm; for draft tokens, the assistant's state. Draft tokens are not in
the cache of the model, so all of them have the position of the first one, and attend to the tokens before it.
"""

import math
from dataclasses import replace

from localinfer.graph.attention import unscaled_attention
from localinfer.graph.decoder import BranchOutput, add_branch
from localinfer.graph.feed_forward import feed_forward
from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.properties.attention import AttentionSpec
from localinfer.graph.properties.model_properties import Block
from localinfer.graph.recording.attention import HeadNorms, LayerAttention
from localinfer.graph.recording.draft_head import DraftHead, concatenate, previous_states, select_draft_rows
from localinfer.graph.recording.graph_builder import GraphBuilder
from localinfer.graph.recording.model_graph import ModelGraph
from localinfer.graph.recording.operations.embeddings import look_up_tokens

TARGET = "gemma4"  # the architecture of the models that have assistants
NAME = "assistant."  # prefix of its ops
UNUSED_KEYS = (  # none of its layers has keys, and its logits are not capped
    "attention.shared_kv_layers", "embedding_length_per_layer_input", "final_logit_softcapping",
)  # fmt: skip


def build_gemma4_assistant(head: GraphBuilder, target: GraphBuilder) -> DraftHead:
    """Build the assistant after the output layer of its model. Raises LocalInferError if it belongs to another one."""
    model, assistant = target.model, head.model
    require_target(assistant, model)
    graph, x, start_op = model.graph, model.residual, len(model.graph.ops)
    assert x is not None
    assistant.ids, assistant.attention = model.ids, model.attention
    sources = [layer for layer, _ in model.attention.layers.values()]
    states = target.norm(x, "output_norm")
    previous_rows, previous = previous_states(graph, states)
    embed_op = len(graph.ops)
    embedded = look_up_tokens(model, "token_embd", math.sqrt(model.embedding_length))
    y = head.matmul(concatenate(graph, embedded, previous), "nextn.pre_projection", head.embedding_length)
    specs = unscaled_attention(head)
    for blk in head.blocks():
        a = attend(head, head.norm(y, f"{blk}attn_norm"), blk, specs[blk], sources)
        add_branch(head, y, BranchOutput(a, "attn_output"), blk, "post_attention_norm")
        f = feed_forward(head, head.norm(y, f"{blk}ffn_norm"), blk, "gelu")
        add_branch(head, y, BranchOutput(f, "ffn_down"), blk, "post_ffw_norm")
        head.scale(y, head.tensors.scalar(f"{blk}layer_output_scale.weight"))
    draft_rows, drafts = select_draft_rows(graph, y)
    normed = head.norm(drafts, "output_norm")
    state = head.matmul(normed, "nextn.post_projection", states.n)
    logits = head.matmul(normed, "token_embd", model.n_vocab)
    head.hparams.accept(*UNUSED_KEYS)
    assistant.reject_unused()
    return DraftHead(
        start_op, embed_op, embed_op, states, previous_rows, previous, draft_rows, state, logits, drafts.rows,
        shares_keys=True,
    )  # fmt: skip


def require_target(assistant: ModelGraph, model: ModelGraph) -> None:
    """Raise LocalInferError unless the model is one of Gemma 4 with the hidden states of the assistant's."""
    if model.hparams.architecture != TARGET:
        what = f"drafts for a model of the architecture {TARGET}; the model's is {model.hparams.architecture}"
        raise assistant.f.error("general.architecture", what)
    key = "embedding_length_out"
    if (n := assistant.hparams.count(key)) != model.embedding_length:
        raise assistant.hparams.error(key, f"is {n}; the model's embedding has {model.embedding_length} values")
    if assistant.n_vocab != model.n_vocab:
        what = f"are of {assistant.n_vocab} tokens; the model has {model.n_vocab}"
        raise assistant.f.error("tensor token_embd.weight", what)


def attend(head: GraphBuilder, x: Buffer, blk: Block, spec: AttentionSpec, sources: list[LayerAttention]) -> Buffer:
    """Return the attention to the keys and values of the last of the model's layers with such a window, or without."""
    source = next((each for each in reversed(sources) if bool(each.spec.window) == bool(spec.window)), None)
    if source is None or source.spec.window != spec.window:
        window = source.spec.window if source else 0
        raise head.hparams.error("attention.sliding_window", f"is {spec.window}; the model has layers with {window}")
    if replace(source.heads, count=blk.heads.count) != blk.heads:
        what = f"layer {blk.number} has other heads than the model's layer {source.name}, whose keys it uses"
        raise head.hparams.error("attention.head_count_kv", what)
    norms = HeadNorms(spec.head_norm, head.tensors.vector(f"{blk}attn_q_norm.weight", blk.heads.key))
    q = head.matmul(x, f"{blk}attn_q", blk.heads.count * blk.heads.key)
    layer = LayerAttention(f"{NAME}{blk}", blk.heads, spec, norms, kv_source=source.cache_name)
    return head.model.attention.attend(layer, q, None, None)
