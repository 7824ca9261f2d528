"""The divergence of a model with one quantized tensor equals that of two whole files, to the bit."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import reference_models
from checkpoints import as_type
from locations import DATA
from tiny import tiny_gemma3, tiny_llama

from localinfer import tokenizer
from localinfer.errors import LocalInferError, UsageError
from localinfer.evaluation.compare import compare, summarize
from localinfer.evaluation.perplexity import Mean
from localinfer.gguf.dequantize import dequantize
from localinfer.gguf.gguf_source import from_gguf
from localinfer.gguf.reader import open_gguf
from localinfer.lab.measurement import (
    SensitivityMeasurement,
    SensitivityObserver,
    measure_sensitivity,
)
from localinfer.lab.tensor_sensitivity import TensorSensitivity
from localinfer.options import Options
from localinfer.quantization.pipeline import write_plan
from localinfer.quantization.plan import QuantizationPlan, Request, make_plan, parse_pattern
from localinfer.quantization.quantize import OutputOptions
from localinfer.quantization.recipes import TypeOverrides
from localinfer.runtime.engine import Engine
from localinfer.runtime.probe import ActivationProbe
from localinfer.tokenizer.chunks import Chunks, split_text

TOKENS, CHUNKS = 32, 2


def chunks_of(model: Path, count: int = CHUNKS) -> Chunks:
    text = (DATA / "varied.txt").read_text(encoding="utf-8")
    return split_text(tokenizer.from_gguf(open_gguf(model)), text, TOKENS, max_chunks=count)


def plan_of(model: Path) -> QuantizationPlan:
    return make_plan(from_gguf(model), Request("Q8_0"))


def naive_divergence(model: Path, types: dict[str, str], folder: Path) -> Mean:
    """Write the quantized file and its conversion back to floats, and compare that with the model."""
    kind = from_gguf(model).tensors["token_embd.weight"].type_name
    patterns = tuple(parse_pattern(f"^{name}$={type}") for name, type in types.items())
    small, large = folder / "small.gguf", folder / "large.gguf"
    for source, out, overrides in (model, small, TypeOverrides(patterns=patterns)), (small, large, TypeOverrides()):
        plan = make_plan(from_gguf(source), Request(kind, overrides, allow_requantize=True))
        write_plan(plan, out, options=OutputOptions(replace=True))
    options = Options(ctx_size=TOKENS, batch_size=TOKENS, ubatch_size=TOKENS, threads=1, tune=False)
    with closing(Engine.load(open_gguf(model), options)) as a, closing(Engine.load(open_gguf(large), options)) as b:
        *_, scores = compare(a, b, chunks_of(model))
    return summarize(scores).divergence.mean


def untied_llama(folder: Path) -> Path:
    return tiny_llama(folder / "llama.gguf", type="F32", n_layer=3, tied=False)


def half_gemma3(folder: Path) -> Path:
    """A model with tied embeddings and windows, in F16."""
    return tiny_gemma3(folder / "gemma3.gguf", type="F16", n_layer=3)


def gemma3n(folder: Path) -> Path:
    """A model whose layers share more than the residual stream."""
    return as_type(reference_models.checkpoint("gemma3n", folder), folder / "gemma3n.gguf", "F32")


class Recorder(SensitivityObserver):
    def __init__(self) -> None:
        self.estimates: list[tuple[int, float]] = []
        self.fractions: list[float] = []
        self.found: dict[str, TensorSensitivity] = {}

    def on_estimate(self, tensors: int, seconds: float) -> None:
        self.estimates.append((tensors, seconds))

    def on_progress(self, what: str, fraction: float) -> None:
        self.fractions.append(fraction)

    def on_tensor(self, found: TensorSensitivity) -> None:
        self.found[found.name] = found


Measured = tuple[Path, dict[str, TensorSensitivity], Recorder]


@pytest.fixture(scope="module", params=[untied_llama, half_gemma3, gemma3n], ids=lambda make: make.__name__)
def measured(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Measured:
    model, recorder = request.param(tmp_path_factory.mktemp("model")), Recorder()
    return model, measure_sensitivity(plan_of(model), chunks_of(model), observer=recorder), recorder


def test_equals_conversion_of_whole_files(measured: Measured, tmp_path: Path) -> None:
    model, found, _ = measured
    n_layer = max(int(name.split(".")[1]) for name in found if name.startswith("blk."))
    names = ["token_embd.weight", "output.weight", f"blk.{n_layer}.ffn_down.weight", "blk.1.attn_q.weight"]
    for name in names:
        if name in found:
            [kind, *_] = found[name].measured
            naive = naive_divergence(model, {name: kind}, tmp_path)
            assert (found[name].divergences[kind], found[name].measured[kind]) == (naive.value, naive.error), name
            assert naive.value > 1e-6, name


def test_every_matrix_is_measured_in_one_type(measured: Measured) -> None:
    model, found, recorder = measured
    source = from_gguf(model)
    assert list(found) == [name for name in source.tensors if name in found]
    assert all(f"blk.0.{name}.weight" in found for name in ("attn_q", "attn_output", "ffn_up", "ffn_down"))
    assert not any("norm" in name for name in found)
    assert recorder.found == found
    assert recorder.estimates[0][0] == len(found)
    assert recorder.estimates[0][1] > 0
    assert recorder.fractions[0] == 0
    assert recorder.fractions == sorted(recorder.fractions)
    assert recorder.fractions[-1] < 1


def test_unmeasured_types_follow_the_error_of_the_outputs(measured: Measured) -> None:
    _, found, _ = measured
    each = found["blk.0.ffn_up.weight"]
    [reference] = each.measured
    for kind, error in each.output_errors.items():
        expected = each.divergences[reference] * error / each.output_errors[reference]
        assert each.divergences[kind] == pytest.approx(expected)
    assert each.divergences["Q8_0"] < each.divergences["Q5_0"] < each.divergences["Q4_0"]


@pytest.mark.parametrize("measured", [untied_llama], indirect=True)
def test_whole_choices_of_types(measured: Measured, tmp_path: Path) -> None:
    """All tensors at once, and the weights afterwards are the original ones."""
    model = measured[0]
    types = {"token_embd.weight": "Q4_0", "blk.0.ffn_up.weight": "Q5_0", "blk.2.attn_v.weight": "F32"}
    with SensitivityMeasurement(plan_of(model), chunks_of(model), threads=2) as measurement:
        actual = measurement.divergence_of(types)
        assert measurement.divergence_of({}).value == 0
    del types["blk.2.attn_v.weight"]
    assert actual == naive_divergence(model, types, tmp_path)


@pytest.mark.parametrize("measured", [untied_llama], indirect=True)
def test_layers_at_once(measured: Measured, tmp_path: Path) -> None:
    """Tensors of the same kind in two layers share the divergence of both, by the errors in their outputs."""
    model, alone, _ = measured
    recorder = Recorder()
    found = measure_sensitivity(plan_of(model), chunks_of(model), layers_at_once=2, observer=recorder)
    assert found.keys() == recorder.found.keys() == alone.keys()
    first, second = (found[f"blk.{layer}.ffn_up.weight"] for layer in (0, 1))
    naive = naive_divergence(model, {first.name: "Q4_0", second.name: "Q4_0"}, tmp_path)
    assert first.divergences["Q4_0"] + second.divergences["Q4_0"] == pytest.approx(naive.value, rel=1e-12)
    assert first.output_errors == alone[first.name].output_errors
    assert second.output_errors == alone[second.name].output_errors
    ratio = first.output_errors["Q4_0"] / second.output_errors["Q4_0"]
    assert first.divergences["Q4_0"] / second.divergences["Q4_0"] == pytest.approx(ratio)
    for name in ("token_embd.weight", "output.weight", "blk.2.ffn_up.weight"):
        assert found[name] == alone[name]


@pytest.mark.parametrize("measured", [untied_llama], indirect=True)
def test_errors_in_the_outputs(measured: Measured, tmp_path: Path) -> None:
    """Compute the outputs of a matrix, exact and quantized, for all of its rows and inputs in float64."""
    name = "blk.1.ffn_down.weight"
    model, found = measured[0], measured[1][name]
    plan = make_plan(from_gguf(model), Request("F32", TypeOverrides(patterns=(parse_pattern(f"{name}=q4_0"),))))
    write_plan(plan, tmp_path / "out.gguf")
    x, y = (dequantize(open_gguf(path).tensors[name]).astype(np.float64) for path in (model, tmp_path / "out.gguf"))
    ratios = []
    options = Options(ctx_size=TOKENS, batch_size=TOKENS, ubatch_size=TOKENS, tune=False)
    with closing(Engine.load(open_gguf(model), options)) as engine:
        for chunk in chunks_of(model):
            engine.reset()
            for given in ActivationProbe(engine).layer_inputs(chunk[:-1]):
                if name in given.names:
                    signal = np.square(given.x @ x.T).sum(axis=1)
                    noise = np.square(given.x @ (y - x).T).sum(axis=1)
                    ratios.append(noise / np.maximum(signal, np.median(signal)))
    assert found.output_errors["Q4_0"] == pytest.approx(np.mean(ratios), rel=0.1)  # a sample of a quarter of the rows
    assert found.weight_errors["Q4_0"] == pytest.approx(np.square(y - x).sum() / np.square(x).sum(), rel=0.1)


@pytest.mark.parametrize("measured", [untied_llama], indirect=True)
def test_interrupted_measurement_continues(measured: Measured) -> None:
    model, expected, _ = measured

    class Interrupted(Recorder):
        def on_tensor(self, found: TensorSensitivity) -> None:
            super().on_tensor(found)
            if found.name.startswith("blk.1."):
                raise KeyboardInterrupt

    first, second = Interrupted(), Recorder()
    with pytest.raises(KeyboardInterrupt):
        measure_sensitivity(plan_of(model), chunks_of(model), observer=first)
    plan, chunks = plan_of(model), chunks_of(model)
    assert measure_sensitivity(plan, chunks, threads=2, known=first.found, observer=second) == expected
    assert not first.found.keys() & second.found.keys()


def test_quantized_source(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "q.gguf", n_layer=1)
    with pytest.raises(UsageError, match=r"q\.gguf: token_embd\.weight: is Q8_0; the source must be F32, F16 or BF16"):
        measure_sensitivity(plan_of(model), chunks_of(model))


@pytest.mark.parametrize("name", ["blk.1.ffn_down.weight", "token_embd.weight"])
def test_weights_that_are_not_finite(name: str, tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "m.gguf", type="F32")
    tensor = open_gguf(model).tensors[name]
    with model.open("r+b") as file:
        file.seek(tensor.offset)
        file.write(np.full(tensor.shape[-1], np.nan, np.float32).tobytes())
    with pytest.raises(LocalInferError, match=r"m\.gguf: "):
        measure_sensitivity(plan_of(model), chunks_of(model))
