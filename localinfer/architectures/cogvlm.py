"""CogVLM (Wang et al., 2023): Llama whose layers have a second set of matrices for the rows of images, the visual
expert."""

from collections.abc import Sequence

from localinfer.graph.builder import AttentionSpec, Block, Builder, X
from localinfer.graph.properties.hyperparameters import multiple_of_32

TEXT = {name: name for name in ("attn_qkv", "attn_output", "ffn_gate", "ffn_up", "ffn_down")}
VISUAL = {name: f"vis_{name.removeprefix('ffn_')}" for name in TEXT}


def build(g: Builder[X]) -> None:
    """Pre-norm attention and a SwiGLU feed-forward network on a residual stream."""
    x, attention = g.embeddings.tokens(), AttentionSpec(g.rope("halves"))
    for blk in g.blocks():
        g.tensors.accept(*(f"{blk}{name}{ending}" for name in VISUAL.values() for ending in (".weight", ".bias")))
        apply_block(g, attention, blk, x)
    g.output.logits(x)


def apply_block(g: Builder[X], attention: AttentionSpec, blk: Block, x: X) -> None:
    """Apply a layer to the residual stream x."""
    n, heads = g.embedding_length, blk.heads
    lengths = heads.count * heads.key, heads.count_kv * heads.key, heads.count_kv * heads.value
    if any(length % 32 for length in (*lengths, heads.count * heads.value)):
        raise g.hparams.error("attention.head_count", f"makes {lengths} values; they must be multiples of 32")
    n_ff = multiple_of_32(g.hparams, "feed_forward_length", g.block_count, blk.number)

    def name(tensor: str, is_image: bool) -> str:
        return f"{blk}{(VISUAL if is_image else TEXT)[tensor]}"

    def qkv(rows: X, is_image: bool) -> Sequence[X]:
        return g.slices(rows, name("attn_qkv", is_image), *lengths)

    def output(rows: X, is_image: bool) -> Sequence[X]:
        return [g.matmul(rows, name("attn_output", is_image), n)]

    def network(rows: X, is_image: bool) -> Sequence[X]:
        gate, values = g.matmuls(rows, (name("ffn_gate", is_image), n_ff), (name("ffn_up", is_image), n_ff))
        hidden = g.gate(gate, values, "silu")
        return [g.matmul(hidden, name("ffn_down", is_image), n)]

    q, k, v = g.by_modality(g.norm(x, f"{blk}attn_norm"), qkv)
    for kind, values in zip("qkv", (q, k, v), strict=True):
        g.point(values, f"{blk}attn_{kind}")
    [branch] = g.by_modality(g.attend(blk, q, k, v, attention), output)
    g.point(branch, f"{blk}attn_out")
    g.add(x, branch)
    g.point(x, f"{blk}resid_mid")
    [branch] = g.by_modality(g.norm(x, f"{blk}ffn_norm"), network)
    g.point(branch, f"{blk}ffn_out")
    g.add(x, branch)
