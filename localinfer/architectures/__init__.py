"""The model families: one file each, a function `record` that writes down the forward pass.

A file has the name that GGUF gives the architecture, with `_` for what no module's name may have. Others can add
theirs: by a file that the user names, or by an entry point `localinfer.architectures` of a package.
"""

import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

from localinfer.errors import LocalInferError, Unsupported, UsageError
from localinfer.files.gguf import GGUF
from localinfer.plan.recorder import Recorder
from localinfer.text import printable

Record = Callable[[Recorder], None]  # records a whole forward pass

ENTRY_POINTS = "localinfer.architectures"
EAGLE3 = "eagle3"  # no model by itself: see `localinfer.plan.eagle3`


def known() -> list[str]:
    """The modules of all architectures that come with localinfer."""
    return sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py"))


def find(f: GGUF, own: str = "") -> Record:
    """The `record` function of the user's `own` file if there is one, else of the file's architecture.

    Raises Unsupported naming the architecture and the nearest one that is known, UsageError for an own file that is
    none.
    """
    name = f.get("general.architecture", str)
    if own:
        return of_file(Path(own))
    module = re.sub(r"[-.]", "_", name)
    if module in known():
        record: Record = import_module(f"localinfer.architectures.{module}").record
        return record
    for added in of_packages(name):
        return added
    if name == EAGLE3:
        what = f"{name!r} is a head that guesses for another model: --spec-draft-model names it beside that"
        raise f.error("general.architecture", what, Unsupported)
    raise f.error("general.architecture", f"{printable(name, 80)!r} is not supported ({hint(module)})", Unsupported)


def of_file(path: Path) -> Record:
    """The `record` function of a Python file, which is run."""
    import runpy

    try:
        found = runpy.run_path(str(path)).get("record")
    except OSError as error:
        raise UsageError(f"--architecture: {path}: {error.strerror or error}") from None
    except Exception as error:
        what = f"{type(error).__name__}: {printable(str(error), 200)}"
        raise LocalInferError(f"{path}: its code raised {what}") from error
    if not callable(found):
        raise UsageError(f"--architecture: {path}: has no function `record`")
    record: Record = found
    return record


def of_packages(name: str) -> Iterator[Record]:
    """The `record` functions that installed packages offer for an architecture."""
    from importlib.metadata import entry_points

    for found in entry_points(group=ENTRY_POINTS, name=name):
        yield found.load()


def hint(module: str) -> str:
    """Which architecture could have been meant."""
    from difflib import get_close_matches

    near = get_close_matches(module, known(), 1, 0.5)
    return f"the nearest one that is: {near[0]}" if near else f"only {', '.join(known())}"
