"""LM Studio's models, in any configured directory, used without copying."""

import json
import shutil
from pathlib import Path

import pytest
from split_files import split
from tiny import tiny_llama

from localinfer.errors import ModelNotFoundError, UsageError
from localinfer.gguf.reader import open_gguf
from localinfer.hub import lm_studio, resolve
from localinfer.hub.pull import pull


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def add_model(folder: Path, *names: str) -> None:
    """Create models in the repository `owner/repo`."""
    for name in names:
        path = folder / "owner" / "repo" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        tiny_llama(path, n_layer=1)


DIRECTORIES = [".lmstudio/models", ".cache/lm-studio/models"]


@pytest.mark.parametrize("directory", DIRECTORIES)
def test_default_directories(home: Path, directory: str) -> None:
    add_model(home / directory, "m-Q8_0.gguf")
    path = home / directory / "owner" / "repo" / "m-Q8_0.gguf"
    for name in ("owner/repo", "owner/repo:q8_0", "owner/repo/m-Q8_0.gguf"):
        assert resolve.find(f"lmstudio:{name}") == pull(f"lmstudio:{name}") == path
    assert resolve.default_options("lmstudio:owner/repo") == {}


def test_home_pointer_file(home: Path) -> None:
    add_model(home / "elsewhere" / "models", "m.gguf")
    (home / ".lmstudio-home-pointer").write_text(f"{home / 'elsewhere'}\n")
    assert resolve.find("lmstudio:owner/repo").is_relative_to(home / "elsewhere")


def test_directory_of_the_settings(home: Path) -> None:
    add_model(home / "downloads", "m.gguf")
    (home / ".lmstudio").mkdir()
    (home / ".lmstudio" / "settings.json").write_text(json.dumps({"downloadsFolder": str(home / "downloads")}))
    assert resolve.find("lmstudio:owner/repo").is_relative_to(home / "downloads")


@pytest.mark.parametrize("settings", ["", "[]", '{"downloadsFolder": 5}', '{"downloadsFolder": "/a\\u0000b"}', "\xff"])
def test_invalid_settings(home: Path, settings: str) -> None:
    add_model(home / ".lmstudio" / "models", "m.gguf")
    (home / ".lmstudio" / "settings.json").write_text(settings)
    (home / ".lmstudio-home-pointer").write_bytes(b"\xff")
    assert resolve.find("lmstudio:owner/repo").name == "m.gguf"


def test_list(home: Path) -> None:
    folder = home / ".lmstudio" / "models"
    add_model(folder, "a-Q8_0.gguf", "b-Q8_0.gguf", "mmproj-F16.gguf", "sub/m.gguf")
    parts = split(folder / "owner" / "repo" / "b-Q8_0.gguf", 5)
    (folder / "owner" / "repo" / "b-Q8_0.gguf").unlink()
    assert [(each.name, len(each.files)) for each in lm_studio.list_models()] == [
        ("lmstudio:owner/repo:Q8_0", 1),
        (f"lmstudio:owner/repo/{parts[0].name}", len(parts)),
        ("lmstudio:owner/repo/sub/m.gguf", 1),
    ]
    for each in lm_studio.list_models():
        assert resolve.find(each.name) == each.files[0]
    assert len(open_gguf(resolve.find(f"lmstudio:owner/repo/{parts[0].name}")).files) == len(parts)
    parts[-1].unlink()
    with pytest.raises(ModelNotFoundError):
        resolve.find(f"lmstudio:owner/repo/{parts[0].name}")


def test_missing_model(home: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="LM Studio's directory, which does not exist"):
        resolve.find("lmstudio:owner/repo")
    add_model(home / ".lmstudio" / "models", "m-Q8_0.gguf")
    with pytest.raises(ModelNotFoundError, match=r"did you mean lmstudio:owner/repo:Q8_0\?$"):
        resolve.find("lmstudio:owner/repoa")


def test_models_are_never_removed(home: Path) -> None:
    add_model(home / ".lmstudio" / "models", "m.gguf")
    with pytest.raises(UsageError, match="belongs to LM Studio"):
        resolve.plan_removal("lmstudio:owner/repo")
    shutil.rmtree(home / ".lmstudio")
    with pytest.raises(ModelNotFoundError):
        resolve.plan_removal("lmstudio:owner/repo")
