"""The decoder that most families share: blocks of attention and a feed-forward network on a residual stream.

What differs between them is data. Where a family does something else, its file says it in words of the recorder.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from localinfer.plan.ahead import Through
from localinfer.plan.basics import Block
from localinfer.plan.buffers import Buffer
from localinfer.plan.experts import Router
from localinfer.plan.recorder import Recorder
from localinfer.plan.rope import Rope

INTO_BRANCHES: Mapping[str, str] = {"attention": "attn_norm", "feed_forward": "ffn_norm"}
BEHIND_BRANCHES: Mapping[str, str] = {"attention": "post_attention_norm", "feed_forward": "post_ffw_norm"}
NOWHERE: Mapping[str, str] = {}


@dataclass(frozen=True)
class Sight:
    """How a layer looks back: which rotary embedding tells distances (None: nothing does), how far (0: everything), or
    in which stretches; and how heads are normalised, if in another way than those of other layers."""

    rope: Rope | None
    window: int = 0
    stretches: bool = False
    head_norm: str | None = None


@dataclass(frozen=True)
class Mixed:
    """What a branch has made of the tokens, and the name of the matrix through which it joins the residual stream."""

    branch: Buffer
    matrix: str


Mixer = Callable[[Block, Buffer], Mixed | None]


def decoder(
    r: Recorder,
    sights: Sight | Sequence[Sight],
    *,
    activation: str = "silu",
    gated: bool = True,
    head_norm: str = "no",
    row_norm: bool = False,
    before: Mapping[str, str] = INTO_BRANCHES,
    behind: Mapping[str, str] = NOWHERE,
    parallel: bool = False,
    sub_norms: bool = False,
    router: Router | None = None,
    sinks: bool = False,
    qkv_bias: bool = False,
    learned_positions: bool = False,
    embedding_norm: bool = False,
    embedding_scale: float = 1.0,
    residual_scale: float = 1.0,
    scale: float | None = None,
    cap: float = 0.0,
    logit_scale: float = 1.0,
    logit_cap: float = 0.0,
    mixer: Mixer | None = None,
    output_norm: str = "output_norm",
) -> None:
    """Record a whole forward pass.

    `sights` is of all layers, or one of each. Branches have the norms of these names `before` and `behind` them; they
    follow each other, or are `parallel`: both see the stream as it was before the block. Queries and keys are
    normalised head by head, "before" or "after" they turn (`head_norm`), or as whole rows (`row_norm`); what the last
    matrix of a branch takes is, with `sub_norms`; the embedding is, with `embedding_norm`, which then does for a branch
    that has none. Blocks that have a `router` choose among experts, of which one may see every token. A `mixer` mixes
    tokens in the place of attention; where it gives None, a block has attention. The other words are those of the
    recorder.
    """
    x = r.embed(embedding_scale)
    if learned_positions:
        r.add_positions(x)
    if embedding_norm:
        r.norm(x, "token_embd_norm", in_place=True)

    def through(blk: Block, x: Buffer) -> None:
        sight = sights if isinstance(sights, Sight) else sights[min(blk.number, len(sights) - 1)]
        normed = embedding_norm and not r.has(f"{blk}{before['attention']}.weight")
        h = r.norm(x, f"{blk}{before['attention']}") if before and not normed else x
        mixed = mixer(blk, h) if mixer else None
        if mixed is None:
            q, k, v = r.qkv(h, blk, bias=qkv_bias)
            if row_norm:
                q, k = r.norm(q, f"{blk}attn_q_norm"), r.norm(k, f"{blk}attn_k_norm")
            a = r.attend(
                blk, q, k, v, rope=sight.rope, window=sight.window, stretches=sight.stretches,
                norm=sight.head_norm or head_norm, scale=scale, cap=cap, sinks=sinks,
            )  # fmt: skip
            if sub_norms:
                a = r.norm(a, f"{blk}attn_sub_norm")
            mixed = Mixed(a, "attn_output")
        if not parallel:
            join(r, x, mixed.branch, blk, mixed.matrix, behind.get("attention"), residual_scale)
        if before and not (parallel and before["feed_forward"] == before["attention"]):
            h = r.norm(x, f"{blk}{before['feed_forward']}")
        h = h if before else x
        if router and r.has(f"{blk}ffn_gate_inp.weight"):
            f = Mixed(see_experts(r, h, blk, router, activation), "")
        else:
            f = Mixed(r.feed_forward(h, blk, activation, gated=gated), "ffn_down")
        if sub_norms:
            f = Mixed(r.norm(f.branch, f"{blk}ffn_sub_norm"), f.matrix)
        if parallel:
            join(r, x, mixed.branch, blk, mixed.matrix, behind.get("attention"), residual_scale)
        join(r, x, f.branch, blk, f.matrix, behind.get("feed_forward"), residual_scale)

    take(r, x, through)
    r.logits(x, scale=logit_scale, cap=logit_cap, norm=output_norm)
    r.look_ahead(x, through, output_norm)


def take(r: Recorder, x: Buffer, through: Through) -> None:
    """The residual stream goes through all blocks."""
    for blk in r.blocks():
        through(blk, x)


def see_experts(r: Recorder, h: Buffer, blk: Block, router: Router, activation: str) -> Buffer:
    """The chosen experts, and the one that sees every token if there is one."""
    y = r.experts(h, blk, router, activation)
    if r.has(f"{blk}ffn_up_shexp.weight"):
        r.add(y, r.shared_expert(h, blk, activation))
    return y


def join(r: Recorder, x: Buffer, branch: Buffer, blk: Block, matrix: str, norm: str | None, scale: float) -> None:
    """x += a branch behind its last matrix, if that is not done yet; normalised or scaled if there is what to do it
    with."""
    n = r.embedding_length
    if matrix and not norm and scale == 1.0:
        r.matmul(branch, f"{blk}{matrix}", n, add_to=x)
        return
    y = r.matmul(branch, f"{blk}{matrix}", n) if matrix else branch
    if norm:
        r.add_norm(x, y, f"{blk}{norm}")
    else:
        r.add(x, y, scale)
