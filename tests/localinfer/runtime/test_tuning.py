"""Tuning of row access: equal logits with each candidate, and a table of measurements that outlives the process."""

import json
from collections import deque
from pathlib import Path

import draft_head_models
import numpy as np
import pytest
from engine_helpers import Write, engine, tokens
from kernels import NUMBERS
from tiny import tiny_gemma3, tiny_llama, tiny_qwen3moe

from localinfer import paths
from localinfer.errors import LocalInferError
from localinfer.graph.ops.product_choices import ProductShape
from localinfer.kernels.layout import TIMESTAMPS_OFFSET
from localinfer.runtime.engine import Engine
from localinfer.runtime.row_access import measured_step, row_access_timing, tile_timing, tuning
from localinfer.runtime.row_access.tuning_table import MAX_DISTURBED, TuningTable, parse_key
from localinfer.runtime.timestamps import TimestampBuffer
from quant.matmul.layout import has_two_conversions
from quant.matmul.row_access import CANDIDATES, RowAccess, default_row_access


@pytest.fixture(autouse=True)
def tiny_shapes_are_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "MIN_SHAPE_BYTES", 1)
    monkeypatch.setattr(row_access_timing, "MIN_ROUND_SECONDS", 0)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TuningTable:
    """The tuning table of all engines of a test, empty at first. The kernel cache remains the shared one."""
    empty = TuningTable(tmp_path / "jit")
    monkeypatch.setattr(tuning, "TuningTable", lambda jit_dir: empty)
    return empty


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[row_access_timing.Timings]:
    """The timings of all measurements."""
    found, measure = [], row_access_timing.measure

    def measure_and_record(*arguments: object) -> row_access_timing.Timings:
        found.append(measure(*arguments))  # type: ignore[arg-type]
        return found[-1]

    monkeypatch.setattr(row_access_timing, "measure", measure_and_record)
    return found


def disagree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have rounds never agree, as on a busy machine."""
    monkeypatch.setattr(row_access_timing, "choose_alike", lambda one, other: False)
    monkeypatch.setattr(row_access_timing, "MAX_SECONDS", 0)


def choices(e: Engine) -> dict[ProductShape, RowAccess]:
    return e.graph.product_choices.accesses


@pytest.mark.parametrize(
    ("tiny", "kind"),
    [(tiny_llama, kind) for kind in ("Q4_K", "Q8_0", "F16", "BF16", "Q4_1")] + [(tiny_qwen3moe, "F16")],
)
def test_logits_are_equal_with_every_candidate(tiny: Write, kind: str, tmp_path: Path) -> None:
    with engine(tiny(tmp_path / "m.gguf", type=kind), tune=False) as e:
        logits = []
        for access in CANDIDATES:
            e.graph.product_choices.set_accesses(dict.fromkeys(choices(e), access))
            e.reset()
            one_by_one = [e.logits([id]) for id in tokens(5)]
            logits.append(np.concatenate([*one_by_one, e.logits(tokens(2)), e.logits(tokens(3))]))
        assert all(np.array_equal(each, logits[0]) for each in logits)


@pytest.mark.parametrize(("tiny", "kind"), [(tiny_llama, "Q4_K"), (tiny_llama, "Q6_K"), (tiny_qwen3moe, "Q8_0")])
def test_logits_of_a_prompt_are_equal_with_both_kinds_of_tiles(tiny: Write, kind: str, tmp_path: Path) -> None:
    with engine(tiny(tmp_path / "m.gguf", type=kind), tune=False, precision="fast") as e:
        logits = []
        for subtract in (False, True):
            e.graph.product_choices.set_subtractions(dict.fromkeys(e.graph.product_choices.subtractions, subtract))
            e.reset()
            logits.append(e.logits(tokens(61)).copy())
        assert np.array_equal(*logits)


@pytest.mark.skipif(not has_two_conversions(passes=1), reason="register tiles have one way on this CPU")
def test_register_tiles_are_measured_once(
    tmp_path: Path, table: TuningTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, answers = tiny_llama(tmp_path / "m.gguf", type="Q4_K"), [True, False]

    def choose(step: object, steps: object, types: list[int]) -> list[bool]:
        return [answers[0]] * len(types)

    monkeypatch.setattr(tile_timing, "choose", choose)
    number = NUMBERS["Q4_K"]
    with engine(path, precision="fast") as first:
        assert first.graph.product_choices.subtractions[number]
    assert table.read_subtractions()[number]
    answers.pop(0)
    with engine(path, precision="fast") as second:
        assert second.graph.product_choices.subtractions[number]
        tuning.tune_tiles(second.runner, table, may_measure=True, again=True)
        assert not second.graph.product_choices.subtractions[number]
    assert not table.read_subtractions()[number]


def test_a_way_that_is_hardly_faster_is_not_chosen(tmp_path: Path) -> None:
    with engine(tiny_llama(tmp_path / "m.gguf", type="Q4_K"), tune=False, precision="fast") as e:
        step = measured_step.MeasuredStep(e.runner, max_bytes=1 << 20, tokens=7)
        types, n_ops = tile_timing.quantized_types(step), len(e.graph.ops)
        for ratio, expected in ((1.1, False), (0.995, False), (0.98, True)):
            steps = [np.array([np.ones(n_ops), np.full(n_ops, ratio)])] * 4
            assert set(tile_timing.choose(step, steps, types)) == {expected}


@pytest.mark.parametrize("tokens", [1, 7])
def test_a_model_with_a_draft_head_is_measured(tokens: int, tmp_path: Path) -> None:
    """Its products are those of the model; with several tokens, without the output layer and the head."""
    path = draft_head_models.write_with_mtp_head("glm4moe", tmp_path, "Q8_0")
    with engine(path, tune=False, parallel=1) as e, engine(path, tune=False, parallel=1, spec_type="none") as plain:
        assert e.compiled_graph.has_draft_head
        steps = [measured_step.MeasuredStep(each.runner, max_bytes=1 << 30, tokens=tokens) for each in (e, plain)]
        assert steps[0].nbytes.keys() >= steps[1].nbytes.keys()
        assert tokens == 1 or steps[0].nbytes == steps[1].nbytes


@pytest.mark.parametrize("tiny", [tiny_llama, tiny_qwen3moe])
def test_the_first_engine_measures_and_the_next_one_reads_the_table(
    tiny: Write, tmp_path: Path, table: TuningTable, measured: list[row_access_timing.Timings]
) -> None:
    path = tiny(tmp_path / "m.gguf", type="F16")
    with engine(path) as first:
        [timings] = measured
        assert set(timings.shapes) == set(first.graph.product_choices.regions)
        assert choices(first) == {shape: timing.best for shape, timing in timings.shapes.items()}
        assert all({*each.seconds_alone} == {*CANDIDATES} for each in timings.shapes.values())
        expected = choices(first)
    stored = table.read(2)
    assert {shape: tuned.access for shape, tuned in stored.items()} == expected
    assert all(tuned.bytes_per_second > 1e6 for tuned in stored.values())
    table.update(2, {shape: tuned._replace(disturbed=0) for shape, tuned in stored.items()})
    with engine(path) as second:
        assert choices(second) == expected
    assert len(measured) == 1
    with engine(path, threads=1):
        assert len(measured) == 2
    assert len(table.read_all()) == 2 * len(stored)


def test_no_tune_uses_the_default(tmp_path: Path, table: TuningTable, measured: list[object]) -> None:
    with engine(tiny_llama(tmp_path / "m.gguf"), tune=False) as e:
        assert set(choices(e).values()) == {default_row_access()}
    assert not measured


def test_encoders_and_small_models_are_not_measured(
    tmp_path: Path, table: TuningTable, measured: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "MIN_SHAPE_BYTES", 8 << 20)
    with engine(tiny_llama(tmp_path / "m.gguf")) as e:
        assert not tuning.tunable_shapes(e.runner)
    assert not measured


def test_measuring_does_not_change_the_sequence(tmp_path: Path) -> None:
    with engine(tiny_gemma3(tmp_path / "m.gguf"), tune=False) as e:
        expected = e.logits(tokens(70)).copy()
        e.reset()
        first = e.logits(tokens(40)).copy()
        before = choices(e)
        row_access_timing.measure(e.runner, tuning.tunable_shapes(e.runner))
        assert choices(e) == before
        assert e.n_past == 40
        assert np.array_equal(np.concatenate([first, e.logits(tokens(70)[40:])]), expected)


def test_a_part_of_a_large_model_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_llama(tmp_path / "m.gguf", type="Q4_K", n_layer=4, **{"token_embd.weight": "Q6_K"})
    with engine(path, tune=False) as e:
        shapes = tuning.tunable_shapes(e.runner)
        whole = row_access_timing.measure(e.runner, shapes).shapes
        monkeypatch.setattr(row_access_timing, "MAX_STEP_BYTES", 1)
        part = row_access_timing.measure(e.runner, shapes).shapes
        assert sum(t.nbytes for t in part.values()) < sum(t.nbytes for t in whole.values()) / 2
        assert {shape for shape in part if shape.type == e.file.tensors["token_embd.weight"].type}


def test_a_disturbed_measurement_is_repeated_a_few_times(
    tmp_path: Path, table: TuningTable, measured: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    disagree(monkeypatch)
    path = tiny_llama(tmp_path / "m.gguf")
    for start in range(1, MAX_DISTURBED + 3):
        with engine(path):
            assert len(measured) == min(start, MAX_DISTURBED)
    assert {tuned.disturbed for tuned in table.read(2).values()} == {MAX_DISTURBED}


def test_decode_far_below_the_measured_bandwidth_is_measured_again(
    tmp_path: Path, table: TuningTable, measured: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "MIN_STEP_BYTES", 1)
    path = tiny_llama(tmp_path / "m.gguf")
    with engine(path) as e:
        promised = {shape: tuned._replace(disturbed=0, bytes_per_second=1.0) for shape, tuned in table.read(2).items()}
        table.update(2, promised)  # decode is much faster than that
        e.runner.decode_seconds = deque([0.001] * tuning.MIN_DECODE_STEPS)
    with engine(path) as e:
        assert len(measured) == 1
        table.update(2, {shape: tuned._replace(bytes_per_second=1e15) for shape, tuned in promised.items()})
        e.runner.decode_seconds = deque([0.001] * (tuning.MIN_DECODE_STEPS - 1))
    with engine(path) as e:
        assert len(measured) == 1
        e.runner.decode_seconds = deque([0.001] * tuning.MIN_DECODE_STEPS)
    with engine(path):
        assert len(measured) == 2


def test_decode_steps_are_timed(tmp_path: Path) -> None:
    with engine(tiny_llama(tmp_path / "m.gguf"), tune=False) as e:
        e.evaluate(tokens(7))
        assert not e.runner.decode_seconds
        e.evaluate(tokens(1))
        assert len(e.runner.decode_seconds) == 1


def test_without_a_clock_the_defaults_remain(
    tmp_path: Path, table: TuningTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seconds_per_tick(clock: object) -> float:
        raise LocalInferError("this CPU has no clock that compiled code can read")

    monkeypatch.setattr(row_access_timing.Clock, "seconds_per_tick", seconds_per_tick)
    with engine(tiny_llama(tmp_path / "m.gguf")) as e:
        assert set(choices(e).values()) == {default_row_access()}
    assert not table.read_all()


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"[]", b"\xff"),
        *(b'{"Q4_K 256 columns 1 passes 2 threads": 1}', b'{"Q4_K 256 columns 1 passes 2 threads": {}}'),
        b'{"Q4_K 256": {"access": [4, 1, 2048], "bytes_per_second": 1.0, "disturbed": 0}}',
        b'{"Q4_K 256 columns 1 passes 2 threads": {"access": [999, 1, 2048], "bytes_per_second": 1.0, "disturbed": 0}}',
        b'{"Q4_K 256 columns 1 passes 2 threads": {"access": [4, 1, 2048], "bytes_per_second": 0, "disturbed": 0}}',
        b'{"Q4_K 256 columns 1 passes 2 threads": {"access": [4, 1, 2048], "bytes_per_second": "x", "disturbed": 0}}',
        b'{"ZZ_K 256 columns 1 passes 2 threads": {"access": [4, 1, 2048], "bytes_per_second": 1.0, "disturbed": 0}}',
        *(b'{"Q4_K in register tiles": 1}', b'{"ZZ_K in register tiles": {"subtract": true}}'),
    ],
)  # fmt: skip
def test_damaged_tables_have_no_entries(table: TuningTable, content: bytes) -> None:
    assert table.path
    table.path.write_bytes(content)
    assert not table.read_all()
    assert not table.read_subtractions()
    shape, threads = parse_key("Q4_K 256 columns 1 passes 2 threads")
    table.update(threads, {shape: tuning.TunedAccess(CANDIDATES[0], 1e9)})
    assert table.read_all() == {(shape, threads): tuning.TunedAccess(CANDIDATES[0], 1e9)}
    assert json.loads(table.path.read_bytes())


def test_a_table_that_cannot_be_written_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    table = TuningTable(tmp_path / "file" / "jit")
    shape, threads = parse_key("Q4_K 256 columns 1 passes 2 threads")
    table.update(threads, {shape: tuning.TunedAccess(CANDIDATES[0], 1e9)})
    assert not table.read_all()


def test_time_of_an_op_is_that_of_all_its_chunks() -> None:
    """Op 1 has three chunks, on two threads; op 2 has one; op 0 did not run."""
    records = np.zeros((3, 32), np.int64)
    buffer = TimestampBuffer(records, n_threads=2, scratch_bytes=64)
    for memory, stamps in zip(buffer._memory, ([(1, 0, 10), (1, 10, 25)], [(1, 5, 12), (2, 30, 37)]), strict=True):
        words, first = memory.view(np.int64), TIMESTAMPS_OFFSET // 8
        words[0] = len(stamps)
        for number, (op, begin, end) in enumerate(stamps):
            words[first + 3 * number : first + 3 * number + 3] = records[op].ctypes.data, begin, end
    assert measured_step.total_ticks(buffer, 3).tolist() == [np.inf, 10 + 15 + 7, 7]


def test_interrupted_and_lucky_steps_do_not_count() -> None:
    """One candidate, two ops: the second one does not run. One step of ten was interrupted, and one found its rows in
    the cache."""
    steps = [np.array([[ticks, np.inf]]) for ticks in (40, 41, 9000, 42, 40, 5, 41, 42, 43, 44)]
    assert measured_step.typical_ticks(steps).tolist() == [[40, np.inf]]


@pytest.mark.parametrize(
    ("seconds", "alone", "number"),
    [
        ((1.0, 1.0, 0.99), (), 0),  # a model with one thread: fewer streams first
        ((1.0, 0.98, 0.96), (), 1),
        ((1.0, 1.0, 0.9), (), 2),
        ((1.0, 1.0, 0.99), (3.0, 2.0, 2.5), 1),  # about as fast together: the fastest one alone
        ((1.0, 1.1, 0.99), (3.0, 2.0, 2.5), 2),
        ((1.0, 0.9, 0.9), (1.0, 2.0, 2.5), 1),
    ],
)
def test_of_similar_ways_the_fastest_one_alone_is_chosen(
    seconds: tuple[float, ...], alone: tuple[float, ...], number: int
) -> None:
    together, single = (dict(zip(CANDIDATES, each, strict=False)) for each in (seconds, alone))
    assert row_access_timing.ShapeTiming(100, together, single).best == CANDIDATES[number]


def test_candidates_within_the_tolerance_agree() -> None:
    def alike(one: list[float], other: list[float]) -> bool:
        return row_access_timing.choose_alike(np.array(one), np.array(other))

    assert alike([1.0, 2.0], [1.1, 2.0])
    assert alike([1.0, 1.02], [1.02, 1.0])
    assert not alike([1.0, 1.2], [1.01, 1.0])


def test_table_is_beside_the_kernels() -> None:
    assert TuningTable(paths.jit_dir()).path.parent.parent == paths.jit_dir()  # type: ignore[union-attr]
