"""Suggestions for a first model: what a machine can run, and how fast."""

from pathlib import Path

import pytest

from localinfer.errors import LocalInferError
from localinfer.hub import model_registry
from localinfer.hub.model_registry import FileVersion, ModelEntry, shipped_registry_path
from localinfer.hub.model_registry import model_registry as read_registry
from localinfer.hub.suggestions import best_choice, suggest

GB = 10**9
MODELS = [
    ModelEntry(name="small", size=GB // 10, suggested=True),
    ModelEntry(name="base", size=GB),
    ModelEntry(name="medium", size=2 * GB, suggested=True),
    ModelEntry(name="large", size=12 * GB, suggested=True),
    ModelEntry(name="experts", size=12 * GB, bytes_per_token=2 * GB, suggested=True),
]


def names(memory: int, bandwidth: int) -> list[str]:
    return [each.entry.name for each in suggest(MODELS, memory, bandwidth)]


def test_models_that_do_not_fit_are_not_suggested() -> None:
    assert names(16 * GB, 100 * GB) == ["small", "medium", "large", "experts"]
    assert names(14 * GB, 100 * GB) == ["small", "medium"]
    assert names(GB, 100 * GB) == ["small"]
    assert names(GB // 10, 100 * GB) == []


def test_slow_models_are_not_suggested() -> None:
    assert names(16 * GB, 20 * GB) == ["small", "medium", "experts"]


def test_speed_is_that_of_reading_the_weights() -> None:
    """A token of the mixture of experts reads as much as one of the model of that size."""
    small, medium, _, experts = suggest(MODELS, 16 * GB, 50 * GB)
    assert medium.tokens_per_second == experts.tokens_per_second == pytest.approx(1 / (0.001 + 2 / 30))
    assert small.tokens_per_second == pytest.approx(1 / (0.001 + 0.1 / 30))


@pytest.mark.parametrize(("bandwidth", "best"), [(100 * GB, "medium"), (20 * GB, "small"), (GB, "small")])
def test_best_choice_is_fast_and_no_long_download(bandwidth: int, best: str) -> None:
    found = suggest(MODELS, 16 * GB, bandwidth)
    assert found[best_choice(found)].entry.name == best


def test_shipped_suggestions_have_what_the_list_shows() -> None:
    """Names and descriptions fit in a line of 80 columns, and later models are larger."""
    found = suggest(read_registry().entries.values(), 64 * GB, 100 * GB)
    assert len(found) >= 4
    assert found[0].entry.name == read_registry().default
    sizes = [entry.size for entry, _ in found]
    assert sizes == sorted(sizes)
    for entry, _ in found:
        assert entry.licence
        assert entry.about
        assert len(entry.about) < 75
        assert len(entry.name) <= 20


class TestChoice:
    def test_is_the_default_model(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("LOCALINFER_DATA_DIR", str(tmp_path))
        assert not read_registry().has_user_default
        for name in ("gemma3-270m", "hf:owner/repo:Q8_0"):
            assert model_registry.choose_model(name) == name
            assert (read_registry().default, read_registry().has_user_default) == (name, True)

    def test_of_a_file(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """The file is remembered wherever it is; if it is gone, the choice is."""
        monkeypatch.setenv("LOCALINFER_DATA_DIR", str(tmp_path))
        monkeypatch.chdir(tmp_path)
        (tmp_path / "a model.gguf").touch()
        assert model_registry.choose_model("a model.gguf") == str(tmp_path / "a model.gguf")
        assert read_registry().default == str(tmp_path / "a model.gguf")
        (tmp_path / "a model.gguf").rename(tmp_path / "other.gguf")
        model_registry.read_registry.cache_clear()
        assert (read_registry().default, read_registry().has_user_default) == ("smollm2", False)

    def test_models_toml_is_stronger(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("LOCALINFER_DATA_DIR", str(tmp_path))
        monkeypatch.setenv("LOCALINFER_CONFIG_DIR", str(tmp_path))
        (tmp_path / "models.toml").write_text('default = "gemma3-270m"')
        model_registry.choose_model("hf:owner/repo")
        assert read_registry().default == "gemma3-270m"

    @pytest.mark.parametrize("content", [b"", b"\xff", b"no-such-model", b"\0", b"a\nb"])
    def test_damaged(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes) -> None:
        monkeypatch.setenv("LOCALINFER_DATA_DIR", str(tmp_path))
        (tmp_path / "default-model").write_bytes(content)
        assert read_registry().default == "smollm2"


@pytest.mark.parametrize(
    ("toml", "problem"),
    [
        ('suggested = "yes"', "suggested: must be true or false"),
        ("bytes_per_token = 0", "bytes_per_token: must be an integer above 0"),
        ("size = 5", "a model needs either path, or source, or size, sha256 and parts"),
    ],
)
def test_invalid_entries(tmp_path: Path, toml: str, problem: str) -> None:
    path = tmp_path / "models.toml"
    path.write_text(f"[models.smollm2]\n{toml}\n")
    with pytest.raises(LocalInferError, match=problem):
        model_registry.read_registry(*map(FileVersion.of, (shipped_registry_path(), path, tmp_path / "missing")))


def test_another_file_is_not_suggested(tmp_path: Path) -> None:
    path = tmp_path / "models.toml"
    path.write_text('[models.qwen3-4b]\nsource = "hf:owner/repo"\n')
    files = shipped_registry_path(), path, tmp_path / "missing"
    entry = model_registry.read_registry(*map(FileVersion.of, files)).entries["qwen3-4b"]
    assert (entry.suggested, entry.size, entry.about != "") == (False, 0, True)
