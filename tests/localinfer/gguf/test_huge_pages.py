"""Huge pages for mapped files: requested for every file, and given to files that were just written, if Linux can."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from memory_maps import cached_fraction, flags_at

from localinfer.gguf import huge_pages
from localinfer.gguf.atomic_file import atomic_files
from localinfer.gguf.mapped_file import MappedFile

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has huge pages for files")

SIZE = 3 * huge_pages.MIN_FILE_BYTES // 2


def write(path: Path) -> None:
    data = np.arange(SIZE // 8, dtype=np.int64)
    with atomic_files({path: SIZE}, replace=False) as [file]:
        file.write_at(0, data.data)


def test_mapped_files_ask_for_huge_pages(tmp_path: Path) -> None:
    write(tmp_path / "file")
    opened = MappedFile(tmp_path / "file")
    assert "hg" in flags_at(opened.bytes.ctypes.data) or not Path("/sys/kernel/mm/transparent_hugepage").exists()


def test_a_file_that_was_written_gets_huge_pages_or_stays_in_the_cache(tmp_path: Path) -> None:
    """It depends on Linux and on the file system which of the two."""
    write(tmp_path / "file")
    cached = cached_fraction(tmp_path / "file")
    before, opened = huge_pages.huge_file_bytes(), MappedFile(tmp_path / "file")
    assert np.array_equal(opened.bytes.view(np.int64), np.arange(SIZE // 8))
    if huge_pages.huge_file_bytes() - before > SIZE // 2:
        assert cached < 0.2
    else:
        assert cached > 0.5


def test_the_cache_is_kept_without_huge_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status = tmp_path / "smaps_rollup"
    for content in ("FilePmdMapped:         0 kB\n", ""):
        status.write_text(content)
        monkeypatch.setattr(huge_pages, "STATUS", status)
        write(tmp_path / f"file{len(content)}")
        assert cached_fraction(tmp_path / f"file{len(content)}") > 0.5
    monkeypatch.setattr(huge_pages, "STATUS", tmp_path / "missing")
    write(tmp_path / "other")
    assert cached_fraction(tmp_path / "other") > 0.5


def test_small_files_stay_in_the_cache(tmp_path: Path) -> None:
    with atomic_files({tmp_path / "small": 1 << 20}, replace=False) as [file]:
        file.write_at(0, os.urandom(1 << 20))
    assert cached_fraction(tmp_path / "small") > 0.5
