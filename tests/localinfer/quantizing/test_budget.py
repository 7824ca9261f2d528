"""A target is met, never exceeded, and no choice of types that costs as little has less noise."""

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import proofs
import pytest
from checkpoints import as_type
from gguf import GGMLQuantizationType, dequantize
from tiny import tiny_llama

from cli import __main__
from localinfer.errors import LocalInferError
from localinfer.files.gguf import open_gguf
from localinfer.files.source import SourceTensor
from localinfer.files.split import from_gguf
from localinfer.quantizing.budget import Offer, Target, candidates_for, chosen, fit, hull, parsed_bits, parsed_size
from localinfer.quantizing.mixture import Mixture, Request, parsed_pattern
from localinfer.quantizing.noise import measure, noise_share, spread
from localinfer.quantizing.quantize import encoders
from localinfer.quantizing.recipe_rules import NUMBER_OF_TYPE
from localinfer.quantizing.recipes import RECIPES, Wishes, left_open, recipe_of_base
from localinfer.quantizing.rows import matrices
from quant.ggml import TYPES

Run = Callable[..., tuple[int, str, str]]


# --- the choice ---


def exhaustive(offers: Mapping[str, Sequence[Offer]], limit: int) -> float:
    """The least noise that the limit can buy."""
    possible = itertools.product(*offers.values())
    return min(sum(each.noise for each in choice) for choice in possible if cost(choice) <= limit)


def cost(choice: Sequence[Offer]) -> int:
    return sum(offer.cost for offer in choice)


def random_offers(seed: int) -> dict[str, list[Offer]]:
    """Four tensors with five types each, not all of which are worth their cost."""
    rng = np.random.default_rng(seed)
    return {
        name: [Offer(f"T{i}", int(rng.integers(1, 40)), float(rng.exponential() / (1 + i))) for i in range(5)]
        for name in "abcd"
    }


@pytest.mark.parametrize("seed", range(5))
class TestChosen:
    def test_nearly_the_best(self, seed: int) -> None:
        """What the best choice has less is no more than one step, the one that could not be paid in whole."""
        offers = random_offers(seed)
        curves = [hull(each) for each in offers.values()]
        largest = max(a.noise - b.noise for curve in curves for a, b in itertools.pairwise(curve))
        for limit in range(sum(curve[0].cost for curve in curves), 161, 3):
            found = list(chosen(offers, limit).values())
            best = exhaustive(offers, limit)
            assert cost(found) <= limit
            assert best - 1e-12 <= sum(offer.noise for offer in found) <= best + largest

    def test_the_best_where_steps_end(self, seed: int) -> None:
        """By the walk down all hulls at once, step after step, there is nothing better for the same cost."""
        offers = random_offers(seed)
        curves = [hull(each) for each in offers.values()]
        steps = [(a, b) for curve in curves for a, b in itertools.pairwise(curve)]
        limit = sum(curve[0].cost for curve in curves)
        for before, after in sorted(
            steps, key=lambda step: (step[1].noise - step[0].noise) / (step[1].cost - step[0].cost)
        ):
            limit += after.cost - before.cost
            found = chosen(offers, limit).values()
            assert sum(offer.noise for offer in found) == pytest.approx(exhaustive(offers, limit), rel=1e-12)

    def test_enough_for_everything(self, seed: int) -> None:
        offers = random_offers(seed)
        found = chosen(offers, 10_000)
        assert {name: offer.noise for name, offer in found.items()} == {
            name: min(offer.noise for offer in each) for name, each in offers.items()
        }


def test_hull_leaves_out_what_is_not_worth_its_cost() -> None:
    curve = [Offer("a", 1, 8.0), Offer("c", 3, 2.0), Offer("e", 9, 1.0)]
    others = [Offer("b", 2, 6.0), Offer("d", 6, 1.9), Offer("same", 3, 2.5), Offer("worse", 10, 1.5)]
    assert hull([*others, *curve]) == curve


def test_what_is_left_is_spent() -> None:
    """The step down the hull costs too much; an offer off the hull does not."""
    offers = {"a": [Offer("small", 1, 8.0), Offer("odd", 3, 7.0), Offer("large", 5, 1.0)]}
    assert [chosen(offers, limit)["a"].type for limit in (1, 2, 3, 4, 5)] == ["small", "small", "odd", "odd", "large"]


# --- what is measured ---


def test_noise_is_the_weighted_share() -> None:
    x = np.array([[3.0, 1.0], [4.0, 2.0]], np.float32)
    y = np.array([[3.0, 1.5], [4.5, 2.0]], np.float32)
    assert noise_share(x, y, None) == pytest.approx(0.5 / 30)
    assert noise_share(x, y, np.array([0, 2], np.float32)) == pytest.approx(0.5 / 10)
    assert noise_share(0 * x, 0 * y, None) == 0


def test_samples_are_spread() -> None:
    assert spread(10, 4) == [0, 2, 5, 7]
    assert spread(3, 64) == [0, 1, 2]


def test_every_expert_has_its_importance(tmp_path: Path) -> None:
    """The noise of all rows of two experts, with nothing of the code that is tested but the encoder."""
    experts = np.random.default_rng(3).standard_normal((2, 8, 256), np.float32)
    name = "blk.0.ffn_up_exps.weight"
    source = from_gguf(tiny_llama(tmp_path / "m.gguf", type="F16", n_layer=1, **{name: experts}))
    importance = {name: np.random.default_rng(4).random((2, 256), np.float32)}
    q4_0 = NUMBER_OF_TYPE["Q4_0"]
    encoder_of = encoders("normal", importance)
    found = measure(source, {name: [q4_0]}, encoder_of=encoder_of, importance=importance, threads=2)
    shares = []
    for x, w, matrix in zip(experts, importance[name], matrices(source.tensors[name], q4_0), strict=True):
        out = np.empty((8, 8 * 18), np.uint8)
        encoder_of(matrix)(x, out)
        y = dequantize(out, GGMLQuantizationType.Q4_0)
        shares.append((w * np.square(y - x, dtype=np.float64)).sum() / (w * np.square(x, dtype=np.float64)).sum())
    assert found[name][q4_0] == pytest.approx(np.mean(shares), rel=1e-5)


# --- what there is to choose from ---


def tensor(n: int, kind: str = "F16") -> SourceTensor:
    def never() -> np.ndarray:
        raise AssertionError("nothing needs to be read")

    return SourceTensor("blk.0.attn_q.weight", (4, n), NUMBER_OF_TYPE[kind], never)


class TestCandidates:
    def test_smallest_types_need_an_importance(self) -> None:
        assert candidates_for(tensor(256), True)[:3] == ["IQ2_XXS", "IQ2_XS", "IQ2_S"]
        assert candidates_for(tensor(256), False)[0] == "Q2_K"
        assert candidates_for(tensor(256), False)[-2:] == ["Q8_0", "F16"]

    def test_rows_that_256_does_not_divide(self) -> None:
        assert candidates_for(tensor(96), True) == ["Q4_0", "IQ4_NL", "Q5_0", "Q5_1", "Q8_0", "F16"]
        assert candidates_for(tensor(33), True) == ["F16"]

    def test_none_larger_than_the_source(self) -> None:
        assert candidates_for(tensor(96, "Q5_0"), True) == ["Q4_0", "IQ4_NL", "Q5_0"]
        assert candidates_for(tensor(33, "F32"), True) == ["F16", "F32"]
        assert candidates_for(tensor(33, "BF16"), True) == ["BF16"]

    def test_wishes_are_not_for_us(self) -> None:
        tensors = [tensor(256)]
        assert left_open(tensors, Wishes()) == ["blk.0.attn_q.weight"]
        assert left_open(tensors, Wishes(patterns=(parsed_pattern("attn_q=q8_0"),))) == []

    def test_every_base_has_a_recipe(self) -> None:
        assert all(RECIPES[recipe_of_base(recipe.base)].base == recipe.base for recipe in RECIPES.values())
        assert [recipe_of_base(base) for base in ("Q4_K", "Q8_0", "IQ2_S")] == ["Q4_K_M", "Q8_0", "IQ2_M"]


# --- targets ---


class TestWords:
    @pytest.mark.parametrize(
        ("text", "size"),
        [("700MB", 700_000_000), ("0.7gb", 700_000_000), ("1.5MiB", 3 << 19), ("123", 123), ("5B", 5), ("2kib", 2048)],
    )
    def test_sizes(self, text: str, size: int) -> None:
        assert parsed_size(text) == Target(text, size=size)

    @pytest.mark.parametrize("text", ["", "MB", "-1MB", "1M", "1 MB", "1e9", "nan", "١MB"])
    def test_no_sizes(self, text: str) -> None:
        with pytest.raises(ValueError, match="must be a number of bytes"):
            parsed_size(text)

    def test_bits(self) -> None:
        assert parsed_bits("4.5") == Target("4.5", bits=Fraction(9, 2))
        with pytest.raises(ValueError, match="must be at most 16, the bits of a weight in F16, not 40"):
            parsed_bits("40")
        for text in ("", "x", "-4", "4bpw", "inf"):
            with pytest.raises(ValueError, match="must be a number of bits"):
                parsed_bits(text)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("source") / "m.gguf", type="F16", n_layer=1)


def found(model: Path, target: Target, threads: int = 1, **wishes: object) -> Mixture:
    source = from_gguf(model)
    return fit(source, Request("", Wishes(**wishes)), target, effort="normal", threads=threads)  # type: ignore[arg-type]


class TestFit:
    def test_bits_are_met(self, model: Path) -> None:
        for bits in ("4.0", "4.5", "5.5"):
            mixture = found(model, parsed_bits(bits))
            tensors = mixture.source.tensors.values()
            taken = sum(each.n_elements * bits_of(mixture, each.name) for each in tensors)
            share = taken / sum(each.n_elements for each in tensors) / float(bits)
            assert 0.97 < share <= 1

    @pytest.mark.parametrize("name", ["granitemoe", "llama4", "mistral4"])
    def test_bits_of_mixtures_are_met(self, name: str, tmp_path: Path) -> None:
        mixture = found(as_type(proofs.checkpoint(name, tmp_path), tmp_path / "m.gguf", "BF16"), parsed_bits("6.5"))
        tensors = mixture.source.tensors.values()
        share = sum(each.n_elements * bits_of(mixture, each.name) for each in tensors) / 6.5
        assert 0.95 < share / sum(each.n_elements for each in tensors) <= 1
        assert any("_exps" in each.name and bits_of(mixture, each.name) < 16 for each in tensors)

    def test_threads_change_nothing(self, model: Path) -> None:
        assert found(model, parsed_bits("4.5"), 1).choices == found(model, parsed_bits("4.5"), 3).choices

    def test_wishes_stay(self, model: Path) -> None:
        mixture = found(model, parsed_bits("8.2"), patterns=(parsed_pattern("ffn_up=q8_0"),), token_embedding="BF16")
        assert mixture.choices["blk.0.ffn_up.weight"].type == "Q8_0"
        assert mixture.choices["token_embd.weight"].type == "BF16"
        assert mixture.choices["blk.0.ffn_gate.weight"].type not in ("Q8_0", "F16")

    def test_more_bytes_never_make_more_noise(self, model: Path) -> None:
        sizes = [bits_of(found(model, parsed_bits(bits)), "blk.0.ffn_down.weight") for bits in ("3.5", "5", "8")]
        assert sizes == sorted(sizes)

    def test_quantized_source(self, tmp_path: Path) -> None:
        quantized = tiny_llama(tmp_path / "q.gguf", n_layer=1)
        with pytest.raises(LocalInferError, match="is Q8_0 already; --allow-requantize"):
            found(quantized, parsed_bits("4.5"))


def bits_of(mixture: Mixture, name: str) -> float:
    kind = TYPES[mixture.types[name]]
    return 8 * kind.bytes / kind.elements


# --- the command ---


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> tuple[int, str, str]:
        code = __main__.run(["quantize", *map(str, arguments)])
        return (code, *capsys.readouterr())

    return run


class TestCommand:
    def test_size_of_the_file(self, run: Run, model: Path, tmp_path: Path) -> None:
        for size in (280_000, 400_000, 500_001):
            code, out, err = run(model, "out.gguf", 2, "--target-size", size, "--force")
            assert (code, out) == (0, ""), err
            assert 0.97 * size < (tmp_path / "out.gguf").stat().st_size <= size
        assert re.search(r"measured \d+ samples of types in \d", err)

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
        ("words", "problem"),
        [
            (["Q4_K_M", "--target-size", "1MB"], "Q4_K_M: a target chooses the types: leave it out"),
            (["out", "q8_0", "--target-bpw", "5"], "q8_0: a target chooses the types"),
            (["out", "x", "--target-bpw", "5"], "THREADS: must be a number from 1 to 1024, not x"),
            (["--target-bpw", "5", "--target-size", "1MB"], "--target-size and --target-bpw: only one"),
            (["--target-bpw", "5", "--pure"], "--pure: with a target"),
            (["--target-size", "much"], "--target-size: must be a number of bytes"),
            (["--target-bpw", "few"], "--target-bpw: must be a number of bits"),
            (["--target-bpw", "2"], r"--target-bpw 2: the smallest file that can be had takes 2\.\d\d bits a weight"),
            (["--target-size", "9kB"], r"--target-size 9kB: the smallest file that can be had takes \d{3},\d{3} bytes"),
            ([], "TYPE: is missing, and no target is given"),
        ],
    )
    def test_usage(self, run: Run, model: Path, tmp_path: Path, words: list[str], problem: str) -> None:
        code, out, err = run(model, *words)
        assert (code, out, list(tmp_path.iterdir())) == (2, "", [])
        [line] = err.splitlines()
        assert re.match(f"error: {problem}", line), line

    def test_smallest_that_is_told_can_be_had(self, run: Run, model: Path, tmp_path: Path) -> None:
        size = re.search(r"([\d,]+) bytes", run(model, "--target-size", 1)[2])[1].replace(",", "")  # type: ignore[index]
        assert run(model, "out", "--target-size", size)[0] == 0
        assert (tmp_path / "out").stat().st_size == int(size)


def test_more_than_the_source_takes_is_a_copy(run: Run, model: Path, tmp_path: Path) -> None:
    code, _, err = run(model, "out", "--target-size", "1GB")
    assert code == 0
    assert err.startswith("warning: 1GB: there is room for more than the best types, which are taken\n")
    new, old = open_gguf(tmp_path / "out").tensors, open_gguf(model).tensors
    assert {name: each.type for name, each in new.items()} == {name: each.type for name, each in old.items()}
