"""The decoder that most architectures share: attention and feed-forward branches on a residual stream.

Architectures differ in the fields of `DecoderSpec`. What these cannot express, an architecture file builds itself.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, NamedTuple

from localinfer.graph.attention import qkv
from localinfer.graph.builder import AttentionSpec, Block, BlockFunction, Builder, MtpSpec, PerLayer, Router, X
from localinfer.graph.feed_forward import feed_forward
from localinfer.graph.mixture_of_experts import expert_feed_forward

PRE_NORMS: Mapping[str, str] = {"attention": "attn_norm", "feed_forward": "ffn_norm"}
ONE_NORM: Mapping[str, str] = {"attention": "attn_norm", "feed_forward": "attn_norm"}
POST_NORMS: Mapping[str, str] = {"attention": "post_attention_norm", "feed_forward": "post_ffw_norm"}
NO_BRANCH_NORMS: Mapping[str, str] = {}


class BranchOutput(NamedTuple, Generic[X]):
    """The output of a branch, and the name of the matrix that projects it to the residual stream ("": none)."""

    branch: X
    matrix: str


Branch = Callable[[Block, X], BranchOutput[X]]  # a function of a layer, and of its input after a norm

# Replaces the attention of the layers for which it does not return None.
Mixer = Callable[[Block, X], BranchOutput[X] | None]


@dataclass(frozen=True, kw_only=True)
class DecoderSpec:
    """A decoder by what distinguishes it from others. Its defaults are Llama's.

    `attention` and `activation` are those of all layers, or of each layer. The strings in `pre_norms` and `post_norms`
    name the norms before and after each branch. The fields without a comment are arguments of a builder's operations.
    """

    attention: AttentionSpec | PerLayer[AttentionSpec]
    activation: str | PerLayer[str] = "silu"
    other_activation: PerLayer[str] | None = None  # of shared experts and of networks without experts, if it is another
    gated: bool = True
    length_counts_gate: bool = False
    row_norm: bool = False  # RMSNorm over whole rows of queries and keys
    pre_norms: Mapping[str, str] = field(default_factory=lambda: PRE_NORMS)
    post_norms: Mapping[str, str] = field(default_factory=lambda: NO_BRANCH_NORMS)
    post_norm_eps: float | None = None  # the epsilon of `post_norms`, if it is another one
    parallel: bool = False  # both branches have the residual stream before the layer as input
    sub_norms: bool = False  # a norm before the last matrix of each branch
    router: Router | None = None  # layers with a router tensor are mixtures of experts, possibly with a shared expert
    averages_experts: bool = False  # the outputs of the chosen experts and of the shared one are averaged, not added
    qkv_bias: bool = False
    learned_positions: bool = False
    embedding_norm: bool = False  # a norm of the embedding, which also replaces a missing first norm
    unweighted_embedding_norm: bool = False  # RMSNorm of the embedding without weights
    embedding_skip: bool = False  # the embedding, times layer_output_scale, is added after each layer
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    logit_cap: float = 0.0
    output_norm: str = "output_norm"
    n_deepstack: int = 0  # layers after which media rows are added to the residual stream
    mtp_states: str = ""  # hidden states that the family's MTP heads read: "normed" or "residual" ("": there are none)

    def attention_of(self, blk: Block) -> AttentionSpec:
        """Return the attention of a layer."""
        if isinstance(self.attention, AttentionSpec):
            return self.attention
        return self.attention[blk]

    def activation_of(self, blk: Block) -> str:
        """Return the activation of a layer's routed experts, or of its only network."""
        return self.activation if isinstance(self.activation, str) else self.activation[blk]

    def other_activation_of(self, blk: Block) -> str:
        """Return the activation of a layer's shared expert, or of its network without experts."""
        return self.other_activation[blk] if self.other_activation else self.activation_of(blk)


def build_decoder(g: Builder[X], spec: DecoderSpec, mixer: Mixer[X] | None = None) -> None:
    """Build a whole decoder: embedding, layers, output layer and MTP head."""
    x = g.embeddings.tokens(spec.embedding_scale)
    if spec.learned_positions:
        g.embeddings.add_positions(x)
    if spec.embedding_norm:
        g.norm(x, "token_embd_norm", in_place=True)
    if spec.unweighted_embedding_norm:
        g.norm_groups(x, g.embedding_length, out=x)
    apply_block: BlockFunction[X] = partial(apply_decoder_block, g, spec, mixer)
    embedding = g.cross_layer.buffer(g.embedding_length) if spec.embedding_skip else None
    if embedding is not None:
        g.cross_layer.copy(x, embedding)
    for blk in g.blocks():
        apply_block(blk, x)
        if embedding is not None:
            g.add(x, embedding, g.tensors.scalar(f"{blk}layer_output_scale.weight"))
        if blk.number < spec.n_deepstack:
            g.embeddings.add_deepstack(x, blk.number)
    g.output.logits(x, scale=spec.logit_scale, cap=spec.logit_cap, norm=spec.output_norm)
    if spec.mtp_states:
        of_mtp = spec.attention if isinstance(spec.attention, AttentionSpec) else spec.attention.mtp
        mtp = MtpSpec(
            spec.output_norm, spec.logit_scale, spec.logit_cap, spec.mtp_states == "normed",
            windowed=of_mtp is not None and of_mtp.window > 0,
        )  # fmt: skip
        g.output.add_mtp_head(x, apply_block, mtp)


def apply_decoder_block(g: Builder[X], spec: DecoderSpec, mixer: Mixer[X] | None, blk: Block, x: X) -> None:
    """Apply one layer to the residual stream x: attention and feed-forward, one after the other or in parallel."""
    has_no_norm = spec.embedding_norm and not g.tensors.has(f"{blk}{spec.pre_norms['attention']}.weight")
    h = g.norm(x, f"{blk}{spec.pre_norms['attention']}") if spec.pre_norms and not has_no_norm else x
    mixed = mixer(blk, h) if mixer else None
    attention = attention_branch(g, spec, blk, h) if mixed is None else mixed
    add = partial(add_branch, g, x, blk=blk, scale=spec.residual_scale, eps=spec.post_norm_eps)
    if not spec.parallel:
        add(attention, norm=spec.post_norms.get("attention"), point="attn_out")
        g.point(x, f"{blk}resid_mid")
    if not spec.pre_norms:
        h = x
    elif not spec.parallel or spec.pre_norms["feed_forward"] != spec.pre_norms["attention"]:
        h = g.norm(x, f"{blk}{spec.pre_norms['feed_forward']}")
    network = feed_forward_branch(g, spec, blk, h)
    if spec.parallel:
        add(attention, norm=spec.post_norms.get("attention"), point="attn_out")
    add(network, norm=spec.post_norms.get("feed_forward"), point="ffn_out")


def attention_branch(g: Builder[X], spec: DecoderSpec, blk: Block, h: X) -> BranchOutput[X]:
    """Return the output of a layer's attention."""
    q, k, v = qkv(g, h, blk, bias=spec.qkv_bias)
    if spec.row_norm:
        q, k = g.norm(q, f"{blk}attn_q_norm"), g.norm(k, f"{blk}attn_k_norm")
    a = g.attend(blk, q, k, v, spec.attention_of(blk))
    if spec.sub_norms:
        a = g.norm(a, f"{blk}attn_sub_norm")
    return BranchOutput(a, "attn_output")


def gated_attention(g: Builder[X], spec: DecoderSpec, activation: str) -> Mixer[X]:
    """Return attention whose heads have gates: one for each head, or one for each of its values."""

    def gated(blk: Block, h: X) -> BranchOutput[X]:
        y, matrix = attention_branch(g, spec, blk, h)
        return BranchOutput(gate_heads(g, h, blk, y, blk.heads.value, activation), matrix)

    return gated


def gate_heads(g: Builder[X], h: X, blk: Block, y: X, size: int, activation: str) -> X:
    """Return heads of `size` values, multiplied by act(attn_gate . h): a gate for each head, or for each of its
    values. Overwrites y."""
    count, name = blk.heads.count, f"{blk}attn_gate"
    if g.f.tensors[f"{name}.weight"].shape[0] != count:
        return g.gate(g.matmul(h, name, count * size), y, activation)
    g.per_head.gate(y, g.matmul(h, name, count), count, activation)
    return y


def feed_forward_branch(g: Builder[X], spec: DecoderSpec, blk: Block, h: X) -> BranchOutput[X]:
    """Return the output of a layer's feed-forward network, or of its mixture of experts."""
    if spec.router and g.tensors.has(f"{blk}ffn_gate_inp.weight"):
        shared, average = spec.other_activation_of(blk), spec.averages_experts
        f = expert_feed_forward(
            g, h, blk, spec.router, spec.activation_of(blk), shared_activation=shared, average=average
        )
        matrix = ""
    else:
        options = {"gated": spec.gated, "length_counts_gate": spec.length_counts_gate}
        f, matrix = feed_forward(g, h, blk, spec.other_activation_of(blk), **options), "ffn_down"
    return BranchOutput(g.norm(f, f"{blk}ffn_sub_norm") if spec.sub_norms else f, matrix)


def apply_branches(g: Builder[X], attend: Branch[X], feed_forward: Branch[X], blk: Block, x: X) -> None:
    """Apply one layer to the residual stream x: two branches, each after a norm."""
    for name, branch in (("attn", attend), ("ffn", feed_forward)):
        add_branch(g, x, branch(blk, g.norm(x, f"{blk}{name}_norm")), blk, point=f"{name}_out")


def expert_branch(g: Builder[X], router: Router, activation: PerLayer[str], others: PerLayer[str]) -> Branch[X]:
    """Return the feed-forward branch of a layer, a mixture of experts if the layer has a router. Its experts have the
    `activation` of the layer; shared experts and networks without experts have one of the `others`."""

    def branch(blk: Block, h: X) -> BranchOutput[X]:
        other = others[blk]
        if not g.tensors.has(f"{blk}ffn_gate_inp.weight"):
            return BranchOutput(feed_forward(g, h, blk, other), "ffn_down")
        y = expert_feed_forward(g, h, blk, router, activation[blk], shared_activation=other)
        return BranchOutput(y, "")

    return branch


def add_branch(
    g: Builder[X], x: X, output: BranchOutput[X], blk: Block, norm: str | None = None, scale: float = 1.0,
    point: str = "", eps: float | None = None,
) -> None:  # fmt: skip
    """Add a branch to x: project it with its matrix, if it has one, then normalize it with `norm`, whose epsilon is
    `eps` (None: the model's), or scale it.

    `point` names what is added, before it is scaled.
    """
    n, matrix, is_read = g.embedding_length, output.matrix, bool(point) and g.asks_for(f"{blk}{point}")
    if matrix and not norm and scale == 1.0 and not is_read:
        g.matmul(output.branch, f"{blk}{matrix}", n, add_to=x)
        return
    y = g.matmul(output.branch, f"{blk}{matrix}", n) if matrix else output.branch
    if norm and not is_read:
        g.add_norm(x, y, f"{blk}{norm}", eps=eps)
        return
    if norm:
        y = g.norm(y, f"{blk}{norm}", eps=eps)
    if is_read:
        g.point(y, f"{blk}{point}")
    g.add(x, y, scale)
