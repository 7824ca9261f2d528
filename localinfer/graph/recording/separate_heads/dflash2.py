"""What DFlash 2 adds to a DFlash head: convolutions over the tokens of a block, and a selector of draft tokens.

In each layer, what attention and the feed-forward network read and what they return is convolved over the block
(`localinfer.kernels.grouped_convolution`); the filters of both depend on what the branch would read. The keys and
values of the text's tokens are not convolved.

The selector chooses one of the `selector_top_k` most probable tokens, given the token before it:

    score = logit + selector_successor[token] . (selector_predecessor[token before it] * selector_hidden . state)
"""

from localinfer.errors import UnsupportedError
from localinfer.graph.decoder import BranchOutput
from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.properties.model_properties import Block
from localinfer.graph.recording.draft_head import Selector
from localinfer.graph.recording.graph_builder import GraphBuilder
from localinfer.graph.recording.operations.embeddings import look_up_rows
from localinfer.graph.recording.separate_heads.dspark import read_rank
from localinfer.kernels.signatures import CONVOLVE_GROUPS

PROJECTION = "selector_hidden"
PREDECESSORS, SUCCESSORS = "selector_predecessor.weight", "selector_successor.weight"
MAX_TAPS, MAX_CANDIDATES = 64, 1024
VECTOR = 16  # values that the kernel multiplies at once, which must belong to one group


class BranchConvolution:
    """The convolutions before and after a branch of a layer, `attn` or `ffn`; the identity without DFlash 2."""

    def __init__(self, head: GraphBuilder, blk: Block, branch: str) -> None:
        self._head, self._blk, self._name = head, blk, f"{blk}{branch}_conv"
        self._exists = head.tensors.has(f"{self._name}_base")
        self._dynamic: Buffer | None = None

    def before(self, x: Buffer) -> Buffer:
        """Return the input of the branch, of which x is the normalized residual stream."""
        if not self._exists:
            return x
        taps, size = self._shape(x.n)
        self._dynamic = self._head.matmul(x, f"{self._name}_proj", 2 * taps * (x.n // size))
        return self._convolve(x, 0)

    def after(self, y: Buffer, matrix: str) -> BranchOutput[Buffer]:
        """Return the output of the branch, of which y is what `matrix` projects."""
        if not self._exists:
            return BranchOutput(y, matrix)
        head = self._head
        return BranchOutput(self._convolve(head.matmul(y, f"{self._blk}{matrix}", head.embedding_length), 1), "")

    def _convolve(self, x: Buffer, side: int) -> Buffer:
        graph, (taps, size) = self._head.model.graph, self._shape(x.n)
        base, y = self._head.tensors.floats(f"{self._name}_base", 2, taps, x.n), graph.buffer(x.n, x.rows)
        assert self._dynamic
        graph.op(
            self._name, CONVOLVE_GROUPS, x.rows, chunks=(1, 8), x=x, base=base, dynamic=self._dynamic, side=side,
            taps=taps, size=size, n=x.n, y=y,
        )  # fmt: skip
        return y

    def _shape(self, n: int) -> tuple[int, int]:
        """Return the length of the filters, and the number of values of a group."""
        hparams = self._head.hparams
        taps, size = hparams.count("conv_kernel_size", maximum=MAX_TAPS), hparams.count("conv_group_size", maximum=n)
        if size % VECTOR or n % size:
            what = f"is {size}; it must be a multiple of {VECTOR} that divides {n}"
            raise self._head.f.error(hparams.full_name("conv_group_size"), what, UnsupportedError)
        return taps, size


def build_selector(head: GraphBuilder, n_vocab: int, n_logits: int) -> Selector | None:
    """Build the lookups of a head's selector, if it has one, after the ops of a block."""
    graph, own = head.model.graph, head.model
    if not own.tensors.has(PREDECESSORS):
        return None
    start_op, rank, count = len(graph.ops), read_rank(head, PREDECESSORS), head.hparams.count("selector_top_k")
    if count > min(MAX_CANDIDATES, n_logits):
        what = f"is {count}; it must be 1 to {min(MAX_CANDIDATES, n_logits)}"
        raise head.hparams.error("selector_top_k", what)
    if rank != head.hparams.count("selector_rank"):
        raise head.f.error(f"tensor {PREDECESSORS}", f"has rows of {rank}, not of selector_rank")
    row, rows = graph.rows(1), graph.rows(count)
    previous, candidates = graph.region(4), graph.region(4 * count)
    predecessor = look_up_rows(graph, own.tensors.tensor(PREDECESSORS, n_vocab, rank), previous, rows=row)
    successors = look_up_rows(graph, own.tensors.tensor(SUCCESSORS, n_vocab, rank), candidates, rows=rows)
    return Selector(start_op, row, rows, previous, candidates, predecessor, successors, count)
