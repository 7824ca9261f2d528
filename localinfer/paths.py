"""Directories in which localinfer stores its files.

The functions only return paths; `private_directory` creates a directory, and `replace_file` writes a file.

    cache root   LOCALINFER_CACHE_DIR, else the platform's cache directory     models/  jit/  prefixes/  mcp/
    data dir     LOCALINFER_DATA_DIR, else the platform's data directory       sessions/  history  default-model
    config dir   LOCALINFER_CONFIG_DIR, else the platform's config directory   models.toml
"""

import os
import stat
from pathlib import Path

from localinfer.errors import LocalInferError


def cache_root() -> Path:
    """Return the root of everything that can be downloaded or computed again."""
    return _from_environment("LOCALINFER_CACHE_DIR") or _platform_directory("user_cache_path")


def models_dir() -> Path:
    """Return the directory of downloaded models."""
    return cache_root() / "models"


def jit_dir() -> Path:
    """Return the directory of compiled kernels.

    Its files are executed, so only `private_directory` may create or approve it.
    """
    return cache_root() / "jit"


def prefixes_dir() -> Path:
    """Return the directory of the prefix store: evaluated prompts of all models."""
    return cache_root() / "prefixes"


def mcp_logs_dir() -> Path:
    """Return the directory of what MCP servers write to stderr."""
    return cache_root() / "mcp"


def sessions_dir() -> Path:
    """Return the directory of saved chat sessions, which cannot be recreated."""
    return data_dir() / "sessions"


def chosen_model_file() -> Path:
    """Return the file with the name of the model that the user chose in `localinfer chat`."""
    return data_dir() / "default-model"


def data_dir() -> Path:
    """Return the root of the data that the user has created with localinfer."""
    return _from_environment("LOCALINFER_DATA_DIR") or _platform_directory("user_data_path")


def config_dir() -> Path:
    """Return the directory of the user's configuration, which localinfer only reads."""
    return _from_environment("LOCALINFER_CONFIG_DIR") or _platform_directory("user_config_path")


def private_directory(path: Path) -> Path:
    """Create `path` for the current user only (mode 0700), and return it.

    An existing directory is accepted only if no other user could have written files into it, because its files are
    loaded and kernels in it are executed.

    Raises LocalInferError if it cannot be created, or if it belongs to or is writable by another user.
    """
    try:
        missing = [parent for parent in path.parents if not parent.exists()]
        for directory in [*reversed(missing), path]:
            directory.mkdir(mode=0o700, exist_ok=True)
        info = path.stat()
    except OSError as error:
        raise LocalInferError(f"{path}: cannot create this directory: {error.strerror}") from error
    if os.name == "posix":
        if info.st_uid != os.geteuid():
            raise LocalInferError(f"{path}: belongs to another user; set LOCALINFER_*_DIR to another directory")
        if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise LocalInferError(f"{path}: writable by other users; fix with `chmod 700`")
    return path


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file atomically: another process sees the old content or the new one, also if both write it.

    Raises OSError, and leaves the old file, if that fails.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _from_environment(variable: str) -> Path | None:
    value = os.environ.get(variable)
    return Path(value).expanduser().absolute() if value else None


def _platform_directory(kind: str) -> Path:
    import platformdirs  # takes 20 ms, which most commands do not need

    directory: Path = getattr(platformdirs, kind)("localinfer", appauthor=False)
    return directory
