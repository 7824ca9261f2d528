"""The numpy reference implementation: its parts against hand-computed values, the whole against llama.cpp."""

import json
from pathlib import Path

import numpy as np
import pytest
from locations import DATA
from tiny import tiny_gemma3, tiny_llama

from localinfer import naive
from localinfer.gguf.reader import open_gguf
from localinfer.graph.properties.rope import Rope
from localinfer.naive import formulas


def test_rms_norm_by_hand() -> None:
    x = np.array([[3.0, 4.0]])  # mean square 12.5
    expected = [[3 / 12.5**0.5, 2 * 4 / 12.5**0.5]]
    np.testing.assert_allclose(formulas.rms_norm(x, np.array([1.0, 2.0]), 0.0), expected)


def test_activations_at_known_points() -> None:
    np.testing.assert_allclose(formulas.silu(np.array([0.0, 1.0, -50.0])), [0, 0.7310586, 0], atol=1e-7)
    np.testing.assert_allclose(formulas.gelu(np.array([0.0, 1.0, -50.0])), [0, 0.8411920, 0], atol=1e-7)


def test_attention_mask() -> None:
    position = np.arange(4)
    causal = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    window = [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    sink = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 1, 1]]
    np.testing.assert_array_equal(formulas.visible(position, 0), causal)
    np.testing.assert_array_equal(formulas.visible(position, 2), window)
    np.testing.assert_array_equal(formulas.visible(position, 2, sinks=1), sink)


def test_rope_rotates_by_the_position() -> None:
    x = np.array([[1.0, 0.0], [1.0, 0.0]])  # one pair, frequency 1
    turned = formulas.rotate(x, np.array([0, 2]), turning("interleaved", 2))
    np.testing.assert_allclose(turned, [[1, 0], [np.cos(2), np.sin(2)]])


def turning(pairs: str, n: int) -> Rope:
    return Rope(pairs, formulas.plain_frequencies(100.0, n))


@pytest.mark.parametrize("pairs", ["interleaved", "halves"])
def test_rope_depends_on_distances_only(pairs: str) -> None:
    (q, k), rope = np.random.default_rng(0).standard_normal((2, 1, 8)), turning(pairs, 8)
    near = formulas.rotate(q, np.array([7]), rope) @ formulas.rotate(k, np.array([4]), rope).T
    far = formulas.rotate(q, np.array([1007]), rope) @ formulas.rotate(k, np.array([1004]), rope).T
    np.testing.assert_allclose(near, far)


def test_rope_keeps_the_remaining_dimensions() -> None:
    x = np.random.default_rng(0).standard_normal((3, 10))
    turned = formulas.rotate(x, np.array([5, 6, 7]), turning("halves", 8))
    np.testing.assert_array_equal(turned[:, 8:], x[:, 8:])
    assert (turned[:, :8] != x[:, :8]).all()


def test_rope_orders_differ_by_a_permutation_only() -> None:
    x, position = np.random.default_rng(0).standard_normal((5, 8)), np.arange(5)
    order = [0, 4, 1, 5, 2, 6, 3, 7]  # interleaved pairs -> split halves
    halves = formulas.rotate(x, position, turning("halves", 8))[:, order]
    np.testing.assert_allclose(halves, formulas.rotate(x[:, order], position, turning("interleaved", 8)))


def test_zero_branches_return_the_embedding(tmp_path: Path) -> None:
    silent = {f"blk.{i}.{name}.weight": np.zeros((256, n)) for i in range(2) for name, n in BRANCHES.items()}
    model = naive.Model(open_gguf(tiny_llama(tmp_path / "m.gguf", **silent)))
    embedding = model["token_embd"]
    expected = formulas.rms_norm(embedding[[5, 9]], model["output_norm"], 1e-5) @ embedding.T
    np.testing.assert_allclose(naive.forward(model, [5, 9]), expected)


BRANCHES = {"attn_output": 256, "ffn_down": 512}  # the matrices that write to the residual stream


@pytest.mark.parametrize("tiny", [tiny_llama, tiny_gemma3])
def test_causal_attention(tmp_path: Path, tiny) -> None:  # type: ignore[no-untyped-def]
    model = naive.Model(open_gguf(tiny(tmp_path / "m.gguf")))
    one, other = naive.forward(model, [7, 8, 9, 10]), naive.forward(model, [7, 8, 9, 77])
    np.testing.assert_allclose(one[:3], other[:3], atol=1e-12)
    assert abs(one[3] - other[3]).max() > 0.1


def test_sliding_window_layers(tmp_path: Path) -> None:
    model = naive.Model(open_gguf(tiny_gemma3(tmp_path / "m.gguf", n_layer=2, sliding_window=4)))
    tokens = np.arange(20, 32)
    changed = np.concatenate([[99], tokens[1:]])
    difference = abs(naive.forward(model, tokens) - naive.forward(model, changed)).max(axis=1)
    assert (difference[:7] > 1e-6).all()  # two layers with a window of three positions back reach from position 6 to 0
    assert (difference[7:] == 0).all()


@pytest.mark.parametrize(("name", "model"), [("logits_smollm2", "smollm2"), ("logits_gemma3", "gemma3")])
def test_llama_cpp_agrees_on_the_real_models(name: str, model: str, request: pytest.FixtureRequest) -> None:
    fixture = json.loads((DATA / f"{name}.json").read_text())
    oracle = naive.Model(open_gguf(request.getfixturevalue(model)), np.float32)
    last = naive.final_hidden_states(oracle, fixture["tokens"][:128])
    for position in (p for p in fixture["batch 512"] if int(p) < len(last)):
        for source, tolerance in [("exact", 0.005), ("batch 512", 1.0), ("batch 1", 1.0)]:
            ids, expected = zip(*fixture[source][position]["top"], strict=True)
            logits = oracle.rows("token_embd", np.array(ids)) @ last[int(position)]
            np.testing.assert_allclose(logits, expected, atol=tolerance, err_msg=f"{source} {position}")
