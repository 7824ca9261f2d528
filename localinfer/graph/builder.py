"""The interface that architecture files are written with: the operations of a builder.

A builder computes on activations of type X, one row per token. `GraphBuilder` (`localinfer.graph.recording`) records
them as buffers of a compute graph; `NumpyBuilder` (`localinfer.naive`) computes numpy arrays at once, in float64. The
interface has only the operations that both must implement themselves; the types of their arguments are imported from
here, too. What is composed of them is a function of the module of its topic: `attention`, `feed_forward`,
`mixture_of_experts`, `decoder`, `encoder`.

Matrices and norms are named without the suffix `.weight`; if the file has a `.bias` of the same name, it is added.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple

from localinfer.graph.cross_layer_operations import AltUpStreams as AltUpStreams
from localinfer.graph.cross_layer_operations import CrossLayerOperations as CrossLayerOperations
from localinfer.graph.cross_layer_operations import X as X
from localinfer.graph.properties.attention import AttentionSpec as AttentionSpec
from localinfer.graph.properties.attention import BlockChoice as BlockChoice
from localinfer.graph.properties.attention import RunChoice as RunChoice
from localinfer.graph.properties.hyper_connections import HyperConnections as HyperConnections
from localinfer.graph.properties.model_properties import Block as Block
from localinfer.graph.properties.model_properties import ModelProperties
from localinfer.graph.properties.mtp import MtpSpec as MtpSpec
from localinfer.graph.properties.ngrams import Ngrams as Ngrams
from localinfer.graph.properties.per_layer import PerLayer as PerLayer
from localinfer.graph.properties.recurrence import Recurrence as Recurrence
from localinfer.graph.properties.rope import Rope as Rope
from localinfer.graph.properties.router import Router as Router

BlockFunction = Callable[[Block, X], None]  # applies a layer to the residual stream
ModalityFunction = Callable[[X, bool], Sequence[X]]  # computes rows of text, or with True those of images


class Builder(ABC, Generic[X]):
    """The properties of a model, the operations on rows, matrices and attention, and groups of other operations."""

    embeddings: "EmbeddingOperations[X]"
    per_head: "HeadOperations[X]"
    output: "OutputOperations[X]"

    def __init__(self, properties: ModelProperties) -> None:
        self.properties = properties
        self.f, self.hparams, self.tensors = properties.f, properties.hparams, properties.tensors
        self.block_count, self.embedding_length = properties.block_count, properties.embedding_length
        self.attention_heads = properties.attention_heads

    @property
    def eps(self) -> float:
        """The epsilon of the norms."""
        return self.properties.eps

    @property
    def uses_layer_norm(self) -> bool:
        """Whether norms are LayerNorms."""
        return self.properties.uses_layer_norm

    def use_layer_norm(self, *, weights: bool = True) -> None:
        """Make all norms LayerNorms, possibly without weights: keys of the file do not decide, as some files have those
        of both kinds."""
        self.properties.use_layer_norm(weights=weights)

    def use_unweighted_norms(self) -> None:
        """Make all norms RMSNorms without weights."""
        self.properties.has_norm_weights = False

    @property
    @abstractmethod
    def recurrent(self) -> "RecurrentOperations[X]":
        """Operations with a recurrent state."""

    @property
    @abstractmethod
    def experts(self) -> "ExpertOperations[X]":
        """Operations of a mixture of experts."""

    @property
    @abstractmethod
    def cross_attention(self) -> "CrossAttentionOperations[X]":
        """The attention of a decoder to the output of an encoder."""

    @property
    @abstractmethod
    def cross_layer(self) -> CrossLayerOperations[X]:
        """Activations that several layers use, beside the residual stream."""

    @abstractmethod
    def blocks(self, group: str = "blk") -> Iterator[Block]:
        """Iterate over the layers. Activations that one layer creates must not be used in the next. The names of their
        tensors begin with `group`."""

    # --- rows ---

    @abstractmethod
    def norm(
        self, x: X, name: str, *, in_place: bool = False, layer_norm_eps: float = 0.0, eps: float | None = None
    ) -> X:
        """Return norm(x) * weight (+ bias): LayerNorm if `uses_layer_norm`, else RMSNorm, with the epsilon `eps` (None:
        the model's). With `layer_norm_eps`, it is a LayerNorm with this epsilon."""

    @abstractmethod
    def norm_groups(
        self, x: X, size: int, tensor: str = "", *, per_group_weight: bool = False, eps: float | None = None,
        out: X | None = None,
    ) -> X:  # fmt: skip
        """Normalize every `size` values of x by RMSNorm, with the weights of a tensor if there is one. The weights are
        the same for all groups, or differ with `per_group_weight`: then all values of a group may have the same one,
        in a tensor of shape (groups, 1)."""

    @abstractmethod
    def add_norm(self, x: X, branch: X, name: str, *, eps: float | None = None) -> None:
        """Add norm(branch) * weight to x, with the epsilon `eps` (None: the model's). Overwrites the branch."""

    @abstractmethod
    def add(self, x: X, branch: X, factor: float = 1.0) -> None:
        """Add factor * branch to x."""

    @abstractmethod
    def add_vector(self, x: X, tensor: str) -> X:
        """Add a tensor of shape (n,) to each row of x."""

    @abstractmethod
    def clip(self, x: X, limit: float) -> None:
        """Limit the magnitudes of x."""

    @abstractmethod
    def soft_cap(self, x: X, factor: float, cap: float) -> None:
        """Replace x with cap * tanh(factor * x / cap), or with factor * x if cap is 0."""

    def point(self, x: X, name: str) -> None:
        """Name activations, so that hooks can read and change them: see `localinfer.graph.points`.

        Operations name their results after the tensors. Call it before an operation that overwrites x.
        """

    def asks_for(self, name: str) -> bool:  # noqa: ARG002 (a builder without hooks)
        """Return whether hooks ask for a point, so that it must not be inside of a fused operation."""
        return False

    def scale(self, x: X, factor: float) -> None:
        """Multiply x by a factor, in place."""
        self.soft_cap(x, factor, 0.0)

    @abstractmethod
    def gate(
        self, gate: X, up: X | None, activation: str = "none", *, first: int = 0, std_multiplier: float = -math.inf
    ) -> X:
        """Replace gate with act(gate) * up[first : first + gate.n], or with act(gate) if there is no `up`.

        With a finite `std_multiplier`, gate values below mean + std_multiplier * standard deviation become 0 first, and
        the threshold is subtracted from the others.
        """

    @abstractmethod
    def by_modality(self, x: X, function: ModalityFunction[X]) -> Sequence[X]:
        """Return what the function makes of the rows of text in x, and of those of images, in the order of the tokens.
        The last row of an image counts as text."""

    @abstractmethod
    def xielu(self, x: X, alpha_p: float, alpha_n: float, beta: float, eps: float) -> None:
        """Replace x with alpha_p x^2 + beta x above 0, and with alpha_n (e^min(x, eps) - 1 - x) + beta x below."""

    # --- matrices ---

    @abstractmethod
    def matmul(self, x: X, name: str, n_out: int, *, add_to: X | None = None) -> X:
        """Return weight . x (+ bias), or add it to `add_to`. The product is multiplied with the matrix's scale."""

    @abstractmethod
    def matmuls(self, x: X, *matrices: tuple[str, int]) -> Sequence[X]:
        """Return the products with several matrices, computed at the same time: a name and n_out for each."""

    @abstractmethod
    def slices(self, x: X, name: str, *n_outs: int) -> Sequence[X]:
        """Return the products of several matrices that the file stores as the rows of one."""

    # --- attention ---

    @abstractmethod
    def rope(
        self, pairs: str, *, truncate: bool = True, amplified: bool = True, with_temperature: bool = True,
        base: str = "rope.freq_base",
    ) -> Rope:  # fmt: skip
        """Return the rotary embedding of the file, with its context extension and the base of the key `base`.

        `pairs` are "interleaved" or "halves". `truncate` rounds YaRN's ramp to whole pairs. If `amplified`, rotated
        values include the attention factor; otherwise the scale of the scores includes it. `with_temperature` applies
        the file's attention temperature to the queries.
        """

    @abstractmethod
    def attend(
        self, blk: Block, q: X, k: X | None, v: X | None, spec: AttentionSpec, *, kv_source: int | None = None,
        compressed: X | None = None,
    ) -> X:  # fmt: skip
        """Return the input of attn_output: causal attention over the KV cache (bidirectional in encoders).

        Keys and values are added to the cache. Without v, the values are the last dimensions of the keys. Without k,
        the keys and values of the layer `kv_source` are used. `compressed` are the keys of `AttentionSpec.compression`
        as `recurrent.compress` returns them, after RoPE.
        """

    @abstractmethod
    def select_positions(self, blk: Block, q: X, k: X, weights: X, spec: AttentionSpec, top_k: int) -> None:
        """Choose the positions that attention as in `spec` attends to, in this and in later layers
        (`AttentionSpec.selected`): the `top_k` with the largest scores. See `localinfer.kernels.attention.indexer`.
        `q` are the heads of queries, [token][head][value], `weights` has a number for each head. Keys are one head, and
        are added to a cache of their own. With compression, they are those of compressed runs, after RoPE."""

    @abstractmethod
    def select_runs(self, blk: Block, q: X, k: X, weights: X | None, rope: Rope | None, runs: RunChoice) -> None:
        """Choose runs of adjacent positions likewise, and the positions after the last complete run. The keys of runs
        are those of `recurrent.compress` or `recurrent.average`, after RoPE. Without weights, all are 1."""

    @abstractmethod
    def select_blocks(self, blk: Block, q: X, k: X, rope: Rope, blocks: BlockChoice) -> None:
        """Choose blocks of positions for each key head, as `localinfer.kernels.attention.block_indexer` does."""

    @abstractmethod
    def rotate(self, x: X, heads: int, rope: Rope) -> None:
        """Rotate the heads of x, [token][head][value], in place."""


class EmbeddingOperations(ABC, Generic[X]):
    """Rows of embedding matrices."""

    @abstractmethod
    def tokens(self, factor: float = 1.0) -> X:
        """Return the residual stream: a row of token_embd for each token, times a factor."""

    @abstractmethod
    def add_deepstack(self, x: X, layer: int) -> None:
        """Add to x what media rows bring for the residual stream after a layer."""

    @abstractmethod
    def add_positions(self, x: X) -> None:
        """Add the row of position_embd at each token's position to x. There are as many rows as the trained context has
        positions."""

    @abstractmethod
    def add_token_types(self, x: X) -> None:
        """Add a row of token_types to x: the segment of a text pair that each token belongs to. Single texts are
        segment 0."""

    @abstractmethod
    def per_layer(self, x: X, size: int) -> X:
        """Return `size` values for each layer, layer after layer, of which `gate` takes a slice: the sum of the token's
        row of per_layer_token_embd and a projection of x."""

    @abstractmethod
    def ngrams(self, ngrams: Ngrams) -> X:
        """Return the rows of per_layer_token_embd for the n-grams that end at each token, one after another."""


class HeadOperations(ABC, Generic[X]):
    """Operations on the heads of a row, [token][head][value]."""

    @abstractmethod
    def split(self, x: X, heads: int, *sizes: int) -> Sequence[X]:
        """Split each head of x into slices of these sizes."""

    @abstractmethod
    def split_halves(self, x: X, heads: int) -> tuple[X, X]:
        """Return the first halves of the heads of x, and their second halves."""

    @abstractmethod
    def repeat(self, x: X, heads: int) -> X:
        """Return rows in which each of the heads has the values of the row of x."""

    @abstractmethod
    def join(self, heads: int, *slices: X) -> X:
        """Concatenate slices head by head."""

    @abstractmethod
    def gate(self, x: X, gate: X, heads: int, activation: str) -> None:
        """Multiply each head of x, whose values are a multiple of 16, by act(its value of gate)."""

    @abstractmethod
    def dot(self, x: X, other: X, heads: int) -> X:
        """Return the product of each head of x, whose values are a multiple of 16, with that of the other rows."""

    @abstractmethod
    def matmul(self, x: X, name: str, heads: int, n_out: int) -> X:
        """Return weight[head] . x[head] for each head. All matrices are one tensor, (heads, n_out, n_in), or (heads *
        n_out, n_in)."""


class HeadInputs(NamedTuple, Generic[X]):
    """Inputs of a time mixing, each [token][head][value]: receptance (query), decay, key, value and, of RWKV-7 only,
    in-context learning rate."""

    r: X
    w: X
    k: X
    v: X
    a: X | None = None


class RecurrentOperations(ABC, Generic[X]):
    """Operations with a recurrent state: convolutions, state spaces, linear attention."""

    @abstractmethod
    def convolve(self, x: X, name: str, width: int, activation: str = "none", *, dilation: int = 1) -> X:
        """Return the causal depthwise convolution of x over time: act(weighted sum of the last `width` tokens (+
        bias)), of every `dilation`-th token.

        The weights are (n, width), the newest token's last. Values before position 0 are 0.
        """

    @abstractmethod
    def average(self, x: X, width: int) -> X:
        """Return the mean of the rows of the last `width` tokens. Values before position 0 are 0."""

    @abstractmethod
    def compress(self, values: X, scores: X, name: str, run: int, n: int) -> X:
        """Return a mean of the values of each run of positions, n values, in the row of the last position of the run;
        the other rows are 0. Each column has weights of its own: the softmax of its scores, to which row i of
        `name`_ape, (run, columns), is added at position i of the run.

        With 2n columns, the mean is over two runs: the first n columns are those of the run before, if there is one.
        """

    @abstractmethod
    def recur(self, blk: Block, x: X, step: X, rate: X | None, shape: Recurrence) -> X:
        """Update the states of the recurrent heads with each token and return their output, [token][head][value].

        With the rules "delta" and "kda", `x` is queries, keys and values; with "add", values, keys and queries. `rate`
        has one number per head, and so has `step`, but one for each key value with "kda". The bias of `step` is added,
        unless it is that of a matrix, `ssm_dt`. See `localinfer.kernels.recurrent.state_matrix`.
        """

    @abstractmethod
    def selective_scan(self, blk: Block, x: X, step: X, b: X, c: X) -> X:
        """Return the output of Mamba's selective scan. Each column of x has as many state numbers as b and c have
        columns. See `localinfer.kernels.recurrent.selective_scan`."""

    @abstractmethod
    def token_shift(self, x: X, name: str) -> X:
        """Return the previous token's row for each token; zeros for the first token of a sequence. `name` is the point
        of the state, the last row."""

    @abstractmethod
    def lerp(self, x: X, other: X, weight: X) -> X:
        """Return x + weight * (other - x)."""

    @abstractmethod
    def lerps(self, x: X, other: X, name: str, count: int, weights: X | None = None) -> Sequence[X]:
        """Return one lerp for each of the `count` rows of a weight tensor, to which `weights`, [token][row][n], are
        added."""

    @abstractmethod
    def time_mix(self, blk: Block, x: HeadInputs[X], norm_eps: float | None = None, *, normed: bool = True) -> X:
        """Return the output of the heads of RWKV-7 or, without learning rates, of RWKV-6, after their norm if it is
        `normed`. Overwrites all inputs but r and v. The epsilon of the norm is `norm_eps`, or that of the other norms
        times the head size."""

    @abstractmethod
    def gated_linear_attention(self, blk: Block, x: HeadInputs[X]) -> X:
        """Return the output of the heads of gated linear attention, [token][head][value], without learning rates.
        Adjacent heads may share keys and values. Overwrites w."""


class ExpertOperations(ABC, Generic[X]):
    """Operations of a mixture of experts."""

    @abstractmethod
    def apply(
        self, h: X, blk: Block, router: Router, activation: str, *, gated: bool = True, router_input: X | None = None
    ) -> X:
        """Return the weighted sum of the outputs of the chosen experts, whose networks are as in `feed_forward`. The
        router's input is `router_input` if given, else h."""

    @abstractmethod
    def sigmoid_gate(self, y: X, h: X, name: str) -> None:
        """Multiply each row of y by sigmoid(weight . h), where the matrix has one row."""


class OutputOperations(ABC, Generic[X]):
    """What follows the last layer."""

    @abstractmethod
    def final_states(self, x: X, norm: str = "") -> X:
        """Return the hidden states of the output tokens, after a norm if one is given: the basis of embeddings and
        logits. The file may have a classifier on top of them (`localinfer.embedding.classifier`)."""

    @abstractmethod
    def logits(self, x: X, *, scale: float = 1.0, cap: float = 0.0, norm: str = "output_norm") -> None:
        """Add the output layer for the output tokens. Without a matrix of its own, it uses the token embedding.
        Encoders have no output layer."""

    @abstractmethod
    def add_mtp_head(self, x: X, apply_block: BlockFunction[X], spec: MtpSpec) -> None:
        """Add the MTP head, if the file has one and speculative decoding asks for it."""


class CrossAttentionOperations(ABC, Generic[X]):
    """The attention of a decoder to the output of an encoder, whose operations come first. A sequence has the tokens of
    the encoder, and then those of the decoder."""

    @abstractmethod
    def begin_decoder(self, encoded: X) -> None:
        """End the encoder, whose output is `encoded`, and keep its products with cross_attn_k and cross_attn_v of each
        layer of the decoder. The next operations are the decoder's."""

    @abstractmethod
    def attend(self, blk: Block, q: X) -> X:
        """Return the input of cross_attn_o: attention to all tokens of the encoder, without a scale of the scores."""
