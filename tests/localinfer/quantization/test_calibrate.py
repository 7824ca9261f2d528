"""Calibration layer by layer: each block is encoded for the inputs it receives after the quantized ones before it."""

import json
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from locations import DATA
from split_files import split
from tiny import tiny_gemma3, tiny_llama

from cli import __main__
from cli.quantize.calibration_progress import CalibrationProgress
from localinfer import naive, tokenizer
from localinfer.errors import LocalInferError
from localinfer.evaluation.imatrix import Collector
from localinfer.gguf.dequantize import dequantize
from localinfer.gguf.gguf_source import from_gguf
from localinfer.gguf.imatrix_file import write_imatrix
from localinfer.gguf.reader import open_gguf
from localinfer.options import Options
from localinfer.quantization.calibrate import CalibrationObserver, calibrate
from localinfer.quantization.feedback_encoders import make_factor_lookup, make_feedback_factory
from localinfer.quantization.plan import QuantizationPlan, Request, make_plan, parse_pattern
from localinfer.quantization.quantize import OutputOptions, quantize
from localinfer.quantization.recipes import TypeOverrides
from localinfer.runtime.engine import Engine
from localinfer.runtime.probe import ActivationProbe
from localinfer.tokenizer.chunks import Chunks, split_text
from quant.encoders.covariance import Covariance

TEXT = DATA / "varied.txt"
TOKENS, CHUNKS = 64, 4
Q4_0_TABLE = "token_embd=q4_0"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("source") / "m.gguf", type="F16", n_layer=3, tied=False)


@pytest.fixture(scope="module")
def calibrated_model(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model, calibrated in one run."""
    return calibrated(model, tmp_path_factory.mktemp("whole") / "out.gguf")


def chunks_of(model: Path, count: int = CHUNKS) -> Chunks:
    return split_text(tokenizer.from_gguf(open_gguf(model)), TEXT.read_text(), TOKENS, max_chunks=count)


def plan_of(model: Path, *patterns: str, **more: Any) -> QuantizationPlan:
    """A plan for Q4_K that keeps the embedding by default, so that the inputs of the first block equal the source's."""
    table = None if Q4_0_TABLE in patterns else "F16"
    overrides = TypeOverrides(pure=True, token_embedding=table, patterns=tuple(map(parse_pattern, patterns)))
    plan = make_plan(from_gguf(model), Request("Q4_K_M", overrides, **{"calibrated": True} | more))
    assert plan.problem is None
    return plan


def calibrated(model: Path, out: Path, *patterns: str, **more: Any) -> Path:
    calibrate(plan_of(model, *patterns), out, chunks_of(model), **{"threads": 2} | more)
    return out


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


# --- block by block ---


@pytest.mark.parametrize("make", [tiny_llama, tiny_gemma3])
def test_single_blocks_match_whole_model(tmp_path: Path, make: Callable[..., Path]) -> None:
    path = make(tmp_path / "m.gguf")
    engine = Engine.load(open_gguf(path), Options(threads=2, ctx_size=TOKENS, batch_size=TOKENS))
    chunk, probe = chunks_of(path)[0], ActivationProbe(engine)
    expected = {each.names: each.x.copy() for each in probe.layer_inputs(chunk, include_output_layer=True)}
    x, actual = probe.embed(chunk), {}
    for number in range(engine.compiled_graph.model_graph.block_count):
        actual |= {each.names: each.x.copy() for each in probe.block_inputs(number, x)}
        probe.run_block(number, x)
    actual |= {each.names: each.x.copy() for each in probe.output_layer_inputs(x)}
    engine.close()
    assert actual.keys() == expected.keys()
    for each, rows in expected.items():
        assert np.array_equal(actual[each], rows), each


def by_imatrix(model: Path, observed: Path, tmp_path: Path, *patterns: str) -> Path:
    """The model, quantized with the covariances of another file's matrices."""
    engine = Engine.load(open_gguf(observed), Options(threads=1, ctx_size=TOKENS))
    collector = Collector(engine, process_output=True, covariance=True)
    list(collector.collect(chunks_of(model)))
    engine.close()
    write_imatrix(tmp_path / "imatrix.gguf", collector.to_imatrix("text"), replace=True)
    plan = plan_of(model, *patterns, imatrix=tmp_path / "imatrix.gguf", calibrated=False)
    encoder_factory = make_feedback_factory(plan.importance, make_factor_lookup(plan.covariances))
    out = tmp_path / "by_imatrix.gguf"
    quantize(plan.source, out, plan.types, encoder_factory=encoder_factory, options=OutputOptions(replace=True))
    return out


def test_first_block_matches_imatrix(model: Path, calibrated_model: Path, tmp_path: Path) -> None:
    expected, actual = open_gguf(by_imatrix(model, model, tmp_path)).tensors, open_gguf(calibrated_model).tensors
    same = {name: np.array_equal(tensor.data, expected[name].data) for name, tensor in actual.items()}
    assert [name for name in actual if name.startswith("blk.0.") and not same[name]] == ["blk.0.attn_v.weight"]
    assert not same["blk.2.ffn_down.weight"]


@pytest.mark.parametrize("block", [1, 2])
def test_later_blocks_see_quantized_inputs(model: Path, calibrated_model: Path, tmp_path: Path, block: int) -> None:
    """Compare with an imatrix of a model whose blocks are quantized up to this one."""
    half = calibrated(model, tmp_path / "half.gguf", *(f"blk\\.{number}=f16" for number in range(block, 3)))
    expected, actual = open_gguf(by_imatrix(model, half, tmp_path)).tensors, open_gguf(calibrated_model).tensors
    for name in actual:
        if name.startswith(f"blk.{block}.") and "attn_v" not in name:
            assert np.array_equal(actual[name].data, expected[name].data), name


@pytest.mark.parametrize(("name", "bar"), [("q4_k", 0.8), ("iq3_s", 0.95)])
def test_values_are_encoded_for_what_attention_makes_of_them(tmp_path: Path, name: str, bar: float) -> None:
    """On other text, the outputs of the heads have a smaller error than with the covariance of the inputs: all later
    tokens attend to BOS."""
    model = tiny_llama(tmp_path / "m.gguf", type="F16", n_layer=1, tied=False, **{"tokenizer.ggml.add_bos_token": True})
    oracle, (*seen, unseen) = naive.Model(open_gguf(model)), chunks_of(model, 0)
    covariance = Covariance.empty(256)
    for chunk in seen:
        covariance.add(naive.run_builder(oracle, chunk.tolist()).points["blk.0.attn_norm"].astype(np.float32))
    plan, files = plan_of(model, f"attn_v={name}"), (tmp_path / "averaged.gguf", tmp_path / "plain.gguf", model)
    calibrate(plan, files[0], np.array(seen))
    factors = make_factor_lookup({"blk.0.attn_v.weight": covariance})
    quantize(plan.source, files[1], plan.types, encoder_factory=make_feedback_factory({}, factors))
    points = naive.run_builder(oracle, unseen.tolist()).points
    weights, x = points["blk.0.attn_weights"], points["blk.0.attn_norm"]
    tensors = [open_gguf(file).tensors["blk.0.attn_v.weight"] for file in files]
    averaged, plain, exact = (dequantize(tensor).reshape(tensor.shape) for tensor in tensors)
    size, errors = len(exact) // 2, []  # two key heads
    for actual in (averaged, plain):
        change = x @ (actual - exact).T
        by_head = (weights[head] @ change[:, head // 2 * size : (head // 2 + 1) * size] for head in range(len(weights)))
        errors.append(sum(np.square(each).sum() for each in by_head))
    assert errors[0] < bar * errors[1]


@pytest.mark.parametrize("name", ["iq4_nl", "iq3_s"])
def test_codebook_types_get_error_feedback(model: Path, tmp_path: Path, name: str) -> None:
    out = open_gguf(calibrated(model, tmp_path / "out.gguf", f"ffn_down={name}"))
    plain = open_gguf(calibrated(model, tmp_path / "other.gguf", f"ffn_down={name}", threads=1))
    expected = open_gguf(by_imatrix(model, model, tmp_path, f"ffn_down={name}"))
    assert out.tensors["blk.0.ffn_down.weight"].type_name == name.upper()
    for other in (plain, expected):
        assert np.array_equal(out.tensors["blk.0.ffn_down.weight"].data, other.tensors["blk.0.ffn_down.weight"].data)


def test_result_is_independent_of_threads(model: Path, calibrated_model: Path, tmp_path: Path) -> None:
    assert calibrated(model, tmp_path / "one.gguf", threads=1).read_bytes() == calibrated_model.read_bytes()
    assert names(tmp_path) == ["one.gguf"]


def test_source_in_several_files(model: Path, calibrated_model: Path, tmp_path: Path) -> None:
    source = split(Path(shutil.copy(model, tmp_path)), 9)[1]
    assert calibrated(source, tmp_path / "out.gguf").read_bytes() == calibrated_model.read_bytes()


# --- resumed runs ---


class Interrupting(CalibrationObserver):
    """Raises KeyboardInterrupt at the step whose description contains `where`, and records where a run began."""

    def __init__(self, where: str = "never") -> None:
        self.where, self.state, self.fractions = where, (0, ""), [0.0]

    def on_start(self, done: int, blocks: int, discarded: str) -> None:
        self.state = done, discarded

    def on_step(self, what: str, fraction: float) -> None:
        assert self.fractions[-1] <= fraction <= 1
        self.fractions.append(fraction)
        if self.where in what:
            raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("where", "done"),
    [("layer 2 of 3: collecting inputs", 1), ("layer 3 of 3: ffn_down", 2), ("output layer: output", 3)],
)
def test_interrupted_run_is_resumed(model: Path, calibrated_model: Path, tmp_path: Path, where: str, done: int) -> None:
    out = tmp_path / "out.gguf"
    with pytest.raises(KeyboardInterrupt):
        calibrated(model, out, observer=Interrupting(where))
    assert names(tmp_path) == [".out.gguf.unfinished", ".out.gguf.unfinished.json"]
    again = Interrupting()
    calibrated(model, out, observer=again, threads=1)
    assert again.state == (done, "")
    assert out.read_bytes() == calibrated_model.read_bytes()
    assert names(tmp_path) == ["out.gguf"]


def test_tied_embeddings_are_written_twice(tmp_path: Path) -> None:
    """First without calibration, for the blocks, and then for the blocks' output; also in two runs."""
    model = tiny_llama(tmp_path / "m.gguf", type="F16", n_layer=2)
    whole = calibrated(model, tmp_path / "whole.gguf", Q4_0_TABLE)
    with pytest.raises(KeyboardInterrupt):
        calibrated(model, tmp_path / "out.gguf", Q4_0_TABLE, observer=Interrupting("output layer: token_embd"))
    expected = by_imatrix(model, tmp_path / ".out.gguf.unfinished", tmp_path, Q4_0_TABLE)
    table, desired = (open_gguf(path).tensors["token_embd.weight"] for path in (whole, expected))
    assert table.type_name == "Q4_0"
    assert np.array_equal(table.data, desired.data)
    assert calibrated(model, tmp_path / "out.gguf", Q4_0_TABLE).read_bytes() == whole.read_bytes()


def test_run_with_other_types_starts_over(model: Path, calibrated_model: Path, tmp_path: Path) -> None:
    out, again = tmp_path / "out.gguf", Interrupting()
    with pytest.raises(KeyboardInterrupt):
        calibrated(model, out, "ffn_down=q8_0", observer=Interrupting("layer 2"))
    calibrated(model, out, observer=again)
    assert again.state == (0, "it has another choice of types or metadata")
    assert out.read_bytes() == calibrated_model.read_bytes()


def test_inputs_that_are_not_finite(tmp_path: Path) -> None:
    nan = np.full(256, np.nan, np.float32)
    path = tiny_llama(tmp_path / "m.gguf", type="F16", **{"blk.1.attn_norm.weight": nan})
    with pytest.raises(LocalInferError, match=r"blk\.1\.attn_norm\.weight: value nan|blk\.1\.attn_v.* not finite"):
        calibrated(path, tmp_path / "out.gguf")
    assert names(tmp_path) == ["m.gguf"]


# --- the command ---


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.chdir(tmp_path)

    def run(command: str, *arguments: object) -> tuple[int, str, str]:
        code = __main__.run([command, *map(str, arguments)])
        return (code, *capsys.readouterr())

    return run


def test_the_command(run: Run, model: Path, tmp_path: Path) -> None:
    code, out, err = run("quantize", model, "out.gguf", "Q4_K_M", "--calibrate", TEXT, "--calibrate-chunks", 2)
    assert (code, out) == (0, ""), err
    assert re.search(r"\[  30/  30\] output\.weight .* converting to Q6_K", err)
    actual = open_gguf(tmp_path / "out.gguf").metadata
    assert actual["quantize.imatrix.dataset"] == str(TEXT)
    assert actual["quantize.imatrix.chunks_count"] == 2


def test_interruption_message_has_the_resume_command(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("quantize", model, "out.gguf", "Q4_K_M", "--calibrate", TEXT, "--calibrate-chunks", 2)
    with monkeypatch.context() as patch:
        patch.setattr(CalibrationProgress, "on_step", Interrupting.on_step)
        patch.setattr(CalibrationProgress, "where", "layer 3 of 3: attn_output", raising=False)
        patch.setattr(CalibrationProgress, "fractions", [0.0], raising=False)
        code, _, err = run(*command)
    assert code == 130
    assert err.splitlines()[-1] == "interrupted after layer 2 of 3; run the same command to resume"
    code, _, err = run(*command)
    assert code == 0
    assert "resuming after layer 2 of 3" in err.splitlines()
    assert names(tmp_path) == ["out.gguf"]


def test_with_target_size(run: Run, model: Path, tmp_path: Path) -> None:
    actual = run("quantize", model, "out.gguf", "--target-bpw", 5, "--calibrate", TEXT, "--calibrate-chunks", 2)
    assert actual[0] == 0, actual[2]
    assert len({tensor.type_name for tensor in open_gguf(tmp_path / "out.gguf").tensors.values()}) > 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--calibrate", TEXT, "--imatrix", "x"], "--imatrix: cannot be combined with --calibrate"),
        (["--calibrate", TEXT, "--effort", "normal"], "--effort: cannot be combined with --calibrate"),
        (["--calibrate", TEXT, "--keep-split"], "--keep-split: cannot be combined with --calibrate"),
        (["--calibrate", TEXT, "--prune-layers", "1"], "--prune-layers: cannot be combined with --calibrate; prune"),
        (["--calibrate", TEXT, "--report", "r.json"], "--report: cannot be combined with --calibrate"),
        (["--calibrate-chunks", "5"], "--calibrate-chunks: requires --calibrate FILE"),
        (["--calibrate", "none.txt"], "none.txt: No such file or directory"),
        (["--calibrate", "short.txt"], "--calibrate: a text of 5 tokens is too short: 2 chunks of 512 need 1024"),
    ],
)
def test_usage_errors(run: Run, model: Path, tmp_path: Path, arguments: list[object], message: str) -> None:
    (tmp_path / "short.txt").write_text("Hello hello")
    code, out, err = run("quantize", model, "out.gguf", "Q4_K_M", *arguments)
    assert (code in (1, 2), out) == (True, "")
    [line] = err.splitlines()
    assert line.startswith(f"error: {message}")
    assert names(tmp_path) == ["short.txt"]


def test_checkpoint_must_be_converted_first(run: Run, tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    code, _, err = run("quantize", "checkpoint", "out.gguf", "Q4_K_M", "--calibrate", TEXT)
    hint = "convert it with `localinfer quantize checkpoint FILE F16`"
    assert (code, err) == (2, f"error: --calibrate: checkpoint: must be a GGUF file; {hint}\n")


def test_no_imatrix_is_needed(model: Path) -> None:
    plan = make_plan(from_gguf(model), Request("IQ2_XXS", calibrated=True))
    assert plan.problem is None
    assert make_plan(from_gguf(model), Request("IQ2_XXS")).problem is not None


def test_calibration_improves_a_real_model(run: Run, smollm2: Path, tmp_path: Path) -> None:
    """The calibration text and the evaluation text are halves of one text. Only the first two layers get fewer bits:
    searching and error feedback would take minutes for all thirty.
    """
    text = TEXT.read_text()
    (tmp_path / "a.txt").write_text(text[: len(text) * 3 // 5])
    (tmp_path / "b.txt").write_text(text[len(text) * 3 // 5 :])
    quantizing = partial(run, "quantize", smollm2)
    more = ["--allow-requantize", "--force"]
    assert quantizing("q8_0.gguf", "Q8_0", *more)[0] == 0
    more += ["--token-embedding-type", "Q8_0", "--tensor-type", r"blk\.([2-9]|\d\d)\.=Q8_0"]
    divergences = []
    for arguments in (["--calibrate", "a.txt"], []):
        assert run("quantize", "q8_0.gguf", "out.gguf", "Q3_K_M", *arguments, *more)[0] == 0
        code, out, err = run("compare", "q8_0.gguf", "out.gguf", "-f", "b.txt", "-c", 256, "--json")
        assert code == 0, err
        divergences.append(json.loads(out)["divergence"]["mean"]["value"])
    assert divergences[0] < 0.75 * divergences[1]
