"""What `localinfer quantize` is asked for: its arguments, made sense of. UsageError names the one that has none."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from cli.arguments.nearest import did_you_mean
from cli.quantizing.flags import EFFORTS, TYPES
from localinfer.errors import UsageError
from localinfer.quantizing.recipes import COPY, RECIPES, Wishes, recipe_named

if TYPE_CHECKING:
    from localinfer.files.source import Field
    from localinfer.quantizing.budget import Target
    from localinfer.quantizing.mixture import Request

CHUNKS = 64  # of a text to calibrate on
NOT_CALIBRATED = {
    "--imatrix": "with --calibrate it is measured which columns matter: leave one of them out",
    "--keep-split": "--calibrate runs the model, which must be in one file",
    "--prune-layers": "--calibrate needs the model to be whole: prune it first, with COPY",
    "--report": "does not go together with --calibrate, which may take several runs",
    "--effort": "--calibrate is done with the most effort: leave one of them out",
}
Value = TypeVar("Value")


class Words(NamedTuple):
    """The arguments behind SOURCE. `out` may be left to us, and so `threads`; a target has no recipe yet."""

    out: Path | None
    recipe: str | None
    threads: int | None


class Calibration(NamedTuple):
    """A text's name, and how many chunks of it are read at most."""

    file: str
    most: int


class Task(NamedTuple):
    """All that is asked for. With a target, the request's recipe does not matter."""

    words: Words
    request: "Request"
    target: "Target | None"
    effort: str
    keep_split: bool
    replace: bool
    page: Path | None
    calibration: Calibration | None
    model: str | None  # the checkpoint of what a head guesses for

    @property
    def search(self) -> str:
        """The effort of encoders."""
        return "normal" if self.effort == "max" else self.effort


def read_words(words: Sequence[str]) -> Words:
    """[OUT] TYPE [THREADS]: OUT is the first word, unless that is a type."""
    if not words:
        raise UsageError(f"TYPE: is missing, and no target is given; there are {TYPES}")
    named = [recipe_named(word) for word in words[:2]]
    if named[0]:
        out, recipe, rest = None, named[0], words[1:]
    elif len(named) > 1 and named[1]:
        out, recipe, rest = Path(words[0]), named[1], words[2:]
    else:
        wrong = words[len(named) - 1]
        near = did_you_mean(wrong, [*RECIPES, COPY])
        raise UsageError(f"TYPE: {wrong} is no type{near or f'; there are {TYPES}'}")
    return Words(out, recipe, threads_in(rest, "SOURCE [OUT] TYPE [THREADS]"))


def read_words_of_target(words: Sequence[str]) -> Words:
    """[OUT] [THREADS]: OUT is the first word, unless that is a number."""
    out = None if not words or words[0].isdecimal() else Path(words[0])
    rest = words[1 if out else 0 :]
    named = [word for word in words if recipe_named(word) and not word.isdecimal()]
    if named:
        raise UsageError(f"{named[0]}: a target chooses the types: leave it out")
    return Words(out, None, threads_in(rest, "SOURCE [OUT] [THREADS]"))


def threads_in(rest: Sequence[str], usage: str) -> int | None:
    """The last of the words, if there is one."""
    if len(rest) > 1:
        raise UsageError(f"{rest[1]}: too many arguments: {usage}")
    if rest and not (rest[0].isascii() and rest[0].isdigit() and 1 <= int(rest[0]) <= 1024):
        raise UsageError(f"THREADS: must be a number from 1 to 1024, not {rest[0]}: {usage}")
    return int(rest[0]) if rest else None


def read_target(size: str | None, bits: str | None) -> "Target | None":
    """What the file may take, if that is said."""
    if size is None and bits is None:
        return None
    if size is not None and bits is not None:
        raise UsageError("--target-size and --target-bpw: only one of them can be reached")

    from localinfer.quantizing.budget import parsed_bits, parsed_size

    found = parsed("--target-size", parsed_size, size)
    return found or parsed("--target-bpw", parsed_bits, bits)


def read_calibration(
    file: str | None, most: int | None, others: Mapping[str, object], effort: str | None
) -> Calibration | None:
    """What to calibrate on, if that is asked for, and none of `others` with it, nor less effort than the most."""
    if file is None:
        if most is not None:
            raise UsageError("--calibrate-chunks: of which text? --calibrate FILE names it")
        return None
    for option, given in {**others, "--effort": effort not in (None, "max")}.items():
        if given:
            raise UsageError(f"{option}: {NOT_CALIBRATED[option]}")
    return Calibration(file, most or CHUNKS)


def read_effort(effort: str | None, calibration: Calibration | None) -> str:
    """What is asked for, or what is usual."""
    effort = effort or ("max" if calibration else "normal")
    if effort not in EFFORTS:
        raise UsageError(f"--effort: must be one of {', '.join(EFFORTS)}, not {effort}")
    return effort


def read_wishes(
    pure: bool,
    leave_output: bool,
    output: str | None,
    token_embedding: str | None,
    patterns: Sequence[str],
    file: Path | None,
) -> Wishes:
    """The types that are asked for beside the recipe's; those of the file's patterns come after the other patterns."""
    from localinfer.quantizing.mixture import parsed_pattern, parsed_type

    patterns = [*patterns, *words_of_file("--tensor-type-file", file)]
    return Wishes(
        pure=pure,
        leave_output=leave_output,
        output=parsed("--output-tensor-type", parsed_type, output),
        token_embedding=parsed("--token-embedding-type", parsed_type, token_embedding),
        patterns=tuple(parsed_all("--tensor-type", parsed_pattern, patterns)),
    )


def read_fields(texts: Sequence[str]) -> "dict[str, Field]":
    """Metadata that shall be other than the source's."""
    from localinfer.quantizing.mixture import parsed_field

    return dict(parsed_all("--override-kv", parsed_field, texts))


def read_layers(text: str | None) -> tuple[int, ...]:
    """The layers that are to be left out."""
    from localinfer.quantizing.prune import parsed_layers

    return parsed("--prune-layers", parsed_layers, text) or ()


def parsed(option: str, parse: Callable[[str], Value], text: str | None) -> Value | None:
    return None if text is None else parsed_all(option, parse, [text])[0]


def parsed_all(option: str, parse: Callable[[str], Value], texts: Sequence[str]) -> list[Value]:
    try:
        return [parse(text) for text in texts]
    except ValueError as problem:
        raise UsageError(f"{option}: {problem}") from None


def words_of_file(option: str, path: Path | None) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").split() if path else []
    except OSError as error:
        raise UsageError(f"{option}: {path}: {error.strerror}") from None
    except ValueError:
        raise UsageError(f"{option}: {path}: is not valid UTF-8") from None
