"""A mixture of experts: a router, or the number of a token, chooses some of many networks for each token."""

import numpy as np
from numpy.typing import NDArray

from localinfer.graph.builder import ExpertOperations
from localinfer.graph.properties.model_properties import Block
from localinfer.graph.properties.router import Router, read_expert_table
from localinfer.naive.formulas import ACTIVATIONS, Floats, gated_activation, route, sigmoid
from localinfer.naive.points import PointBuilder


class NumpyExperts(ExpertOperations[Floats]):
    """A mixture of experts."""

    def __init__(self, g: PointBuilder) -> None:
        self.g, self.model = g, g.model

    def apply(
        self, h: Floats, blk: Block, router: Router, activation: str, *, gated: bool = True,
        router_input: Floats | None = None,
    ) -> Floats:  # fmt: skip
        routed = h if router_input is None else router_input
        scores, y = self.g.matmul(routed, f"{blk}ffn_gate_inp", router.count), np.zeros_like(h)
        if router.logit_cap:
            self.g.soft_cap(scores, 1.0, router.logit_cap)
        ids, weights = self.choose(scores, blk, router)
        x = h[:, None] * weights[:, :, None] if router.weighs_inputs else np.repeat(h[:, None], router.used, axis=1)
        outputs = self.products(self.hidden(x, blk, ids, activation, gated=gated), f"{blk}ffn_down_exps", ids)
        y += (outputs if router.weighs_inputs else outputs * weights[:, :, None]).sum(axis=1)
        if router.per_adjugate:
            ids = ids // router.per_adjugate
            outputs = self.products(self.hidden(x, blk, ids, activation, kind="chexps"), f"{blk}ffn_down_chexps", ids)
            y += router.adjugate_scale * (outputs * weights[:, :, None]).sum(axis=1)
        self.g.point(y, f"{blk}ffn_experts")
        return y

    def choose(self, scores: Floats, blk: Block, router: Router) -> tuple[NDArray[np.int64], Floats]:
        """Return the experts of each token, and their weights."""
        ids, weights = route(scores, self.model.router_bias(str(blk)), router, self.fixed_ids(blk, router))
        self.g.points.update({f"{blk}ffn_expert_ids": ids.astype(float), f"{blk}ffn_expert_weights": weights})
        return ids, weights

    def fixed_ids(self, blk: Block, router: Router) -> NDArray[np.int64] | None:
        """Return the experts that the numbers of the tokens choose, if the layer has a table of them."""
        table = read_expert_table(self.model.file, str(blk), router, self.g.tensors.n_vocab)
        return None if table is None else table[self.g.token_ids].astype(np.int64)

    def sigmoid_gate(self, y: Floats, h: Floats, name: str) -> None:
        y *= sigmoid(h @ self.model[name].reshape(-1, 1))

    def hidden(
        self, x: Floats, blk: Block, ids: NDArray[np.int64], activation: str, *, gated: bool = True, kind: str = "exps"
    ) -> Floats:
        """Return the inputs of the experts' last matrices, (tokens, used, n). x are those of the first ones."""

        def products(name: str) -> Floats:
            y = self.products(x, f"{blk}ffn_{name}_{kind}", ids)
            self.g.point(y.reshape(len(y), -1), f"{blk}ffn_{name}_{kind}")  # a view, in which patches write
            return y

        if not gated:
            return ACTIVATIONS[activation](products("up"))
        if self.model.has(f"{blk}ffn_gate_up_exps.weight"):
            gate, up = np.split(products("gate_up"), 2, axis=2)
        else:
            gate, up = products("gate"), products("up")
        return gated_activation(activation, gate, up)

    def products(self, x: Floats, name: str, ids: NDArray[np.int64]) -> Floats:
        """Multiply x, (tokens, used, n_in), with the matrices of the experts `ids`: (tokens, used, n_out)."""
        rows = zip(x.reshape(-1, 1, x.shape[2]), ids.ravel().tolist(), strict=True)
        return np.concatenate([self.model.expert(name, id, row) for row, id in rows]).reshape(*ids.shape, -1)
