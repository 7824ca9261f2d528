"""Recurrent heads, compared with float64: both rules, any split into batches, any number of threads."""

from dataclasses import dataclass

import kernels
import numpy as np
import pytest
from numpy.typing import NDArray

from localinfer.kernels.layout import state_strip

Floats = NDArray[np.float32]
TOKENS = 13


@dataclass
class Heads:
    """Random inputs; `state` has the kernel's layout."""

    rule: str
    heads: int
    groups: int
    key: int
    value: int
    heads_per_key: int  # adjacent value heads that share a key head

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.heads)
        n = 2 * self.groups * self.key + self.heads * self.value
        self.x = rng.standard_normal((TOKENS, n), np.float32)
        self.step, self.rate = rng.standard_normal((2, TOKENS, self.heads), np.float32)
        self.decays = rng.uniform(0.1, 1, (TOKENS, self.heads, self.key)).astype(np.float32)  # of the rule "kda"
        self.a, self.bias, self.skip = rng.standard_normal((3, self.heads), np.float32)
        self.a = -np.exp(self.a)
        strip = state_strip(self.value)
        self.state = np.zeros((self.heads, self.value // strip, self.key, strip), np.float32)

    def run(self, first: int, end: int, threads: int) -> Floats:
        y = np.full((end - first, self.heads, self.value), np.nan, np.float32)
        arguments = {
            "tokens": np.array([end - first]), "x": self.x[first:end], "stride": 4 * self.x.shape[1],
            "heads": self.heads, "groups": self.groups, "rate": self.rate[first:end],
            "step": (self.decays if self.rule == "kda" else self.step)[first:end],
            "a": self.a, "bias": self.bias, "skip": self.skip,
            "segments": np.array([1, end - first, 0, 0]), "state": self.state, "y": y,
        }  # fmt: skip
        path = f"localinfer.kernels.recurrent.state_matrix:recur_{self.rule}"
        shared = {} if self.rule == "kda" else {"heads_per_key": self.heads_per_key}
        kernels.run(path, arguments, threads, key=self.key, value=self.value, **shared)
        return y

    def expected(self) -> NDArray[np.float64]:
        x, keys, values = self.x.astype(np.float64), self.groups * self.key, self.heads * self.value
        states, y = np.zeros((self.heads, self.key, self.value)), []
        for t in range(TOKENS):
            if self.rule != "add":
                q, k, v = np.split(x[t], [keys, 2 * keys])
            else:
                v, k, q = np.split(x[t], [values, values + keys])
            v, dt = v.reshape(self.heads, -1), np.log1p(np.exp(self.step[t].astype(np.float64) + self.bias))
            for head in range(self.heads):
                group = head // self.heads_per_key % self.groups
                key, query = k.reshape(self.groups, -1)[group], q.reshape(self.groups, -1)[group]
                states[head] *= self.decays[t, head][:, None] if self.rule == "kda" else np.exp(self.a[head] * dt[head])
                if self.rule != "add":
                    key, query = (each / np.sqrt(each @ each + 1e-6) for each in (key, query))
                    query = query * self.key**-0.5
                    learnt = (v[head] - key @ states[head]) / (1 + np.exp(-self.rate[t, head]))
                else:
                    learnt = dt[head] * v[head]
                states[head] += np.outer(key, learnt)
                y.append(query @ states[head] + (self.skip[head] * v[head] if self.rule == "add" else 0))
        return np.array(y).reshape(TOKENS, self.heads, self.value)


@pytest.mark.parametrize("shape", [(6, 2, 32, 64), (4, 4, 128, 32), (3, 1, 16, 96), (4, 2, 32, 80)])
@pytest.mark.parametrize(("rule", "repeat_interleave"), [("delta", False), ("delta", True), ("add", True)])
def test_recurrence_agrees_with_float64(rule: str, repeat_interleave: bool, shape: tuple[int, int, int, int]) -> None:
    check(Heads(rule, *shape, heads_per_key=shape[0] // shape[1] if repeat_interleave else 1))


@pytest.mark.parametrize("shape", [(3, 3, 32, 32), (2, 2, 64, 64), (2, 2, 16, 16)])
def test_decays_of_rows_agree_with_float64(shape: tuple[int, int, int, int]) -> None:
    check(Heads("kda", *shape, heads_per_key=1))


@pytest.mark.parametrize(("gate", "sign"), [("softplus", -1), ("sigmoid", 1), ("sigmoid", -1)])
def test_decays_of_channels_agree_with_float64(gate: str, sign: int) -> None:
    rng, heads, key, bound = np.random.default_rng(5), 3, 32, -5.0
    step, bias = rng.standard_normal((TOKENS, heads, key), np.float32), rng.standard_normal((heads, key), np.float32)
    a = sign * rng.uniform(0.5, 2, heads).astype(np.float32)
    given, rates = (step + bias).astype(np.float64), abs(a[:, None].astype(np.float64))
    expected = np.exp(bound / (1 + np.exp(-rates * given)) if gate == "sigmoid" else -rates * np.log1p(np.exp(given)))
    arguments = {"tokens": np.array([TOKENS]), "step": step, "a": a, "bias": bias, "bound": bound, "heads": heads}
    kernels.run("localinfer.kernels.recurrent.state_matrix:channel_decay", arguments, 2, key=key, gate=gate)
    np.testing.assert_allclose(step, expected, rtol=1e-5, atol=1e-7)


def check(heads: Heads) -> None:
    """Check the result, and that any split into batches has the same bits."""
    whole = heads.run(0, TOKENS, 1)
    np.testing.assert_allclose(whole, heads.expected(), rtol=0, atol=1e-5 * np.abs(whole).max())
    state = heads.state.copy()
    heads.state[:] = 0
    chunks = [heads.run(first, end, 3) for first, end in ((0, 1), (1, 2), (2, 9), (9, TOKENS))]
    np.testing.assert_array_equal(np.concatenate(chunks), whole)
    np.testing.assert_array_equal(heads.state, state)
