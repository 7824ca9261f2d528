"""Model architectures: one file each, whose function `build(g)` computes a forward pass with the operations of
a `Builder` (`localinfer.graph.builder`).

A file is named after the GGUF architecture, with `-` and `.` replaced by `_`. Users can add architectures with a Python
file (`--architecture`) or with a package that has an entry point `localinfer.architectures`.
"""

import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from localinfer.errors import LocalInferError, UnsupportedError, UsageError
from localinfer.escaping import printable
from localinfer.gguf.reader import GGUF
from localinfer.graph.builder import Builder

BuildFunction = Callable[[Builder[Any]], None]  # adds a whole forward pass to the graph

ENTRY_POINTS = "localinfer.architectures"
SPEECH_RECOGNITION = "parakeet"  # see `localinfer.speech_recognition`
EAGLE3, DFLASH = "eagle3", "dflash"
DRAFT_HEADS = {  # no models: see `localinfer.graph.recording.separate_heads`. With the value of `--spec-type`
    EAGLE3: "draft-eagle3", DFLASH: "draft-dflash", "gemma4-assistant": "draft-mtp",
}  # fmt: skip


def known() -> list[str]:
    """Return the names of all built-in architecture modules."""
    return sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py"))


def find_build_function(f: GGUF, architecture_file: str = "") -> BuildFunction:
    """Return the `build` function of the user's Python file if one is given, else that of the model's architecture.

    Raises UnsupportedError, naming the architecture and the closest known one, if there is no such architecture. Raises
    UsageError if the Python file has no `build` function.
    """
    name = f.get("general.architecture", str)
    if architecture_file:
        return from_file(Path(architecture_file))
    module = re.sub(r"[-.]", "_", name)
    if module in known():
        build: BuildFunction = import_module(f"localinfer.architectures.{module}").build
        return build
    for added in from_packages(name):
        return added
    if name in DRAFT_HEADS:
        what = f"{name!r} is a draft head for another model: pass it as spec_draft_model (--spec-draft-model)"
        raise f.error("general.architecture", what, UnsupportedError)
    reject_speech_recognition(f)
    raise f.error(
        "general.architecture", f"{printable(name, 80)!r} is not supported ({suggestion(module)})", UnsupportedError
    )


def reject_speech_recognition(f: GGUF) -> None:
    """Raise UnsupportedError for a model that is not a language model, but recognizes speech."""
    if f.architecture == SPEECH_RECOGNITION:
        what = f"{SPEECH_RECOGNITION!r} is a speech recognition model, which only `localinfer transcribe` runs"
        raise f.error("general.architecture", what, UnsupportedError)


def from_file(path: Path) -> BuildFunction:
    """Run a Python file and return its `build` function. Raises UsageError if it has none or cannot be read."""
    found = run_python_file(path, "architecture (--architecture)").get("build")
    if not callable(found):
        raise UsageError(f"architecture (--architecture): {path}: has no function `build`")
    build: BuildFunction = found
    return build


def run_python_file(path: Path, option: str) -> dict[str, Any]:
    """Run a Python file that a user gave for an option, and return its names.

    Raises UsageError if it cannot be read, LocalInferError if its code raises an exception.
    """
    import runpy

    try:
        return runpy.run_path(str(path))
    except OSError as error:
        raise UsageError(f"{option}: {path}: {error.strerror or error}") from None
    except Exception as error:
        what = f"{type(error).__name__}: {printable(str(error), 200)}"
        raise LocalInferError(f"{path}: its code raised {what}") from error


def from_packages(name: str) -> Iterator[BuildFunction]:
    """Yield the `build` functions that installed packages provide for an architecture."""
    from importlib.metadata import entry_points

    for found in entry_points(group=ENTRY_POINTS, name=name):
        yield found.load()


def suggestion(module: str) -> str:
    """Return a hint at the closest known architecture."""
    from difflib import get_close_matches

    near = get_close_matches(module, known(), 1, 0.5)
    return f"did you mean {near[0]}?" if near else f"supported: {', '.join(known())}"
