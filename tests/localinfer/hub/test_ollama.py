"""Ollama's model store, with Ollama's layout, used without copying and never modified."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from localinfer.errors import LocalInferError, ModelNotFoundError, UnsupportedError, UsageError
from localinfer.gguf.reader import open_gguf
from localinfer.hub import ollama, resolve, verification
from localinfer.hub.pull import pull

KIND = "application/vnd.ollama.image."
LLAMA = "registry.ollama.ai/library/llama3.2/latest"
Put = Callable[..., Path]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    monkeypatch.setenv("LOCALINFER_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "ollama"


@pytest.fixture
def put(root: Path, model_bytes: bytes) -> Put:
    """Return a function that adds a model to the store; None omits a layer."""

    def put(position: str = LLAMA, **layers: bytes | None) -> Path:
        described = []
        for kind, content in ({"model": model_bytes, "template": b"{{ .Prompt }}"} | layers).items():
            if content is not None:
                digest = hashlib.sha256(content).hexdigest()
                blob = root / "blobs" / f"sha256-{digest}"
                blob.parent.mkdir(parents=True, exist_ok=True)
                blob.write_bytes(content)
                described.append({"mediaType": KIND + kind, "digest": f"sha256:{digest}", "size": len(content)})
        return manifest({"schemaVersion": 2, "config": {}, "layers": described}, position)

    def manifest(value: Any, position: str) -> Path:
        path = root / "manifests" / position
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value))
        return path

    return put


class TestFind:
    @pytest.mark.parametrize("name", [
        "llama3.2", "llama3.2:latest", "library/llama3.2", "registry.ollama.ai/library/llama3.2:latest",
    ])  # fmt: skip
    def test_all_spellings_of_a_name(self, put: Put, name: str, model_bytes: bytes) -> None:
        put()
        path = resolve.find(f"ollama:{name}")
        assert path.read_bytes() == model_bytes
        assert "llama.block_count" in open_gguf(path).metadata
        assert pull(f"ollama:{name}") == path

    def test_list(self, put: Put, model_bytes: bytes) -> None:
        put()
        put("registry.ollama.ai/library/llama3.2/1b-q8")
        put("registry.ollama.ai/someone/mine/latest")
        put("hf.co/owner/repo-GGUF/Q4_K_M")
        put("registry.ollama.ai/library/images/latest", model=None)
        assert [(each.name, each.size) for each in ollama.list_models()] == [
            ("ollama:hf.co/owner/repo-GGUF:Q4_K_M", len(model_bytes)),
            ("ollama:llama3.2:1b-q8", len(model_bytes)),
            ("ollama:llama3.2", len(model_bytes)),
            ("ollama:someone/mine", len(model_bytes)),
        ]
        for each in ollama.list_models():
            assert resolve.find(each.name) == each.files[0]

    def test_model_in_the_home_directory(
        self, put: Put, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put()
        monkeypatch.delenv("OLLAMA_MODELS")
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        monkeypatch.setattr(ollama, "DEFAULT_DIRECTORIES", (ollama.DEFAULT_DIRECTORIES[0], str(root)))
        assert resolve.find("ollama:llama3.2").is_relative_to(root)
        (tmp_path / "home" / ".ollama").mkdir(parents=True)
        (tmp_path / "home" / ".ollama" / "models").symlink_to(root)
        assert resolve.find("ollama:llama3.2").is_relative_to(tmp_path / "home")
        assert [each.name for each in ollama.list_models()] == ["ollama:llama3.2"]

    @pytest.mark.usefixtures("root")
    def test_missing_model(self) -> None:
        error = r"Ollama's directory, which does not exist; run `ollama pull llama3\.2`"
        with pytest.raises(ModelNotFoundError, match=error):
            resolve.find("ollama:llama3.2")

    def test_suggestion(self, put: Put) -> None:
        put()
        for typed in ("ollama:lama3.2", "ollama:llama3", "llama3.2", "olama:llama3.2"):
            with pytest.raises(ModelNotFoundError, match=r"did you mean ollama:llama3\.2"):
                resolve.find(typed)

    def test_blob_is_verified_on_first_use(self, put: Put, root: Path, model_bytes: bytes) -> None:
        put()
        [file] = ollama.digests("llama3.2")
        file.write_bytes(model_bytes[:-1] + bytes([model_bytes[-1] ^ 1]))
        for _ in range(2):
            with pytest.raises(LocalInferError, match=f"^ollama:llama3.2: {file}: sha256 mismatch: expected "):
                resolve.find("ollama:llama3.2")
        assert [each.name for each in ollama.list_models()] == ["ollama:llama3.2"], "a list reads no blobs"
        file.write_bytes(model_bytes)
        assert resolve.find("ollama:llama3.2") == file

    def test_blob_is_verified_once(self, put: Put, model_bytes: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
        put()
        file = resolve.find("ollama:llama3.2")
        with monkeypatch.context() as changed:
            changed.setattr(verification, "file_digest", lambda *_: "")
            assert resolve.find("ollama:llama3.2") == file
        os.utime(file, (1, 1))
        verified: list[Path] = []
        monkeypatch.setattr(verification, "verify", lambda file, *_: verified.append(file))
        resolve.find("ollama:llama3.2")
        assert verified == [file]

    def test_models_are_never_removed(self, put: Put) -> None:
        put()
        with pytest.raises(UsageError, match=r"belongs to Ollama; `ollama rm llama3\.2` removes it"):
            resolve.plan_removal("ollama:llama3.2")

    def test_unfinished_download(self, put: Put, root: Path) -> None:
        put()
        [blob] = [each for each in (root / "blobs").iterdir() if each.stat().st_size > 1000]
        blob.write_bytes(blob.read_bytes()[:-1])
        with pytest.raises(ModelNotFoundError, match=r"is missing or incomplete; run `ollama pull llama3\.2`"):
            resolve.find("ollama:llama3.2")
        blob.rename(blob.with_name(f"{blob.name}-partial"))
        with pytest.raises(ModelNotFoundError, match="is missing or incomplete"):
            resolve.find("ollama:llama3.2")
        assert list(ollama.list_models()) == []


class TestOptions:
    def test_parameters_and_system_prompt(self, put: Put) -> None:
        parameters = {"temperature": 1, "top_k": 7, "num_ctx": 4096, "stop": ["<|a|>", "b"]}
        others = {"num_predict": -2, "mirostat": 1}
        put(params=json.dumps(parameters | others).encode(), system="Sei höflich.".encode())
        assert resolve.default_options("ollama:llama3.2") == {
            "temp": 1.0, "top_k": 7, "ctx_size": 4096, "stop": ("<|a|>", "b"), "system_prompt": "Sei höflich.",
        }  # fmt: skip

    def test_licence(self, put: Put) -> None:
        put(license=b"MIT License\n...")
        assert ollama.licence("llama3.2") == "MIT License\n..."

    def test_no_options(self, put: Put) -> None:
        put()
        assert resolve.default_options("ollama:llama3.2") == {}

    @pytest.mark.parametrize(
        ("params", "problem"),
        [
            (b"{", "params: invalid JSON"),
            (b"[]", "params: must be an object"),
            (b"\xff", "params: is not valid UTF-8"),
            (b'{"temperature": "hot"}', "temp: must be a number"),
            (b'{"top_p": 7}', "top_p: must be a number from 0 to 1"),
            (b"[" * 100_000, "params: invalid JSON"),
            (b" " * (1 << 21), "larger than 1,048,576 bytes"),
        ],
    )
    def test_invalid_options(self, put: Put, params: bytes, problem: str) -> None:
        put(params=params)
        with pytest.raises(LocalInferError, match=problem) as caught:
            resolve.default_options("ollama:llama3.2")
        assert "\n" not in str(caught.value)


class TestRejected:
    def test_adapter(self, put: Put) -> None:
        put(adapter=b"GGUF")
        with pytest.raises(UnsupportedError, match="has an adapter"):
            resolve.find("ollama:llama3.2")

    def test_model_without_gguf(self, put: Put) -> None:
        put(model=None, tensor=b"x")
        with pytest.raises(UnsupportedError, match="has no GGUF file"):
            resolve.find("ollama:llama3.2")

    @pytest.mark.parametrize("layers", [
        None, 5, [5], [{}], [{"mediaType": KIND + "model", "digest": "sha256:../../../etc/passwd", "size": 1}],
        [{"mediaType": KIND + "model", "digest": "sha256:" + "0" * 63 + "/", "size": 1}],
        [{"mediaType": KIND + "model", "digest": 7, "size": 1}],
        [{"mediaType": KIND + "model", "digest": "sha256:" + "0" * 64, "size": "many"}],
        [{"mediaType": KIND + "model", "digest": "sha256:" + "0" * 64, "size": float("inf")}],
        [{"mediaType": KIND + "model", "digest": "sha256:" + "0" * 64, "size": float("nan")}],
    ])  # fmt: skip
    def test_hostile_manifest(self, root: Path, layers: object) -> None:
        path = root / "manifests" / LLAMA
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"layers": layers}))
        with pytest.raises(LocalInferError, match=f"^{path}: not a valid Ollama manifest$"):
            resolve.find("ollama:llama3.2")
        assert list(ollama.list_models()) == []

    def test_bad_manifest_does_not_hide_others(self, put: Put, root: Path) -> None:
        put()
        bad = root / "manifests" / LLAMA.replace("llama3.2", "bad")
        bad.parent.mkdir(parents=True)
        layer = {"mediaType": KIND + "model", "digest": "sha256:" + "0" * 64, "size": "SIZE"}
        bad.write_text(json.dumps({"layers": [layer]}).replace('"SIZE"', "1e999"))
        assert [each.name for each in ollama.list_models()] == ["ollama:llama3.2"]
        with pytest.raises(ModelNotFoundError, match=r"did you mean ollama:llama3\.2"):
            resolve.find("ollama:lama3.2")

    @pytest.mark.parametrize("content", [b"", b"{", b"\xff\xff", b"[" * 100_000])
    def test_damaged_manifest(self, root: Path, content: bytes) -> None:
        path = root / "manifests" / LLAMA
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        with pytest.raises(LocalInferError, match="not a valid Ollama manifest"):
            resolve.find("ollama:llama3.2")

    @pytest.mark.usefixtures("root")
    @pytest.mark.parametrize("name", ["", "..", "../x", "a/../b", "a//b", "a:b:c", "a/b/c/d", "a b", "a\0", "-x"])
    def test_invalid_names(self, name: str) -> None:
        with pytest.raises(UsageError, match="must be ollama:NAME"):
            resolve.find(f"ollama:{name}")
