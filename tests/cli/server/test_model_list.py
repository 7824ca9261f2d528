"""What `serve` serves: names, options and aliases of the models of arguments, directories, presets and this machine."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.server import model_list
from cli.server.model_list import ModelList, option_words
from cli.server.presets import NO_PRESETS, Preset, PresetFile
from localinfer.errors import UsageError

Make = Callable[..., ModelList]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setattr(model_list, "local_model_names", lambda: ["smollm2", "hf:O/R:Q8_0"])
    monkeypatch.delenv("LOCALINFER_TOP_K", raising=False)

    def make(*presets: Preset, common: Preset = NO_PRESETS.common, **fields: Any) -> ModelList:
        file = PresetFile(common, {each.name: each for each in presets})
        return ModelList(**{"sources": (), "directories": (), "given": {}, "read_presets": lambda: file} | fields)

    return make


def test_presets_set_options_of_models_by_name(make: Make, folder: Path) -> None:
    presets = Preset("a", options={"top_k": 1, "temp": 0.5}, aliases=("x",), stop_timeout=3), Preset("own", "b.gguf")
    listed = make(
        *presets, Preset("O/R:Q8_0", options={"ctx_size": 64}), common=Preset("*", options={"top_k": 2}),
        directories=[folder], given={"temp": 1.0}, serves_all=True,
    )  # fmt: skip
    models = {each.name: each for each in listed()}
    assert list(models) == ["own", "a", "b", "smollm2", "hf:O/R:Q8_0"]
    assert models["a"].arguments == (str(folder / "a.gguf"), "--top-k", "1", "--temp", "1")
    assert (models["a"].aliases, models["a"].stop_timeout, models["a"].origin) == (("x",), 3, "models_dir")
    assert models["b"].arguments == (str(folder / "b.gguf"), "--top-k", "2", "--temp", "1")
    assert (models["b"].aliases, models["b"].stop_timeout) == ((), None)
    assert models["hf:O/R:Q8_0"].arguments == ("hf:O/R:Q8_0", "--ctx-size", "64", "--temp", "1")
    assert models["own"].source == "b.gguf"


def test_the_projector_of_a_preset_is_turned_off(
    make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALINFER_MMPROJ", "p.gguf")
    assert model_list.with_defaults({})["mmproj"] == "p.gguf"
    assert "mmproj" not in model_list.with_defaults({}, {"mmproj_auto": False})
    [served] = make(
        Preset("a", options={"mmproj": "q.gguf"}), sources=[str(folder / "a.gguf")], given={"mmproj_auto": False}
    )()
    assert served.arguments[1:] == ("--no-mmproj",)


def test_downloads_that_presets_stand_for_are_hidden(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"hf:O/R": "weights", "hf:O/R:Q8_0": "weights", "smollm2": "other", "hf:O/D": "other"}
    monkeypatch.setattr(model_list, "model_file", lambda served: files.get(served.source))
    for hides, draft, hidden in (
        (False, "", set()), (True, "", {"hf:O/R:Q8_0"}), (True, "hf:O/D", {"hf:O/R:Q8_0", "smollm2"}),
    ):  # fmt: skip
        models = make(Preset("mine", "hf:O/R", draft=draft, hides_source=hides), serves_all=True)()
        assert {each.name for each in models if each.is_hidden} == hidden


def test_one_name_for_two_models(make: Make, folder: Path) -> None:
    for listed in (
        make(sources=["a.gguf"], directories=[folder]),
        make(Preset("new", "c.gguf", aliases=("b",)), directories=[folder]),
        make(Preset("c", "c.gguf", aliases=("x",)), Preset("d", "d.gguf", aliases=("x",))),
    ):
        with pytest.raises(UsageError, match="is the name of two models"):
            listed.catalog()


def test_slots_suffice_for_each_preset(make: Make) -> None:
    assert make().n_slots == 4
    assert make(Preset("a", options={"parallel": 9}), Preset("b", options={"parallel": 1})).n_slots == 9
    assert make(Preset("a", options={"parallel": 9}), given={"parallel": 2}).n_slots == 2


def test_words_of_options() -> None:
    options = {"mmap": False, "temp": 0.25, "stop": ("a", "b"), "ctx_size": 64, "ignore_eos": True}
    assert [*option_words(options)] == [
        "--no-mmap", "--temp", "0.25", "--stop", "a", "--stop", "b", "--ctx-size", "64", "--ignore-eos",
    ]  # fmt: skip
