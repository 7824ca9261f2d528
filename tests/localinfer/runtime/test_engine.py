"""The engine against the oracle: every format, every architecture, errors and interrupts.

The oracle `Rounded` rounds where the engine rounds by design. The remaining difference is float32 error, which can
exceed the last bit: it decides how a value between two quantization steps is rounded.
"""

import contextlib
import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_helpers import N, Write, assert_close, divergence, engine, tokens
from locations import DATA
from numpy.typing import NDArray
from rounding_oracle import Rounded
from tiny import tiny_gemma3, tiny_llama, tiny_qwen2, tiny_qwen3, tiny_qwen3moe

from localinfer import naive
from localinfer.errors import LocalInferError, UsageError
from localinfer.gguf.reader import open_gguf
from localinfer.options import Options
from localinfer.runtime import thread_pool
from localinfer.runtime.engine import Engine

TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_1", "Q5_0", "Q4_K", "Q6_K"]
TINY = [tiny_llama, tiny_gemma3]


@pytest.mark.parametrize("tiny", TINY)
@pytest.mark.parametrize("kind", TYPES)
def test_every_format_agrees_with_the_oracle(kind: str, tiny: Write, tmp_path: Path) -> None:
    path = tiny(tmp_path / "m.gguf", type=kind)
    with engine(path) as e:
        logits = e.logits(tokens())
    exact = naive.forward(naive.Model(open_gguf(path)), tokens())
    reference = naive.forward(Rounded(open_gguf(path)), tokens())
    assert_close(logits, reference)
    assert divergence(exact, logits) <= 1e-6


@pytest.mark.parametrize("tiny", [tiny_qwen2, tiny_qwen3])
def test_other_architectures_agree_with_the_oracle(tiny: Write, tmp_path: Path) -> None:
    """Compare in one batch and token by token."""
    path = tiny(tmp_path / "m.gguf")
    with engine(path) as e:
        logits = e.logits(tokens())
        e.reset()
        one_by_one = np.array([e.evaluate([token]).copy() for token in tokens(20)])
    assert_close(logits, naive.forward(Rounded(open_gguf(path)), tokens()))
    np.testing.assert_array_equal(one_by_one, logits[:20])


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", "F16", "BF16"])
def test_experts_agree_with_the_oracle(kind: str, tmp_path: Path) -> None:
    """Compare in one batch, in chunks and token by token: the bits do not depend on how experts' rows are grouped."""
    path = tiny_qwen3moe(tmp_path / "m.gguf", type=kind, n_ff=96, seed=1)  # a seed without ties in the router
    with engine(path) as e:
        logits = e.logits(tokens())
        for size in (1, 2, 3, 40):
            e.reset()
            chunks = [e.logits(tokens()[at : at + size]) for at in range(0, N, size)]
            np.testing.assert_array_equal(np.concatenate(chunks), logits)
    assert divergence(naive.forward(naive.Model(open_gguf(path)), tokens()), logits) <= 1e-6


@pytest.mark.parametrize("base", [10_000.0, 1_000_000.0])  # of sliding-window layers
def test_rope_factors_apply_to_global_layers(base: float, tmp_path: Path) -> None:
    factors = {"rope_freqs.weight": np.geomspace(1, 32, 32)}
    path = tiny_gemma3(tmp_path / "m.gguf", **{"gemma3.rope.freq_base_swa": base}, **factors)
    with engine(path) as e:
        logits = e.logits(tokens())
    model = Rounded(open_gguf(path))
    assert_close(logits, naive.forward(model, tokens()))
    model.factors.clear()
    assert divergence(naive.forward(model, tokens()), logits) > 1e-4


def test_rope_factors_apply_to_all_layers_without_windows(tmp_path: Path) -> None:
    linear = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}
    path = tiny_llama(tmp_path / "m.gguf", **linear, **{"rope_freqs.weight": np.geomspace(1, 32, 32)})
    with engine(path) as e:
        logits = e.logits(tokens())
    assert_close(logits, naive.forward(Rounded(open_gguf(path)), tokens()))


def test_largest_gemma3_has_its_own_attention_scale(tmp_path: Path) -> None:
    """The model is detected by its number of blocks. Rounding in so many blocks increases the
    difference from the oracle."""
    path = tiny_gemma3(tmp_path / "m.gguf", n_layer=62, n_head=2, n_head_kv=1)
    with engine(path) as e:
        logits = e.logits(tokens(8))
    model = Rounded(open_gguf(path))
    assert divergence(naive.forward(model, tokens(8)), logits) <= 1e-6
    model.scale = 64**-0.5
    assert divergence(naive.forward(model, tokens(8)), logits) > 1e-3


@pytest.mark.parametrize("tiny", TINY)
def test_mixed_formats_with_untied_output(tiny: Write, tmp_path: Path) -> None:
    mixed = {"blk.0.attn_v.weight": "Q6_K", "blk.1.ffn_down.weight": "F16", "token_embd.weight": "Q5_0"}
    path = tiny(tmp_path / "m.gguf", type="Q4_K", tied=False, **mixed)
    with engine(path) as e:
        logits = e.logits(tokens())
    assert divergence(naive.forward(naive.Model(open_gguf(path)), tokens()), logits) <= 1e-6


@pytest.mark.parametrize("heads", [(4, 1), (4, 4), (3, 1), (6, 2), (5, 1), (18, 1)])
def test_grouped_query_attention_shapes(heads: tuple[int, int], tmp_path: Path) -> None:
    n_head, n_head_kv = heads
    shape = {"n_head": n_head, "n_head_kv": n_head_kv, "head_dim": 32, "n_embd": 32 * n_head}
    path = tiny_llama(tmp_path / "m.gguf", **shape)
    with engine(path, cache_type_k="f32", cache_type_v="f32") as e:
        logits = e.logits(tokens())
    assert divergence(naive.forward(naive.Model(open_gguf(path)), tokens()), logits) <= 1e-6


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_real_models_agree_with_the_oracle_and_with_llama_cpp(name: str, request: pytest.FixtureRequest) -> None:
    fixture = json.loads((DATA / f"logits_{name}.json").read_text())
    ids, done = fixture["tokens"], 0
    with engine(request.getfixturevalue(name), ctx_size=len(ids)) as e:
        for position in map(int, fixture["exact"]):
            logits, done = e.evaluate(ids[done : position + 1]), position + 1
            assert distance(logits, fixture["exact"][str(position)]) <= 0.03, position
            for batch in ("batch 512", "batch 1"):  # llama.cpp differs from the exact values by up to 0.8
                assert distance(logits, fixture[batch][str(position)]) <= 1.0, (batch, position)


def distance(logits: NDArray[np.float32], recorded: dict[str, Any]) -> float:
    """Return the largest difference of the log-probabilities of the recorded tokens."""
    ids, expected = (np.array(each) for each in zip(*recorded["top"], strict=True))
    total = np.log(np.exp(logits.astype(np.float64)).sum())
    return float(abs((logits[ids] - total) - (expected - recorded["logsumexp"])).max())


# ---------------------------------------- errors and interrupts


@pytest.mark.parametrize("bad", [[], [-1], [1 << 20], [[1, 2]], [0.5], [1 << 70], ["a"]])
def test_invalid_ids(bad: list[Any], tmp_path: Path) -> None:
    with engine(tiny_llama(tmp_path / "m.gguf")) as e:
        with pytest.raises(UsageError):
            e.evaluate(bad)
        assert e.n_past == 0


def test_overflow_gives_nan_logits(tmp_path: Path) -> None:
    huge = np.full((256, 512), 3e38, np.float32)
    with engine(tiny_llama(tmp_path / "m.gguf", **{"blk.0.ffn_down.weight": huge})) as e:
        assert np.isnan(e.evaluate(tokens(5))).all()


def test_zero_embeddings_give_uniform_logits(tmp_path: Path) -> None:
    silent = {"token_embd.weight": np.zeros((280, 256), np.float32)}
    with engine(tiny_llama(tmp_path / "m.gguf", **silent)) as e:
        assert not e.evaluate(tokens(5)).any()


def test_unsupported_row_length(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "m.gguf", type="F32", n_ff=500)
    with pytest.raises(LocalInferError, match="feed_forward_length"):
        Engine.load(open_gguf(path), Options())


def test_missing_tensor_is_named(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "m.gguf", **{"blk.1.attn_q.weight": None})
    with pytest.raises(LocalInferError, match=r"blk\.1\.attn_q\.weight"):
        Engine.load(open_gguf(path), Options())


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer that interrupts")
def test_progress_within_a_batch(smollm2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_pool, "SIGNAL_POLL_SECONDS", 0.005)
    with engine(smollm2, ctx_size=512) as e:
        expected = e.evaluate(tokens(400)).copy()
        e.reset()
        observed: list[tuple[str, int, int]] = []
        logits = e.evaluate(tokens(400), lambda *progress: observed.append(progress))
        np.testing.assert_array_equal(logits, expected)
        done = [at for _, at, _ in observed]
        assert done == sorted(done)
        assert (done[0], done[-1]) == (0, 400)
        assert any(0 < at < 400 for at in done)
        assert {(stage, total) for stage, _, total in observed} == {("prefill", 400)}


def test_ctrl_c_interrupts_a_batch(smollm2: Path) -> None:
    ids = json.loads((DATA / "logits_smollm2.json").read_text())["tokens"] * 10
    with engine(smollm2, ctx_size=8192, batch_size=512) as e:
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            with pytest.raises(KeyboardInterrupt):
                e.evaluate(ids)
        finally:
            signal.signal(signal.SIGALRM, before)
        n_cached = e.n_past
        assert n_cached < len(ids) - 512
        assert n_cached % 512 == 0
        interrupted = e.evaluate(ids[n_cached : n_cached + 100]).copy()
        e.rewind(0)
        np.testing.assert_array_equal(e.evaluate(ids[: n_cached + 100]), interrupted)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer that interrupts")
def test_ctrl_c_at_any_moment(tmp_path: Path) -> None:
    with engine(tiny_llama(tmp_path / "m.gguf")) as e:
        expected, random = e.evaluate(tokens(3)).copy(), np.random.default_rng(0)
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            for _ in range(2000):
                with contextlib.suppress(KeyboardInterrupt):
                    signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 6e-4))
                    while True:
                        e.rewind(0)
                        e.evaluate(tokens(3))
                e.rewind(0)
                np.testing.assert_array_equal(e.evaluate(tokens(3)), expected)
        finally:
            signal.signal(signal.SIGALRM, before)
