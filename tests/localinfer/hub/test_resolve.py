"""Name resolution and models.toml: names, paths, merging of the user's file, and one-line errors."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny import tiny_llama

from localinfer import paths
from localinfer.errors import LocalInferError, ModelNotFoundError, UsageError
from localinfer.hub import resolve

DIGEST = "0123456789abcdef" * 4
PART = '{ wheel = "some-wheel==1.0", bytes = 10, member = "some/file" }'
SOURCE = f'size = 20\nsha256 = "{DIGEST}"\nparts = [{PART}]\n'

STRANGE = ["-x", "a\0b", "x" * 300, "\N{CYRILLIC SMALL LETTER DZE}mollm2", "$(id)", "a;b", "a b", "[red]a"]

Write = Callable[[str | bytes], Path]


@pytest.fixture
def user_toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Return a function that writes the user's models.toml."""
    monkeypatch.setenv("LOCALINFER_CONFIG_DIR", str(tmp_path))

    def write(content: str | bytes) -> Path:
        path = tmp_path / "models.toml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOCALINFER_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def make_directory(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


class TestBuiltin:
    def test_default_is_smollm2(self) -> None:
        assert resolve.model_registry().default == "smollm2"

    def test_every_entry_is_complete(self) -> None:
        for entry in resolve.model_registry().entries.values():
            assert entry.parts or entry.source
            assert entry.size
            assert entry.about
            assert entry.licence

    def test_user_changes_the_default(self, user_toml: Write) -> None:
        user_toml('default = "gemma3-270m"')
        assert resolve.model_registry().default == "gemma3-270m"


class TestFind:
    def test_changed_file_is_read_again(self, user_toml: Write) -> None:
        path = user_toml('default = "gemma3-270m"')
        assert resolve.model_registry() is resolve.model_registry()
        user_toml('default = "smollm2"')
        assert resolve.model_registry().default == "smollm2"
        path.unlink()
        assert resolve.model_registry().default == "smollm2"

    def test_path_does_not_read_the_registry(self, user_toml: Write, tmp_path: Path) -> None:
        user_toml("not toml at all")
        model = tmp_path / "own.gguf"
        model.touch()
        assert resolve.find(str(model)) == model
        assert resolve.find(model) == model
        assert resolve.default_options(model) == {}

    def test_file_without_suffix_in_the_current_directory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "own").touch()
        monkeypatch.chdir(tmp_path)
        assert resolve.find("own") == Path("own")

    @pytest.mark.usefixtures("empty_cache")
    def test_name_takes_precedence_over_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "smollm2").touch()
        monkeypatch.chdir(tmp_path)
        with pytest.raises(ModelNotFoundError, match="not downloaded; run `localinfer pull smollm2`"):
            resolve.find("smollm2")
        assert resolve.find("./smollm2") == Path("smollm2")

    def test_find_creates_no_files(self, empty_cache: Path) -> None:
        with pytest.raises(ModelNotFoundError):
            resolve.find("smollm2")
        assert not empty_cache.exists()

    @pytest.mark.usefixtures("empty_cache")
    def test_file_of_wrong_size_is_ignored(self) -> None:
        entry = resolve.model_registry().entries["smollm2"]
        paths.private_directory(entry.file.parent)
        entry.file.write_bytes(b"half of it")
        with pytest.raises(ModelNotFoundError, match="not downloaded"):
            resolve.find("smollm2")

    @pytest.mark.parametrize("typed", ["smollm", "SmolLM2", "smolm2", "smollm-2"])
    def test_suggestion(self, typed: str) -> None:
        with pytest.raises(ModelNotFoundError, match="did you mean smollm2"):
            resolve.find(typed)

    @pytest.mark.parametrize("typed", [*STRANGE, "no/such", "no.gguf", "~nobody/x"])
    def test_unknown_names_are_not_found(self, typed: str) -> None:
        with pytest.raises(ModelNotFoundError):
            resolve.find(typed)

    @pytest.mark.parametrize(
        ("typed", "hint"),
        [
            ("owner/repo:Q8_0", "for a Hugging Face repository use hf:owner/repo:Q8_0$"),
            ("./no.bin", "no.bin: No such file or directory$"),
            ("../no.bin", "no.bin: No such file or directory$"),
            ("models/no.gguf", "no.gguf: No such file or directory$"),
            ("qwen", r"did you mean qwen2\.5-coder-1\.5b or qwen3-4b or qwen3-8b\?$"),
            ("Gemma", r"did you mean gemma3-270m or gemma3-1b\b"),
            ("hff:owner/repo", r"did you mean hf:owner/repo\?$"),
            ("lm-studio:owner/repo", r"did you mean lmstudio:owner/repo\?$"),
        ],
    )
    def test_hints(self, typed: str, hint: str) -> None:
        with pytest.raises(ModelNotFoundError, match=hint):
            resolve.find(typed)

    @pytest.mark.parametrize("typed", ["smollm2", "own.gguf"])
    def test_user_files_are_never_removed(
        self, typed: str, user_toml: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "own.gguf").touch()
        user_toml("[models.smollm2]\npath = 'own.gguf'")
        with pytest.raises(UsageError, match=r"your own"):
            resolve.plan_removal(typed)

    @pytest.mark.usefixtures("empty_cache")
    def test_removal(self) -> None:
        entry = resolve.model_registry().entries["smollm2"]
        with pytest.raises(ModelNotFoundError):
            resolve.plan_removal("smollm2")
        paths.private_directory(entry.file.parent)
        entry.file.write_bytes(bytes(10))
        other = entry.file.with_name("other")
        other.touch()
        removal = resolve.plan_removal("smollm2")
        assert (removal.files, removal.size) == ([entry.file], 10)
        removal.delete()
        assert list(entry.file.parent.iterdir()) == [other]

    @pytest.mark.parametrize("typed", ["", ".", ".."])
    def test_directories_are_resolved(self, typed: str) -> None:
        assert resolve.find(typed) == Path(typed)


class TestUserRegistry:
    def test_path_is_relative_to_the_toml(self, user_toml: Write, tmp_path: Path) -> None:
        user_toml('[models.mine]\npath = "sub/../mine.gguf"\noptions = { temp = 0, ctx_size = 64 }')
        (tmp_path / "sub").mkdir()
        (tmp_path / "mine.gguf").touch()
        assert resolve.find("mine").resolve() == tmp_path / "mine.gguf"
        assert resolve.default_options("mine") == {"temp": 0.0, "ctx_size": 64}

    def test_path_with_tilde(self, user_toml: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        user_toml('[models.mine]\npath = "~/mine.gguf"')
        (tmp_path / "mine.gguf").touch()
        assert resolve.find("mine") == tmp_path / "mine.gguf"

    def test_missing_path(self, user_toml: Write) -> None:
        user_toml('[models.mine]\npath = "gone.gguf"')
        with pytest.raises(ModelNotFoundError, match=r"gone\.gguf: No such file"):
            resolve.find("mine")

    def test_options_are_merged_key_by_key(self, user_toml: Write) -> None:
        user_toml("[models.smollm2]\noptions = { temp = 0.0 }")
        entry = resolve.model_registry().entries["smollm2"]
        assert entry.options == {"temp": 0.0, "top_p": 0.9}
        assert entry.parts

    def test_new_source_replaces_the_old_one(self, user_toml: Write, tmp_path: Path) -> None:
        user_toml('[models.smollm2]\npath = "mine.gguf"')
        entry = resolve.model_registry().entries["smollm2"]
        assert entry.path == tmp_path / "mine.gguf"
        assert (entry.size, entry.sha256, entry.parts) == (0, "", ())
        assert entry.licence == "Apache-2.0"

    def test_downloaded_model(self, user_toml: Write) -> None:
        user_toml(f"[models.mine]\n{SOURCE}")
        assert resolve.model_registry().entries["mine"].file.name == "mine-0123456789ab.gguf"

    def test_another_source(self, user_toml: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A short name with options for a model of another store."""
        monkeypatch.setenv("HOME", str(tmp_path))
        model = tiny_llama(
            make_directory(tmp_path / ".lmstudio" / "models" / "owner" / "repo") / "m-Q8_0.gguf", n_layer=1
        )
        user_toml('[models.mine]\nsource = "lmstudio:owner/repo:Q8_0"\noptions = { temp = 0.5 }')
        assert resolve.find("mine") == model
        assert resolve.default_options("mine") == {"temp": 0.5}
        assert resolve.list_registry()["mine"].files == (model,)
        model.unlink()
        with pytest.raises(ModelNotFoundError, match=r"^lmstudio:owner/repo:Q8_0: not in"):
            resolve.find("mine")
        assert "mine" not in resolve.list_registry()

    @pytest.mark.parametrize("content", ["", "\ufeffdefault = 'smollm2'", "# nothing\n"])
    def test_valid_files(self, user_toml: Write, content: str) -> None:
        user_toml(content)
        assert "smollm2" in resolve.model_registry().entries

    def test_unknown_keys_warn(self, user_toml: Write) -> None:
        path = user_toml('colour = 1\n[models.mine]\npath = "x"\nauthor = "me"')
        with pytest.warns(UserWarning, match="unknown key") as caught:
            resolve.model_registry()
        assert [str(each.message) for each in caught] == [
            f"{path}: unknown key 'colour'", f"{path}: mine: unknown key 'author'",
        ]  # fmt: skip


INVALID = {
    "syntax": ("[models.mine]\npath = ", r"at end of document|line 2, column 8"),
    "duplicate table": ("[models.a]\npath='x'\n[models.a]\npath='y'", "line 3, column"),
    "not UTF-8": (b'default = "\xff"', "not UTF-8 at byte 11"),
    "huge": (b"#" * (10 << 20), "larger than 1,048,576 bytes"),
    "deep": ("a = " + "[" * 50_000, "nested too deeply|Invalid value"),
    "models is a number": ("models = 3", "models: must be a table"),
    "a model is a text": ('models.mine = "x"', "mine: must be a table"),
    "default unknown": ('default = "gpt"', "default: must be the name of a model, not 'gpt'"),
    "default is a list": ("default = []", "default: must be the name of a model, not list"),
    "default of many digits": ("default = 0x" + "f" * 5000, "default: must be the name of a model"),
    "many digits": ("default = " + "1" * 5000, "digits"),
    "nobody's home": ('[models.mine]\npath = "~nobody-\\nat-all/x"', r"mine: path: ~nobody-\\nat-all/x: "),
    "path is a number": ("[models.mine]\npath = 3", "mine: path: must be a string"),
    "path with NUL": ('[models.mine]\npath = "a\\u0000b"', "mine: path: must be a string"),
    "no source": ('[models.mine]\nabout = "x"', "mine: no source: set path"),
    "source is a path": ("[models.mine]\nsource = '/a/b.gguf'", "mine: source: must be a name such as hf:"),
    "source is a name": ("[models.mine]\nsource = 'smollm2'", "mine: source: must be a name such as hf:"),
    "source and path": ("[models.mine]\nsource = 'hf:a/b'\npath = 'x'", "mine: a model needs either path, or source"),
    "two sources": (f"[models.mine]\npath = 'x'\n{SOURCE}", "mine: a model needs either path, or source"),
    "half a source": ("[models.mine]\nsize = 20", "mine: a model needs either path, or source"),
    "size 0": (f"[models.mine]\n{SOURCE.replace('size = 20', 'size = 0')}", "size: must be an integer"),
    "parts empty": (f"[models.mine]\n{SOURCE.replace(PART, '')}", "parts: must be a list of"),
    "part of a list": (f"[models.mine]\n{SOURCE.replace(PART, '3')}", "parts: must be a list of"),
    "wheel not pinned": (f"[models.mine]\n{SOURCE.replace('==1.0', '>=1.0')}", "wheel must be NAME==VERSION"),
    "wheel is a flag": (f"[models.mine]\n{SOURCE.replace('some-wheel', '--index')}", "wheel must be NAME"),
    "wheel is a path": (f"[models.mine]\n{SOURCE.replace('some-wheel', 'x @ file:')}", "wheel must be NAME"),
    "unknown option": ("[models.smollm2]\noptions = { temprature = 1 }", "temprature: no such option"),
    "bad option": ("[models.smollm2]\noptions = { temp = -1 }", r"smollm2: options\.temp: must be"),
    "options is a text": ('[models.smollm2]\noptions = "hot"', "options: must be a table"),
}


class TestInvalid:
    @pytest.mark.parametrize(("content", "message"), INVALID.values(), ids=INVALID.keys())
    def test_error_names_the_file(self, user_toml: Write, content: str | bytes, message: str) -> None:
        path = user_toml(content)
        with pytest.raises(LocalInferError, match=message) as caught:
            resolve.model_registry()
        assert str(caught.value).startswith(str(path))
        assert "\n" not in str(caught.value)

    def test_directory_instead_of_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LOCALINFER_CONFIG_DIR", str(tmp_path))
        (tmp_path / "models.toml").mkdir()
        with pytest.raises(LocalInferError, match=r"models.toml: not a regular file$"):
            resolve.model_registry()

    def test_pipe_instead_of_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LOCALINFER_CONFIG_DIR", str(tmp_path))
        os.mkfifo(tmp_path / "models.toml")
        with pytest.raises(LocalInferError, match=r"models.toml: not a regular file$"):
            resolve.model_registry()

    @pytest.mark.parametrize("name", ["", "a/b", "..", "../x", ".x", "A", "x.gguf", *STRANGE])
    def test_invalid_model_names(self, user_toml: Write, name: str) -> None:
        user_toml("[models." + json.dumps(name) + ']\npath = "x"')
        with pytest.raises(LocalInferError, match="invalid name"):
            resolve.model_registry()

    @pytest.mark.parametrize(
        "digest", ["", DIGEST[1:], DIGEST + "0", DIGEST.upper(), "g" * 64, "../" + DIGEST[3:], "sha256:..."]
    )
    def test_invalid_digests(self, user_toml: Write, digest: str) -> None:
        user_toml(f"[models.mine]\n{SOURCE.replace(DIGEST, digest)}")
        with pytest.raises(LocalInferError, match="sha256: must be 64 lowercase hexadecimal digits"):
            resolve.model_registry()
