"""Huge pages for weights: decode reads all of them for each token, and a page of 2 MiB needs one TLB entry.

Linux has them in two places: in private memory, and, since Linux 5.18 on some file systems (XFS; ext4 since 6.16), in
the page cache. There a file gets them when it is read from the disk through a mapping that asked for them. A file that
was just written is in the page cache in small pages, and keeps those for as long as it stays there.
"""

import contextlib
import mmap
import os
import re
from pathlib import Path

HUGE_PAGE = 2 << 20
MIN_FILE_BYTES = 32 << 20  # smaller ones fit in caches, whose TLB entries suffice
STATUS = Path("/proc/self/smaps_rollup")


def request_huge_pages(mapping: mmap.mmap) -> None:
    """Ask for huge pages, as far as the system has them."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages
            mapping.madvise(mmap.MADV_HUGEPAGE)


def allocate_huge_pages(n_bytes: int) -> mmap.mmap:
    """Return zeroed private memory, in huge pages as far as the system has them.

    The mapping must be private: by default Linux backs no shared memory with huge pages.
    """
    if not hasattr(mmap, "MAP_PRIVATE"):  # Windows has only one kind of mapping
        return mmap.mmap(-1, n_bytes)
    memory = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    request_huge_pages(memory)
    return memory


def drop_small_pages(descriptor: int) -> None:
    """Remove a file that was written, and synced to disk, from the page cache, if it will be read in huge pages then.

    The next program that maps it reads it from the disk once more. Without huge pages that would only take time, so the
    first pages of the file show whether its file system has them.
    """
    size = os.fstat(descriptor).st_size
    if size < MIN_FILE_BYTES or not hasattr(os, "posix_fadvise") or not hasattr(mmap, "MADV_HUGEPAGE"):
        return
    with contextlib.suppress(OSError, ValueError):
        os.posix_fadvise(descriptor, 0, HUGE_PAGE, os.POSIX_FADV_DONTNEED)
        with mmap.mmap(descriptor, 2 * HUGE_PAGE, access=mmap.ACCESS_READ) as start:
            request_huge_pages(start)
            before = huge_file_bytes()
            start.read(1)  # from the disk
            has_huge_pages = huge_file_bytes() > before
        if has_huge_pages:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def huge_file_bytes() -> int:
    """Return how many bytes of files this process has mapped in huge pages. Raises OSError if Linux does not say."""
    found = re.search(r"^FilePmdMapped: +(\d+) kB$", STATUS.read_text(), re.MULTILINE)
    return int(found[1]) << 10 if found else 0
