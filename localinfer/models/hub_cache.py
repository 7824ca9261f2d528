"""The cache that all programs of the Hugging Face hub share: what is where.

    models--OWNER--REPO/refs/main              the commit that the branch was last seen at
                        snapshots/COMMIT/FILE  a link to
                        blobs/DIGEST           the file: by its SHA-256, or by git's name where it is not in LFS

`huggingface_hub` says where it is. What we have fetched is noted in a directory of our own, so that nothing else is
ever removed.
"""

import re
from contextlib import suppress
from pathlib import Path

from localinfer import paths
from localinfer.models.stores import children

COMMIT = re.compile(r"[0-9a-f]{40}")


def snapshots(folder: Path) -> list[Path]:
    """The commits of a repository that something is here of: the branch's, then the latest."""
    branch = ""
    with suppress(OSError, UnicodeDecodeError):
        branch = (folder / "refs" / "main").read_text().strip()
    found = [each for each in children(folder / "snapshots") if COMMIT.fullmatch(each.name)]
    return sorted(found, key=lambda each: (each.name == branch, each.stat().st_mtime), reverse=True)


def cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def repo_folder(repo: str) -> Path:
    return cache() / f"models--{repo.replace('/', '--')}"


def note_of(part: Path) -> Path:
    """The empty file that says that we have fetched this one: of the same name, under the same repository."""
    folder, _, _, *rest = part.relative_to(cache()).parts
    return paths.models_dir() / "hub" / folder / Path(*rest)
