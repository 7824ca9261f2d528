"""Operations with a recurrent state: Mamba (2023), Mamba 2, gated DeltaNet, gated linear attention and RWKV-6 (2024),
RWKV-7 (2025), convolutions.

Each is computed token by token, as the papers define it.
"""

from collections.abc import Sequence

import numpy as np

from localinfer.graph.builder import HeadInputs, RecurrentOperations
from localinfer.graph.properties.model_properties import Block
from localinfer.graph.properties.recurrence import Recurrence, read_wkv_head_size
from localinfer.naive.formulas import ACTIVATIONS, Floats, layer_norm, sigmoid, softmax
from localinfer.naive.points import PointBuilder


class NumpyRecurrence(RecurrentOperations[Floats]):
    """The operations of recurrent layers."""

    def __init__(self, g: PointBuilder) -> None:
        self.g, self.model = g, g.model

    def convolve(
        self, x: Floats, name: str, width: int, activation: str = "none", *, dilation: int = 1
    ) -> Floats:
        state, y = np.zeros((dilation * (width - 1), x.shape[1]), x.dtype), np.zeros_like(x)
        weights = self.model[name].reshape(x.shape[1], width)
        for batch in self.g.batches():
            before = np.concatenate([state, x[batch]])
            for age in range(width):
                y[batch] += before[dilation * age : dilation * age + len(batch)] * weights[:, age]
            state = before[len(batch) :]
            if width > 1:
                self.g.state_point(state, f"{name}_state")
        y = ACTIVATIONS[activation](y + self.model.bias(name))
        self.g.point(y, name)
        return y

    def average(self, x: Floats, width: int) -> Floats:
        sums = np.cumsum(np.pad(x, ((width, 0), (0, 0))), axis=0)
        return (sums[width:] - sums[:-width]) / width

    def compress(self, values: Floats, scores: Floats, name: str, run: int, n: int) -> Floats:
        y, ape = np.zeros((len(values), n), values.dtype), self.model[f"{name}_ape"]
        for end in range(run, len(values) + 1, run):
            this, before = slice(end - run, end), slice(max(end - 2 * run, 0), end - run)
            of_run, scores_of_run = values[this, -n:], scores[this, -n:] + ape[:, -n:]
            if values.shape[1] > n and end > run:
                of_run = np.concatenate([values[before, :n], of_run])
                scores_of_run = np.concatenate([scores[before, :n] + ape[:, :n], scores_of_run])
            y[end - 1] = (softmax(scores_of_run.T) * of_run.T).sum(axis=1)
        return y

    def recur(self, blk: Block, x: Floats, step: Floats, rate: Floats | None, shape: Recurrence) -> Floats:
        delta, k_n, v_n = shape.rule in ("delta", "kda"), shape.groups * shape.key, shape.heads * shape.value
        first, k, last = np.split(x, [k_n, 2 * k_n] if delta else [v_n, v_n + k_n], axis=1)
        q, v = (first, last) if delta else (last, first)
        q, k = (each.reshape(len(x), shape.groups, shape.key) for each in (q, k))
        repeats = shape.heads // shape.groups // shape.heads_per_key
        q, k = (np.tile(np.repeat(each, shape.heads_per_key, axis=1), (1, repeats, 1)) for each in (q, k))
        v = v.reshape(len(x), shape.heads, shape.value)
        a, states = self.model.numbers(f"{blk}ssm_a"), np.zeros((shape.heads, shape.key, shape.value), x.dtype)
        if f"{blk}ssm_dt.weight" not in self.g.f.tensors:  # whose product has the bias
            step = step + self.model.numbers(f"{blk}ssm_dt.bias").ravel()
        step = step.reshape(len(x), shape.heads, -1)
        dt = np.logaddexp(0, step)
        a = a.reshape(-1, 1)  # decays are one for each head, or one for each row of its state
        decay = np.exp(shape.decay_bound * sigmoid(np.abs(a) * step) if shape.decay_bound else a * dt)
        if delta:
            q, k = (each / np.sqrt((each * each).sum(axis=-1, keepdims=True) + 1e-6) for each in (q, k))
            q = q * shape.key**-0.5
        y = np.zeros_like(v)
        for batch in self.g.batches():
            for t in batch:
                states *= decay[t][:, :, None]
                if rate is not None:
                    learned = sigmoid(rate[t])[:, None] * (v[t] - np.einsum("hk,hkv->hv", k[t], states))
                else:
                    learned = dt[t] * v[t]
                states += np.einsum("hk,hv->hkv", k[t], learned)
                y[t] = np.einsum("hk,hkv->hv", q[t], states)
            self.g.state_point(states, f"{blk}ssm_state")
        if not delta:
            y += self.model.numbers(f"{blk}ssm_d").reshape(-1, 1) * v
        result = y.reshape(len(x), -1)
        self.g.point(result, f"{blk}ssm_heads")
        return result

    def selective_scan(self, blk: Block, x: Floats, step: Floats, b: Floats, c: Floats) -> Floats:
        a, dt = self.model.numbers(f"{blk}ssm_a"), np.log1p(np.exp(step))
        states, y = np.zeros_like(a), self.model.numbers(f"{blk}ssm_d") * x
        for batch in self.g.batches():
            for t in batch:
                states = np.exp(a * dt[t][:, None]) * states + np.outer(dt[t] * x[t], b[t])
                y[t] += states @ c[t]
            self.g.state_point(states, f"{blk}ssm_state")
        self.g.point(y, f"{blk}ssm_heads")
        return y

    def token_shift(self, x: Floats, name: str) -> Floats:
        state, y = np.zeros_like(x[0]), np.zeros_like(x)
        for batch in self.g.batches():
            rows = np.concatenate([state[None], x[batch]])
            y[batch], state = rows[:-1], rows[-1]
            self.g.state_point(state, name)
        return y

    def lerp(self, x: Floats, other: Floats, weight: Floats) -> Floats:
        return x + weight * (other - x)

    def lerps(
        self, x: Floats, other: Floats, name: str, count: int, weights: Floats | None = None
    ) -> Sequence[Floats]:
        rows = self.model[name].reshape(1, count, -1)
        rows = rows if weights is None else rows + weights.reshape(len(x), count, -1)
        return [self.lerp(x, other, rows[:, number]) for number in range(count)]

    def time_mix(
        self, blk: Block, x: HeadInputs[Floats], norm_eps: float | None = None, *, normed: bool = True
    ) -> Floats:
        size = read_wkv_head_size(self.g.hparams, self.g.embedding_length)
        r, w, k, v, *rates = (np.asarray(each).reshape(self.g.n_tokens, -1, size) for each in x if each is not None)
        if rates:
            y, bonus = self._recur_wkv(blk, r, w, k, v, sigmoid(rates[0]))
        else:
            first = self.model[f"{blk}time_mix_first"].reshape(k.shape[1:])
            y, bonus = self._recur_decayed(blk, r, self._decays(blk, w), k, v, first), np.zeros_like(v)
        if normed:
            weight = self.model[f"{blk}time_mix_ln"].reshape(-1, size)
            bias = np.reshape(self.model.bias(f"{blk}time_mix_ln"), (-1, size))
            y = layer_norm(y, weight, size * self.g.eps if norm_eps is None else norm_eps) + bias
        result: Floats = (y + bonus).reshape(len(y), -1)
        self.g.point(result, f"{blk}time_mix_heads")
        return result

    def gated_linear_attention(self, blk: Block, x: HeadInputs[Floats]) -> Floats:
        size = read_wkv_head_size(self.g.hparams, self.g.embedding_length)
        r, w, k, v = (np.asarray(each).reshape(self.g.n_tokens, -1, size) for each in x if each is not None)
        k, v = (np.repeat(each, r.shape[1] // each.shape[1], axis=1) for each in (k, v))
        decay = self._decays(blk, w)
        result = self._recur_decayed(blk, r * size**-0.5, decay, k * (1 - decay), v, None).reshape(len(r), -1)
        self.g.point(result, f"{blk}time_mix_heads")
        return result

    def _decays(self, blk: Block, w: Floats) -> Floats:
        """Return the decays of RWKV-6."""
        decays: Floats = np.exp(-np.exp(w + self.model[f"{blk}time_mix_decay"].reshape(w.shape[1:])))
        return decays

    def _recur_wkv(
        self, blk: Block, r: Floats, w: Floats, k: Floats, v: Floats, a: Floats
    ) -> tuple[Floats, Floats]:
        """Return the output of RWKV-7's recurrence, and the bonus of each token."""
        kinds = ("k_k", "k_a", "r_k")
        k_k, k_a, r_k = (self.model[f"{blk}time_mix_{kind}"].reshape(k.shape[1:]) for kind in kinds)
        decay, removed = np.exp(-np.exp(-0.5) * sigmoid(w)), k * k_k
        removed = removed / np.maximum(np.sqrt((removed**2).sum(axis=-1, keepdims=True)), 1e-12)
        k = k * (1 + (a - 1) * k_a)
        states, y = np.zeros((*k.shape[1:], v.shape[2]), k.dtype), np.zeros_like(v)
        for batch in self.g.batches():
            for t in batch:
                removed_values = np.einsum("hk,hkv->hv", removed[t], states)
                states *= decay[t][:, :, None]
                states += np.einsum("hk,hv->hkv", k[t], v[t])
                states -= np.einsum("hk,hv->hkv", removed[t] * a[t], removed_values)
                y[t] = np.einsum("hk,hkv->hv", r[t], states)
            self.g.state_point(states, f"{blk}time_mix_state")
        return y, (r * k * r_k).sum(axis=-1, keepdims=True) * v

    def _recur_decayed(
        self, blk: Block, r: Floats, decay: Floats, k: Floats, v: Floats, first: Floats | None
    ) -> Floats:
        """Return the output of RWKV-6's recurrence: of the state before a token and `first` times what the token adds,
        or without `first`, of the state after it."""
        states, y = np.zeros((*k.shape[1:], v.shape[2]), k.dtype), np.zeros_like(v)
        for batch in self.g.batches():
            for t in batch:
                added = np.einsum("hk,hv->hkv", k[t], v[t])
                before = None if first is None else states + first[:, :, None] * added
                states *= decay[t][:, :, None]
                states += added
                y[t] = np.einsum("hk,hkv->hv", r[t], states if before is None else before)
            self.g.state_point(states, f"{blk}time_mix_state")
        return y
