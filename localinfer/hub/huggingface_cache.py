"""The layout of the Hugging Face cache.

    models--OWNER--REPO/refs/main              the latest known commit of the branch
                        snapshots/COMMIT/FILE  a link to
                        blobs/DIGEST           the file, by SHA-256, or by git's SHA-1 if it is not in LFS

`huggingface_hub` defines its location. Empty marker files in a directory of localinfer record which files localinfer
has downloaded, so that no others are ever removed.
"""

import re
from contextlib import suppress
from pathlib import Path

from localinfer import paths
from localinfer.hub.model_store import list_directory

DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")  # git's SHA-1, or SHA-256
COMMIT = re.compile(r"[0-9a-f]{40}")
PRESET = "preset.ini"  # in the root of a repository: options of models, as llama.cpp reads them


def snapshot_directories(folder: Path) -> list[Path]:
    """Return the directories of the cached commits of a repository: that of the branch first, then the latest."""
    branch = ""
    with suppress(OSError, UnicodeDecodeError):
        branch = (folder / "refs" / "main").read_text().strip()
    commits = [each for each in list_directory(folder / "snapshots") if COMMIT.fullmatch(each.name)]
    return sorted(commits, key=lambda each: (each.name == branch, each.stat().st_mtime), reverse=True)


def cache_directory() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def repo_directory(repo: str) -> Path:
    return cache_directory() / f"models--{repo.replace('/', '--')}"


def marker_path(part: Path) -> Path:
    """Return the path of the marker file that records that localinfer has downloaded this file."""
    folder, _, _, *relative = part.relative_to(cache_directory()).parts
    return paths.models_dir() / "hub" / folder / Path(*relative)
