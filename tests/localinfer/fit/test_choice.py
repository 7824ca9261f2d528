"""What a decode step reads, and the choices of types for a time, a divergence and a size."""

import itertools
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from tiny import tiny_llama, tiny_qwen3moe

from localinfer import tokenizer
from localinfer.errors import UsageError
from localinfer.fit.choice import FitPoint, Goal, SpeedCurve
from localinfer.fit.decode_time import DecodeTime, Read, measure_decode_time, rate_of, reads_of
from localinfer.fit.passages import divide
from localinfer.fit.speculation import SpeculationSpeed, fastest
from localinfer.gguf.gguf_source import from_gguf
from localinfer.gguf.reader import open_gguf
from localinfer.lab.frontier import SizeCurve
from localinfer.lab.measurement import measurable_types
from localinfer.quantization.plan import Request, make_plan

RATES = {("Q4_0", 64): 1e9, ("Q8_0", 64): 3e9, ("Q8_0", 32): 2e9, ("F32", 64): 8e9}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("source") / "m.gguf", type="F32", n_layer=2)


@pytest.fixture(scope="module")
def curve(model: Path) -> SizeCurve:
    """A model whose divergences fall with the bits, and in each tensor differently."""
    plan = make_plan(from_gguf(model), Request("Q8_0"))
    rng = np.random.default_rng(0)
    divergences = {
        name: {kind: rng.uniform(0.5, 2) * 4.0**-number for number, kind in enumerate(kinds)}
        for name, kinds in measurable_types(plan).items()
    }
    return SizeCurve(plan, divergences)


def time_of(model: Path, kinds: Mapping[str, list[str]]) -> DecodeTime:
    """Return a time in which the types differ in speed, and not as their sizes do."""
    reads = reads_of(open_gguf(model))
    names = sorted({kind for each in kinds.values() for kind in each})
    speeds = np.random.default_rng(1).uniform(1e8, 1e9, len(names))
    columns = {read.columns for read in reads.values()}
    rates = {(kind, n): rate for (kind, rate), n in itertools.product(zip(names, speeds, strict=True), columns)}
    return DecodeTime(reads, rates, 1e-5)


@pytest.fixture(scope="module")
def speed_curve(model: Path, curve: SizeCurve) -> SpeedCurve:
    return SpeedCurve(curve, time_of(model, curve.kinds))


# --- the time of a decode step ---


def test_reads_of_a_model(model: Path, tmp_path: Path) -> None:
    """A step reads all matrices, but not the token embeddings if there is an output matrix."""
    f = open_gguf(model)
    matrices = {name for name in f.tensors if name.endswith("weight") and "norm" not in name}
    assert "output.weight" not in matrices
    assert reads_of(f).keys() == matrices
    untied = open_gguf(tiny_llama(tmp_path / "untied.gguf", type="F32", tied=False))
    output = untied.tensors["output.weight"]
    assert reads_of(untied)["output.weight"] == Read(output.n_elements, output.shape[-1], "F32")
    assert "token_embd.weight" not in reads_of(untied)


def test_reads_of_experts(tmp_path: Path) -> None:
    """A token uses some of the experts, and all of the router."""
    f = open_gguf(tiny_qwen3moe(tmp_path / "experts.gguf", type="F32"))
    used, count = (f.get(f"qwen3moe.expert_{key}", int) for key in ("used_count", "count"))
    tensor = f.tensors["blk.0.ffn_up_exps.weight"]
    assert used < count
    assert reads_of(f)[tensor.name].weights == tensor.n_elements * used // count
    assert reads_of(f)["blk.0.ffn_gate_inp.weight"].weights == f.tensors["blk.0.ffn_gate_inp.weight"].n_elements


def test_time_is_bytes_by_rate() -> None:
    time = DecodeTime({"a": Read(640, 64, "F32"), "b": Read(320, 32, "F32")}, RATES, 0.5)
    assert time.seconds({"a": "Q4_0", "b": "Q8_0", "c": "Q8_0"}) == pytest.approx(0.5 + 360 / 1e9 + 340 / 2e9)


def test_rate_of_other_columns_and_types() -> None:
    assert rate_of(RATES, "Q8_0", 40) == 2e9
    assert rate_of(RATES, "Q8_0", 4096) == 3e9
    assert rate_of(RATES, "Q2_K", 64) == 1e9


def test_measured_rates(model: Path, tmp_path: Path) -> None:
    """Each type is measured, in as many probe files as there are pairs of layers, and nothing is left behind."""
    time = measure_decode_time(from_gguf(model), ["Q4_0", "Q5_0", "Q8_0"], tmp_path, threads=1)
    assert {kind for kind, _ in time.rates} >= {"Q4_0", "Q5_0", "Q8_0"}
    assert all(rate > 1e6 for rate in time.rates.values())
    assert 0 <= time.rest < 1
    assert time.reads == reads_of(open_gguf(model))
    assert list(tmp_path.iterdir()) == []


# --- choices ---


def test_fastest_is_within_its_limits(speed_curve: SpeedCurve, curve: SizeCurve) -> None:
    reference = speed_curve.reference
    assert reference
    found = speed_curve.fastest(reference.divergence, reference.size)
    assert found
    assert found.divergence <= reference.divergence
    assert found.size <= reference.size
    assert found.seconds < reference.seconds
    assert found == speed_curve.point(curve.point(found.types))


def test_fastest_is_about_as_fast_as_the_best_of_random_choices(speed_curve: SpeedCurve, curve: SizeCurve) -> None:
    """No choice found by changing single tensors is better by more than a step of the search."""
    reference = speed_curve.reference
    assert reference
    found = speed_curve.fastest(reference.divergence, 10**9)
    assert found
    for name, kinds in curve.kinds.items():
        for kind in kinds:
            other = speed_curve.point(curve.point({**found.types, name: kind}))
            assert other.divergence > reference.divergence or other.seconds > 0.95 * found.seconds


def test_default_choice(speed_curve: SpeedCurve) -> None:
    reference, found = speed_curve.reference, speed_curve.choose(Goal(10**9))
    assert reference
    assert found.seconds <= reference.seconds
    assert found.divergence <= reference.divergence
    assert found.size <= reference.size


def test_choice_in_little_memory(speed_curve: SpeedCurve, curve: SizeCurve) -> None:
    size = curve.smallest_size + 1000
    assert speed_curve.choose(Goal(size)).size <= size


def test_choice_at_a_speed(speed_curve: SpeedCurve) -> None:
    """The divergence is the lower, the slower the file may be."""
    reference = speed_curve.reference
    assert reference
    points: list[FitPoint] = []
    for speed in (0.9, 1.0, 1.1):
        wanted = speed * reference.tokens_per_second
        points.append(speed_curve.choose(Goal(10**9, wanted)))
        assert points[-1].tokens_per_second >= wanted
    assert points[0].divergence < points[1].divergence < points[2].divergence
    assert points[1].divergence < reference.divergence


@pytest.mark.parametrize(
    ("goal", "problem"),
    [
        (Goal(1000), "--ram: leaves 1,000 bytes for the file; the smallest has"),
        (Goal(-5), "--ram: leaves 0 bytes"),
        (Goal(10**9, 1e9), "--tokens-per-second: with this model on this machine, 1e.09 cannot be reached"),
    ],
)
def test_goals_that_cannot_be_met(speed_curve: SpeedCurve, goal: Goal, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        speed_curve.choose(goal)


# --- the text, and speculative decoding ---


def test_passages(model: Path) -> None:
    """All chunks are used once, a third of them to check the result."""
    words = tokenizer.from_gguf(open_gguf(model))
    passages = divide(words, "word and number " * 150, "--task")
    ids = words.encode("word and number " * 150)
    size = passages.n_ctx
    assert len(passages.lab) == 2
    assert len(passages.held_out) >= 2
    merged = [*passages.calibration[:2], passages.held_out[0], *passages.calibration[2:4], passages.held_out[1]]
    assert np.concatenate(merged)[1:size].tolist() == ids[1:size]
    assert np.concatenate(merged)[2 * size + 1 : 3 * size].tolist() == ids[2 * size + 1 : 3 * size]
    with pytest.raises(UsageError, match=r"--task: a text of .* tokens is too short: 6 chunks of 64 need 384"):
        divide(words, "word", "--task")


def test_fastest_speculation() -> None:
    none, slow, fast = (SpeculationSpeed(name, 1.0, ratio) for name, ratio in (("none", 1), ("a", 1.04), ("b", 1.2)))
    assert fastest([none, slow]) == none
    assert fastest([none, fast, slow]) == fast
