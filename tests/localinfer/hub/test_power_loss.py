"""Power failures during a download: a file with its final name is complete, and the next pull ends with it."""

import os
import random
from pathlib import Path

import pytest
from loopback_hub import Fault, Hub
from power_loss import Disk

from localinfer.gguf.resumable_file import resumable_file
from localinfer.hub import download, resolve
from localinfer.hub.pull import pull
from localinfer.hub.resolve import NotDownloadedError


@pytest.fixture(autouse=True)
def fast_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Synchronize nothing: the power failures are simulated."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def test_download_after_a_power_failure_at_any_moment(
    hub: Hub, model_bytes: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "CHECKPOINT_BYTES", 400_000)
    hub.files["/m.gguf"] = model_bytes
    address, seen = f"{hub.url}/m.gguf", set()
    with Disk(tmp_path / "cache") as disk:
        hub.faults += [Fault(), Fault(n_bytes=500_000)]
        pull(address)
    crashes = list(disk.crashes(random.Random(0)))
    for crash in random.Random(1).sample(crashes, 16) + crashes[-4:]:
        if (state := tuple(sorted((name, hash(content)) for name, content in crash.files.items()))) in seen:
            continue
        seen.add(state)
        monkeypatch.setenv("LOCALINFER_CACHE_DIR", str(tmp_path / f"crash{len(seen)}"))
        (tmp_path / f"crash{len(seen)}").mkdir(mode=0o700)
        crash.restore(tmp_path / f"crash{len(seen)}")
        try:
            assert resolve.find(address).read_bytes() == model_bytes
        except NotDownloadedError:
            assert pull(address).read_bytes() == model_bytes
    assert len(seen) > 10


def write(path: Path, fill: bytes, *, n_steps: int, stop: bool = False) -> None:
    """Write a file in steps, of which its name in the identity depends on `fill`; stop after `n_steps`."""
    with resumable_file(path, 40, {"content": fill.decode()}, replace=True) as file:
        for step in range(file.steps_done, n_steps):
            file.file.write_at(10 * step, fill * 10)
            file.save_progress(step + 1, 10 * (step + 1))
        if stop:
            raise KeyboardInterrupt


def test_progress_of_another_file_is_never_used(tmp_path: Path) -> None:
    """Two runs are interrupted, the second one with another identity, before a power failure."""
    folder = tmp_path / "run"
    folder.mkdir()
    with Disk(folder) as disk:
        for fill, n_steps in ((b"a", 3), (b"b", 0)):
            with pytest.raises(KeyboardInterrupt):
                write(folder / "out", fill, n_steps=n_steps, stop=True)
        with pytest.raises(KeyboardInterrupt):
            write(folder / "out", b"b", n_steps=2, stop=True)
    crashes = {repr(sorted(crash.files.items())): crash for crash in disk.crashes(random.Random(0), variants=8)}
    for number, crash in enumerate(crashes.values()):
        (tmp_path / str(number)).mkdir()
        crash.restore(tmp_path / str(number))
        write(tmp_path / str(number) / "out", b"a", n_steps=4)
        assert (tmp_path / str(number) / "out").read_bytes() == b"a" * 40
