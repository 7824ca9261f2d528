"""Qwen4-Exp (Qwen3.8-Flash-Next; Alibaba, 2026), the text model: layers as those of qwen35moe, several residual streams
that gates of a low rank merge (hyper-connections), an indexer of runs of positions (QSA), and features of n-grams."""

from dataclasses import replace

from localinfer.architectures.qwen35 import read_recurrent_layers, read_rope
from localinfer.graph.builder import AttentionSpec, Block, Builder, X
from localinfer.graph.compressed_attention import read_run_choices
from localinfer.graph.delta_net import attend_with_gates, gated_delta_net
from localinfer.graph.hyper_connections import add_gated, read_gated_streams
from localinfer.graph.indexer import index_sizes
from localinfer.graph.mixture_of_experts import expert_feed_forward, read_router
from localinfer.graph.ngram_embedding import add_ngram_features, read_ngram_layer
from localinfer.graph.properties.hyper_connections import read_stream_count
from localinfer.graph.properties.recurrence import read_recurrence


def build(g: Builder[X]) -> None:
    """The gates of recurrent heads are sigmoids. The last streams are merged likewise, instead of a norm."""
    count, rank = read_stream_count(g.hparams), g.hparams.count("hyper_connection.low_rank")
    recurrent, shape, rope = read_recurrent_layers(g), read_recurrence(g.hparams, "delta"), read_rope(g)
    router, ngrams, runs = read_router(g, normed=True), read_ngram_layer(g), read_run_choices(g)
    heads, size, _ = index_sizes(g)
    dense = AttentionSpec(rope, head_norm="before_rope")

    def attention(blk: Block, h: X) -> X:
        if run := runs[blk]:
            q, k = g.matmuls(h, (f"{blk}indexer.q_proj", heads * size), (f"{blk}indexer.k_proj", size))
            q = g.norm_groups(q, size, f"{blk}indexer.q_norm.weight")
            k = g.norm(g.recurrent.average(k, run.size), f"{blk}indexer.k_norm")
            g.rotate(k, 1, replace(rope, offset=run.size - 1))
            g.select_runs(blk, q, k, None, rope, run)
        return attend_with_gates(g, h, blk, replace(dense, selected=run is not None))

    x = g.cross_layer.streams(g.embeddings.tokens(), count)
    for blk in g.blocks():
        if ngrams and blk.number == ngrams.number:
            add_ngram_features(g, x, blk, ngrams, count)
        h, normed = read_gated_streams(g, x, f"{blk}hc_attn", count, rank)
        is_recurrent = recurrent[blk]
        y = gated_delta_net(g, h, blk, shape, "sigmoid") if is_recurrent else attention(blk, h)
        y = g.matmul(y, f"{blk}{'ssm_out' if is_recurrent else 'attn_output'}", g.embedding_length)
        g.point(y, f"{blk}attn_out")
        add_gated(g, x, y, normed, f"{blk}hc_attn", count)
        h, normed = read_gated_streams(g, x, f"{blk}hc_ffn", count, rank)
        y = expert_feed_forward(g, h, blk, router, "silu")
        g.point(y, f"{blk}ffn_out")
        add_gated(g, x, y, normed, f"{blk}hc_ffn", count)
    g.output.logits(read_gated_streams(g, x, "output_hc", count, rank)[0], norm="")
