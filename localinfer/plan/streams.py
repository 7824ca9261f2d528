"""Several residual streams side by side, [token][stream][value], of which a block computes with the first (AltUp;
Baykal et al., 2023): the others are guessed, and corrected by what the block makes of that one.

What is computed is in `localinfer.ops.streams`.
"""

from localinfer.ops.calls import ADD_TO_OTHERS, AS_LONG, COPY, CORRECT, PREDICT
from localinfer.plan.basics import Basics, Block
from localinfer.plan.buffers import Buffer
from localinfer.plan.tensors import matrix_of


class Streams:
    """The first is x, the others what each matrix of altup_proj makes of it, as long as x."""

    def __init__(self, r: Basics, x: Buffer, count: int) -> None:
        self._r, self._plan, self._count, self._n = r, r.plan, count, x.n
        matrices = r.tensors.tensor("altup_proj.weight", count - 1, x.n, x.n)
        self._xs, self._predicted = self._plan.buffer(count * x.n), self._plan.buffer(count * x.n)
        self._copy(x, self._xs)
        for number in range(1, count):
            with self._plan.recycling():
                y = self._as_long(self._plan.matmul(x, matrix_of(matrices, number - 1)), x)
                self._copy(y, self._xs, y_first=number * x.n)

    def predict(self, blk: Block) -> Buffer:
        """Expect something of each stream behind the block; of the first, it is the block's input."""
        first = self._plan.buffer(self._n)
        self._copy(self._xs, first)
        m, weight = self._said(blk, first), f"{blk}altup_predict_coef.weight"
        self._plan.need_scratch(4 * self._count**2)
        self._plan.op(
            f"{blk}predict", PREDICT, first.rows, rounds=(0, 4), x=self._xs, m=m, count=self._count, n=self._n,
            predicted=self._predicted, weight=self._r.tensors.floats(weight, self._count**2, self._count), first=first,
        )  # fmt: skip
        return first

    def correct(self, blk: Block, y: Buffer) -> Buffer:
        """Correct all streams by what the block has made of its input, y; the first one now, scaled."""
        first, m, weight = self._plan.buffer(self._n), self._said(blk, y), f"{blk}altup_correct_coef.weight"
        self._plan.op(
            f"{blk}correct", CORRECT, y.rows, rounds=(0, 4), y=y, predicted=self._predicted, m=m, count=self._count,
            n=self._n, x=self._xs, weight=self._r.tensors.floats(weight, self._count, self._count), first=first,
            scale=self._r.tensors.vector(f"{blk}altup_correct_scale.weight", self._n),
        )  # fmt: skip
        return first

    def add_to_others(self, branch: Buffer) -> None:
        """All streams but the first += branch."""
        self._plan.op(
            "add", ADD_TO_OTHERS, branch.rows, rounds=(0, 4), branch=branch, count=self._count, n=self._n, x=self._xs
        )

    def merged(self) -> Buffer:
        """The mean of the first stream and of what the matrices of altup_unembd_proj make of the others, as long."""
        n, first, y = self._n, self._plan.buffer(self._n), self._plan.buffer(self._n)
        matrices = self._r.tensors.tensor("altup_unembd_proj.weight", self._count - 1, n, n)
        self._copy(self._xs, first)
        self._copy(self._xs, y)
        for number in range(1, self._count):
            with self._plan.recycling():
                other = self._plan.buffer(n)
                self._copy(self._xs, other, x_first=number * n)
                product = self._plan.matmul(other, matrix_of(matrices, number - 1))
                self._r.add(y, self._as_long(product, first))
        self._r.scale(y, 1 / self._count)
        return y

    def _said(self, blk: Block, x: Buffer) -> Buffer:
        """What tokens say of how streams go together: a number within 1 for each of them."""
        m = self._r.matmul(self._r.norm(x, f"{blk}altup_router_norm"), f"{blk}altup_router", self._count)
        self._r.soft_cap(m, 1 / x.n, 1.0)
        return m

    def _copy(self, x: Buffer, y: Buffer, *, x_first: int = 0, y_first: int = 0) -> None:
        """As many values of each row as the narrower one has."""
        self._plan.op(
            "copy", COPY, x.rows, rounds=(0, 4), x=x, x_n=x.n, x_first=x_first, n=min(x.n, y.n), y=y, y_n=y.n,
            y_first=y_first,
        )  # fmt: skip

    def _as_long(self, y: Buffer, x: Buffer) -> Buffer:
        """y, as long as x."""
        self._plan.op("as_long", AS_LONG, x.rows, rounds=(0, 4), x=x, n=x.n, y=y)
        return y
