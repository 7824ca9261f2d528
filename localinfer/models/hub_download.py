"""Bringing a model from the Hugging Face hub into the cache that its programs share.

`huggingface_hub` asks the hub, with the user's token and at the endpoint that HF_ENDPOINT names. The bytes are ours to
bring: its own download begins anew after an interruption, and proves no digest.
"""

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

import httpx2
from huggingface_hub import HfApi, constants, get_token, hf_hub_url
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, HFValidationError, RepositoryNotFoundError
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # documented, though not exported

from localinfer import paths
from localinfer.errors import LocalInferError, ModelNotFound, UsageError
from localinfer.files.safe_file import told_of
from localinfer.files.unfinished import still_needed
from localinfer.models.choice import Wanted, chosen, what_there_is
from localinfer.models.download import BUSY, REFUSED, About, Unreachable, broken, download, patiently, reason
from localinfer.models.hub_cache import COMMIT, cache, note_of, repo_folder
from localinfer.models.stores import Progress, one_at_a_time, require_network, require_room
from localinfer.version import VERSION

constants.HF_HUB_DISABLE_TELEMETRY = True  # it asks the hub for more than what a user wants, and tells it more

DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")  # git's, or SHA-256
SAFE = re.compile(r"(?!.*(^|/)\.{0,2}(/|$))[^\x00-\x1f\x7f\\:]+\.gguf")  # a file's name that stays in its directory


class File(NamedTuple):
    path: str
    size: int
    digest: str


class Repository(NamedTuple):
    """A repository as it is now, and its GGUF files in the hub's order."""

    name: str
    commit: str
    files: list[File]


def fetch(what: Wanted, progress: Progress) -> Path:
    """The first file of the model that is meant. Asks the hub which it is, and brings what is not here yet.

    Raises ModelNotFound, LocalInferError.
    """
    name = f"hf:{what.repo}" + (f":{what.quant}" if what.quant else f"/{what.file}" if what.file else "")
    repository = patiently(lambda: ask(name, what.repo))
    there = [file.path for file in repository.files]
    parts = chosen(there, what)
    if not parts:
        raise ModelNotFound(f"{name}: the repository has no such model; {hint(what, there)}")
    files = [file for part in parts for file in repository.files if file.path == part]
    folder = repo_folder(what.repo)
    with told_of(folder, sum(file.size for file in files)):
        (folder / "blobs").mkdir(parents=True, exist_ok=True)
        try:
            with one_at_a_time(cache() / ".locks" / folder.name / f"{files[0].digest}.lock"):
                return bring(name, repository, files, progress)
        finally:
            with suppress(OSError):  # they are empty if nothing has come
                (folder / "blobs").rmdir()
                folder.rmdir()


def hint(what: Wanted, there: Sequence[str]) -> str:
    """What the repository has instead, the nearest name first."""
    known = {each.upper(): each for each in what_there_is(there)}
    near = get_close_matches((what.quant or what.file).upper(), known, n=1)
    meant = f"did you mean {known[near[0]]}? " if near else ""
    return f"{meant}it has {', '.join(known.values()) or 'no GGUF file'}"


def ask(name: str, repo: str) -> Repository:
    """Which files a repository has. Raises ModelNotFound, LocalInferError, Unreachable."""
    require_network(name)
    api = HfApi(library_name="localinfer", library_version=VERSION)
    try:
        info = api.model_info(repo, files_metadata=True, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT)
        files = [
            File(each.rfilename, each.size or 0, each.lfs.sha256 if each.lfs else each.blob_id or "")
            for each in info.siblings or []
        ]
    except GatedRepoError:
        raise ModelNotFound(f"{name}: {form(repo)}") from None
    except RepositoryNotFoundError:
        raise ModelNotFound(f"{name}: the hub has no such repository, or it is private{who()}") from None
    except HfHubHTTPError as error:
        status = error.response.status_code
        kind = Unreachable if status in BUSY else ModelNotFound if status in REFUSED else LocalInferError
        raise kind(f"{name}: {constants.ENDPOINT} answers {status} {error.response.reason_phrase}") from None
    except httpx2.HTTPError as error:
        raise broken(f"{name}: {constants.ENDPOINT}: {reason(error)}", error) from None
    except HFValidationError as error:
        raise UsageError(f"{name}: {reason(error)}") from None
    except (ValueError, TypeError, KeyError, AttributeError, httpx2.InvalidURL):
        raise LocalInferError(f"{name}: {constants.ENDPOINT} does not answer as a hub does") from None
    return Repository(repo, checked_commit(name, info.sha), list(checked(files)))


def form(repo: str) -> str:
    """What to do where the owner of a repository wants to be asked first."""
    return f"if its owner wants to be asked first, {constants.ENDPOINT}/{repo} has the form{who()}"


def who() -> str:
    """How to say who one is, where nobody has said it."""
    return "" if get_token() else "; HF_TOKEN, or `hf auth login`, says who you are"


def checked_commit(name: str, commit: object) -> str:
    if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
        raise LocalInferError(f"{name}: {constants.ENDPOINT} does not answer as a hub does")
    return commit


def checked(files: Iterable[File]) -> Iterable[File]:
    """GGUF files whose names can be trusted, and of which we can know that we have them."""
    for file in files:
        with suppress(TypeError):  # the hub may say anything
            if SAFE.fullmatch(file.path) and DIGEST.fullmatch(file.digest) and 0 < file.size < 1 << 50:
                yield file


class Target(NamedTuple):
    """A file, and what it becomes in the cache."""

    file: File
    link: Path
    blob: Path

    @property
    def present(self) -> bool:
        return any(path.is_file() and path.stat().st_size == self.file.size for path in (self.link, self.blob))


def bring(name: str, repository: Repository, files: Sequence[File], progress: Progress) -> Path:
    """All files into the cache, and what else makes them findable there. Returns the first one."""
    folder = repo_folder(repository.name)
    commit = folder / "snapshots" / repository.commit
    targets = [Target(file, commit / file.path, folder / "blobs" / file.digest) for file in files]
    missing = [target for target in targets if not target.present]
    require_room(name, folder, sum(still_needed(target.blob, target.file.size) for target in missing))
    done, total = 0, sum(target.file.size for target in missing)
    for file, link, blob in missing:
        url = hf_hub_url(repository.name, file.path, revision=repository.commit)
        about = About(file.path, url, file.size, file.digest, headers=headers())
        try:
            download(name, about, blob, progress, done, total)
        except ModelNotFound as refused:  # the hub tells everybody of a model that not everybody may have
            raise ModelNotFound(f"{refused}; {form(repository.name)}") from None
        note(link)
        done += file.size
    for target in targets:
        tie(target.link, target.blob)
    write_name(folder / "refs" / "main", repository.commit)
    return targets[0].link


def note(link: Path) -> None:
    """Keep in mind that this file is one that we have fetched."""
    paths.private_directory(paths.models_dir())
    note_of(link).parent.mkdir(parents=True, exist_ok=True)
    note_of(link).touch()


def headers() -> dict[str, str]:
    """Who asks: with the user's token, which no other host than the hub's will see."""
    return dict(build_hf_headers(library_name="localinfer", library_version=VERSION))


def tie(link: Path, blob: Path) -> None:
    """Have the link lead to the file; where there are no links, the file takes its place."""
    if link.exists():
        return
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)  # it may lead to nothing
    try:
        link.symlink_to(os.path.relpath(blob, link.parent))
    except OSError:
        blob.replace(link)


def write_name(path: Path, commit: str) -> None:
    """Have the branch name this commit."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    unfinished.write_text(commit)
    unfinished.replace(path)
