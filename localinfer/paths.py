"""Where localinfer keeps things on this machine.

Knows directories and nothing of what lies in them. The functions only name a path; nothing is created
before somebody calls `private_directory`.

    cache root   LOCALINFER_CACHE_DIR, else the system's place for caches    models/  jit/  snapshots/
    data dir     LOCALINFER_DATA_DIR, else the system's place for data       sessions/  history
    config dir   LOCALINFER_CONFIG_DIR, else the system's place for settings  models.toml
"""

import os
import stat
from pathlib import Path

from localinfer.errors import LocalInferError


def cache_root() -> Path:
    """The root of everything that can be fetched or computed again."""
    return _chosen("LOCALINFER_CACHE_DIR") or _system("user_cache_path")


def models_dir() -> Path:
    """Models that `localinfer pull` has fetched."""
    return cache_root() / "models"


def jit_dir() -> Path:
    """Compiled kernels. They are executed: only `private_directory` may create or approve this one."""
    return cache_root() / "jit"


def snapshots_dir() -> Path:
    """What models remember of sessions, to go on with them sooner."""
    return cache_root() / "snapshots"


def sessions_dir() -> Path:
    """Conversations, which nothing can bring back."""
    return data_dir() / "sessions"


def data_dir() -> Path:
    """The root of everything that the user has made with localinfer."""
    return _chosen("LOCALINFER_DATA_DIR") or _system("user_data_path")


def config_dir() -> Path:
    """The user's own settings; we read here and never write."""
    return _chosen("LOCALINFER_CONFIG_DIR") or _system("user_config_path")


def private_directory(path: Path) -> Path:
    """Create `path` for this user alone (mode 0700) and return it.

    A directory that exists is approved only when nobody else could have put files into it: what we find
    there is later computed with, and for kernels executed.

    Raises LocalInferError when it cannot be created, or belongs to or is writable by somebody else.
    """
    try:
        missing = [place for place in path.parents if not place.exists()]
        for place in [*reversed(missing), path]:
            place.mkdir(mode=0o700, exist_ok=True)
        info = path.stat()
    except OSError as error:
        raise LocalInferError(f"{path}: cannot create this directory: {error.strerror}") from error
    if os.name == "posix":
        if info.st_uid != os.geteuid():
            raise LocalInferError(f"{path}: belongs to another user; LOCALINFER_*_DIR choose others")
        if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise LocalInferError(f"{path}: other users may write to it; `chmod 700` would stop that")
    return path


def _chosen(variable: str) -> Path | None:
    value = os.environ.get(variable)
    return Path(value).expanduser().absolute() if value else None


def _system(kind: str) -> Path:
    import platformdirs  # 20 ms that most commands need not spend

    place: Path = getattr(platformdirs, kind)("localinfer", appauthor=False)
    return place
