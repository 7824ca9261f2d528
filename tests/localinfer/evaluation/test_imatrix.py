"""Importance matrices: the engine's sums against those of the oracle and of llama.cpp."""

import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from locations import DATA
from score_sensitivity import weighted_inputs
from tiny import tiny_gemma3, tiny_llama, tiny_qwen3moe

from cli import __main__
from localinfer import naive, tokenizer
from localinfer.errors import LocalInferError
from localinfer.evaluation.imatrix import Collector, merge, unused_experts
from localinfer.evaluation.imatrix_statistics import by_layer, by_matrix
from localinfer.gguf.imatrix_file import Entry, Imatrix, read_imatrix
from localinfer.gguf.reader import open_gguf
from localinfer.options import Options
from localinfer.runtime.engine import Engine
from localinfer.runtime.probe import ActivationProbe
from localinfer.tokenizer import chunks
from quant.encoders.covariance import Covariance
from quant.encoders.principal_components import PrincipalComponents

N_CTX = 64
TEXT = DATA / "varied.txt"
QUERY, DOWN = "blk.0.attn_q.weight", "blk.1.ffn_down.weight"


class RecordingModel(naive.Model):
    """The oracle, which sums X^T X of all inputs; of values, those that attention averages, the mean over all heads; of
    queries and keys, inputs weighted by their effect."""

    def __init__(self, path: Path) -> None:
        super().__init__(open_gguf(path))
        self.products: dict[str, naive.Floats] = {}

    def matmul(self, name: str, x: naive.Floats) -> naive.Floats:
        self.products[name] = self.products.get(name, 0.0) + x.T @ x
        return super().matmul(name, x)

    def observe(self, tokens: list[int]) -> None:
        """Evaluate a text."""
        layers = [name.removesuffix("attn_v.weight") for name in self.file.tensors if name.endswith("attn_v.weight")]
        names = [f"{layer}attn_{each}" for layer in layers for each in "qkv"]
        before = {name: self.products.get(name, 0.0) for name in names}
        builder = naive.run_builder(self, tokens)
        builder.output.compute_logits()
        for layer in layers:
            averages = builder.points[f"{layer}attn_weights"] @ builder.points[f"{layer}attn_norm"]
            q, k = weighted_inputs(builder.points, layer)
            for each, inputs in (("q", q[None]), ("k", k[None]), ("v", averages)):
                product = np.einsum("htn,htm->nm", inputs, inputs) / len(inputs)
                self.products[f"{layer}attn_{each}"] = before[f"{layer}attn_{each}"] + product

    def expert(self, name: str, number: int, x: naive.Floats) -> naive.Floats:
        self.products[f"{name} {number}"] = self.products.get(f"{name} {number}", 0.0) + x.T @ x
        return super().expert(name, number, x)


@pytest.fixture(scope="module", params=[tiny_llama, tiny_gemma3])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gemma shares the embedding and output matrix, Llama does not."""
    changes = {"tied": False} if request.param is tiny_llama else {"n_layer": 3}
    path: Path = request.param(tmp_path_factory.mktemp("model") / "m.gguf", **changes)
    return path


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[Engine]:
    opened = Engine.load(open_gguf(model), Options(threads=2, ctx_size=N_CTX, precision="high"))
    yield opened
    opened.close()


def cut(engine: Engine) -> chunks.Chunks:
    return chunks.split_text(tokenizer.from_gguf(engine.file), TEXT.read_text(), engine.n_ctx, max_chunks=2)


def collected(engine: Engine, **options: bool) -> Imatrix:
    collector = Collector(engine, **options)
    assert list(collector.collect(cut(engine))) == [1, 2]
    return collector.to_imatrix("text")


# --- sums ---


def test_sums_agree_with_the_oracle(model: Path, engine: Engine) -> None:
    watched = RecordingModel(model)
    for chunk in cut(engine):
        watched.observe(chunk.tolist())
    actual = collected(engine, process_output=True, covariance=True)
    assert {f"{name}.weight" for name in watched.products} == set(actual.entries)
    assert (actual.datasets, actual.chunk_count, actual.chunk_size) == (("text",), 2, N_CTX)
    for name, expected in watched.products.items():
        entry = actual.entries[f"{name}.weight"]
        assert entry.counts.tolist() == [2 * N_CTX]
        assert entry.covariance is not None
        size = abs(expected).max()
        np.testing.assert_allclose(np.triu(entry.covariance.products), np.triu(expected), atol=2e-3 * size)
        assert entry.covariance.chunks == 2
        assert entry.components is not None
        strongest = np.linalg.eigh(expected)[1][:, -1]
        captured = np.square(entry.components.rows.astype(np.float64) @ strongest).sum()
        assert captured == pytest.approx(
            strongest @ expected @ strongest, rel=0.5
        )  # few tokens, added up with random signs
        np.testing.assert_allclose(entry.sums[0], np.diag(expected), rtol=2e-2, atol=1e-4 * size)


def test_sums_per_expert(tmp_path: Path) -> None:
    """An expert's sums cover the tokens routed to it; only matrices that all tokens use have a covariance."""
    path = tiny_qwen3moe(tmp_path / "m.gguf", type="F32")
    engine = Engine.load(open_gguf(path), Options(threads=2, ctx_size=N_CTX, precision="high", cache_type_k="f32"))
    chunk = cut(engine)[0][:23]  # so few that some experts multiply row by row, others in tiles
    collector, watched = Collector(engine, covariance=True), RecordingModel(path)
    assert [*collector.collect([chunk])] == [1]
    actual = collector.to_imatrix("text")
    naive.forward(watched, chunk.tolist())
    engine.close()
    for name in ("gate", "up", "down"):
        key = f"blk.1.ffn_{name}_exps"
        entry, n_expert = actual.entries[f"{key}.weight"], 10
        assert (entry.components, entry.covariance) == (None, None)
        assert entry.sums.shape[0] == n_expert
        assert entry.counts.sum() == 3 * len(chunk)
        for expert in range(n_expert):
            expected = watched.products.get(f"{key} {expert}")
            assert (expected is None) == (entry.counts[expert] == 0)
            if expected is not None:
                size = np.abs(expected).max()
                np.testing.assert_allclose(entry.sums[expert], np.diag(expected), rtol=1e-2, atol=1e-3 * size)
    assert actual.entries["blk.0.attn_q.weight"].covariance is not None


def test_unused_experts_are_named(tmp_path: Path) -> None:
    sums = np.ones((4, 2), np.float32)
    entries = {
        f"blk.{block}.ffn_{name}_exps.weight": Entry(sums, np.array(counts, np.float32))
        for block, counts in ((10, [0, 1, 1, 0]), (2, [1, 0, 1, 1]), (1, [1, 1, 1, 1]))
        for name in ("gate", "down")
    }
    assert list(unused_experts(Imatrix(entries)).items()) == [("blk.2", [1]), ("blk.10", [0, 3])]


def test_matrices_with_the_same_inputs_share_a_covariance(engine: Engine) -> None:
    entries = collected(engine, covariance=True).entries
    q, k, gate, up = (entries[f"blk.0.{name}.weight"] for name in ("attn_q", "attn_k", "ffn_gate", "ffn_up"))
    assert gate.covariance is up.covariance
    assert gate.components is up.components
    assert gate.covariance is not q.covariance is not k.covariance


def test_output_layer_and_covariance_are_optional(engine: Engine) -> None:
    actual = collected(engine)
    assert {name.partition(".")[0] for name in actual.entries} == {"blk"}
    assert all(entry.covariance is None for entry in actual.entries.values())


def test_collecting_does_not_change_results(engine: Engine) -> None:
    chunk = cut(engine)[0]
    engine.reset()
    before = engine.evaluate(chunk[:-1]).copy(), engine.evaluate(chunk[-1:]).copy()
    engine.reset()
    for _ in ActivationProbe(engine).layer_inputs(chunk[:-1], include_output_layer=True):
        pass
    assert engine.n_past == N_CTX - 1
    assert np.array_equal(engine.evaluate(chunk[-1:]), before[1])


def test_result_is_independent_of_batch_size(engine: Engine) -> None:
    other = Engine.load(engine.file, Options(threads=1, ctx_size=N_CTX, precision="high", batch_size=24))
    one, two = (collected(each, process_output=True, covariance=True) for each in (engine, other))
    other.close()
    for name, entry in one.entries.items():
        np.testing.assert_allclose(entry.sums, two.entries[name].sums, rtol=1e-6)
        covariance, other_covariance = entry.covariance, two.entries[name].covariance
        assert covariance is not None
        assert other_covariance is not None
        assert other_covariance.chunks == covariance.chunks == 2
        assert other_covariance.shrinkage == pytest.approx(covariance.shrinkage, rel=1e-4)


def test_sums_match_llama_cpp(smollm2: Path) -> None:
    """Compare sums over all columns of a matrix; llama.cpp rounds activations to 8 bits."""
    recorded = json.loads((DATA / "evaluation_smollm2.json").read_text())
    engine = Engine.load(open_gguf(smollm2), Options(ctx_size=recorded["n_ctx"], precision="high"))
    actual = collected(engine, process_output=True)
    engine.close()
    weighted = re.compile(r"attn_[qkv]\.")  # as attention uses them
    totals = {name: float(entry.sums.sum()) for name, entry in actual.entries.items() if not weighted.search(name)}
    expected = {name: value for name, value in recorded["imatrix"].items() if not weighted.search(name)}
    assert totals == pytest.approx(expected, rel=0.03)
    assert np.mean([abs(totals[name] / value - 1) for name, value in expected.items()]) < 0.002


def test_inputs_that_are_not_finite(tmp_path: Path) -> None:
    nan = np.full(256, np.nan, np.float32)
    path = tiny_llama(tmp_path / "m.gguf", **{"blk.1.attn_norm.weight": nan})
    engine = Engine.load(open_gguf(path), Options(threads=2, ctx_size=N_CTX, precision="high"))
    with pytest.raises(
        LocalInferError, match=r"m\.gguf: tensor blk\.1\.attn_v\.weight: has inputs that are not finite"
    ):
        collected(engine)
    engine.close()


# --- merging ---


def entry(*sums: float, count: float, covariance: float | None = None) -> Entry:
    products = Covariance(np.full((len(sums),) * 2, covariance, np.float32), 1.0, 1) if covariance else None
    components = PrincipalComponents(np.ones((1, len(sums)), np.float32)) if covariance else None
    return Entry(np.array([sums], np.float32), np.array([count], np.float32), components, products)


def test_merge() -> None:
    first = Imatrix({"a": entry(1, 2, count=8, covariance=1), "b": entry(3, count=8)}, ("x",), 2, 4)
    second = Imatrix({"a": entry(5, 6, count=4, covariance=2)}, ("y", "z"), 1, 4)
    both = merge([first, second], 512)
    assert (both.datasets, both.chunk_count, both.chunk_size) == (("x", "y", "z"), 3, 4)
    assert both.entries["a"].sums.tolist() == [[6, 8]]
    assert both.entries["a"].counts.tolist() == [12]
    assert both.entries["a"].covariance is not None
    assert both.entries["a"].covariance.products.tolist() == [[3, 3], [3, 3]]
    assert (both.entries["a"].covariance.chunk_squares, both.entries["a"].covariance.chunks) == (2, 2)
    assert both.entries["a"].components is not None
    assert np.square(both.entries["a"].components.rows).sum(axis=0) == pytest.approx([2, 2])
    assert both.entries["b"] is first.entries["b"]


def test_merge_keeps_sharing() -> None:
    entries = [entry(1, 2, count=8, covariance=1) for _ in range(2)]
    both = merge([Imatrix({"q": each, "k": each}, (), 2, 4) for each in entries], 4)
    assert both.entries["q"].covariance is both.entries["k"].covariance
    assert both.entries["q"].components is both.entries["k"].components


def test_merge_drops_partial_covariance() -> None:
    first, second = (
        Imatrix({"a": entry(1, count=4, covariance=1)}, (), 1, 4),
        Imatrix({"a": entry(1, count=4)}, (), 1, 4),
    )
    both = merge([first, second], 512).entries["a"]
    assert (both.components, both.covariance) == (None, None)


def test_merge_scales_chunk_counts() -> None:
    tokens = Imatrix({"a": entry(8, 16, count=8)}, (), 2, 4)
    legacy = Imatrix({"a": entry(2, 4, count=2)}, (), 2, 0)
    both = merge([legacy, tokens], 4)
    assert both.entries["a"].sums.tolist() == [[16, 32]]
    assert both.entries["a"].counts.tolist() == [16]
    assert (both.chunk_count, both.chunk_size) == (4, 4)


def test_merge_rejects_other_models() -> None:
    with pytest.raises(LocalInferError, match="a: has sums of shape"):
        merge([Imatrix({"a": entry(1, count=4)}, (), 1, 4), Imatrix({"a": entry(1, 2, count=4)}, (), 1, 4)], 4)


# --- statistics ---


def test_statistics_of_four_columns() -> None:
    matrix = Imatrix(
        {"blk.0.x.weight": entry(2, 2, 2, 2, count=2), "blk.1.x.weight": entry(0, 2, 4, 10, count=2)}, (), 1, 2
    )
    first, second = by_matrix(matrix)
    assert (first.name, second.name) == ("blk.1.x.weight", "blk.0.x.weight")  # the more important one first
    assert (first.layer, first.n, first.total, first.least, first.most, first.mean) == (1, 4, 8, 0, 5, 2)
    assert first.deviation == pytest.approx(math.sqrt((4 + 1 + 0 + 9) / 3))
    assert first.active == 0.75
    assert first.entropy == pytest.approx(
        -(1 / 8 * math.log2(1 / 8) + 1 / 4 * math.log2(1 / 4) + 5 / 8 * math.log2(5 / 8))
    )
    assert first.outlier_fraction == 0.25
    assert first.similarity == pytest.approx(8 / math.sqrt(4 * 30))
    assert (second.entropy, second.deviation, second.outlier_fraction, second.similarity) == (2, 0, 0, None)
    assert [each.total for each in by_layer(matrix)] == [4, 8]
    assert by_layer(matrix)[1].similarity == first.similarity


# --- the command ---


def test_the_command(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, both = tmp_path / "one.gguf", tmp_path / "both.dat"
    reading = [str(model), "-f", str(TEXT), "-c", str(N_CTX), "--chunks", "2", "-t", "2", "--precision", "high"]
    assert __main__.run(["imatrix", *reading, "-o", str(out), "--process-output"]) == 0
    actual = read_imatrix(out)
    assert (actual.datasets, actual.chunk_count, actual.chunk_size) == ((str(TEXT),), 2, N_CTX)
    again = ["imatrix", "--in-file", str(out), "--in-file", str(out), "-o", str(both)]
    assert __main__.run(again) == 0
    twice = read_imatrix(both)
    assert twice.chunk_count == 4
    np.testing.assert_allclose(twice.entries[DOWN].means, actual.entries[DOWN].means, rtol=1e-6)
    capsys.readouterr()
    assert __main__.run(["imatrix", "--in-file", str(out), "--show-statistics", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert {each["name"] for each in shown["matrices"]} == set(actual.entries)
    assert __main__.run(["imatrix", "--in-file", str(out), "--show-statistics"]) == 0
    assert QUERY in capsys.readouterr().out


def test_skipped_chunks(model: Path, tmp_path: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    """The sums of the first chunk and of the second one are those of both."""
    sums = []
    for number, options in enumerate((["--chunks", "1"], ["--chunks", "1", "--chunk", "1"], ["--chunks", "2"])):
        out = tmp_path / f"{number}.gguf"
        assert run("imatrix", model, "-f", TEXT, "-c", N_CTX, "-t", "2", *options, "-o", out)[0] == 0
        sums.append(read_imatrix(out).entries[DOWN].sums)
    np.testing.assert_allclose(sums[0] + sums[1], sums[2], rtol=1e-4)
    assert not np.allclose(sums[0], sums[1])
    code, _, err = run("imatrix", model, "-f", TEXT, "-c", N_CTX, "--from-chunk", 10**6, "-o", tmp_path / "x.gguf")
    assert (code, "--from-chunk: the text has no chunk" in err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "requires MODEL and --file FILE"),
        (["MODEL"], "requires MODEL and --file FILE"),
        (["-f", "TEXT", "--in-file", "x"], "requires MODEL and --file FILE"),
        (["MODEL", "-f", "TEXT", "-o", "x.dat", "--covariance"], "--covariance: not supported by the .dat format"),
        (["MODEL", "-f", "TEXT", "--output-format", "zip"], "--output-format: must be gguf or dat, not zip"),
        (["MODEL", "-f", "TEXT", "-o", "/dev"], "--output: /dev: not a regular file"),
        (["--show-statistics"], "takes one --in-file"),
        (["--in-file", "TEXT", "--show-statistics"], "varied.txt"),
    ],
)
def test_usage_errors(arguments: list[str], message: str, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = {"MODEL": str(model), "TEXT": str(TEXT)}
    assert __main__.run(["imatrix", *(names.get(word, word) for word in arguments)]) in (1, 2)
    out, err = capsys.readouterr()
    assert not out
    [line] = err.splitlines()
    assert message in line
