"""The files of a release: what they contain, and that the formula is for them.

`release/build.py --check`, which .ci/run calls, also installs them.
"""

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from locations import CHECKOUT

from localinfer.version import VERSION

pytest.importorskip("hatchling", reason="hatchling builds the release")


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release_build", CHECKOUT / "release" / "build.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def release(builder: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return builder.build(tmp_path_factory.mktemp("dist"))


def sources() -> set[str]:
    """Return the files of the three packages in the checkout."""
    files = (path for name in ("cli", "localinfer", "quant") for path in (CHECKOUT / name).rglob("*"))
    return {str(path.relative_to(CHECKOUT)) for path in files if path.is_file() and "__pycache__" not in path.parts}


def test_wheel_is_complete(release: Any) -> None:
    """It is built from the source distribution, which therefore is complete as well."""
    with zipfile.ZipFile(release.wheel) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        assert names == sources() | {"localinfer/models.toml"}
        assert wheel.read("localinfer/models.toml") == (CHECKOUT / "models.toml").read_bytes()
        [entry_points] = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
        assert "localinfer = cli.__main__:main" in wheel.read(entry_points).decode()
    assert release.version == VERSION


def test_source_distribution_has_nothing_else(release: Any) -> None:
    with tarfile.open(release.sdist) as archive:
        top = {Path(name).parts[1] for name in archive.getnames() if len(Path(name).parts) > 1}
    assert top == {
        "cli", "docs", "localinfer", "quant", "release", "tests", "models.toml", "pyproject.toml", "PKG-INFO",
        "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md", "SECURITY.md", ".gitignore",
    }  # fmt: skip


def test_formula_is_for_the_source_distribution(release: Any, builder: ModuleType, tmp_path: Path) -> None:
    text = release.formula.read_text()
    assert f'url "{release.sdist.as_uri()}"' in text
    assert f'sha256 "{hashlib.sha256(release.sdist.read_bytes()).hexdigest()}"' in text
    assert builder.python_module("pip")[0] == sys.executable
    assert list(builder.formula_commands(release, tmp_path / "source", tmp_path / "libexec")) == [
        [sys.executable, "-m", "venv", f"{tmp_path}/libexec"],
        [f"{tmp_path}/libexec/bin/python", "-m", "pip", "install", "--prefer-binary", f"{tmp_path}/source[serve]"],
    ]


@pytest.mark.skipif(shutil.which("ruby") is None, reason="no ruby")
def test_formula_is_ruby(release: Any) -> None:
    done = subprocess.run(["ruby", "-wc", release.formula], capture_output=True, text=True, check=False)
    assert done.stdout == "Syntax OK\n", done.stderr
