"""`https://HOST/PATH.gguf[#sha256=DIGEST]`: models from any web server, in a directory for each address.

    models/web/NAME-HASH/url        the address with the digest, which HASH is made of
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
from localinfer.models.stores import (
    Listed,
    NotFetched,
    Progress,
    children,
    is_file,
    one_at_a_time,
    readable,
    require_room,
)
from localinfer.options import Layer

TITLE = "the web"
ADDRESS = "url"
FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,199}\.gguf")
PROOF = re.compile(r"(sha256=[0-9a-fA-F]{64})?")


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
    for folder in children(root()):
        left = list(left_in(folder))
        if left:
            yield Listed.begun(left[0].identity.get("file", ""), list(folder.glob("*.gguf")), left)
            continue
        with suppress(OSError, UnicodeDecodeError, UsageError):
            name = (folder / ADDRESS).read_text()
            if all(map(is_file, files_of(name))):
                yield Listed.here(name, files_of(name))


def fetch(name: str, progress: Progress) -> Path:
    """Raises UsageError, ModelNotFound, LocalInferError."""
    from localinfer.models.download import download, look

    files, digest = files_of(name), urlsplit(name).fragment.removeprefix("sha256=").lower()
    folder = files[0].parent
    paths.private_directory(paths.models_dir())
    with one_at_a_time(root() / ".lock"):
        missing = [file for file in files if not is_file(file)]
        abouts = [look(name, named(name), address(name, file.name), digest) for file in missing]
        sizes = [about.size for about in abouts]
        with told_of(folder, sum(sizes)):
            folder.mkdir(parents=True, exist_ok=True)
            try:
                require_room(name, folder, sum(map(still_needed, missing, sizes)))
                for number, (file, about) in enumerate(zip(missing, abouts, strict=True)):
                    download(name, about, file, progress, sum(sizes[:number]), sum(sizes))
                (folder / ADDRESS).write_text(named(name))
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
    file = unquote(urlsplit(address(name)).path.rpartition("/")[2])
    if not FILE.fullmatch(file):
        file = "model.gguf"
    folder = root() / f"{file.removesuffix('.gguf')}-{hashlib.sha256(named(name).encode()).hexdigest()[:12]}"
    part = PART.fullmatch(file)
    files = part_names(part["prefix"], int(part["count"])) if part else [file]
    if len(files) > 1 and "#" in name:
        raise UsageError(f"{name}: a sha256 can only be that of a model in one file")
    return [folder / each for each in files]


def named(name: str) -> str:
    """The one name that all parts of a model have: the first one's address, and the digest."""
    fragment = urlsplit(name).fragment.lower()
    return address(name) + (f"#{fragment}" if fragment else "")


def address(name: str, file: str = "") -> str:
    """What is asked for: without the digest, and of a model in several files the first one, or this one."""
    try:
        parts = urlsplit(name)
        host = parts.hostname and parts.port != 0
    except ValueError:
        host = None
    if not host or parts.username is not None or not name.isprintable() or " " in name:
        raise UsageError(f"{name}: must be an address such as https://host/path/model.gguf, without a password")
    if not PROOF.fullmatch(parts.fragment):
        raise UsageError(f"{name}: behind # can only be sha256= and 64 hexadecimal digits")
    folder, _, last = parts.path.rpartition("/")
    if part := PART.fullmatch(last):
        last = file or part_names(part["prefix"], int(part["count"]))[0]
    return urlunsplit((parts.scheme, parts.netloc, f"{folder}/{last}", parts.query, ""))
