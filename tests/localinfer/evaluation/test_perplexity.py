"""Perplexity and KL divergence, against textbook formulas on the oracle's logits and on handmade rows.

Also against values that llama-cpp-python gave for chunks split as llama-perplexity does it.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from locations import DATA
from numpy.typing import NDArray
from tiny import Field, tiny_gemma3, tiny_llama

from cli import __main__
from cli.terminal import screen
from localinfer import naive, tokenizer
from localinfer.errors import LocalInferError, UsageError
from localinfer.evaluation.compare import Scores, compare, score, summarize
from localinfer.evaluation.perplexity import Mean, log_sum_exp, perplexity
from localinfer.gguf.reader import open_gguf
from localinfer.options import Options
from localinfer.runtime.engine import Engine
from localinfer.tokenizer import chunks

N_CTX = 64
TEXT = DATA / "varied.txt"

Logits = NDArray[np.float64]


def log_softmax(logits: Logits) -> Logits:
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two models with the same vocabulary."""
    folder = tmp_path_factory.mktemp("models")
    return [tiny_llama(folder / f"{seed}.gguf", seed=seed) for seed in range(2)]


@pytest.fixture(scope="module")
def engines(models: list[Path]) -> Iterator[list[Engine]]:
    opened = [Engine.load(open_gguf(path), Options(threads=2, ctx_size=N_CTX, precision="high")) for path in models]
    yield opened
    for engine in opened:
        engine.close()


@pytest.fixture(scope="module")
def text_chunks(engines: list[Engine]) -> chunks.Chunks:
    return chunks.split_text(tokenizer.from_gguf(engines[0].file), TEXT.read_text(), N_CTX, max_chunks=3)


# --- the text in chunks ---


def test_chunks_are_consecutive(models: list[Path]) -> None:
    tok = tokenizer.from_gguf(open_gguf(models[0]))
    text = "ab" * 21
    assert tok.encode(text) == tok.encode("ab") * 21
    actual = chunks.split_text(tok, text, 10)
    assert actual.shape == (4, 10)  # two tokens are dropped
    assert actual.ravel().tolist() == tok.encode(text)[:40]
    assert chunks.split_text(tok, text, 10, max_chunks=3).tolist() == actual[:3].tolist()


def test_chunks_begin_with_bos(tmp_path: Path) -> None:
    tok = tokenizer.from_gguf(open_gguf(tiny_gemma3(tmp_path / "m.gguf")))
    ids = tok.encode("Hello the and " * 20)
    actual = chunks.split_text(tok, "Hello the and " * 20, 16)
    assert actual[:, 0].tolist() == [tok.bos] * len(actual)
    assert actual[:, 1:].tolist() == [ids[at + 1 : at + 16] for at in range(0, 16 * len(actual), 16)]


@pytest.mark.parametrize(
    ("text", "n_ctx", "message"),
    [("ab" * 9, 10, "18 tokens is too short: 2 chunks of 10 need 20"), ("ab" * 20, 7, "the minimum is 8")],
)
def test_too_short_text_or_chunks(text: str, n_ctx: int, message: str, models: list[Path]) -> None:
    with pytest.raises(UsageError, match=message):
        chunks.split_text(tokenizer.from_gguf(open_gguf(models[0])), text, n_ctx)


# --- perplexity ---


def test_a_mean_and_its_error() -> None:
    mean = Mean.of(np.array([1.0, 2.0, 3.0, 6.0]))
    assert mean == Mean(3.0, math.sqrt((4 + 1 + 0 + 9) / 3 / 4))
    assert mean.exp() == Mean(math.exp(3), math.exp(3) * mean.error)
    assert mean.sqrt() == Mean(math.sqrt(3), mean.error / (2 * math.sqrt(3)))
    assert Mean(0.0, 0.0).sqrt() == Mean(0.0, 0.0)


def test_log_sum_exp_of_large_logits() -> None:
    assert log_sum_exp(np.zeros(1000, np.float32)) == pytest.approx(math.log(1000), abs=1e-12)
    assert log_sum_exp(np.array([1e4, 1e4, -1e4], np.float32)) == pytest.approx(1e4 + math.log(2), abs=1e-9)


def test_perplexity_agrees_with_the_oracle(engines: list[Engine], text_chunks: chunks.Chunks) -> None:
    model, surprises = naive.Model(engines[0].file), []
    for chunk in text_chunks:
        log_p = log_softmax(naive.forward(model, chunk.tolist()))
        surprises += [-log_p[at, chunk[at + 1]] for at in range(N_CTX // 2, N_CTX - 1)]
    estimates = list(perplexity(engines[0], text_chunks))
    assert len(surprises) == len(text_chunks) * (N_CTX // 2 - 1)
    assert len(estimates) == len(text_chunks)
    assert estimates[-1].value == pytest.approx(np.exp(np.mean(surprises)), rel=5e-4)
    assert estimates[-1].error == pytest.approx(
        np.exp(np.mean(surprises)) * np.std(surprises, ddof=1) / math.sqrt(len(surprises)), rel=1e-3
    )
    assert estimates[0].value == pytest.approx(np.exp(np.mean(surprises[: N_CTX // 2 - 1])), rel=5e-4)


def test_result_is_independent_of_batch_size(engines: list[Engine], text_chunks: chunks.Chunks) -> None:
    """Batches of 24: the first scored token is in the middle of the second one."""
    options = Options(threads=2, ctx_size=N_CTX, precision="high", batch_size=24)
    engine = Engine.load(engines[0].file, options)
    try:
        assert list(perplexity(engine, text_chunks)) == list(perplexity(engines[0], text_chunks))
    finally:
        engine.close()


def test_weights_that_are_not_finite(tmp_path: Path, engines: list[Engine], text_chunks: chunks.Chunks) -> None:
    path = tiny_llama(tmp_path / "m.gguf", **{"output_norm.weight": np.full(256, np.nan, np.float32)})
    engine = Engine.load(open_gguf(path), Options(threads=2, ctx_size=N_CTX, precision="high"))
    for actual in (
        perplexity(engine, text_chunks),
        compare(engines[0], engine, text_chunks),
        compare(engine, engines[0], text_chunks),
    ):
        with pytest.raises(LocalInferError, match=r"m\.gguf: logits: are not finite"):
            next(actual)
    engine.close()


@pytest.mark.parametrize(("precision", "fraction"), [("high", 0.001), ("fast", 0.005)])
def test_perplexity_matches_llama_cpp(smollm2: Path, precision: str, fraction: float) -> None:
    """llama.cpp rounds activations to 8 bits, as the precision `fast` does, but not identically.

    Its own result with flash attention differs by 0.0026.
    """
    recorded = json.loads((DATA / "evaluation_smollm2.json").read_text())
    value, error = recorded["perplexity"]["off"]
    engine = Engine.load(open_gguf(smollm2), Options(ctx_size=512, precision=precision))  # type: ignore[arg-type]
    try:
        text = TEXT.read_text().removesuffix("\n")
        actual = chunks.split_text(
            tokenizer.from_gguf(engine.file), text, recorded["n_ctx"], max_chunks=recorded["chunks"]
        )
        *_, last = perplexity(engine, actual)
    finally:
        engine.close()
    assert last.value == pytest.approx(value, rel=fraction)
    assert last.error == pytest.approx(error, rel=2 * fraction)


# --- divergence ---


def test_kl_divergence_matches_definition(engines: list[Engine], text_chunks: chunks.Chunks) -> None:
    actual: dict[str, list[float]] = {"base": [], "other": [], "divergence": [], "same_top": []}
    for chunk in text_chunks:
        both = []
        for engine in engines:
            engine.reset()
            both.append(log_softmax(engine.logits(chunk).astype(np.float64)))
        for at in range(N_CTX // 2, N_CTX - 1):
            log_p, log_q = both[0][at], both[1][at]
            actual["base"].append(-log_p[chunk[at + 1]])
            actual["other"].append(-log_q[chunk[at + 1]])
            actual["divergence"].append((np.exp(log_p) * (log_p - log_q)).sum())
            actual["same_top"].append(log_p.argmax() == log_q.argmax())
    *_, scores = compare(engines[0], engines[1], text_chunks)
    for name, values in actual.items():
        np.testing.assert_allclose(getattr(scores, name), values, rtol=1e-5, atol=1e-6)


def test_model_equals_itself(engines: list[Engine], text_chunks: chunks.Chunks) -> None:
    copy = Engine.load(engines[0].file, Options(threads=1, ctx_size=N_CTX, precision="high"))
    *_, scores = compare(engines[0], copy, text_chunks)
    copy.close()
    assert not scores.divergence.any()
    assert scores.same_top.all()
    actual = summarize(scores)
    assert actual.ratio == Mean(1.0, 0.0)
    assert actual.probability_rms == Mean(0.0, 0.0)


def test_small_divergence_is_exact() -> None:
    """One logit in 100,000 is moved: KL is log(1 + p (e^d - 1)) - p d."""
    p = np.random.default_rng(0).standard_normal((1, 100_000), np.float32)
    q = p.copy()
    q[0, 5] += 4.0
    probability = np.exp(p[0, 5]) / np.exp(p[0].astype(np.float64)).sum()
    moved = float(q[0, 5]) - float(p[0, 5])
    expected = math.log1p(probability * math.expm1(moved)) - probability * moved
    assert 1e-5 < expected < 1e-3
    assert score(p, q, np.array([0], np.int32)).divergence[0] == pytest.approx(expected, rel=1e-3)


def test_summary_of_four_tokens() -> None:
    base, other = -np.log([0.5, 0.25, 0.125, 0.5]), -np.log([0.25, 0.25, 0.25, 1.0])
    divergence = np.array([0.3, 0.0, 0.2, 0.1])
    actual = summarize(Scores(base, other, divergence, np.array([False, True, True, True])))
    assert actual.tokens == 4
    assert actual.perplexity_base.value == pytest.approx(2 ** (7 / 4))
    assert actual.perplexity.value == pytest.approx(2 ** (6 / 4))
    assert actual.difference.value == pytest.approx(2 ** (6 / 4) - 2 ** (7 / 4))
    assert actual.log_ratio.value == pytest.approx(-math.log(2) / 4)
    assert actual.log_ratio.error == pytest.approx(math.log(2) * np.std([1, 0, -1, -1], ddof=1) / 2)
    assert actual.divergence.mean.value == pytest.approx(0.15)
    assert actual.divergence.quantiles[1.0] == 0.3
    assert actual.divergence.quantiles[0.5] == pytest.approx(0.15)
    assert actual.divergence.quantiles[0.9] == pytest.approx(0.27)
    assert actual.probability.mean.value == pytest.approx((-0.25 + 0.125 + 0.5) / 4)
    assert actual.probability_rms.value == pytest.approx(math.sqrt((0.25**2 + 0.125**2 + 0.5**2) / 4))
    assert actual.same_top == Mean(0.75, math.sqrt(0.75 * 0.25 / 3))


@pytest.mark.parametrize("pieces", [["same"] * 2, ["longer"]])
def test_vocabularies_must_match(pieces: list[str], tmp_path: Path, engines: list[Engine]) -> None:
    """The last tokens differ, or there are more of them."""
    tokens = [bytes(token).decode() for token in engines[0].file.metadata["tokenizer.ggml.tokens"]]  # type: ignore[union-attr]
    changed = [*tokens[:-1], *pieces] if len(pieces) == 1 else [*tokens[:-2], *pieces]
    assert changed != tokens
    path = tiny_llama(tmp_path / "m.gguf", **{"tokenizer.ggml.tokens": Field("ARRAY", changed, "STRING")})
    other = Engine.load(open_gguf(path), Options(threads=2, ctx_size=N_CTX, precision="high"))
    with pytest.raises(UsageError, match=rf"m\.gguf: tokenizer\.ggml\.tokens: .*token {len(changed) - len(pieces)} is"):
        next(compare(engines[0], other, np.zeros((2, N_CTX), np.int32)))
    other.close()


# --- the commands ---


def test_the_command_perplexity(models: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["perplexity", str(models[0]), "-f", str(TEXT), "-c", str(N_CTX), "--chunks", "3", "-t", "2"]
    assert __main__.run([*arguments, "--precision", "high", "--json"]) == 0
    actual = json.loads(capsys.readouterr().out)
    assert (actual["chunks"], actual["n_ctx"]) == (3, N_CTX)
    assert __main__.run([*arguments, "--precision", "high"]) == 0
    shown = f"PPL = {actual['perplexity']:.4f} +/- {actual['error']:.5f} (3 chunks of {N_CTX} tokens)\n"
    assert capsys.readouterr().out == shown


def test_the_command_compare(models: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["compare", *map(str, models), "-f", str(TEXT), "-c", str(N_CTX), "--chunks", "3", "-t", "2"]
    assert __main__.run([*arguments, "--precision", "high", "--json"]) == 0
    actual = json.loads(capsys.readouterr().out)
    assert actual["tokens"] == 3 * (N_CTX // 2 - 1)
    assert dict(actual["divergence"]["quantiles"])[0.5] > 0
    assert __main__.run([*arguments, "--precision", "high"]) == 0
    rows = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    mean = actual["divergence"]["mean"]
    assert ["mean", f"{mean['value']:.6f} +/- {mean['error']:.6f}"] in rows


@pytest.mark.parametrize("command", [["perplexity", "MODEL"], ["compare", "MODEL", "MODEL"]])
@pytest.mark.parametrize(
    ("content", "message"), [(b"short", "too short: 2 chunks of 512"), (b"\xff\xfe", "not UTF-8 at byte 0")]
)
def test_unreadable_texts(
    command: list[str], content: bytes, message: str, models: list[Path], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    text = tmp_path / "text"
    text.write_bytes(content)
    tok = [str(models[0]) if word == "MODEL" else word for word in command]
    assert __main__.run([*tok, "-f", str(text), "--precision", "high"]) in (1, 2)
    out, err = capsys.readouterr()
    assert not out
    assert message in err
    assert err.splitlines()[-1].startswith("error: ")


@pytest.mark.parametrize(
    ("done", "total", "seconds", "shown"),
    [(1, 2, 5, "0:05 left"), (10, 100, 100, "15:00 left"), (1, 3601, 1, "1:00:00 left"), (0, 5, 1, "0:05 left")],
)
def test_remaining_time(done: int, total: int, seconds: float, shown: str) -> None:
    assert screen.time_left(done, total, seconds) == shown
