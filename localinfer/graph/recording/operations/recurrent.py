"""Records operations with a recurrent state: convolutions, state spaces, linear attention, RWKV's time mixing."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from localinfer.gguf.reader import Tensor
from localinfer.graph.builder import HeadInputs, RecurrentOperations
from localinfer.graph.ops.buffers import Buffer, Region
from localinfer.graph.ops.cost import Cost, CostModel
from localinfer.graph.properties.model_properties import Block
from localinfer.graph.properties.recurrence import Recurrence, read_wkv_head_size
from localinfer.graph.properties.tensors import constant_tensor, row_slice
from localinfer.graph.recording.model_graph import ModelGraph
from localinfer.kernels.layout import SCAN_STRIP, convolution_scratch_bytes, scan_scratch_bytes, state_strip
from localinfer.kernels.signatures import (
    CHANNEL_DECAY,
    COMPRESS,
    CONVOLVE,
    LERP,
    RECUR,
    RECUR_DECAYED,
    RECUR_GATED,
    RECUR_WKV,
    SELECTIVE_SCAN,
    TOKEN_SHIFT,
    WKV_DECAY,
    WKV_FINISH,
    WKV_PREPARE,
)


class RecurrentRecorder(RecurrentOperations[Buffer]):
    """Records operations with a recurrent state. The kernels of the time mixing are in
    `localinfer.kernels.recurrent.wkv`."""

    def __init__(self, model: ModelGraph) -> None:
        self._model, self._graph, self._tensors, self._states = model, model.graph, model.tensors, model.states

    def convolve(
        self, x: Buffer, name: str, width: int, activation: str = "none", *, dilation: int = 1
    ) -> Buffer:
        y, weight = self._graph.buffer(x.n), self._tensors.numbers_beside_ones(f"{name}.weight", x.n, width)
        tail = self._convolve(x, name, weight, y, width, activation=activation, dilation=dilation)
        self._model.points.add(name, y)
        self._model.points.add_state(f"{name}_state", self._states, tail, (dilation * (width - 1), x.n))
        return y

    def average(self, x: Buffer, width: int) -> Buffer:
        y, equal = self._graph.buffer(x.n), np.full((x.n, width), 1 / width, np.float32)
        self._convolve(x, "average", constant_tensor("average", equal), y, width)
        return y

    def _convolve(
        self, x: Buffer, name: str, weight: Tensor, y: Buffer, width: int, *, activation: str = "none",
        dilation: int = 1,
    ) -> Region:  # fmt: skip
        """Record a convolution, and return its state."""
        tail = self._states.add_layer(4 * dilation * (width - 1) * x.n)
        self._graph.need_scratch(convolution_scratch_bytes(width))
        self._graph.op(
            name, CONVOLVE, x.rows, constants={"activation": activation}, chunks=(1, 8), x=x, weight=weight,
            bias=self._tensors.bias(name, x.n) or 0, width=width, dilation=dilation, n=x.n,
            segments=self._states.segments, tail=tail, y=y,
        )  # fmt: skip
        return tail

    def compress(self, values: Buffer, scores: Buffer, name: str, run: int, n: int) -> Buffer:
        y, parts = self._graph.buffer(n), values.n // n
        tails = [self._states.add_layer(4 * (parts * run - 1) * x.n) for x in (values, scores)]
        self._graph.op(
            name, COMPRESS, values.rows, chunks=(1, 8), values=values, scores=scores,
            ape=self._tensors.floats(f"{name}_ape.weight", run, values.n), positions=self._model.attention.positions,
            run=run, parts=parts, n=n, segments=self._states.segments, values_tail=tails[0], scores_tail=tails[1], y=y,
        )  # fmt: skip
        return y

    def recur(self, blk: Block, x: Buffer, step: Buffer, rate: Buffer | None, shape: Recurrence) -> Buffer:
        y, of_channels = self._graph.buffer(shape.heads * shape.value), shape.rule == "kda"
        a = self._tensors.floats_beside_ones(f"{blk}ssm_a", shape.heads)
        if self._tensors.has(f"{blk}ssm_dt.weight"):  # whose product has the bias
            bias = constant_tensor(f"{blk}ssm_dt.zeros", np.zeros(step.n, np.float32))
        else:
            bias = self._tensors.vector(f"{blk}ssm_dt.bias", step.n)
        if of_channels:
            self._graph.op(
                f"{blk}decay", CHANNEL_DECAY, x.rows, chunks=(1, 8), step=step, a=a, bias=bias, heads=shape.heads,
                constants={"key": shape.key, "gate": "sigmoid" if shape.decay_bound else "softplus"},
                bound=shape.decay_bound,
            )  # fmt: skip
            self._graph.need_scratch(4 * shape.key)
        state_bytes = 4 * shape.heads * shape.key * shape.value
        state = self._states.add_layer(state_bytes)
        self._graph.op(
            f"{blk}recur", RECUR[shape.rule], x.rows,
            constants={"key": shape.key, "value": shape.value}
            | ({} if of_channels else {"heads_per_key": shape.heads_per_key}),
            chunks=(1, 8), x=x, stride=4 * x.n, heads=shape.heads, groups=shape.groups, step=step, rate=rate or 0,
            cost=CostModel(Cost(state_bytes), Cost(fmas=3 * state_bytes // 4)),
            a=0 if of_channels else a, bias=0 if of_channels else bias, segments=self._states.segments,
            state=state, y=y,
            skip=self._tensors.floats_beside_ones(f"{blk}ssm_d", shape.heads) if shape.rule == "add" else 0,
        )  # fmt: skip
        self._model.points.add(f"{blk}ssm_heads", y)
        self._add_state_matrices(f"{blk}ssm_state", state, shape.heads, shape.key, shape.value)
        return y

    def selective_scan(self, blk: Block, x: Buffer, step: Buffer, b: Buffer, c: Buffer) -> Buffer:
        if x.n % SCAN_STRIP:
            raise self._model.hparams.unsupported("ssm.inner_size", x.n)
        y, numbers = self._graph.buffer(x.n), x.n * b.n
        self._graph.need_scratch(scan_scratch_bytes(b.n))
        state = self._states.add_layer(4 * numbers)
        self._graph.op(
            f"{blk}scan", SELECTIVE_SCAN, x.rows, constants={"size": b.n}, chunks=(1, 8), x=x, step=step, b=b, c=c,
            n=x.n,
            a=self._tensors.floats(f"{blk}ssm_a", x.n, b.n), skip=self._tensors.vector(f"{blk}ssm_d", x.n),
            cost=CostModel(Cost(8 * numbers), Cost(fmas=12 * numbers)), segments=self._states.segments,
            state=state, y=y,
        )  # fmt: skip
        self._model.points.add(f"{blk}ssm_heads", y)
        strips = (x.n // SCAN_STRIP, b.n, SCAN_STRIP)
        self._model.points.add_state(f"{blk}ssm_state", self._states, state, (x.n, b.n), strips, (0, 2, 1))
        return y

    def token_shift(self, x: Buffer, name: str) -> Buffer:
        y, tail = self._graph.buffer(x.n), self._states.add_layer(4 * x.n)
        self._graph.op(
            name, TOKEN_SHIFT, x.rows, chunks=(1, 8), x=x, n=x.n, segments=self._states.segments, tail=tail, y=y,
        )  # fmt: skip
        self._model.points.add_state(name, self._states, tail, (x.n,))
        return y

    def lerp(self, x: Buffer, other: Buffer, weight: Buffer | Tensor) -> Buffer:
        # `weight` has a row per token, or as a tensor one row for all tokens.
        return self._lerp(x, other, weight, step=x.n if isinstance(weight, Buffer) else 0)

    def _lerp(
        self, x: Buffer, other: Buffer, weight: Buffer | Tensor, *, step: int, first: int = 0,
        shift: Tensor | None = None,
    ) -> Buffer:  # fmt: skip
        """Record a lerp whose weights begin at `first` of the rows of `weight`, which are `step` values long, and to
        which `shift` is added."""
        y = self._graph.buffer(x.n)
        self._graph.op(
            "lerp", LERP, x.rows, constants={"shifted": shift is not None}, chunks=(0, 8), x=x, other=other,
            weight=weight, first=first, step=step, shift=shift or 0, n=x.n, y=y,
        )  # fmt: skip
        return y

    def lerps(
        self, x: Buffer, other: Buffer, name: str, count: int, weights: Buffer | None = None
    ) -> Sequence[Buffer]:
        tensor = self._tensors.floats(f"{name}.weight", *([count, 1, 1] if count > 1 else []), x.n)
        rows = [row_slice(tensor, number, 1) for number in range(count)] if count > 1 else [tensor]
        if weights is None:
            return [self.lerp(x, other, row) for row in rows]
        return [
            self._lerp(x, other, weights, first=number * x.n, step=weights.n, shift=row)
            for number, row in enumerate(rows)
        ]

    def time_mix(
        self, blk: Block, x: HeadInputs[Buffer], norm_eps: float | None = None, *, normed: bool = True
    ) -> Buffer:
        model, graph, name, n = self._model, self._graph, f"{blk}time_mix", x.r.n
        size = read_wkv_head_size(model.hparams, model.embedding_length)
        kinds = (*(("k_k", "k_a", "r_k") if x.a is not None else ()), *(("ln",) if normed else ()))
        vector = {kind: self._tensors.vector(f"{name}_{kind}.weight", n) for kind in kinds}
        if x.a is not None:
            y = self._recur_wkv(name, x, x.a, size, vector)
        else:
            first = self._tensors.floats(f"{name}_first.weight", n // size, size)
            y = self._recur_decayed(name, x, size, first)
        graph.op(
            f"{name}.finish", WKV_FINISH, x.r.rows, chunks=(1, 8),
            constants={"size": size, "normed": normed, "bonus": x.a is not None}, r=x.r, k=x.k, v=x.v,
            r_k=vector.get("r_k", 0), weight=vector.get("ln", 0),
            bias=self._tensors.vector(f"{name}_ln.bias", n) if normed else 0, heads=n // size,
            eps=size * model.eps if norm_eps is None else norm_eps, y=y,
        )  # fmt: skip
        model.points.add(f"{name}_heads", y)
        return y

    def gated_linear_attention(self, blk: Block, x: HeadInputs[Buffer]) -> Buffer:
        size = read_wkv_head_size(self._model.hparams, self._model.embedding_length)
        self._graph.need_scratch(4 * size)
        y = self._recur_decayed(f"{blk}time_mix", x, size, None)
        self._model.points.add(f"{blk}time_mix_heads", y)
        return y

    def _recur_wkv(
        self, name: str, x: HeadInputs[Buffer], rates: Buffer, size: int, vector: dict[str, Tensor]
    ) -> Buffer:
        """Record RWKV-7's recurrence, and return its output."""
        graph, n, constants, state_bytes = self._graph, x.r.n, {"size": size}, 4 * x.r.n * size
        removed, y, state = graph.buffer(n), graph.buffer(n), self._states.add_layer(state_bytes)
        graph.op(
            f"{name}.prepare", WKV_PREPARE, x.r.rows, constants=constants, chunks=(1, 8), w=x.w, k=x.k, a=rates,
            k_k=vector["k_k"], k_a=vector["k_a"], heads=n // size, removed=removed,
        )  # fmt: skip
        graph.op(
            f"{name}.recur", RECUR_WKV, x.r.rows, constants=constants, chunks=(1, 8),
            cost=CostModel(Cost(state_bytes), Cost(fmas=state_bytes)), r=x.r, w=x.w, k=x.k, v=x.v, a=rates,
            removed=removed, heads=n // size, segments=self._states.segments, state=state, y=y,
        )  # fmt: skip
        self._add_state_matrices(f"{name}_state", state, n // size, size, size)
        return y

    def _recur_decayed(self, name: str, x: HeadInputs[Buffer], size: int, first: Tensor | None) -> Buffer:
        """Record the recurrence of RWKV-6 or, without `first`, of gated linear attention, and return its output."""
        graph, n, state_bytes = self._graph, x.r.n, 4 * x.r.n * size
        y, state = graph.buffer(n), self._states.add_layer(state_bytes)
        kernel = RECUR_GATED if first is None else RECUR_DECAYED
        own: dict[str, Any] = {"groups": x.k.n // size} if first is None else {"first": first}
        graph.op(
            f"{name}.decay", WKV_DECAY, x.r.rows, chunks=(1, 8), bias=self._tensors.vector(f"{name}_decay.weight", n),
            n=n, w=x.w,
        )  # fmt: skip
        graph.op(
            f"{name}.recur", kernel, x.r.rows, constants={"size": size}, chunks=(1, 8),
            cost=CostModel(Cost(state_bytes), Cost(fmas=3 * state_bytes // 4)), r=x.r, w=x.w, k=x.k, v=x.v,
            heads=n // size, segments=self._states.segments, state=state, y=y, **own,
        )  # fmt: skip
        self._add_state_matrices(f"{name}_state", state, n // size, size, size)
        return y

    def _add_state_matrices(self, name: str, state: Region, heads: int, key: int, value: int) -> None:
        """Record the point of the state matrices of heads, which are in memory strip by strip."""
        strip = state_strip(value)
        memory_shape = (heads, value // strip, key, strip)
        self._model.points.add_state(name, self._states, state, (heads, key, value), memory_shape, (0, 2, 1, 3))
