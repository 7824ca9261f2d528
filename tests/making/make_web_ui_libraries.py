"""Write localinfer/server/browser/libraries/: the JavaScript libraries of the web UI, compressed, and their licenses.

    python tests/making/make_web_ui_libraries.py

`npm` downloads each package. libraries.json records its version and license, and the SHA-256 of each file before it was
compressed. The files are those of the packages, unchanged.
"""

import gzip
import hashlib
import json
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parents[2] / "localinfer" / "server" / "browser" / "libraries"
LICENSE_NAMES = ("LICENSE", "LICENSE.txt", "LICENSE-MIT.txt")


class Library(NamedTuple):
    """A package, a short name for its license, its files, and the packages (`NAME@VERSION`) in them, whose licenses are
    added to its own.
    """

    package: str
    version: str
    name: str
    files: tuple[str, ...]
    contained: tuple[str, ...] = ()


LIBRARIES = (
    Library("@highlightjs/cdn-assets", "11.12.0", "highlight", ("es/highlight.min.js",)),
    Library("katex", "0.19.1", "katex", ("dist/katex.min.js",)),
    Library(
        "markdown-it", "15.0.3", "markdown-it", ("dist/browser/markdown-it.esm.min.mjs",),
        ("entities@8.1.0", "linkify-it@6.1.0", "mdurl@2.1.0", "punycode.js@2.3.1", "uc.micro@3.0.0"),
    ),
    Library("pdfjs-dist", "6.5.438", "pdf", ("legacy/build/pdf.min.mjs", "legacy/build/pdf.worker.min.mjs")),
)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.iterdir():
        old.unlink()
    records = [write(library) for library in LIBRARIES]
    (FOLDER / "libraries.json").write_text(json.dumps(records, indent=1) + "\n")


def write(library: Library) -> dict[str, Any]:
    """Write the files of a library, and return what libraries.json records."""
    contents = download(f"{library.package}@{library.version}", library.files)
    files = {}
    for path in library.files:
        name = Path(path).name
        (FOLDER / f"{name}.gz").write_bytes(gzip.compress(contents[path], 9, mtime=0))
        files[name] = hashlib.sha256(contents[path]).hexdigest()
    package = json.loads(contents["package.json"])
    licenses, texts = {package["license"]}, [contents["LICENSE"]]
    for each in library.contained:
        contained = download(each)
        licenses.add(json.loads(contained["package.json"])["license"])
        texts.append(f"\n\n{each}\n\n".encode() + contained["LICENSE"])
    license = f"{library.name}.LICENSE"
    (FOLDER / license).write_bytes(b"".join(texts))
    return {
        "package": library.package, "version": package["version"], "license": " AND ".join(sorted(licenses)),
        "license_file": license, "sha256": files,
    }  # fmt: skip


def download(package: str, files: Sequence[str] = ()) -> dict[str, bytes]:
    """Return the contents of files of a package (`NAME@VERSION`), its license and its `package.json`, by path."""
    wanted = {f"package/{path}": path for path in (*files, "package.json")}
    for name in LICENSE_NAMES:
        wanted[f"package/{name}"] = "LICENSE"
    with tempfile.TemporaryDirectory() as scratch:
        command = ["npm", "pack", "--silent", package]
        name = subprocess.run(command, cwd=scratch, check=True, capture_output=True, text=True).stdout.strip()
        with tarfile.open(Path(scratch) / name) as archive:
            found = {}
            for member in archive:
                if member.name in wanted and (content := archive.extractfile(member)):
                    found[wanted[member.name]] = content.read()
    return found


if __name__ == "__main__":
    main()
