"""The model store `https://HOST/PATH.gguf[#sha256=DIGEST]`: models of any web server, in one directory per URL.

    models/web/NAME-HASH/url        the URL with the digest, from which HASH is computed
                         sha256     the digest, if the URL or the server named one
                         NAME.gguf  the file, or all parts of a split model

A downloaded file is never requested again. Without a digest, it must be a GGUF file that contains all its tensors.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from localinfer import paths
from localinfer.errors import UsageError
from localinfer.escaping import shell_word
from localinfer.gguf.atomic_file import raise_write_errors
from localinfer.gguf.resumable_file import find_unfinished, missing_bytes
from localinfer.gguf.split_names import NAME as PART
from localinfer.gguf.split_names import split_names
from localinfer.hub.model_store import (
    NotDownloadedError,
    Progress,
    StoredModel,
    exclusive_lock,
    is_directory,
    is_file,
    list_directory,
    require_disk_space,
)
from localinfer.options import Layer

TITLE = "the web"
URL_FILE, DIGEST_FILE = "url", "sha256"
FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,199}\.gguf")
SHA256 = re.compile(r"[0-9a-f]{64}")
FRAGMENT = re.compile(r"(sha256=[0-9a-fA-F]{64})?")


def directories() -> list[Path]:
    return [web_directory()] if is_directory(web_directory()) else []


def find(name: str) -> Path:
    files = local_files(name)
    if not all(map(is_file, files)):
        raise NotDownloadedError(f"{name}: not downloaded; run `localinfer pull {shell_word(name)}`")
    return files[0]


def default_options(_: str) -> Layer:
    return {}


def list_models() -> Iterator[StoredModel]:
    for folder in list_directory(web_directory()):
        unfinished = list(find_unfinished(folder))
        if unfinished:
            yield StoredModel.partial(unfinished[0].identity.get("file", ""), list(folder.glob("*.gguf")), unfinished)
            continue
        with suppress(OSError, UnicodeDecodeError, UsageError):
            name = (folder / URL_FILE).read_text("utf-8")
            if all(map(is_file, local_files(name))):
                yield StoredModel.complete(name, local_files(name))


def fetch(name: str, progress: Progress) -> Path:
    """Download the missing files. Raises UsageError, ModelNotFoundError, LocalInferError."""
    from localinfer.hub.download import download, request_file_info

    files, digest = local_files(name), urlsplit(name).fragment.removeprefix("sha256=").lower()
    folder = files[0].parent
    paths.private_directory(paths.models_dir())
    with exclusive_lock(web_directory() / ".lock"):
        missing = [file for file in files if not is_file(file)]
        remotes = [request_file_info(name, canonical_name(name), file_url(name, file.name), digest) for file in missing]
        sizes = [remote.size for remote in remotes]
        with raise_write_errors(folder, sum(sizes)):
            folder.mkdir(parents=True, exist_ok=True)
            try:
                require_disk_space(name, folder, sum(map(missing_bytes, missing, sizes)))
                for number, (file, remote) in enumerate(zip(missing, remotes, strict=True)):
                    download(name, remote, file, progress, sum(sizes[:number]), sum(sizes))
                (folder / URL_FILE).write_text(canonical_name(name), "utf-8")
                if len(files) == 1 and remotes and remotes[0].digest:
                    (folder / DIGEST_FILE).write_text(remotes[0].digest, "utf-8")
            finally:
                with suppress(OSError):
                    folder.rmdir()  # only succeeds if nothing was downloaded
    return files[0]


def digests(name: str) -> Mapping[Path, str]:
    files, digest = local_files(name), ""
    with suppress(OSError, UnicodeDecodeError):
        found = (files[0].parent / DIGEST_FILE).read_text("utf-8")
        digest = found if SHA256.fullmatch(found) else ""
    return dict.fromkeys(files, digest)


def removable_files(name: str) -> list[Path]:
    folder = local_files(name)[0].parent
    return sorted(folder.iterdir()) if is_directory(folder) else []


def web_directory() -> Path:
    return paths.models_dir() / "web"


def local_files(name: str) -> list[Path]:
    """Return the local paths of the files of a URL. Raises UsageError for an invalid URL."""
    file = unquote(urlsplit(file_url(name)).path.rpartition("/")[2])
    if not FILE.fullmatch(file):
        file = "model.gguf"
    digest = hashlib.sha256(canonical_name(name).encode()).hexdigest()
    folder = web_directory() / f"{file.removesuffix('.gguf')}-{digest[:12]}"
    part = PART.fullmatch(file)
    files = split_names(part["prefix"], int(part["count"])) if part else [file]
    if len(files) > 1 and "#" in name:
        raise UsageError(f"{name}: a sha256 is not supported for a split model")
    return [folder / each for each in files]


def canonical_name(name: str) -> str:
    """Return the name that all parts of a model share: the URL of the first part, and the digest."""
    fragment = urlsplit(name).fragment.lower()
    return file_url(name) + (f"#{fragment}" if fragment else "")


def file_url(name: str, file: str = "") -> str:
    """Return the URL without the digest: of `file`, or for a split model of its first part."""
    try:
        parts = urlsplit(name)
        host = parts.hostname and parts.port != 0
    except ValueError:
        host = None
    if not host or parts.username is not None or not name.isprintable() or " " in name:
        raise UsageError(f"{name}: must be a URL such as https://host/path/model.gguf, without a password")
    if not FRAGMENT.fullmatch(parts.fragment):
        raise UsageError(f"{name}: the fragment must be sha256= and 64 hexadecimal digits")
    folder, _, last = parts.path.rpartition("/")
    if part := PART.fullmatch(last):
        last = file or split_names(part["prefix"], int(part["count"]))[0]
    return urlunsplit((parts.scheme, parts.netloc, f"{folder}/{last}", parts.query, ""))
