"""Download from the Hugging Face hub into the shared cache.

`huggingface_hub` provides the API client, with the user's token and the endpoint of HF_ENDPOINT. The files are
downloaded by `localinfer.hub.download`, because `huggingface_hub` neither resumes interrupted downloads nor verifies
digests.
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
from localinfer.errors import LocalInferError, ModelNotFoundError, UsageError
from localinfer.gguf.atomic_file import raise_write_errors
from localinfer.gguf.resumable_file import missing_bytes
from localinfer.hub.download import (
    REFUSAL_STATUSES,
    RETRY_STATUSES,
    SHA256,
    RemoteFile,
    TransientError,
    download,
    reason,
    retry_metadata_request,
    transport_error,
)
from localinfer.hub.file_selection import ModelReference, available_quants, select_files
from localinfer.hub.huggingface_cache import COMMIT, DIGEST, PRESET, cache_directory, marker_path, repo_directory
from localinfer.hub.model_store import MAX_DEPTH, Progress, exclusive_lock, require_disk_space, require_network
from localinfer.hub.projector_selection import select_projector
from localinfer.version import VERSION

constants.HF_HUB_DISABLE_TELEMETRY = True  # telemetry would send more requests than necessary

RELATIVE = r"(?!.*(^|/)\.{0,2}(/|$))[^\x00-\x1f\x7f\\:]+"  # a path without . or .. components
SAFE = re.compile(rf"{RELATIVE}\.gguf")
OF_CHECKPOINT = re.compile(
    rf"{RELATIVE}\.(safetensors|json|jinja|txt)|tokenizer\.model|README\.md|encoding/encoding_\w+\.py"
)
WEIGHTS = ".safetensors"
MAX_PRESET = 1 << 20  # bytes


class HubFile(NamedTuple):
    path: str
    size: int
    digest: str


class Repository(NamedTuple):
    """The current state of a repository, and those of its files that were asked for, in the order of the hub."""

    name: str
    commit: str
    files: list[HubFile]


def fetch(reference: ModelReference, progress: Progress) -> Path:
    """Download the missing files of a model, and return its first file. Raises ModelNotFoundError, LocalInferError."""
    return fetch_files(*request_files(reference), progress)


def fetch_projector(reference: ModelReference, progress: Progress) -> Path | None:
    """Download the projector of a model if the repository has one, and return it. Raises what `fetch` raises."""
    name, repository, files = request_files(reference)
    path = select_projector([file.path for file in repository.files], files[0].path)
    projectors = [file for file in repository.files if file.path == path]
    return fetch_files(name, repository, projectors, progress) if projectors else None


def fetch_files(name: str, repository: Repository, files: list[HubFile], progress: Progress) -> Path:
    """Download those of the files that are missing, and return the first one."""
    folder = repo_directory(repository.name)
    with raise_write_errors(folder, sum(file.size for file in files)):
        (folder / "blobs").mkdir(parents=True, exist_ok=True)
        try:
            with exclusive_lock(cache_directory() / ".locks" / folder.name / f"{files[0].digest}.lock"):
                return download_files(name, repository, files, progress)
        finally:
            with suppress(OSError):  # only succeeds if nothing was downloaded
                (folder / "blobs").rmdir()
                folder.rmdir()


def fetch_preset(repo: str, progress: Progress) -> Path | None:
    """Download the file of presets of a repository; return None if it has none. Raises ModelNotFoundError,
    LocalInferError.
    """
    name = f"hf:{repo}"
    repository = retry_metadata_request(lambda: request_repository(name, repo, re.compile(re.escape(PRESET))))
    if not repository.files:
        return None
    if repository.files[0].size > MAX_PRESET:
        raise LocalInferError(f"{name}: {PRESET}: is larger than {MAX_PRESET} bytes")
    folder = repo_directory(repo)
    with raise_write_errors(folder, repository.files[0].size):
        (folder / "blobs").mkdir(parents=True, exist_ok=True)
        with exclusive_lock(cache_directory() / ".locks" / folder.name / "preset.lock"):
            return download_files(name, repository, repository.files, progress)


def announced_digest(reference: ModelReference) -> str:
    """Return the SHA-256 of a model's first file; "" for git's SHA-1, which small files have."""
    digest = request_files(reference)[2][0].digest
    return digest if SHA256.fullmatch(digest) else ""


def request_files(reference: ModelReference) -> tuple[str, Repository, list[HubFile]]:
    """Return the name of a model, its repository, and its files. Raises ModelNotFoundError, LocalInferError."""
    suffix = f":{reference.quant}" if reference.quant else f"/{reference.file}" if reference.file else ""
    name = f"hf:{reference.repo}{suffix}"
    repository = retry_metadata_request(lambda: request_repository(name, reference.repo))
    available = [file.path for file in repository.files]
    parts = select_files(available, reference)
    if not parts:
        raise ModelNotFoundError(f"{name}: the repository has no such model; {hint(reference, available)}")
    return name, repository, [file for part in parts for file in repository.files if file.path == part]


def fetch_checkpoint(repo: str, progress: Progress) -> Path:
    """Download the missing files of a checkpoint and return its folder. Raises ModelNotFoundError, LocalInferError."""
    name = f"hf:{repo}"
    repository = retry_metadata_request(lambda: request_repository(name, repo, OF_CHECKPOINT))
    if not any(file.path.endswith(WEIGHTS) for file in repository.files):
        raise ModelNotFoundError(f"{name}: the repository has no checkpoint: no file {WEIGHTS}")
    folder = repo_directory(repo)
    with raise_write_errors(folder, sum(file.size for file in repository.files)):
        (folder / "blobs").mkdir(parents=True, exist_ok=True)
        with exclusive_lock(cache_directory() / ".locks" / folder.name / "checkpoint.lock"):
            download_files(name, repository, repository.files, progress)
    return folder / "snapshots" / repository.commit


def hint(reference: ModelReference, available: Sequence[str]) -> str:
    """Return the available types of the repository, the most similar name first."""
    known = {each.upper(): each for each in available_quants(available)}
    nearest = get_close_matches((reference.quant or reference.file).upper(), known, n=1)
    suggestion = f"did you mean {known[nearest[0]]}? " if nearest else ""
    return f"{suggestion}it has {', '.join(known.values()) or 'no GGUF file'}"


def request_repository(name: str, repo: str, pattern: re.Pattern[str] = SAFE) -> Repository:
    """Request the list of files of a repository whose paths match. Raises ModelNotFoundError, LocalInferError,
    TransientError.
    """
    require_network(name)
    api = HfApi(library_name="localinfer", library_version=VERSION)
    try:
        info = api.model_info(repo, files_metadata=True, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT)
        files = [
            HubFile(each.rfilename, each.size or 0, each.lfs.sha256 if each.lfs else each.blob_id or "")
            for each in info.siblings or []
        ]
    except GatedRepoError:
        raise ModelNotFoundError(f"{name}: {gated_hint(repo)}") from None
    except RepositoryNotFoundError:
        raise ModelNotFoundError(f"{name}: the hub has no such repository, or it is private{login_hint()}") from None
    except HfHubHTTPError as error:
        status = error.response.status_code
        refusal = ModelNotFoundError if status in REFUSAL_STATUSES else LocalInferError
        kind = TransientError if status in RETRY_STATUSES else refusal
        raise kind(f"{name}: {constants.ENDPOINT} answers {status} {error.response.reason_phrase}") from None
    except httpx2.HTTPError as error:
        raise transport_error(f"{name}: {constants.ENDPOINT}: {reason(error)}", error) from None
    except HFValidationError as error:
        raise UsageError(f"{name}: {reason(error)}") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, httpx2.InvalidURL):
        raise LocalInferError(f"{name}: {constants.ENDPOINT} sends an invalid response") from None
    return Repository(repo, validate_commit(name, info.sha), list(valid_files(files, pattern)))


def gated_hint(repo: str) -> str:
    """Return a hint for gated repositories."""
    return f"if the repository is gated, request access at {constants.ENDPOINT}/{repo}{login_hint()}"


def login_hint() -> str:
    """Return a hint how to authenticate, or "" if there is a token."""
    return "" if get_token() else "; to authenticate, set HF_TOKEN or run `hf auth login`"


def validate_commit(name: str, commit: object) -> str:
    if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
        raise LocalInferError(f"{name}: {constants.ENDPOINT} sends an invalid response")
    return commit


def valid_files(files: Iterable[HubFile], pattern: re.Pattern[str] = SAFE) -> Iterable[HubFile]:
    """Yield the files whose path matches, with a size and a digest."""
    for file in files:
        with suppress(TypeError):  # the response may contain anything
            is_safe = pattern.fullmatch(file.path) and file.path.count("/") <= MAX_DEPTH
            if is_safe and DIGEST.fullmatch(file.digest) and 0 < file.size < 1 << 50:
                yield file


class CacheEntry(NamedTuple):
    """A file and its location in the cache."""

    file: HubFile
    link: Path
    blob: Path

    @property
    def is_present(self) -> bool:
        return any(path.is_file() and path.stat().st_size == self.file.size for path in (self.link, self.blob))


def download_files(name: str, repository: Repository, files: Sequence[HubFile], progress: Progress) -> Path:
    """Download the missing files, and create links and refs. Returns the first file."""
    folder = repo_directory(repository.name)
    commit = folder / "snapshots" / repository.commit
    targets = [CacheEntry(file, commit / file.path, folder / "blobs" / file.digest) for file in files]
    missing = [target for target in targets if not target.is_present]
    require_disk_space(name, folder, sum(missing_bytes(target.blob, target.file.size) for target in missing))
    done, total = 0, sum(target.file.size for target in missing)
    for file, link, blob in missing:
        url = hf_hub_url(repository.name, file.path, revision=repository.commit)
        remote = RemoteFile(file.path, url, file.size, file.digest, headers=request_headers())
        try:
            download(name, remote, blob, progress, done, total)
        except ModelNotFoundError as error:  # the metadata of a gated model is public, its files are not
            raise ModelNotFoundError(f"{error}; {gated_hint(repository.name)}") from None
        write_marker(link)
        done += file.size
    for target in targets:
        link_blob(target.link, target.blob)
    write_ref(folder / "refs" / "main", repository.commit)
    return targets[0].link


def write_marker(link: Path) -> None:
    """Record that localinfer has downloaded this file."""
    paths.private_directory(paths.models_dir())
    marker_path(link).parent.mkdir(parents=True, exist_ok=True)
    marker_path(link).touch()


def request_headers() -> dict[str, str]:
    """Return the headers with the user's token, which no other host than the hub receives."""
    return dict(build_hf_headers(library_name="localinfer", library_version=VERSION))


def link_blob(link: Path, blob: Path) -> None:
    """Create a link to the blob; on systems without links, move the blob to the path of the link."""
    if link.exists():
        return
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)  # it may be a broken link
    try:
        link.symlink_to(os.path.relpath(blob, link.parent))
    except OSError:
        blob.replace(link)


def write_ref(path: Path, commit: str) -> None:
    """Let the branch refer to this commit."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    unfinished.write_text(commit)
    unfinished.replace(path)
