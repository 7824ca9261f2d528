"""Experts that are read from the storage: the same bits as with all weights mapped, within a memory limit."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import reference_models
from checkpoints import as_f32
from numpy.typing import NDArray
from split_files import split
from tiny import EXPERTS, tiny_llama, tiny_qwen3moe

import localinfer
from localinfer.errors import LocalInferError, NotEnoughMemoryError, UsageError
from localinfer.gguf.direct_file import DirectFile, padded_size
from localinfer.gguf.mapped_file import MappedFile
from localinfer.gguf.reader import open_gguf
from localinfer.graph.recording.model_graph import ExpertLayer
from localinfer.machine import resources
from localinfer.options import Options, from_keywords, merge, parse_bytes
from localinfer.runtime.engine import Engine
from localinfer.runtime.expert_cache.plan import divide_slots, least_slots, plan_experts
from localinfer.runtime.expert_cache.reads import Entry, Read, ReadQueue
from localinfer.runtime.expert_cache.slots import Expert, SlotPool, matrix_sizes, slot_bytes
from localinfer.runtime.graph_building import build_graph

Run = Callable[..., tuple[int, str, str]]
Logits = NDArray[np.float32]
LAYERS = 4
OPTIONS = Options(threads=2, ctx_size=128, ubatch_size=32, tune=False, spec_type="none")
PROMPT = np.random.default_rng(0).integers(3, 200, 50)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose layers have experts of two sizes."""
    wide = {f"blk.{layer}.ffn_down_exps.weight": "F16" for layer in (1, 2)}
    return tiny_qwen3moe(tmp_path_factory.mktemp("experts") / "m.gguf", n_layer=LAYERS, **wide)


def least_memory(path: Path) -> int:
    """Return the smallest memory limit with which a model runs."""
    f = open_gguf(path)
    model = build_graph(f, replace(OPTIONS, memory="1"))
    experts = {tensor.name for layer in model.expert_layers for tensor in layer.weights}
    resident = sum(tensor.nbytes for tensor in f.tensors.values() if tensor.name not in experts)
    slots = sum(slot_bytes(sizes) * count for sizes, count in least_slots(model.expert_layers).items())
    return resident + model.graph.nbytes + slots


@pytest.fixture(scope="module")
def least(path: Path) -> int:
    return least_memory(path)


def evaluate(engine: Engine) -> Logits:
    """Return the logits after a prompt in large batches, and after some single tokens."""
    return np.array([engine.evaluate(PROMPT).copy(), *(engine.evaluate([token]).copy() for token in range(3, 15))])


@pytest.fixture(scope="module")
def expected(path: Path) -> Logits:
    with closing(Engine.load(open_gguf(path), OPTIONS)) as engine:
        assert engine.compiled_graph.expert_cache is None
        return evaluate(engine)


@pytest.mark.parametrize("share", [0, 0.3, 0.9])
def test_logits_do_not_depend_on_the_memory(path: Path, least: int, expected: Logits, share: float) -> None:
    """From the experts of one layer of each size to nearly all experts."""
    memory = least + int(share * (path.stat().st_size + (2 << 20) - least))
    with closing(Engine.load(open_gguf(path), replace(OPTIONS, memory=str(memory)))) as engine:
        assert np.array_equal(evaluate(engine), expected)
        cache = engine.compiled_graph.expert_cache
        assert cache is not None
        found = cache.take_statistics()
        assert 0 < found.cached < found.used
        assert 0 < found.predicted_share < 1
        assert 0 < found.read_ahead <= found.predicted
        assert found.bytes_read > 0 < found.bandwidth
        assert found.wait_seconds > 0
        assert cache.take_statistics().used == 0
        (note,) = engine.warnings
        assert f"of {LAYERS * EXPERTS} experts; the storage reads" in note
        assert not np.array_equal(evaluate(engine), expected)  # the context has grown
        assert sum(thread.name.startswith("localinfer-read") for thread in threading.enumerate()) > 0
    assert sum(thread.name.startswith("localinfer-read") for thread in threading.enumerate()) == 0


def test_less_than_the_least_is_refused(path: Path, least: int) -> None:
    for memory in (1, least - 1):
        what = rf"{path}: memory: .* too little; at least .* for 128 tokens, and .* for all experts of a layer"
        with pytest.raises(NotEnoughMemoryError, match=what) as error:
            Engine.load(open_gguf(path), replace(OPTIONS, memory=str(memory)))
        assert error.value.exit_code == 4


@pytest.mark.parametrize("name", ["gpt-oss", "deepseek3"])
def test_architectures(tmp_path: Path, name: str) -> None:
    """Experts and routers with biases; layers without experts, experts in groups, and shared experts."""
    path = as_f32(reference_models.checkpoint(name, tmp_path / "checkpoint"), tmp_path / "m.gguf")
    found = []
    for memory in ("", str(least_memory(path))):
        with closing(Engine.load(open_gguf(path), replace(OPTIONS, memory=memory))) as engine:
            assert (engine.compiled_graph.expert_cache is not None) == bool(memory)
            found.append(engine.logits(range(3, 30)))
    assert np.array_equal(*found)


def test_split_files(path: Path, least: int, expected: Logits) -> None:
    parts = split(path, 7)
    with closing(Engine.load(open_gguf(parts[0]), replace(OPTIONS, memory=str(least)))) as engine:
        assert len(engine.file.files) > 1
        assert np.array_equal(evaluate(engine), expected)


def test_without_direct_reads(
    path: Path, least: int, expected: Logits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some systems and file systems have none."""
    monkeypatch.delattr("os.O_DIRECT", raising=False)
    with closing(Engine.load(open_gguf(path), replace(OPTIONS, memory=str(least)))) as engine:
        assert np.array_equal(evaluate(engine), expected)


def test_interrupted_reads(path: Path, least: int, expected: Logits, monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-C, and after an error of the disk, the experts are read again."""
    wait = ReadQueue.wait
    with closing(Engine.load(open_gguf(path), replace(OPTIONS, memory=str(least)))) as engine:
        for error in (KeyboardInterrupt(), LocalInferError("disk")):
            calls = iter([None] * 7)

            def fail(queue: ReadQueue, entry: Entry, error: BaseException = error, calls: object = calls) -> None:
                if next(calls, error) is error:  # type: ignore[call-overload]
                    raise error
                wait(queue, entry)

            monkeypatch.setattr(ReadQueue, "wait", fail)
            with pytest.raises(type(error)):
                engine.evaluate(PROMPT)
            monkeypatch.setattr(ReadQueue, "wait", wait)
            engine.reset()
            assert np.array_equal(evaluate(engine), expected)
            engine.reset()


def test_enough_memory_for_all_experts(path: Path, expected: Logits) -> None:
    """The file is mapped as without a limit."""
    with closing(Engine.load(open_gguf(path), replace(OPTIONS, memory="1G"))) as engine:
        assert engine.compiled_graph.expert_cache is None
        assert list(engine.warnings) == []
        assert np.array_equal(evaluate(engine), expected)


def test_hooks_share_the_cache(path: Path, least: int) -> None:
    """A graph with hooks uses the same expert cache, and its batches do not disturb those without."""
    with localinfer.load(path, threads=2, ctx_size=128, tune=False) as model:
        plain = model.logits(range(3, 30))
    with localinfer.load(path, threads=2, ctx_size=128, tune=False, memory=str(2 * least)) as model:
        with model.capture("blk.2.ffn_experts") as trace:
            assert np.array_equal(model.logits(range(3, 30)), plain)
        assert np.array_equal(model.logits(range(3, 30)), plain)
        assert len(trace["blk.2.ffn_experts"]) == 27


# --- without a limit ---


def test_a_model_that_does_not_fit_gets_a_limit(
    path: Path, expected: Logits, monkeypatch: pytest.MonkeyPatch
) -> None:
    f = open_gguf(path)
    monkeypatch.setattr(resources, "available_memory", lambda: f.size)
    with closing(Engine.load(f, OPTIONS)) as engine:
        assert engine.compiled_graph.expert_cache is not None
        assert np.array_equal(evaluate(engine), expected)


def test_dense_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    f = open_gguf(tiny_llama(tmp_path / "dense.gguf", n_layer=4, n_ff=4096))
    with closing(Engine.load(f, replace(OPTIONS, memory="1M"))) as engine:
        assert list(engine.warnings) == ["memory: has no effect, because the model has no experts"]
    monkeypatch.setattr(resources, "available_memory", lambda: f.size - (1 << 20))
    with closing(Engine.load(f, OPTIONS)) as engine:
        (note,) = engine.warnings
        assert "of weights do not fit in" in note
        assert "each token reads them from the storage, about" in note


# --- parts ---


def layers_of(path: Path) -> list[ExpertLayer]:
    return build_graph(open_gguf(path), OPTIONS).expert_layers


def test_the_same_share_of_each_size_is_cached(path: Path) -> None:
    layers = layers_of(path)
    sizes = list(dict.fromkeys(matrix_sizes(layer.weights) for layer in layers))
    least = least_slots(layers)
    assert least == dict.fromkeys(sizes, EXPERTS)
    smallest = sum(EXPERTS * slot_bytes(each) for each in sizes)
    assert divide_slots(layers, smallest) == least
    assert divide_slots(layers, 3 * smallest // 2) == dict.fromkeys(sizes, EXPERTS + EXPERTS // 2)
    assert divide_slots(layers, 9 * smallest) == dict.fromkeys(sizes, 2 * EXPERTS)


def test_plan(path: Path) -> None:
    f = open_gguf(path)
    model = build_graph(f, OPTIONS)
    plan = plan_experts(f, model, 1 << 30)
    experts = sum(tensor.nbytes for tensor in f.tensors.values() if "_exps" in tensor.name)
    assert plan.resident + experts == sum(tensor.nbytes for tensor in f.tensors.values())
    assert plan.used_bytes == experts * 3 // EXPERTS
    assert (plan.cached, plan.cached_share, plan.seconds_per_token(1e9)) == (LAYERS * EXPERTS, 1.0, 0.0)
    plan = replace(plan, slots={(1000,): LAYERS * EXPERTS // 4})
    assert plan.seconds_per_token(1e9) == pytest.approx(0.75 * plan.used_bytes / 1e9)


def test_predictions_are_not_part_of_the_model(path: Path) -> None:
    """The products of which importance matrices and verification know are the same."""
    f = open_gguf(path)
    plain, predicting = build_graph(f, OPTIONS), build_graph(f, replace(OPTIONS, memory="1M"))
    assert [each.weight.name for each in predicting.graph.products] == [
        each.weight.name for each in plain.graph.products
    ]
    assert [layer.predicted is not None for layer in predicting.expert_layers] == [True] * (LAYERS - 1) + [False]


def test_least_recently_used_slots_are_reused() -> None:
    evicted: list[Expert] = []
    pool = SlotPool([5000, 100], 3, evicted.append)
    a, b, c, d, e = (Expert(0, number) for number in range(5))
    entries = [pool.add(expert, ()) for expert in (a, b, c)]
    assert len({entry.slot for entry in entries if entry}) == 3
    assert pool.use(a) is entries[0]
    added = pool.add(d, ())
    assert added is not None
    assert evicted == [b]
    assert pool.use(b) is None
    pool.use_first(d)
    assert pool.add(b, {c}) is not None  # in the slot of d
    assert pool.add(e, {a, b, c}) is None
    assert evicted == [b, d]


def test_slots_that_are_being_read_are_not_reused() -> None:
    evicted: list[Expert] = []
    pool = SlotPool([100], 1, evicted.append)
    first, second = Expert(0, 0), Expert(0, 1)
    entry = pool.add(first, ())
    assert entry is not None
    entry.pending = 1
    assert pool.add(second, ()) is None
    pool.discard(first)
    assert not entry.wanted
    assert evicted == [first]
    assert pool.add(second, ()) is None
    entry.pending = 0
    assert pool.add(second, ()) is not None


def test_slots_are_large_enough_for_any_offset() -> None:
    pool = SlotPool([5000, 100], 2, lambda _: None)
    entry = pool.add(Expert(0, 0), ())
    assert entry is not None
    starts = [pool.address(entry, matrix) for matrix in range(2)]
    assert [start % 4096 for start in starts] == [0, 0]
    assert starts[1] - starts[0] == len(pool.memory(entry, 0)) == padded_size(5000)


@pytest.fixture
def queue() -> Iterator[ReadQueue]:
    queue = ReadQueue(2)
    yield queue
    queue.close()


@pytest.fixture
def numbers(tmp_path: Path) -> DirectFile:
    """A file of 20,000 bytes."""
    (tmp_path / "numbers").write_bytes(np.arange(20_000, dtype=np.uint16).astype(np.uint8).tobytes())
    return DirectFile(MappedFile(tmp_path / "numbers"))


def test_reads(queue: ReadQueue, numbers: DirectFile) -> None:
    pool = SlotPool([3000], 4, lambda _: None)
    entries = [entry for number in range(4) if (entry := pool.add(Expert(0, number), ()))]
    starts = (0, 4095, 9000, 17_000)
    for entry, start in zip(entries, starts, strict=True):
        queue.submit(entry, [Read(entry, numbers, pool.memory(entry, 0), start, 3000)])
    for entry, start in zip(entries, starts, strict=True):
        queue.wait(entry)
        found = np.frombuffer(pool.memory(entry, 0), np.uint8)[start % 4096 :][:3000]
        assert np.array_equal(found, numbers.file.bytes[start : start + 3000])
    n_bytes, seconds = queue.take_totals()
    assert n_bytes == 12_000
    assert seconds > 0
    assert queue.take_totals()[0] == 0


def test_unwanted_reads_are_skipped(queue: ReadQueue, numbers: DirectFile) -> None:
    entry = Entry(0, wanted=False)
    queue.submit(entry, [Read(entry, numbers, memoryview(bytearray(0)), 0, 3000)] * 2)  # has no room
    queue.wait(entry)
    assert queue.take_totals()[0] == 0


def test_errors_are_raised_where_they_are_waited_for(
    queue: ReadQueue, numbers: DirectFile, tmp_path: Path
) -> None:
    pool = SlotPool([3000], 1, lambda _: None)
    entry = pool.add(Expert(0, 0), ())
    assert entry is not None
    with (tmp_path / "numbers").open("r+b") as file:
        file.truncate(18_000)
    queue.submit(entry, [Read(entry, numbers, pool.memory(entry, 0), 17_000, 3000)])
    with pytest.raises(LocalInferError, match=r"numbers: file changed or truncated while in use"):
        queue.wait(entry)


# --- the command line ---


def test_exit_codes(run: Run, path: Path) -> None:
    command = "generate", path, "-p", "Hi", "-n", 1, "-c", 64, "--no-prefix-store"
    code, out, err = run(*command, "--memory", "1M")
    assert (code, out) == (4, "")
    assert err.splitlines()[-1].startswith(f"error: {path}: memory: 1,000,000 bytes are too little; at least ")
    code, out, err = run(*command, "--memory", "much")
    assert (code, out) == (2, "")
    assert "--memory: must be a number of bytes, or with a unit such as 700MB" in err
    code, out, err = run(*command, "--memory", "1G", "--mlock")
    assert (code, out) == (2, "")
    assert "memory (--memory): cannot be combined with --mlock, which keeps all weights in memory" in err


def test_generation_tells_the_plan(run: Run, path: Path, least: int) -> None:
    command = (
        *("generate", path, "-p", "Hello", "-n", 8, "-c", 128, "-ub", 32, "-t", 2, "--temp", 0),
        *("--no-prefix-store", "--spec-type", "none"),
    )
    code, plain, _ = run(*command)
    assert code == 0
    code, out, err = run(*command, "--memory", least)
    assert (code, out) == (0, plain)
    assert "warning: memory: of " in err
    assert "tokens/s if all experts are used equally often" in err


def test_keywords() -> None:
    assert merge(from_keywords({"memory": "8G"})).memory == "8G"
    with pytest.raises(UsageError, match="memory: must be a number of bytes"):
        from_keywords({"memory": "8 gigabytes"})
    with pytest.raises(UsageError, match=r"memory \(--memory\): cannot be combined with --no-mmap"):
        merge(from_keywords({"memory": "8G", "mmap": False}))
    assert parse_bytes("1.5GiB") == 3 << 29
