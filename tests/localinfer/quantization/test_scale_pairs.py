"""Scale pairs in quantization: the error falls, both sides of a pair change, and adapters no longer fit."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from locations import DATA
from numpy.typing import NDArray
from tiny import tiny_llama

from localinfer import tokenizer
from localinfer.adapters.lora_file import open_lora
from localinfer.adapters.target import Target
from localinfer.errors import UnsupportedError
from localinfer.evaluation.imatrix import Collector
from localinfer.gguf.dequantize import dequantize
from localinfer.gguf.gguf_source import from_gguf
from localinfer.gguf.imatrix_file import write_imatrix
from localinfer.gguf.reader import open_gguf
from localinfer.graph.scale_pairs import ScalePair, TensorRows
from localinfer.options import Options
from localinfer.quantization.calibrate import calibrate
from localinfer.quantization.noise import quantized_rows
from localinfer.quantization.pipeline import write_plan
from localinfer.quantization.plan import QuantizationPlan, Request
from localinfer.quantization.recipe_file import RecipeFile, plan_for_recipe
from localinfer.quantization.rows import Matrix
from localinfer.quantization.scale_factors import PairMatrix, find_factors
from localinfer.quantization.scale_pairs import with_scale_pairs
from localinfer.quantization.shared_inputs import SharedInputs
from localinfer.runtime.engine import Engine
from localinfer.runtime.input_statistics import InputStatistics
from localinfer.runtime.probe import ActivationProbe
from localinfer.tokenizer.chunks import Chunks, split_text
from quant.encoders.cholesky import factorize
from quant.ggml import TYPE_NUMBERS

TEXT = DATA / "varied.txt"
TOKENS = 128
DOWN, UP = "blk.0.ffn_down.weight", "blk.0.ffn_up.weight"
MATRICES = [("blk.9.attn_q.weight", "blk.9.attn_k.weight"), ("blk.9.ffn_down.weight",)]
Q4_0 = TYPE_NUMBERS["Q4_0"]
Run = Callable[..., tuple[int, str, str]]
Floats = NDArray[np.float32]


def chunks_of(model: Path, count: int) -> Chunks:
    return split_text(tokenizer.from_gguf(open_gguf(model)), TEXT.read_text(), TOKENS, max_chunks=count)


def collected(model: Path, chunks: Chunks, out: Path) -> Path:
    """Write the importance matrix of a text, with covariances."""
    with closing(Engine.load(open_gguf(model), Options(threads=2, ctx_size=TOKENS))) as engine:
        collector = Collector(engine, covariance=True)
        list(collector.collect(chunks))
    write_imatrix(out, collector.to_imatrix("text"), replace=True)
    return out


def plan_of(model: Path, tensors: str, kind: str, **more: Any) -> QuantizationPlan:
    """A plan that changes the types of matrices whose names match."""
    request, recipe = Request("", allow_requantize=True, **more), RecipeFile(Path("recipe.json"), {tensors: kind})
    plan = plan_for_recipe(from_gguf(model), request, recipe)
    assert plan.problem is None
    return plan


def values(path: Path, name: str) -> Floats:
    tensor = open_gguf(path).tensors[name]
    return dequantize(tensor).reshape(tensor.shape)


@pytest.fixture(scope="module")
def real_inputs(smollm2: Path) -> dict[str, list[Floats]]:
    """The inputs of MATRICES in each chunk of the text."""
    found: dict[str, list[Floats]] = {name: [] for names in MATRICES for name in names}
    with closing(Engine.load(open_gguf(smollm2), Options(threads=2, ctx_size=TOKENS))) as engine:
        for chunk in chunks_of(smollm2, 0):
            engine.reset()
            for each in ActivationProbe(engine).layer_inputs(chunk):
                for name in found.keys() & {*each.names}:
                    found[name].append(each.x.copy())
    return found


@pytest.mark.parametrize("names", MATRICES)
@pytest.mark.parametrize("knows", ["covariance", "components"])
def test_error_of_real_matrices_on_unseen_text_is_lower(
    smollm2: Path, real_inputs: dict[str, list[Floats]], names: tuple[str, ...], knows: str
) -> None:
    """The noise moves the weights off the grid of the type that they have in the file."""
    source, random = from_gguf(smollm2), np.random.default_rng(0)
    *seen, unseen, _ = real_inputs[names[0]]
    statistics = InputStatistics.empty(unseen.shape[1], components=True, covariance=True)
    for x in seen:
        statistics.add(x, len(x))
    weights = [values(smollm2, name) for name in names]
    weights = [w + (0.05 * w.std() * random.standard_normal(w.shape)).astype(np.float32) for w in weights]
    factor, components = None, None
    if knows == "covariance":
        factor = factorize(statistics.covariance)
    else:
        components = statistics.components.rows.T / np.sqrt(statistics.count)
    inputs = SharedInputs(names, statistics.mean_squares, components, factor)
    matrices = [Matrix(source.tensors[name], 0, *w.shape, Q4_0) for name, w in zip(names, weights, strict=True)]

    def errors(s: Floats) -> Floats:
        """The power of the errors in the products of all rows, by matrix."""
        rounded = [quantized_rows(w * s, *each) / s for w, *each in zip(weights, matrices, factories, strict=True)]
        return np.array([np.square(unseen @ (y - w).T).sum() for y, w in zip(rounded, weights, strict=True)])

    factories = [inputs.encoder_factory for _ in names]
    unscaled = errors(np.ones(unseen.shape[1], np.float32))
    squares = [np.square(w).mean(axis=0) for w in weights]
    samples = [PairMatrix(*each, inputs) for each in zip(matrices, (w[:64] for w in weights), squares, strict=True)]
    pair = ScalePair(9, (TensorRows("maker", 0, unseen.shape[1]),), names, np.arange(unseen.shape[1]))
    factors = find_factors(pair, samples, threads=2)
    assert factors is not None
    factories = [inputs.encoder_factory for _ in names]
    assert (errors(factors) < 0.98 * unscaled).all()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in F32 whose feed-forward values differ in size, as in real models."""
    up = np.random.default_rng(0).standard_normal((512, 256)) * np.exp(np.random.default_rng(1).normal(0, 1, (512, 1)))
    changes = {UP: (up / 16).astype(np.float32)}
    return tiny_llama(tmp_path_factory.mktemp("source") / "m.gguf", type="F32", n_layer=1, tied=False, **changes)


@pytest.mark.parametrize("calibrated", [False, True])
def test_both_sides_of_a_pair_change(model: Path, tmp_path: Path, calibrated: bool) -> None:
    """Only ffn_down is quantized: the rows of ffn_up, which stays in F32, are divided by the factors of its columns."""
    out, chunks = tmp_path / "out.gguf", chunks_of(model, 4)
    if calibrated:
        plan = plan_of(model, "ffn_down", "Q4_0", calibrated=True)
        calibrate(plan, out, chunks, threads=2, scale_pairs=True)
        calibrate(plan, tmp_path / "again.gguf", chunks, scale_pairs=True)
        assert (tmp_path / "again.gguf").read_bytes() == out.read_bytes()  # with another number of threads
    else:
        plan = plan_of(model, "ffn_down", "Q4_0", imatrix=collected(model, chunks, tmp_path / "imatrix.gguf"))
        write_plan(with_scale_pairs(plan, effort="max", threads=2), out, effort="max")
    assert open_gguf(out).metadata["localinfer.scale_pairs"] is True
    factors = values(model, UP) / values(out, UP)
    np.testing.assert_allclose(factors, np.repeat(factors[:, :1], 256, axis=1), rtol=1e-5)
    assert factors.max() > 1.2 * factors.min()
    down = values(model, DOWN)
    error = values(out, DOWN) / factors[:, 0] - down
    assert np.square(error).sum() < 0.02 * np.square(down).sum()


def test_adapters_do_not_fit(model: Path, tmp_path: Path) -> None:
    f = open_gguf(model)
    assert not Target.of_file(f).has_scale_pairs
    scaled = Target.of_file(replace(f, metadata={**f.metadata, "localinfer.scale_pairs": True}))
    with pytest.raises(UnsupportedError, match=r"lora\.gguf: the model was quantized with --scale-pairs"):
        open_lora(tmp_path / "lora.gguf", scaled)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "requires --imatrix FILE or --calibrate FILE"),
        (["--imatrix", "x", "--effort", "fast"], "cannot be combined with --effort fast"),
        (["--imatrix", "x", "--prune-layers", "0"], "cannot be combined with --prune-layers"),
    ],
)
def test_usage_errors(run: Run, model: Path, arguments: list[str], message: str) -> None:
    code, out, err = run(model, "out.gguf", "Q4_K_M", "--scale-pairs", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: --scale-pairs: {message}")


def test_command(run: Run, model: Path, tmp_path: Path) -> None:
    imatrix = collected(model, chunks_of(model, 2), tmp_path / "imatrix.gguf")
    code, _, err = run(model, "out.gguf", "Q4_0", "--imatrix", imatrix, "--scale-pairs")
    assert code == 0, err
    assert open_gguf(tmp_path / "out.gguf").metadata["localinfer.scale_pairs"] is True
