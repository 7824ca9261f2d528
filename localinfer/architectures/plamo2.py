"""PLaMo 2 (Preferred Networks, 2025): Mamba 2 with normalized inputs in every other layer, attention with normalized
heads and a sliding window in the others, and norms before and after each branch."""

from localinfer.graph.attention import qkv, with_window
from localinfer.graph.builder import AttentionSpec, Block, Builder, Recurrence, X
from localinfer.graph.decoder import POST_NORMS, BranchOutput, DecoderSpec, build_decoder
from localinfer.graph.properties.recurrence import read_recurrence

HEAD_EPS = 1e-6  # of the norms of heads


def build(g: Builder[X]) -> None:
    """Layers without key heads are Mamba 2 layers."""
    shape, specs = read_recurrence(g.hparams, "add"), with_window(g, AttentionSpec(g.rope("halves")))

    def mixer(blk: Block, h: X) -> BranchOutput[X]:
        if not blk.heads.count_kv:
            return BranchOutput(state_space(g, blk, h, shape), "ssm_out")
        q, k, v = qkv(g, h, blk)
        q, k = (head_norms(g, blk, each, name) for each, name in ((q, "attn_q_norm"), (k, "attn_k_norm")))
        return BranchOutput(g.attend(blk, q, k, v, specs[blk]), "attn_output")

    build_decoder(g, DecoderSpec(attention=specs, post_norms=POST_NORMS), mixer)


def head_norms(g: Builder[X], blk: Block, x: X, name: str) -> X:
    """Return normalized heads, each of which has its own weights."""
    y = g.norm_groups(x, blk.heads.key, f"{blk}{name}.weight", per_group_weight=True, eps=HEAD_EPS)
    g.point(y, f"{blk}{name}")
    return y


def state_space(g: Builder[X], blk: Block, h: X, shape: Recurrence) -> X:
    """Return the gated output of the recurrent heads. Gates and values alternate by heads; the convolved values
    determine the keys B, the queries C and the step sizes."""
    n = shape.n_values
    z, values = g.per_head.split(g.matmul(h, f"{blk}ssm_in", 2 * n), shape.heads, shape.value, shape.value)
    g.point(z, f"{blk}ssm_gate")
    values = g.recurrent.convolve(values, f"{blk}ssm_conv1d", shape.width, "silu")
    rank = max(64, g.embedding_length // 16)
    b, c, step = g.slices(values, f"{blk}ssm_x", shape.key, shape.key, rank)
    b, c, step = (g.norm(x, f"{blk}ssm_{name}_norm") for x, name in ((b, "b"), (c, "c"), (step, "dt")))
    step = g.matmul(step, f"{blk}ssm_dt", shape.heads)
    return g.gate(z, g.recurrent.recur(blk, g.per_head.join(1, values, b, c), step, None, shape), "silu")
