"""The command `localinfer gguf-split`: split a model file, or join the files of a split model."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.arguments.flags import with_options
from cli.models.loading import find_or_fetch
from cli.terminal import screen
from localinfer.errors import UsageError

if TYPE_CHECKING:
    from localinfer.gguf.source import Source
    from localinfer.gguf.split_files import SplitFile

DEFAULT_TENSORS = 128
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}


@dataclass(frozen=True, kw_only=True)
class SplitOptions:
    """What to do, and how large the files of a split model are."""

    split: Annotated[bool, typer.Option("--split", help="Split a model into several files. [default]")] = False
    merge: Annotated[bool, typer.Option("--merge", help="Join the files of a split model to one.")] = False
    max_tensors: Annotated[
        int | None,
        typer.Option(
            "--split-max-tensors", metavar="N", min=1,
            help=f"Maximum number of tensors in a file. [default: {DEFAULT_TENSORS}, without --split-max-size]",
        ),
    ] = None
    max_size: Annotated[
        str | None,
        typer.Option("--split-max-size", metavar="SIZE", help="Maximum size of a file, such as 500M or 2G."),
    ] = None
    bare_first: Annotated[
        bool, typer.Option("--no-tensor-first-split", help="The first file has only metadata.")
    ] = False  # fmt: skip

    def plan(self, source: "Source", out: Path) -> "list[SplitFile]":
        """Return the files to write. Raises UsageError for options that contradict each other."""
        from localinfer.gguf.split_files import plan_joined, plan_split

        if self.merge and (self.split or self.bare_first or self.max_tensors or self.max_size is not None):
            raise UsageError("--merge: cannot be combined with the options of a split")
        if self.merge:
            return plan_joined(source, out)
        if self.max_tensors and self.max_size is not None:
            raise UsageError("--split-max-tensors and --split-max-size: cannot be combined")
        if self.max_size is not None:
            return plan_split(source, out, max_bytes=parse_size(self.max_size), bare_first=self.bare_first)
        return plan_split(source, out, max_tensors=self.max_tensors or DEFAULT_TENSORS, bare_first=self.bare_first)


@with_options()
def gguf_split_command(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A GGUF file; any file of a split model.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file of --merge, or what the names begin with.")],
    *,
    how: SplitOptions,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the files that would be written.")] = False,
    delete_splits: Annotated[
        bool, typer.Option("--delete-splits", help="Remove the files of the split model after --merge.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
) -> None:
    """Split a model file, or join the files of a split model.

    The arguments are those of llama-gguf-split. The files are named OUT-00001-of-00003.gguf and so on; each command
    that takes a model opens all of them if it gets one. Tensors and metadata are copied byte for byte.

    \b
    Examples:
      localinfer gguf-split --split-max-size 2G model.gguf model
      localinfer gguf-split --merge model-00001-of-00003.gguf model.gguf
    """
    if delete_splits and not how.merge:
        raise UsageError("--delete-splits: requires --merge")
    if delete_splits and not Path(source).exists():
        raise UsageError("--delete-splits: only removes files of your own, which a path names")

    from localinfer.gguf.gguf_source import from_gguf
    from localinfer.gguf.split_files import write_files

    status = screen.Status()
    opened = from_gguf(find_or_fetch(source, status))
    files = how.plan(opened, out)
    if not dry_run:
        write_files(files, replace=force, progress=status.percentage("writing"))
    status.erase()
    for each in files:
        line = f"{screen.one_line(str(each.path))}: {len(each.tensors)} tensors, {screen.mib(each.layout.size)}"
        if dry_run:
            screen.write(f"{line}\n")
        else:
            screen.note(line)
    for path in opened.files if delete_splits and not dry_run else ():
        path.unlink()


def parse_size(text: str) -> int:
    """Parse a size such as 500M or 2G, in powers of 1,000 as in llama-gguf-split."""
    match = re.fullmatch(r"([1-9]\d{0,14})([KMG]?)", text.upper(), re.ASCII)
    if not match:
        raise UsageError(f"--split-max-size: must be a number with K, M or G, such as 500M, not {text}")
    return int(match[1]) * UNITS[match[2]]
