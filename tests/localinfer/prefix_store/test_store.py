"""The prefix store: a restored sequence computes the same bits, and a damaged store only costs time."""

import threading
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import checkpoints
import numpy as np
import pytest
import reference_models
from numpy.typing import NDArray
from tiny import tiny_gemma3, tiny_llama

import localinfer
from localinfer import paths
from localinfer.prefix_store import store as store_module
from localinfer.prefix_store.directory import block_name, stored_models
from localinfer.prefix_store.keys import BLOCK_TOKENS
from localinfer.prefix_store.writer import Contents, Writer

IDS = np.random.default_rng(0).integers(3, 260, 4000).tolist()
N_PREDICT = 4
ZEROS = Contents(100, lambda: [[np.zeros(100, np.uint8)]])
MakeModel = Callable[[Path], Path]


class Answer(NamedTuple):
    """A generated text, the reused tokens of its prompt, and the logits after it."""

    ids: list[int]
    reused: int
    logits: NDArray[np.float32]


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "prefixes_dir", lambda: tmp_path / "prefixes")


def answer(model: Path, prompt: Sequence[int], **changed: Any) -> Answer:
    """Load the model as a new program does, and answer."""
    options = {"ctx_size": 4096, "threads": 1, "temp": 0, "tune": False, "prefix_store": True} | changed
    with localinfer.load(model, **options) as loaded:
        stream = loaded.stream(prompt, n_predict=N_PREDICT)
        ids = [piece.id for piece in stream]
        return Answer(ids, stream.stats.reused_tokens, loaded.engine.evaluate([5]).copy())


STATES_AND_LATENTS = ("mamba2", "lfm2", "qwen3next", "rwkv6", "rwkv7", "deepseek2", "falcon-h1")


def reference(name: str) -> MakeModel:
    def make(folder: Path) -> Path:
        return checkpoints.as_type(reference_models.checkpoint(name, folder), folder / f"{name}.gguf", "F32")

    return make


def llama(folder: Path) -> Path:
    return tiny_llama(folder / "llama.gguf", n_ctx=4096)


def gemma(folder: Path) -> Path:
    return tiny_gemma3(folder / "gemma.gguf", n_ctx=4096)


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (llama, {}),
        (llama, {"cache_type_k": "q8_0", "cache_type_v": "q4_0"}),
        (gemma, {}),
        *((reference(name), {}) for name in STATES_AND_LATENTS),
    ],
    ids=["llama", "quantized", "gemma3", *STATES_AND_LATENTS],
)
def test_a_restored_prefix_gives_the_same_bits(make: MakeModel, options: dict[str, Any], tmp_path: Path) -> None:
    model = make(tmp_path)
    for prompt, fewest in ((IDS[:1000], 0), (IDS[:1000], 936), ([*IDS[:1000], *IDS[2000:2100]], 936)):
        fresh = answer(model, prompt, **options, prefix_store=False)
        restored = answer(model, prompt, **options)
        assert fresh.reused == 0
        assert fewest <= restored.reused <= max(fewest + BLOCK_TOKENS, 0)
        assert fresh.ids == restored.ids
        np.testing.assert_array_equal(fresh.logits, restored.logits)


def stored(tmp_path: Path, suffix: str = "*") -> list[Path]:
    return sorted((tmp_path / "prefixes").glob(f"*/*.{suffix}"))


def test_short_prompts_and_wrapping_contexts_are_not_stored(tmp_path: Path) -> None:
    model = llama(tmp_path)
    answer(model, IDS[:400])
    answer(model, IDS[:1000], ctx_policy="ring", ctx_size=512)
    answer(model, IDS[:1000], prefix_store_size=0)
    assert not stored(tmp_path, "block")


def test_other_settings_and_other_models_share_nothing(tmp_path: Path) -> None:
    model = llama(tmp_path)
    assert answer(model, IDS[:1000]).reused == 0
    assert answer(model, IDS[:1000], precision="high").reused == 0
    assert answer(tiny_llama(tmp_path / "other.gguf", n_ctx=4096, seed=1), IDS[:1000]).reused == 0
    assert answer(model, IDS[:1000], threads=2, ubatch_size=64).reused > 0
    fresh = answer(model, IDS[:1000], prefix_store=False, ubatch_size=64)
    assert answer(model, IDS[:1000], ubatch_size=64).logits.tolist() == fresh.logits.tolist()


def test_windows_of_other_sizes_share_nothing(tmp_path: Path) -> None:
    model = gemma(tmp_path)
    assert answer(model, IDS[:1000]).reused == 0
    assert answer(model, IDS[:1000], ubatch_size=64).reused == 0
    assert answer(model, IDS[:1000], ubatch_size=64).reused > 0


def test_damaged_files_are_removed_and_evaluated_again(tmp_path: Path) -> None:
    model, random = llama(tmp_path), np.random.default_rng(1)
    fresh = answer(model, IDS[:1000])
    for _ in range(10):
        files = stored(tmp_path, "block")
        for path in files:
            content = np.fromfile(path, np.uint8)
            if random.random() < 0.5:
                flipped = random.integers(0, len(content), max(1, len(content) // 10))
                content[flipped] ^= random.integers(1, 255, len(flipped), dtype=np.uint8)
            elif random.random() < 0.3:
                content = content[: random.integers(0, len(content))]
            path.write_bytes(content.tobytes())
        repaired = answer(model, IDS[:1000])
        assert repaired.ids == fresh.ids
        np.testing.assert_array_equal(repaired.logits, fresh.logits)
    assert answer(model, IDS[:1000]).reused >= 800


def test_a_file_under_another_name_is_not_accepted(tmp_path: Path) -> None:
    model = llama(tmp_path)
    answer(model, IDS[:1000])
    first, second = stored(tmp_path, "block")[:2]
    first.write_bytes(second.read_bytes())
    assert answer(model, IDS[:1000]).reused == 0


def test_a_state_is_stored_along_a_long_prompt(tmp_path: Path) -> None:
    model = gemma(tmp_path)
    answer(model, IDS[:3000])
    changed = answer(model, [*IDS[:2500], *IDS[3000:3100]])
    assert changed.reused == store_module.STATE_INTERVAL
    assert changed.logits.tolist() == answer(model, [*IDS[:2500], *IDS[3000:3100]], prefix_store=False).logits.tolist()


def test_the_answer_is_stored_too(tmp_path: Path) -> None:
    model = llama(tmp_path)
    with localinfer.load(model, ctx_size=4096, threads=1, temp=0, tune=False, prefix_store=True) as loaded:
        ids = [piece.id for piece in loaded.stream(IDS[:520], n_predict=200, ignore_eos=True)]
    continued = answer(model, [*IDS[:520], *ids, 5])
    assert continued.reused == 520 + 200 - 1  # the last token was sampled, but not evaluated
    assert continued.logits.tolist() == answer(model, [*IDS[:520], *ids, 5], prefix_store=False).logits.tolist()


def test_the_tail_of_an_answer_is_removed_when_its_blocks_are_stored(tmp_path: Path) -> None:
    model, ids = llama(tmp_path), IDS[:600]
    for n_tails in (1, 2, 1):  # after 603, 637 and 671 tokens
        ids = [*ids, *answer(model, ids).ids, *IDS[700:730]]
        assert len(stored(tmp_path, "state")) == n_tails


def test_a_tail_remains_until_its_block_is_stored(tmp_path: Path) -> None:
    n_tail = 8 * BLOCK_TOKENS + 10
    with localinfer.load(llama(tmp_path), ctx_size=4096, threads=1, tune=False, prefix_store=True) as loaded:
        store, engine = loaded.prefix_store, loaded.engine
        n_states = []
        for first, end, after_answer in ((0, n_tail, True), (n_tail, n_tail + 5, False), (n_tail + 5, 600, False)):
            engine.evaluate(IDS[first:end])
            store.save(engine, after_answer=after_answer)
            store.close()  # writes what waits
            n_states.append(len(stored(tmp_path, "state")))
    assert n_states == [1, 1, 0]


def test_concurrent_runs_restore_and_save(tmp_path: Path) -> None:
    model = llama(tmp_path)
    expected = [answer(model, IDS[at : at + 700], prefix_store=False).ids for at in (0, 700)]
    for fewest in (0, 512):
        with localinfer.load(model, ctx_size=1024, parallel=2, temp=0, tune=False, prefix_store=True) as loaded:
            streams = [
                loaded.concurrent(slot).stream(IDS[700 * slot : 700 * slot + 700], n_predict=N_PREDICT)
                for slot in (0, 1)
            ]
            with ThreadPoolExecutor(2) as pool:
                results = list(pool.map(lambda stream: [piece.id for piece in stream], streams))
        assert results == expected
        assert all(stream.stats.reused_tokens >= fewest for stream in streams)


def test_the_least_recently_used_prefixes_are_removed(tmp_path: Path) -> None:
    model = llama(tmp_path)
    answer(model, IDS[:1000])
    size = sum(path.stat().st_size for path in stored(tmp_path, "block"))
    limit = 2.5 * size / 2**30
    answer(model, IDS[1000:2000], prefix_store_size=limit)
    assert answer(model, IDS[:1000], prefix_store_size=limit).reused > 0  # now used last
    answer(model, IDS[2000:3000], prefix_store_size=limit)
    answer(model, IDS[3000:3600], prefix_store_size=limit)
    assert sum(path.stat().st_size for path in stored(tmp_path, "block")) <= 2.5 * size
    assert answer(model, IDS[3000:3600]).reused > 0
    assert answer(model, IDS[1000:2000]).reused == 0


def test_what_is_stored_is_listed(tmp_path: Path) -> None:
    model = llama(tmp_path)
    assert not stored_models(paths.prefixes_dir())
    answer(model, IDS[:1000])
    answer(model, IDS[:1000])
    [found] = stored_models(paths.prefixes_dir())
    assert found.about["model"] == str(model)
    assert found.restored == [960]
    assert found.size == sum(path.stat().st_size for path in [*stored(tmp_path, "block"), *stored(tmp_path, "state")])


def test_a_failing_disk_stops_the_store_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama(tmp_path)
    fresh = answer(model, IDS[:1000], prefix_store=False)

    def fail(path: Path, arrays: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("localinfer.prefix_store.writer.write_entry", fail)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with localinfer.load(model, ctx_size=4096, threads=1, temp=0, tune=False, prefix_store=True) as loaded:
            assert [piece.id for piece in loaded.stream(IDS[:1000], n_predict=N_PREDICT)] == fresh.ids
            loaded.prefix_store.close()
            loaded.generate(IDS[1000:2000], n_predict=N_PREDICT)
    [message] = [str(each.message) for each in caught if "prefix store" in str(each.message)]
    assert message.startswith("prefix store: ")
    assert message.endswith("No space left on device; prompts are not stored")
    assert not stored(tmp_path, "block")


def test_a_directory_that_cannot_be_used_is_warned_of(tmp_path: Path) -> None:
    (tmp_path / "prefixes").write_text("a file")
    with pytest.warns(UserWarning, match="prompts are not stored"):
        answer(llama(tmp_path), IDS[:1000])


def test_a_nearly_full_disk_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localinfer.prefix_store.writer.MIN_FREE_BYTES", 1 << 60)
    answer(llama(tmp_path), IDS[:1000])
    assert not stored(tmp_path, "block")


def test_a_prompt_is_written_after_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localinfer.prefix_store.writer.MAX_DELAY", 600.0)
    model = llama(tmp_path)
    with localinfer.load(model, ctx_size=4096, threads=1, temp=0, tune=False, prefix_store=True) as loaded:
        pieces = loaded.stream(IDS[:1000], n_predict=20, ignore_eos=True)
        next(pieces)
        writer = loaded.prefix_store._writer
        assert len(writer.waiting_names()) == 992 // BLOCK_TOKENS
        assert not stored(tmp_path, "block")
        list(pieces)
        writer.wait()
        assert len(stored(tmp_path, "block")) == 1019 // BLOCK_TOKENS


@pytest.mark.parametrize("limit", ["MAX_DELAY", "MAX_DELAYED_BYTES"])
def test_a_long_answer_does_not_delay_writing(limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localinfer.prefix_store.writer.MAX_DELAY", 600.0)
    monkeypatch.setattr(f"localinfer.prefix_store.writer.{limit}", 0)
    writer = Writer(tmp_path, 1 << 30)
    writer.write(tmp_path / block_name(1, "0" * 32), ZEROS)
    assert appears(tmp_path)
    writer.wait()


def appears(folder: Path, suffix: str = "*.block", seconds: float = 60) -> bool:
    """Wait for a file. Return whether there is one."""
    deadline = time.monotonic() + seconds
    while not list(folder.glob(suffix)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(list(folder.glob(suffix)))


def test_an_answer_that_ends_while_a_file_is_queued_does_not_delay_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localinfer.prefix_store.writer.MAX_DELAY", 600.0)
    writer, threads = Writer(tmp_path, 1 << 30), list[threading.Thread]()

    def clock() -> float:
        if not threads:
            threads.append(threading.Thread(target=writer.release))
            threads[0].start()
            threads[0].join(0.2)  # unless it waits for `write`
        return time.monotonic()

    monkeypatch.setattr("localinfer.prefix_store.writer.monotonic", clock)
    writer.write(tmp_path / block_name(1, "0" * 32), ZEROS)
    assert appears(tmp_path, seconds=20)
    writer.wait()


def test_waiting_bytes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localinfer.prefix_store.writer.MAX_DELAY", 600.0)
    monkeypatch.setattr("localinfer.prefix_store.writer.MAX_WAITING_BYTES", 200)
    writer = Writer(tmp_path, 1 << 30)
    for number in 1, 2:
        assert writer.accepts(tmp_path / block_name(number, "0" * 32))
        writer.write(tmp_path / block_name(number, "0" * 32), ZEROS)
        assert not writer.accepts(tmp_path / block_name(number, "0" * 32))
    assert not writer.accepts(tmp_path / block_name(3, "0" * 32))
    writer.wait()
    assert writer.accepts(tmp_path / block_name(3, "0" * 32))


@pytest.mark.parametrize("n_new", [3000, 500])  # tokens: with 3000, the pages of the first prompt are reused
def test_pages_that_wait_for_the_writer_keep_their_contents(
    n_new: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localinfer.prefix_store.writer.MAX_DELAY", 600.0)
    model, other = llama(tmp_path), IDS[::-1]
    fresh = answer(model, IDS[:2000], prefix_store=False)
    with localinfer.load(model, ctx_size=4096, threads=1, temp=0, tune=False, prefix_store=True) as loaded:
        loaded.prefix_store._writer.release = lambda: None  # a long answer: nothing is written before the program ends
        (ring,) = loaded.engine.compiled_graph.model_graph.attention.rings.values()
        list(loaded.stream(IDS[:2000], n_predict=1))
        held = list(ring.held)
        assert len(held) == 2000 // BLOCK_TOKENS
        list(loaded.stream(other[:n_new], n_predict=1))
        assert any(list(pages) == [] for pages in held) == (n_new == 3000)
        del loaded.prefix_store._writer.release
    restored = answer(model, IDS[:2000])
    assert restored.reused >= 1900
    np.testing.assert_array_equal(restored.logits, fresh.logits)
