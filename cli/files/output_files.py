"""Output files of commands: checked before the work begins, and written atomically."""

import tempfile
from collections.abc import Collection
from pathlib import Path

from localinfer.errors import LocalInferError, UsageError
from localinfer.paths import replace_file


def writable_path(option: str, name: str, endings: Collection[str] = ()) -> Path:
    """Return the path that `option` names, after checking that a file can be written there.

    An existing file will be replaced. `endings` are the accepted file extensions, if not empty.
    Raises UsageError, with the name of the option, if the path is not writable.
    """
    try:
        path = Path(name).expanduser().resolve()
        if endings and path.suffix.lower() not in endings:
            raise UsageError(f"{option}: must end in {' or '.join(endings)}, not {name}")
        if path.exists() and not path.is_file():
            raise UsageError(f"{option}: {name}: not a regular file")
        with tempfile.TemporaryFile(dir=path.parent):
            return path
    except OSError as error:
        raise UsageError(f"{option}: {name}: {error.strerror}") from None
    except (ValueError, RuntimeError) as error:  # a NUL in the name; unknown home directory
        raise UsageError(f"{option}: {name!r}: {error}") from None


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the file atomically with `content`. Raises LocalInferError and leaves the old file if that fails."""
    try:
        replace_file(path, content)
    except OSError as error:
        raise LocalInferError(f"{path}: {error.strerror}") from None
