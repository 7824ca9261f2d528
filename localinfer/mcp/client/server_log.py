"""The log file of an MCP server, whose size is limited."""

import contextlib
import re
from pathlib import Path

from localinfer import paths

LOG_LIMIT = 1 << 20  # bytes that one run of a server adds; an older file of this size is replaced


class ServerLog:
    """What a server writes, up to LOG_LIMIT bytes. Errors of the disk are ignored."""

    def __init__(self, server: str) -> None:
        self.path = log_path(server)
        self._left = LOG_LIMIT
        with contextlib.suppress(OSError):
            if self.path.stat().st_size >= LOG_LIMIT:
                self.path.unlink()
        self._file = self.path.open("ab", buffering=0)

    def write(self, content: bytes) -> None:
        with contextlib.suppress(OSError):
            self._file.write(content[: self._left])
        self._left -= min(len(content), self._left)

    def close(self) -> None:
        self._file.close()


def log_path(server: str) -> Path:
    """Return the path of the log of a server. Its name becomes a file name."""
    return paths.private_directory(paths.mcp_logs_dir()) / f"{re.sub(r'[^A-Za-z0-9_-]', '_', server)}.log"
