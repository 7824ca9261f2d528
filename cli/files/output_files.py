"""Output files of commands: checked before the work begins, and written atomically."""

import tempfile
from collections.abc import Collection, Iterable
from pathlib import Path

from localinfer.errors import LocalInferError, UsageError
from localinfer.paths import replace_file

MAGIC = b"GGUF"  # of model files; what reads them is imported late


def writable_path(
    option: str, name: str, endings: Collection[str] = (), *, inputs: Iterable[str | None] = (), is_model: bool = False
) -> Path:
    """Return the path that `option` names, after checking that a file can be written there.

    An existing file will be replaced, unless it is one of the files `inputs`, by whatever name, or a model; with
    `is_model`, which says that a model is written, the caller decides about models. `endings` are the accepted file
    extensions, if not empty. Raises UsageError, with the name of the option, if the path is not writable.
    """
    try:
        path = Path(name).expanduser().resolve()
        if endings and path.suffix.lower() not in endings:
            raise UsageError(f"{option}: must end in {' or '.join(endings)}, not {name}")
        if path.exists() and not path.is_file():
            raise UsageError(f"{option}: {name}: not a regular file")
        for file in inputs if path.exists() else ():
            if file is not None and (source := Path(file).expanduser()).exists() and path.samefile(source):
                raise UsageError(f"{option}: {name}: is an input file; choose another name")
        if not is_model and is_model_file(path):
            raise UsageError(f"{option}: {name}: is a model file; choose another name")
        with tempfile.TemporaryFile(dir=path.parent):
            return path
    except OSError as error:
        raise UsageError(f"{option}: {name}: {error.strerror}") from None
    except (ValueError, RuntimeError) as error:  # a NUL in the name; unknown home directory
        raise UsageError(f"{option}: {name!r}: {error}") from None


def is_model_file(path: Path) -> bool:
    """Return whether a file is in the format GGUF and not known to be something that is made of models and texts: an
    importance matrix or a control vector."""
    if not path.exists() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            return False

    from localinfer.gguf.reader import open_gguf

    try:
        f = open_gguf(path)
        kinds = {f.get("general.type", str, ""), f.get("general.architecture", str, "")}
    except LocalInferError:
        return True
    return not kinds & {"imatrix", "controlvector"}


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the file atomically with `content`. Raises LocalInferError and leaves the old file if that fails."""
    try:
        replace_file(path, content)
    except OSError as error:
        raise LocalInferError(f"{path}: {error.strerror}") from None
