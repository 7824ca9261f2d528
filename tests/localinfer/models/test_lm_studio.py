"""LM Studio's folder, wherever it says that it is, read in place."""

import json
import shutil
from pathlib import Path

import pytest
from splits import split
from tiny import tiny_llama

from localinfer.errors import ModelNotFound, UsageError
from localinfer.files.gguf import open_gguf
from localinfer.models import lm_studio, registry
from localinfer.models.fetch import pull


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def put(folder: Path, *names: str) -> None:
    """Models of the user `own` in the repository `er`."""
    for name in names:
        path = folder / "own" / "er" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        tiny_llama(path, n_layer=1)


PLACES = [".lmstudio/models", ".cache/lm-studio/models"]


@pytest.mark.parametrize("place", PLACES)
def test_usual_places(home: Path, place: str) -> None:
    put(home / place, "m-Q8_0.gguf")
    path = home / place / "own" / "er" / "m-Q8_0.gguf"
    for name in ("own/er", "own/er:q8_0", "own/er/m-Q8_0.gguf"):
        assert registry.find(f"lmstudio:{name}") == pull(f"lmstudio:{name}") == path
    assert registry.default_options("lmstudio:own/er") == {}


def test_home_that_is_pointed_to(home: Path) -> None:
    put(home / "elsewhere" / "models", "m.gguf")
    (home / ".lmstudio-home-pointer").write_text(f"{home / 'elsewhere'}\n")
    assert registry.find("lmstudio:own/er").is_relative_to(home / "elsewhere")


def test_folder_of_the_settings(home: Path) -> None:
    put(home / "downloads", "m.gguf")
    (home / ".lmstudio").mkdir()
    (home / ".lmstudio" / "settings.json").write_text(json.dumps({"downloadsFolder": str(home / "downloads")}))
    assert registry.find("lmstudio:own/er").is_relative_to(home / "downloads")


@pytest.mark.parametrize("settings", ["", "[]", '{"downloadsFolder": 5}', '{"downloadsFolder": "/a\\u0000b"}', "\xff"])
def test_settings_that_make_no_sense(home: Path, settings: str) -> None:
    put(home / ".lmstudio" / "models", "m.gguf")
    (home / ".lmstudio" / "settings.json").write_text(settings)
    (home / ".lmstudio-home-pointer").write_bytes(b"\xff")
    assert registry.find("lmstudio:own/er").name == "m.gguf"


def test_list(home: Path) -> None:
    folder = home / ".lmstudio" / "models"
    put(folder, "a-Q8_0.gguf", "b-Q8_0.gguf", "mmproj-F16.gguf", "sub/m.gguf")
    parts = split(folder / "own" / "er" / "b-Q8_0.gguf", 5)
    (folder / "own" / "er" / "b-Q8_0.gguf").unlink()
    assert [(each.name, len(each.files)) for each in lm_studio.listed()] == [
        ("lmstudio:own/er:Q8_0", 1),
        (f"lmstudio:own/er/{parts[0].name}", len(parts)),
        ("lmstudio:own/er/sub/m.gguf", 1),
    ]
    for each in lm_studio.listed():
        assert registry.find(each.name) == each.files[0]
    assert len(open_gguf(registry.find(f"lmstudio:own/er/{parts[0].name}")).files) == len(parts)
    parts[-1].unlink()
    with pytest.raises(ModelNotFound):
        registry.find(f"lmstudio:own/er/{parts[0].name}")


def test_not_there(home: Path) -> None:
    with pytest.raises(ModelNotFound, match="a folder of LM Studio, which is not here"):
        registry.find("lmstudio:own/er")
    put(home / ".lmstudio" / "models", "m-Q8_0.gguf")
    with pytest.raises(ModelNotFound, match=r"did you mean lmstudio:own/er:Q8_0\?$"):
        registry.find("lmstudio:own/era")


def test_is_never_removed(home: Path) -> None:
    put(home / ".lmstudio" / "models", "m.gguf")
    with pytest.raises(UsageError, match="belongs to LM Studio"):
        registry.removal("lmstudio:own/er")
    shutil.rmtree(home / ".lmstudio")
    with pytest.raises(ModelNotFound):
        registry.removal("lmstudio:own/er")
