"""Files that are written atomically, in directories that only this user can write to."""

import contextlib
import os
import stat
import sys
import tempfile
from pathlib import Path


def is_private(folder: Path) -> bool:
    """Return whether only this user can write to a folder. Raises OSError if it cannot be read.

    On Windows the mode does not say: folders of the user's profile are private there.
    """
    if sys.platform == "win32":
        return True
    info = folder.stat()
    return info.st_uid == os.geteuid() and not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file, or replace it, so that readers find the old or the new content. Raises OSError."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(temporary).replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise
