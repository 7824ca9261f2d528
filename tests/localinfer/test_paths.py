"""Directories: their locations, and their permissions."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from localinfer import paths
from localinfer.errors import LocalInferError

posix = pytest.mark.skipif(os.name != "posix", reason="owners and modes")


def test_environment_variables_take_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALINFER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("LOCALINFER_CONFIG_DIR", str(tmp_path / "config"))
    assert paths.models_dir() == tmp_path / "cache" / "models"
    assert paths.jit_dir() == tmp_path / "cache" / "jit"
    assert paths.config_dir() == tmp_path / "config"
    assert list(tmp_path.iterdir()) == []


def test_relative_and_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LOCALINFER_CACHE_DIR", "here")
    assert paths.cache_root() == tmp_path / "here"
    monkeypatch.setenv("LOCALINFER_CACHE_DIR", "~/there")
    assert paths.cache_root() == tmp_path / "home" / "there"


@posix
def test_platform_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("LOCALINFER_CACHE_DIR", "LOCALINFER_CONFIG_DIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(variable, raising=False)
    assert paths.cache_root().is_relative_to(tmp_path)
    assert paths.config_dir().is_relative_to(tmp_path)


@posix
class TestPrivateDirectory:
    def test_every_created_level_is_private(self, tmp_path: Path) -> None:
        created = paths.private_directory(tmp_path / "a" / "b")
        assert [each.stat().st_mode & 0o777 for each in (created, created.parent)] == [0o700, 0o700]
        assert paths.private_directory(created) == created

    def test_readable_by_others(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o755)
        assert paths.private_directory(tmp_path) == tmp_path

    @pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
    def test_writable_by_others(self, tmp_path: Path, mode: int) -> None:
        tmp_path.chmod(mode)
        with pytest.raises(LocalInferError, match="writable by other users"):
            paths.private_directory(tmp_path)

    def test_of_another_user(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        with pytest.raises(LocalInferError, match="belongs to another user"):
            paths.private_directory(tmp_path)

    def test_file_at_this_path(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        for path in (tmp_path / "file", tmp_path / "file" / "below"):
            with pytest.raises(LocalInferError, match="cannot create this directory"):
                paths.private_directory(path)


def test_two_processes_replace_a_file(tmp_path: Path) -> None:
    """Each of them writes all of it, and leaves no other file."""
    path, count = tmp_path / "file", 300
    code = (
        "import sys; from pathlib import Path; from localinfer.paths import replace_file\n"
        f"for _ in range({count}): replace_file(Path(sys.argv[1]), sys.argv[2].encode() * 10_000)"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(path), letter]) for letter in "ab"]
    assert [each.wait() for each in writers] == [0, 0]
    assert path.read_bytes() in (b"a" * 10_000, b"b" * 10_000)
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        paths.replace_file(tmp_path / "folder", b"x")
    assert [each.name for each in tmp_path.iterdir()] == ["folder"]
