"""Quantization to a target size: the limit is never exceeded, and no cheaper choice of types has less noise."""

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import reference_models
from checkpoints import as_type
from gguf import GGMLQuantizationType, dequantize
from tiny import tiny_llama

from localinfer.errors import LocalInferError
from localinfer.gguf.gguf_source import from_gguf
from localinfer.gguf.reader import open_gguf
from localinfer.gguf.source import SourceTensor
from localinfer.quantization.budget import (
    Target,
    TypeOption,
    candidates_for,
    choose_options,
    convex_hull,
    parse_bits,
    parse_size,
    plan_for_target,
)
from localinfer.quantization.noise import evenly_spaced, limited, measure_noise, relative_noise
from localinfer.quantization.plan import QuantizationPlan, Request, parse_pattern
from localinfer.quantization.quantize import make_encoder_factory
from localinfer.quantization.recipes import RECIPES, TypeOverrides, recipe_for_base, tensors_without_override
from localinfer.quantization.rows import matrices
from quant.ggml import TYPE_NUMBERS, TYPES

Run = Callable[..., tuple[int, str, str]]


# --- choice ---


def exhaustive(options: Mapping[str, Sequence[TypeOption]], limit: int) -> float:
    """The least noise within the limit, by exhaustive search."""
    possible = itertools.product(*options.values())
    return min(sum(each.noise for each in choice) for choice in possible if cost(choice) <= limit)


def cost(choice: Sequence[TypeOption]) -> int:
    return sum(option.cost for option in choice)


def random_options(seed: int) -> dict[str, list[TypeOption]]:
    """Four tensors with five types each, some of which are not worth their cost."""
    rng = np.random.default_rng(seed)
    return {
        name: [TypeOption(f"T{i}", int(rng.integers(1, 40)), float(rng.exponential() / (1 + i))) for i in range(5)]
        for name in "abcd"
    }


@pytest.mark.parametrize("seed", range(5))
class TestChooseOptions:
    def test_within_one_step_of_optimum(self, seed: int) -> None:
        """The optimum is better by at most one step: the first one that was not affordable."""
        options = random_options(seed)
        curves = [convex_hull(each) for each in options.values()]
        largest = max(a.noise - b.noise for curve in curves for a, b in itertools.pairwise(curve))
        for limit in range(sum(curve[0].cost for curve in curves), 161, 3):
            actual = list(choose_options(options, limit).values())
            best = exhaustive(options, limit)
            assert cost(actual) <= limit
            assert best - 1e-12 <= sum(option.noise for option in actual) <= best + largest

    def test_optimal_at_the_end_of_a_step(self, seed: int) -> None:
        """If steps along the hulls use the budget exactly, nothing with the same cost is better."""
        options = random_options(seed)
        curves = [convex_hull(each) for each in options.values()]
        steps = [(a, b) for curve in curves for a, b in itertools.pairwise(curve)]
        limit = sum(curve[0].cost for curve in curves)
        for before, after in sorted(
            steps, key=lambda step: (step[1].noise - step[0].noise) / (step[1].cost - step[0].cost)
        ):
            limit += after.cost - before.cost
            actual = choose_options(options, limit).values()
            assert sum(option.noise for option in actual) == pytest.approx(exhaustive(options, limit), rel=1e-12)

    def test_unlimited_budget(self, seed: int) -> None:
        options = random_options(seed)
        actual = choose_options(options, 10_000)
        assert {name: option.noise for name, option in actual.items()} == {
            name: min(option.noise for option in each) for name, each in options.items()
        }


def test_hull_drops_inefficient_options() -> None:
    curve = [TypeOption("a", 1, 8.0), TypeOption("c", 3, 2.0), TypeOption("e", 9, 1.0)]
    others = [
        TypeOption("b", 2, 6.0),
        TypeOption("d", 6, 1.9),
        TypeOption("same", 3, 2.5),
        TypeOption("worse", 10, 1.5),
    ]
    assert convex_hull([*others, *curve]) == curve


def test_large_tensor_gets_its_bytes_before_small_ones() -> None:
    """Small steps remove more noise per byte, and leave too little for the large one, which removes more."""
    small = {name: [TypeOption("small", 1, 3.0), TypeOption("large", 2, 0.0)] for name in "abcd"}
    options = {"e": [TypeOption("small", 10, 24.0), TypeOption("large", 20, 0.0)], **small}
    chosen = choose_options(options, 24)
    assert {name: option.type for name, option in chosen.items()} == {"e": "large"} | dict.fromkeys("abcd", "small")
    assert choose_options({}, 1) == {}


def test_remaining_budget_is_spent() -> None:
    """The step along the hull costs too much; an option off the hull does not."""
    options = {"a": [TypeOption("small", 1, 8.0), TypeOption("odd", 3, 7.0), TypeOption("large", 5, 1.0)]}
    assert [choose_options(options, limit)["a"].type for limit in (1, 2, 3, 4, 5)] == [
        "small",
        "small",
        "odd",
        "odd",
        "large",
    ]


# --- measurement ---


def test_noise_is_weighted() -> None:
    x = np.array([[3.0, 1.0], [4.0, 2.0]], np.float32)
    y = np.array([[3.0, 1.5], [4.5, 2.0]], np.float32)
    assert relative_noise(x, y, None) == pytest.approx(0.5 / 30)
    assert relative_noise(x, y, np.array([0, 2], np.float32)) == pytest.approx(0.5 / 10)
    assert relative_noise(0 * x, 0 * y, None) == 0


def test_a_massive_activation_does_not_decide_alone() -> None:
    importance = np.array([0, 1, 2, 3, 1e6], np.float32)
    np.testing.assert_array_equal(limited(importance), [0, 1, 2, 3, 25])
    zeros = np.zeros(5, np.float32)
    np.testing.assert_array_equal(limited(zeros), zeros)


def test_samples_are_evenly_spaced() -> None:
    assert evenly_spaced(10, 4) == [0, 2, 5, 7]
    assert evenly_spaced(3, 64) == [0, 1, 2]


def test_every_expert_has_its_importance(tmp_path: Path) -> None:
    """Compute the noise of all rows of two experts with the encoder only."""
    experts = np.random.default_rng(3).standard_normal((2, 8, 256), np.float32)
    name = "blk.0.ffn_up_exps.weight"
    source = from_gguf(tiny_llama(tmp_path / "m.gguf", type="F16", n_layer=1, **{name: experts}))
    importance = {name: np.random.default_rng(4).random((2, 256), np.float32)}
    q4_0 = TYPE_NUMBERS["Q4_0"]
    encoder_factory = make_encoder_factory("normal", importance)
    actual = measure_noise(source, {name: [q4_0]}, encoder_factory=encoder_factory, importance=importance, threads=2)
    fractions = []
    for x, w, matrix in zip(experts, importance[name], matrices(source.tensors[name], q4_0), strict=True):
        out = np.empty((8, 8 * 18), np.uint8)
        encoder_factory(matrix)(x, out)
        y = dequantize(out, GGMLQuantizationType.Q4_0)
        fractions.append((w * np.square(y - x, dtype=np.float64)).sum() / (w * np.square(x, dtype=np.float64)).sum())
    assert actual[name][q4_0] == pytest.approx(np.mean(fractions), rel=1e-5)


# --- candidates ---


def tensor(n: int, kind: str = "F16") -> SourceTensor:
    def never() -> np.ndarray:
        raise AssertionError("nothing needs to be read")

    return SourceTensor("blk.0.attn_q.weight", (4, n), TYPE_NUMBERS[kind], never)


class TestCandidates:
    def test_smallest_types_need_importance(self) -> None:
        assert candidates_for(tensor(256), True)[:3] == ["IQ2_XXS", "IQ2_XS", "IQ2_S"]
        assert candidates_for(tensor(256), False)[0] == "Q2_K"
        assert candidates_for(tensor(256), False)[-2:] == ["Q8_0", "F16"]

    def test_rows_not_divisible_by_256(self) -> None:
        assert candidates_for(tensor(96), True) == ["Q4_0", "IQ4_NL", "Q5_0", "Q5_1", "Q8_0", "F16"]
        assert candidates_for(tensor(33), True) == ["F16"]

    def test_none_larger_than_the_source(self) -> None:
        assert candidates_for(tensor(96, "Q5_0"), True) == ["Q4_0", "IQ4_NL", "Q5_0"]
        assert candidates_for(tensor(33, "F32"), True) == ["F16", "F32"]
        assert candidates_for(tensor(33, "BF16"), True) == ["BF16"]

    def test_overrides_are_left_alone(self) -> None:
        tensors = [tensor(256)]
        assert tensors_without_override(tensors, TypeOverrides()) == ["blk.0.attn_q.weight"]
        assert tensors_without_override(tensors, TypeOverrides(patterns=(parse_pattern("attn_q=q8_0"),))) == []

    def test_every_base_has_a_recipe(self) -> None:
        assert all(RECIPES[recipe_for_base(recipe.base)].base == recipe.base for recipe in RECIPES.values())
        assert [recipe_for_base(base) for base in ("Q4_K", "Q8_0", "IQ2_S")] == ["Q4_K_M", "Q8_0", "IQ2_M"]


# --- targets ---


class TestParsing:
    @pytest.mark.parametrize(
        ("text", "size"),
        [
            ("700MB", 700_000_000), ("0.7gb", 700_000_000), ("1.5MiB", 3 << 19), ("123", 123), ("5B", 5),
            ("2kib", 2048), ("8g", 8_000_000_000),
        ],
    )
    def test_sizes(self, text: str, size: int) -> None:
        assert parse_size(text) == Target(text, size=size)

    @pytest.mark.parametrize("text", ["", "MB", "-1MB", "1 MB", "1e9", "nan", "١MB"])
    def test_invalid_sizes(self, text: str) -> None:
        with pytest.raises(ValueError, match="must be a number of bytes"):
            parse_size(text)

    def test_bits(self) -> None:
        assert parse_bits("4.5") == Target("4.5", bits=Fraction(9, 2))
        with pytest.raises(ValueError, match="must be at most 16, the bits of a weight in F16, not 40"):
            parse_bits("40")
        for text in ("", "x", "-4", "4bpw", "inf"):
            with pytest.raises(ValueError, match="must be a number of bits"):
                parse_bits(text)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("source") / "m.gguf", type="F16", n_layer=1)


def plan_for(model: Path, target: Target, threads: int = 1, **overrides: object) -> QuantizationPlan:
    source = from_gguf(model)
    return plan_for_target(source, Request("", TypeOverrides(**overrides)), target, effort="normal", threads=threads)  # type: ignore[arg-type]


class TestPlanForTarget:
    def test_target_bits(self, model: Path) -> None:
        for bits in ("4.0", "4.5", "5.5"):
            plan = plan_for(model, parse_bits(bits))
            tensors = plan.source.tensors.values()
            used = sum(each.n_elements * bits_of(plan, each.name) for each in tensors)
            fraction = used / sum(each.n_elements for each in tensors) / float(bits)
            assert 0.97 < fraction <= 1

    @pytest.mark.parametrize("name", ["granitemoe", "llama4", "mistral4"])
    def test_target_bits_of_mixtures_of_experts(self, name: str, tmp_path: Path) -> None:
        plan = plan_for(
            as_type(reference_models.checkpoint(name, tmp_path), tmp_path / "m.gguf", "BF16"), parse_bits("6.5")
        )
        tensors = plan.source.tensors.values()
        fraction = sum(each.n_elements * bits_of(plan, each.name) for each in tensors) / 6.5
        assert 0.95 < fraction / sum(each.n_elements for each in tensors) <= 1
        assert any("_exps" in each.name and bits_of(plan, each.name) < 16 for each in tensors)

    def test_result_is_independent_of_threads(self, model: Path) -> None:
        assert plan_for(model, parse_bits("4.5"), 1).choices == plan_for(model, parse_bits("4.5"), 3).choices

    def test_overrides_are_kept(self, model: Path) -> None:
        plan = plan_for(model, parse_bits("8.2"), patterns=(parse_pattern("ffn_up=q8_0"),), token_embedding="BF16")
        assert plan.choices["blk.0.ffn_up.weight"].type == "Q8_0"
        assert plan.choices["token_embd.weight"].type == "BF16"
        assert plan.choices["blk.0.ffn_gate.weight"].type not in ("Q8_0", "F16")

    def test_noise_decreases_with_size(self, model: Path) -> None:
        sizes = [bits_of(plan_for(model, parse_bits(bits)), "blk.0.ffn_down.weight") for bits in ("3.5", "5", "8")]
        assert sizes == sorted(sizes)

    def test_quantized_source(self, tmp_path: Path) -> None:
        quantized = tiny_llama(tmp_path / "q.gguf", n_layer=1)
        with pytest.raises(LocalInferError, match="is already Q8_0; allow_requantize"):
            plan_for(quantized, parse_bits("4.5"))


def bits_of(plan: QuantizationPlan, name: str) -> float:
    kind = TYPES[plan.types[name]]
    return 8 * kind.bytes / kind.elements


# --- the command ---


class TestCommand:
    def test_size_of_the_file(self, run: Run, model: Path, tmp_path: Path) -> None:
        for size in (280_000, 400_000, 500_001):
            code, out, err = run(model, "out.gguf", 2, "--target-size", size, "--force")
            assert (code, out) == (0, ""), err
            assert 0.97 * size < (tmp_path / "out.gguf").stat().st_size <= size
        assert re.search(r"measured \d+ samples in \d", err)

    def test_name_and_metadata(self, run: Run, model: Path) -> None:
        assert run(model, "--target-bpw", "5", "--override-kv", "general.name=str:x")[0] == 0
        written = model.parent / "ggml-model-5bpw.gguf"
        metadata, kinds = open_gguf(written).metadata, {each.type_name for each in open_gguf(written).tensors.values()}
        written.unlink()
        [recipe] = [recipe for recipe in RECIPES.values() if recipe.number == metadata["general.file_type"]]
        assert recipe.base in kinds - {"F32"}
        assert metadata["general.name"] == "x"

    def test_dry_run(self, run: Run, model: Path, tmp_path: Path) -> None:
        code, out, _ = run(model, "--target-size", "0.4MB", "--dry-run", "--tensor-type", "attn_q=f16")
        assert code == 0
        assert re.search(r"blk\.0\.attn_q\.weight +256 x 256 +F16 +-> F16", out)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("arguments", "problem"),
        [
            (["Q4_K_M", "--target-size", "1MB"], "Q4_K_M: cannot be combined with a target or a recipe file, which"),
            (["out", "q8_0", "--target-bpw", "5"], "q8_0: cannot be combined with a target"),
            (["out", "x", "--target-bpw", "5"], "THREADS: must be a number from 1 to 1024, not x"),
            (["--target-bpw", "5", "--target-size", "1MB"], "--target-size and --target-bpw: cannot be combined"),
            (["--target-bpw", "5", "--pure"], "--pure: cannot be combined"),
            (["--target-size", "much"], "--target-size: must be a number of bytes"),
            (["--target-bpw", "few"], "--target-bpw: must be a number of bits"),
            (["--target-bpw", "2"], r"--target-bpw 2: the smallest possible file has 2\.\d\d bits per weight"),
            (["--target-size", "9kB"], r"--target-size 9kB: the smallest possible file has \d{3},\d{3} bytes"),
            ([], "TYPE: missing; choose one of"),
        ],
    )
    def test_usage(self, run: Run, model: Path, tmp_path: Path, arguments: list[str], problem: str) -> None:
        code, out, err = run(model, *arguments)
        assert (code, out, list(tmp_path.iterdir())) == (2, "", [])
        [line] = err.splitlines()
        assert re.match(f"error: {problem}", line), line

    def test_reported_minimum_is_reachable(self, run: Run, model: Path, tmp_path: Path) -> None:
        size = re.search(r"([\d,]+) bytes", run(model, "--target-size", 1)[2])[1].replace(",", "")  # type: ignore[index]
        assert run(model, "out", "--target-size", size)[0] == 0
        assert (tmp_path / "out").stat().st_size == int(size)


def test_target_above_source_size_copies(run: Run, model: Path, tmp_path: Path) -> None:
    code, _, err = run(model, "out", "--target-size", "1GB")
    assert code == 0
    assert err.startswith("warning: 1GB: even the best types are smaller than the target; using them\n")
    new, old = open_gguf(tmp_path / "out").tensors, open_gguf(model).tensors
    assert {name: each.type for name, each in new.items()} == {name: each.type for name, each in old.items()}


@pytest.mark.parametrize("tensor", ["blk.1.ffn_down.weight", "token_embd.weight"])
@pytest.mark.parametrize(
    ("value", "rows"),
    [(np.nan, 1), (np.inf, 1), (0, 2), (0, 1), (3e38, 1)],
    ids=["nan", "inf", "rows", "zeros", "huge"],
)
def test_unusual_weights(run: Run, tmp_path: Path, tensor: str, value: float, rows: int) -> None:
    """Weights that are not finite are named, and nothing is left; rows of zeros and huge numbers are quantized."""
    model = tiny_llama(tmp_path / "m.gguf", type="F32", n_embd=256, n_ff=512, n_head=4, n_head_kv=2, head_dim=64)
    found = open_gguf(model).tensors[tensor]
    values = np.frombuffer(found.data, np.float32).reshape(found.shape).copy()
    values[::rows] = value
    with model.open("r+b") as file:
        file.seek(found.offset)
        file.write(values.tobytes())
    code, _, err = run(model, "out", "--target-bpw", "4.5")
    if np.isfinite(value):
        assert code == 0, err
        written = open_gguf(tmp_path / "out").tensors[tensor]
        kind = GGMLQuantizationType(written.type)
        assert np.isfinite(dequantize(written.data.reshape(written.shape[0], -1), kind)).all() or value == 3e38
    else:
        assert code == 1
        assert f"m.gguf: {tensor}: value {value} at [0, 0]" in err
        assert [each.name for each in tmp_path.iterdir()] == ["m.gguf"]
