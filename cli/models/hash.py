"""The command `localinfer hash`: digests of the tensors of a model, and their comparison with a manifest."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.arguments.flags import ModelArgument, with_options
from cli.models.loading import find_or_fetch
from cli.terminal import screen
from localinfer.errors import LocalInferError, UsageError

if TYPE_CHECKING:
    from localinfer.gguf.hashing import Digest


OK = "Ok"


@dataclass(frozen=True, kw_only=True)
class Algorithms:
    """The digests that are computed."""

    xxh64: Annotated[bool, typer.Option("--xxh64", help="xxHash, 64 bits. [default]")] = False
    sha1: Annotated[bool, typer.Option("--sha1", help="SHA-1.")] = False
    sha256: Annotated[bool, typer.Option("--sha256", help="SHA-256.")] = False
    every: Annotated[bool, typer.Option("--all", help="All of these three.")] = False
    uuid: Annotated[bool, typer.Option("--uuid", help="A UUID (version 5) of all tensors.")] = False

    @property
    def chosen(self) -> tuple[str, ...]:
        """Return the names of the digests that the user chose."""
        names = ("xxh64", "sha1", "sha256")
        chosen = tuple(name for name in names if self.every or getattr(self, name))
        return (*chosen, "uuid") if self.uuid else chosen


@with_options()
def hash_command(
    model: ModelArgument,
    *,
    algorithms: Algorithms,
    no_layer: Annotated[bool, typer.Option("--no-layer", help="Only the digest of all tensors together.")] = False,
    check: Annotated[
        Path | None, typer.Option("-c", "--check", metavar="MANIFEST", help="Compare with the digests of a manifest.")
    ] = None,
) -> None:
    """Print digests of the tensors of a model, which do not change with its metadata.

    The output is that of llama-gguf-hash: a line for each tensor, and one for all of them. With --check, the strongest
    digests of the manifest are compared, or those that are chosen; the exit code is 1 if one differs.

    \b
    Examples:
      localinfer hash model.gguf --sha256 > model.manifest
      localinfer hash model.gguf --check model.manifest
      localinfer hash model.gguf --no-layer --uuid
    """
    from localinfer.gguf.gguf_source import from_gguf
    from localinfer.gguf.hashing import ALGORITHMS, hash_tensors

    status = screen.Status()
    path = find_or_fetch(model, status)
    expected = read_digests(check) if check is not None else []
    names = algorithms.chosen
    if not names and expected:
        found = {digest.algorithm for digest in expected}
        names = tuple(name for name in reversed(ALGORITHMS) if name in found)[:1] or ("uuid",)
    source, progress = from_gguf(path), status.percentage("hashing")
    file, failed = screen.one_line(str(path)), 0
    for digest in hash_tensors(source, names or ALGORITHMS[:1], each=not no_layer, progress=progress):
        result = compare(digest, expected)
        failed += result not in ("", OK)
        screen.write(digest.line(file) + f"  -  {result}" * bool(result) + "\n")
    if failed:
        raise LocalInferError(f"{screen.one_line(str(check))}: {failed} digests of {file} differ or are missing")


def read_digests(path: Path) -> "Sequence[Digest]":
    """Return the digests of a manifest. Raises UsageError if it cannot be read, or has none."""
    from localinfer.gguf.hashing import read_manifest

    try:
        digests = read_manifest(path.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise UsageError(f"--check: {screen.one_line(str(path))}: {error.strerror}") from None
    if not digests:
        raise UsageError(f"--check: {screen.one_line(str(path))}: has no line of a manifest")
    return digests


def compare(digest: "Digest", expected: "Sequence[Digest]") -> str:
    """Return "Ok", "Invalid" or "Not in manifest"; empty without a manifest."""
    if not expected:
        return ""
    values = [each.value for each in expected if (each.algorithm, each.name) == (digest.algorithm, digest.name)]
    return OK if digest.value in values else "Invalid" if values else "Not in manifest"
