"""Build the release: a source distribution, a wheel made from it, and a Homebrew formula.

    python release/build.py              build into dist/
    python release/build.py --check      also install them in every way that docs/installation.md shows, and run them

It needs hatchling, and for the check pipx, uv and the package index: `python -m pip install --group release`.
Homebrew itself is not needed: the check runs the commands of the formula.
"""

import argparse
import hashlib
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

CHECKOUT = Path(__file__).parents[1]
FORMULA = CHECKOUT / "release" / "localinfer.rb"
LIBEXEC = re.compile("^libexec")  # the folder of a program of Homebrew
SYSTEM_CALL = re.compile(r"^ *system (.+)$", re.MULTILINE)


class Release(NamedTuple):
    """The files of a release."""

    version: str
    sdist: Path
    wheel: Path
    formula: Path


def build(folder: Path, url: str = "") -> Release:
    """Build a release in a folder. `url` is where the source distribution will be; by default it is the file itself.

    The wheel is built from the source distribution, so that a file that is missing there is noticed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("localinfer-*"):
        old.unlink()
    [sdist] = run_hatchling(CHECKOUT, "sdist", folder)
    with tempfile.TemporaryDirectory() as scratch:
        [wheel] = run_hatchling(unpack(sdist, Path(scratch)), "wheel", folder)
    version = sdist.name.removeprefix("localinfer-").removesuffix(".tar.gz")
    formula = folder / FORMULA.name
    digest = hashlib.sha256(sdist.read_bytes()).hexdigest()
    formula.write_text(FORMULA.read_text().replace("@URL@", url or sdist.as_uri()).replace("@SHA256@", digest))
    return Release(version, sdist, wheel, formula)


def run_hatchling(source: Path, target: str, folder: Path) -> list[Path]:
    """Build a target, "sdist" or "wheel", and return the files of its kind in the folder."""
    folder = folder.resolve()
    run([*python_module("hatchling"), "build", "-t", target, "-d", str(folder)], source, dict(os.environ))
    return list(folder.glob("localinfer-*" + {"sdist": ".tar.gz", "wheel": ".whl"}[target]))


def unpack(sdist: Path, folder: Path) -> Path:
    """Unpack a source distribution, and return the folder in it."""
    with tarfile.open(sdist) as archive:
        if hasattr(tarfile, "data_filter"):  # since Python 3.11.4
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(folder)
    return folder / sdist.name.removesuffix(".tar.gz")


def install_commands(release: Release, folder: Path) -> Iterator[tuple[str, list[list[str]], Path]]:
    """Yield each way to install: its name, its commands, and the program that they install under `folder`."""
    wheel = f"{release.wheel}[serve]"
    yield "pipx", [[*python_module("pipx"), "install", "--python", sys.executable, wheel]], folder / "pipx-bin"
    yield "uv tool", [[*python_module("uv"), "tool", "install", "--python", sys.executable, wheel]], folder / "uv-bin"
    libexec = folder / "brew"
    yield "brew", list(formula_commands(release, unpack(release.sdist, folder), libexec)), libexec / "bin"


def python_module(name: str) -> list[str]:
    return [sys.executable, "-m", name]


def formula_commands(release: Release, buildpath: Path, libexec: Path) -> Iterator[list[str]]:
    """Yield the commands of the formula's method `install`, as Homebrew runs them, but with this Python."""
    for arguments in SYSTEM_CALL.findall(release.formula.read_text()):
        words = (word.replace('"', "").replace("#{buildpath}", str(buildpath)) for word in arguments.split(", "))
        yield [sys.executable if word.startswith("python3.") else LIBEXEC.sub(str(libexec), word) for word in words]


def check(release: Release) -> None:
    """Install the release in each way, and run the program. Exits with a message if something fails."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        environment = os.environ | {
            "PIPX_HOME": f"{folder}/pipx", "PIPX_BIN_DIR": f"{folder}/pipx-bin", "PIPX_MAN_DIR": f"{folder}/man",
            "UV_TOOL_DIR": f"{folder}/uv", "UV_TOOL_BIN_DIR": f"{folder}/uv-bin",
            "LOCALINFER_CACHE_DIR": f"{folder}/cache", "LOCALINFER_CONFIG_DIR": f"{folder}/config",
        }  # fmt: skip
        environment.pop("PYTHONPATH", None)  # the program must not find the checkout
        for name, commands, programs in install_commands(release, folder):
            begin = time.monotonic()
            for command in commands:
                run(command, folder, environment)
            for arguments in (["--version"], ["list"], ["serve", "--help"]):
                output = run([str(programs / "localinfer"), *arguments], folder, environment)
                if arguments == ["--version"] and release.version not in output:
                    raise SystemExit(f"{name}: --version prints {output.strip()!r}")
            print(f"{name}: installs and runs ({time.monotonic() - begin:.0f} s)")


def run(command: Sequence[str], folder: Path, environment: dict[str, str]) -> str:
    """Run a command and return its output. Exits with the output if the command fails."""
    done = subprocess.run(
        command, cwd=folder, env=environment, text=True, capture_output=True, stdin=subprocess.DEVNULL, check=False
    )
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="install the release and run it")
    parser.add_argument("--url", default="", help="where the source distribution will be; for the formula")
    parser.add_argument("folder", nargs="?", type=Path, default=CHECKOUT / "dist", help="[default: dist]")
    options = parser.parse_args()
    release = build(options.folder, options.url)
    for file in release[1:]:
        print(file)
    if options.check:
        check(release)


if __name__ == "__main__":
    main()
