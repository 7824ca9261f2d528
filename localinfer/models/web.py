"""`https://HOST/PATH.gguf[#sha256=DIGEST]`: models from any web server, in a directory for each address.

    models/web/NAME-HASH/url        the address, which HASH is made of
                         NAME.gguf  the file; of a model in several files all of them

What is here is never asked for again. Where nobody tells a digest, it has to be a GGUF file that has all its tensors.
"""

import hashlib
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from localinfer import paths
from localinfer.errors import UsageError
from localinfer.files.part_names import NAME as PART
from localinfer.files.part_names import part_names
from localinfer.files.safe_file import told_of
from localinfer.files.unfinished import left_in, still_needed
from localinfer.models.stores import Listed, NotFetched, Progress, is_file, one_at_a_time, readable, require_room
from localinfer.options import Layer

TITLE = "the web"
ADDRESS = "url"
FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,199}\.gguf")
PROOF = re.compile(r"sha256=([0-9a-f]{64})")


def folders() -> list[Path]:
    return [root()] if readable(root()) else []


def find(name: str) -> Path:
    files = files_of(name)
    if not all(map(is_file, files)):
        raise NotFetched(f"{name}: not fetched yet; `localinfer pull {name}` fetches it")
    return files[0]


def default_options(_: str) -> Layer:
    return {}


def listed() -> Iterator[Listed]:
    for folder in [each for root in folders() for each in sorted(root.iterdir())]:
        left = list(left_in(folder))
        if left:
            yield Listed.begun(address(left[0].identity.get("file", "")), list(folder.glob("*.gguf")), left)
            continue
        with suppress(OSError, UnicodeDecodeError, UsageError):
            name = (folder / ADDRESS).read_text()
            if all(map(is_file, files_of(name))):
                yield Listed.here(name, files_of(name))


def fetch(name: str, progress: Progress) -> Path:
    """Raises UsageError, ModelNotFound, LocalInferError."""
    from localinfer.models.download import download, look

    files, digest = files_of(name), PROOF.fullmatch(urlsplit(name).fragment)
    folder = files[0].parent
    if digest and len(files) > 1:
        raise UsageError(f"{name}: sha256 can only be said of a model in one file")
    paths.private_directory(paths.models_dir())
    with one_at_a_time(root() / ".lock"):
        missing = [file for file in files if not is_file(file)]
        abouts = [look(name, address(name, file.name), digest[1] if digest else "") for file in missing]
        sizes = [about.size for about in abouts]
        with told_of(folder, sum(sizes)):
            folder.mkdir(parents=True, exist_ok=True)
            try:
                require_room(name, folder, sum(map(still_needed, missing, sizes)))
                for number, (file, about) in enumerate(zip(missing, abouts, strict=True)):
                    download(name, about, file, progress, sum(sizes[:number]), sum(sizes))
                (folder / ADDRESS).write_text(name.partition("#")[0])
            finally:
                with suppress(OSError):
                    folder.rmdir()  # if nothing has come
    return files[0]


def removable(name: str) -> list[Path]:
    folder = files_of(name)[0].parent
    return sorted(folder.iterdir()) if readable(folder) else []


def root() -> Path:
    return paths.models_dir() / "web"


def files_of(name: str) -> list[Path]:
    """Where the files of this address are kept. Raises UsageError for an address that cannot be one."""
    first = address(name)
    file = unquote(urlsplit(first).path.rpartition("/")[2])
    if not FILE.fullmatch(file):
        file = "model.gguf"
    folder = root() / f"{file.removesuffix('.gguf')}-{hashlib.sha256(first.encode()).hexdigest()[:12]}"
    part = PART.fullmatch(file)
    return [folder / each for each in (part_names(part["prefix"], int(part["count"])) if part else [file])]


def address(name: str, file: str = "") -> str:
    """What is asked for: without the digest, and of a model in several files the first one, or this one."""
    try:
        parts = urlsplit(name)
        host = parts.hostname and parts.port != 0
    except ValueError:
        host = None
    if not host or parts.username is not None or not name.isprintable() or " " in name:
        raise UsageError(f"{name}: must be an address such as https://host/path/model.gguf, without a password")
    folder, _, last = parts.path.rpartition("/")
    if part := PART.fullmatch(last):
        last = file or part_names(part["prefix"], int(part["count"]))[0]
    return urlunsplit((parts.scheme, parts.netloc, f"{folder}/{last}", parts.query, ""))
