"""`localinfer profile`: the clock in compiled code, the division of time among ops, the table, the JSON, the trace."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tiny import tiny_gemma3, tiny_llama

from cli.measure.chrome_trace import chrome_trace
from localinfer.errors import LocalInferError
from localinfer.evaluation.profile import RUNS, Profile, divide_time, group_ops, op_kind, op_layer, profile
from localinfer.gguf.reader import open_gguf
from localinfer.graph.ops.cost import NO_COST
from localinfer.options import Options
from localinfer.runtime.engine import Engine
from localinfer.runtime.timestamps import Clock, TimestampBuffer, Timestamps

Run = Callable[..., tuple[int, str, str]]
PROMPT, ANSWER = list(range(3, 15)), [20, 21, 22]


@pytest.fixture
def measured_profile(tmp_path: Path) -> Profile:
    """A profile of a tiny model, in batches of 8 on two threads, then on one."""
    options = Options(ctx_size=64, batch_size=8, threads=1, threads_batch=2)
    engine = Engine.load(open_gguf(tiny_llama(tmp_path / "tiny.gguf")), options)
    result = profile(engine, PROMPT, ANSWER, lambda _: None)
    engine.close()
    return result


def stamps(*chunks: tuple[int, int, int, int]) -> Timestamps:
    """Return timestamps of chunks given as op, thread, begin, end."""
    return Timestamps(*np.array(chunks).T)


def test_ticks_match_wall_clock() -> None:
    clock = Clock()
    begin, start = time.perf_counter(), clock._now()[0]
    time.sleep(0.2)
    ticks, seconds = clock._now()[0] - start, time.perf_counter() - begin
    assert ticks * clock.seconds_per_tick() == pytest.approx(seconds, rel=0.02)


def test_time_is_divided_among_running_ops() -> None:
    """Op 0 on both threads to 10, on one to 14; nothing to 16; op 1 alone to 20; op 2 and 3 concurrently."""
    used, idle = divide_time(
        stamps((0, 0, 0, 10), (0, 1, 0, 14), (1, 0, 16, 20), (2, 0, 20, 26), (3, 1, 20, 26)), threads=2
    )
    assert used == {0: (14.0, 2.0), 1: (4.0, 2.0), 2: (3.0, 0.0), 3: (3.0, 0.0)}
    assert idle == 2


def test_adjacent_chunks_leave_no_gap() -> None:
    used, idle = divide_time(stamps((0, 0, 0, 5), (1, 0, 5, 9), (1, 0, 9, 9)), threads=1)
    assert (used, idle) == ({0: (5.0, 0.0), 1: (4.0, 0.0)}, 0)


def test_times_add_up_to_total(measured_profile: Profile) -> None:
    phases = [(phase.name, phase.tokens, phase.threads) for phase in measured_profile.phases]
    assert phases == [("prefill", 12, 2), ("decode", 3, 1)]
    for phase in measured_profile.phases:
        inside = sum(spent.seconds for spent in phase.ops)
        assert inside + phase.between + phase.outside == pytest.approx(phase.seconds, rel=1e-2)
        assert inside > 0
        assert phase.between >= 0
        assert phase.outside > 0
        assert all(0 <= spent.waiting <= spent.seconds for spent in phase.ops)


def test_every_op_runs_once_per_batch(measured_profile: Profile, tmp_path: Path) -> None:
    engine = Engine.load(open_gguf(tmp_path / "tiny.gguf"), Options(ctx_size=64, batch_size=8))
    first, then = engine.graph.cost(8, 0, 1), engine.graph.cost(4, 8, 1)
    answer = [engine.graph.cost(1, n_past, 1) for n_past in (12, 13, 14)]
    engine.close()
    expected = [first + then, sum(answer, NO_COST)]
    for phase, batches, amount in zip(measured_profile.phases, (2, 3), expected, strict=True):
        assert {spent.calls for spent in phase.ops} == {batches}
        assert sum((spent.cost for spent in phase.ops), NO_COST) == amount


def test_ops_have_the_names_of_tensors(measured_profile: Profile) -> None:
    prompt = measured_profile.phases[0]
    by_kind, by_layer = group_ops(measured_profile, prompt, op_kind), group_ops(measured_profile, prompt, op_layer)
    assert {"token_embd", "attn_q", "ffn_down", "attention", "output", "output_norm"} <= by_kind.keys()
    assert list(by_layer) == ["outside of layers", "layer 0", "layer 1"]
    assert by_kind["attn_q"].calls == 2 * 2
    assert sum(spent.seconds for spent in by_kind.values()) == pytest.approx(
        sum(spent.seconds for spent in by_layer.values()))  # fmt: skip


def test_timestamps_do_not_change_results(tmp_path: Path) -> None:
    engine = Engine.load(open_gguf(tiny_gemma3(tmp_path / "tiny.gguf")), Options(ctx_size=64, threads=2))
    plain = [engine.evaluate(PROMPT).copy(), engine.evaluate(ANSWER[:1]).copy()]
    engine.reset()
    with engine.compiled_graph.recorded_timestamps() as buffer:
        stamped = [engine.evaluate(PROMPT).copy(), engine.evaluate(ANSWER[:1]).copy()]
        used = buffer.take()
        assert not len(buffer.take().op)
    engine.reset()
    afterwards = [engine.evaluate(PROMPT).copy(), engine.evaluate(ANSWER[:1]).copy()]
    assert not len(buffer.take().op)
    engine.close()
    assert all((a == b).all() and (a == c).all() for a, b, c in zip(plain, stamped, afterwards, strict=True))
    assert set(used.op.tolist()) == set(range(len(engine.graph.ops)))
    assert (used.end >= used.begin).all()
    assert set(used.thread.tolist()) <= {0, 1}


def test_timestamp_overflow_is_reported(tmp_path: Path) -> None:
    buffer = TimestampBuffer(np.zeros((4, 32), np.int64), n_threads=2, scratch_bytes=64)
    assert not len(buffer.take().op)
    buffer._memory[1, :8].view(np.int64)[0] = 1 << 20
    with pytest.raises(LocalInferError, match="--ubatch-size"):
        buffer.take()


def test_trace_events(measured_profile: Profile) -> None:
    events = json.loads(chrome_trace(measured_profile))["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert names == {0: "batches", 1: "thread 0", 2: "thread 1"}
    whole = [event for event in events if event["ph"] == "X"]
    assert [event["name"] for event in whole if event["tid"] == 0] == ["prefill"] * 2 + ["decode"] * 3
    chunks = [event for event in whole if event["tid"] > 0]
    assert len(chunks) == sum(len(batch.timestamps.op) for phase in measured_profile.phases for batch in phase.batches)
    assert {"blk.0.attn_q.weight", "blk.1.attention", "token_embd.weight"} <= {event["name"] for event in chunks}
    assert min(event["ts"] for event in whole) == 0
    assert all(event["dur"] >= 0 for event in whole)
    seconds = sum(phase.seconds for phase in measured_profile.phases)
    assert max(event["ts"] + event["dur"] for event in whole) < 1e6 * seconds * 20 * RUNS


# --- the command ---


def test_the_table(run: Run, tmp_path: Path) -> None:
    code, out, err = run("profile", tiny_llama(tmp_path / "m.gguf"), "-p", 9, "-n", 2, "-t", 1)
    assert code == 0
    assert "prefill of 9 tokens: " in out
    assert "decode of 2 tokens: " in out
    headings = [line.split()[1:] for line in out.splitlines() if " of peak" in line]
    assert headings == [
        ["runs", "ms", "of", "total", "waiting", unit, "of", "peak"] for unit in ["GMAC/s"] * 2 + ["GB/s"] * 2
    ]
    assert "peak of 1 thread, measured: " in err


def test_json(run: Run, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    model = tiny_llama(tmp_path / "m.gguf")
    code, out, _ = run("profile", model, "-p", 0, "-n", 2, "--json", "--trace", trace)
    [answer] = json.loads(out)["phases"]
    assert (code, answer["name"], answer["tokens"]) == (0, "decode", 2)
    seconds = [sum(each["seconds"] for each in answer[groups].values()) for groups in ("kinds", "layers", "ops")]
    assert seconds[0] == pytest.approx(seconds[1]) == pytest.approx(seconds[2])
    assert answer["kinds"]["ffn_up"]["runs"] == 2 * 2
    assert answer["kinds"]["ffn_up"]["bytes"] == 2 * sum(
        tensor.nbytes for name, tensor in open_gguf(model).tensors.items() if "ffn_up" in name)  # fmt: skip
    assert json.loads(trace.read_text())["traceEvents"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["-p", "0", "-n", "0"], "nothing to run"),
        (["-p", "-1"], "--n-prompt"),
        (["-t", "x"], "--threads: must be"),
        (["--trace", "/missing/trace.json"], "--trace: "),
    ],
)
def test_usage(run: Run, arguments: list[str], problem: str) -> None:
    code, out, err = run("profile", "no-model.gguf", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert problem in err


def test_context_too_small(run: Run, tmp_path: Path) -> None:
    code, out, err = run("profile", tiny_llama(tmp_path / "m.gguf"), "-p", 60, "-n", 8, "-c", 64)
    assert (code, out) == (5, "")
    assert "--ctx-size" in err
