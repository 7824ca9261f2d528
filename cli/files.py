"""Files that a command leaves behind: there whole or not at all, and refused before the work that fills them."""

import os
import tempfile
from collections.abc import Collection
from pathlib import Path

from localinfer.errors import LocalInferError, UsageError


def promised(option: str, name: str, endings: Collection[str] = ()) -> Path:
    """The path that an option names, where a file can be written; one that is there will be replaced.

    UsageError names the option, and what is in the way.
    """
    try:
        path = Path(name).expanduser().resolve()
        if endings and path.suffix.lower() not in endings:
            raise UsageError(f"{option}: must be a name that ends in {' or '.join(endings)}, not {name}")
        if path.exists() and not path.is_file():
            raise UsageError(f"{option}: {name}: is there, and is no file")
        with tempfile.TemporaryFile(dir=path.parent):
            return path
    except OSError as error:
        raise UsageError(f"{option}: {name}: {error.strerror}") from None
    except (ValueError, RuntimeError) as error:  # a NUL inside; a home that is not known
        raise UsageError(f"{option}: {name!r}: {error}") from None


def write_whole(path: Path, content: bytes) -> None:
    """Put the content in the place of what is there. LocalInferError names the path, which then is as it was."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(path)
    except OSError as error:
        raise LocalInferError(f"{path}: {error.strerror}") from None
    finally:
        unfinished.unlink(missing_ok=True)
