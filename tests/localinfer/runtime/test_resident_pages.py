"""Resident pages of a model file: only the used ones, or all with --mlock."""

import contextlib
import re
import sys
from pathlib import Path

import pytest
from tiny import tiny_qwen3moe

from localinfer.gguf.reader import open_gguf
from localinfer.options import Options
from localinfer.runtime.engine import Engine

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
OPTIONS = Options(threads=1, ctx_size=64, tune=False)  # tuning runs decode steps


def in_memory(path: Path, what: str = "Rss") -> int:
    """Return the resident bytes of a mapped file."""
    mappings = re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())
    entries = [each for each in mappings if str(path) in each.partition("\n")[0]]
    return 1024 * sum(int(actual[1]) for each in entries if (actual := re.search(rf"(?m)^{what}:\s+(\d+) kB", each)))


def test_only_chosen_experts_are_read(tmp_path: Path) -> None:
    """A mixture-of-experts model that is larger than memory can still run, as unused experts are not read."""
    path = tiny_qwen3moe(tmp_path / "m.gguf", n_layer=1, n_embd=8192)  # a system may map a few hundred KB at a time
    size = path.stat().st_size
    with contextlib.closing(Engine.load(open_gguf(path), OPTIONS)) as engine:
        assert in_memory(path) < 0.1 * size
        engine.evaluate([5])
        assert in_memory(path) < 0.8 * size  # three of ten experts, and the system's read-ahead


def test_locked_files_are_read_at_once(tmp_path: Path) -> None:
    path = tiny_qwen3moe(tmp_path / "m.gguf")
    with contextlib.closing(Engine.load(open_gguf(path), Options(threads=1, ctx_size=64, mlock=True))) as engine:
        refused = [each for each in engine.warnings if "cannot be locked" in each]
        if refused:
            assert refused == [f"{path}: cannot be locked in memory: Cannot allocate memory"]
        else:
            assert in_memory(path, "Locked") >= path.stat().st_size
