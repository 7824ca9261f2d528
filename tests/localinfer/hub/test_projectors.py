"""Projectors: selection by name, in a folder, in Ollama's store, and on the hub."""

import hashlib
import json
from pathlib import Path

import pytest
from loopback_hub import Hub
from projector_files import write_projector_header
from tiny import tiny_llama

from cli import __main__
from cli.models.loading import find_or_fetch_with_projector
from cli.terminal.screen import Status
from localinfer.errors import ModelNotFoundError
from localinfer.hub import resolve
from localinfer.hub.projector_selection import select_projector
from localinfer.hub.projectors import find_projector, media_kinds, projector_of
from localinfer.hub.pull import pull, pull_projector
from localinfer.options import Options

REPO = "owner/repo-GGUF"
KIND = "application/vnd.ollama.image."


@pytest.mark.parametrize(
    ("paths", "model", "expected"),
    [
        (["m-Q4_0.gguf", "mmproj-BF16.gguf", "mmproj-F16.gguf", "mmproj-F32.gguf"], "m-Q4_0.gguf", "mmproj-F16.gguf"),
        (["m-Q4_K_M.gguf", "mmproj-F32.gguf", "mmproj-Q8_0.gguf"], "m-Q4_K_M.gguf", "mmproj-F32.gguf"),
        (["m.gguf", "mmproj-model-f16.gguf"], "m.gguf", "mmproj-model-f16.gguf"),
        (["moondream2-text-model-f16.gguf", "moondream2-mmproj-f16.gguf"], "moondream2-text-model-f16.gguf",
         "moondream2-mmproj-f16.gguf"),
        (["gemma-3-4b-it-Q4_0.gguf", "llama-8b-Q4_0.gguf", "mmproj-gemma-3-4b-f16.gguf"], "gemma-3-4b-it-Q4_0.gguf",
         "mmproj-gemma-3-4b-f16.gguf"),
        (["gemma-3-4b-it-Q4_0.gguf", "llama-8b-Q4_0.gguf", "mmproj-gemma-3-4b-f16.gguf"], "llama-8b-Q4_0.gguf", ""),
        (["ggml-model-Q4_K.gguf", "ggml-model-Q8_0.gguf", "mmproj-llava-f16.gguf"], "ggml-model-Q4_K.gguf",
         "mmproj-llava-f16.gguf"),
        (["Q4/m-Q4_K_M-00001-of-00002.gguf", "mmproj-F16.gguf"], "Q4/m-Q4_K_M-00001-of-00002.gguf", "mmproj-F16.gguf"),
        (["a/m.gguf", "a/mmproj-BF16.gguf", "mmproj-F16.gguf"], "a/m.gguf", "a/mmproj-BF16.gguf"),
        (["a/m.gguf", "b/mmproj-F16.gguf", "aa/mmproj-F16.gguf"], "a/m.gguf", ""),
        (["m.gguf", "README.md", "mmproj.md"], "m.gguf", ""),
    ],
)  # fmt: skip
def test_selection_by_name(paths: list[str], model: str, expected: str) -> None:
    assert select_projector(paths, model) == expected
    assert select_projector(paths[::-1], model) == expected


def test_projector_beside_a_file(tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.touch()
    assert find_projector(str(model), model) is None
    projector = write_projector_header(tmp_path / "mmproj-F16.gguf", audio=True)
    assert find_projector(str(model), model) == projector
    assert projector_of(str(model), model, Options()) == projector
    assert projector_of(str(model), model, Options(mmproj_auto=False)) is None
    other = write_projector_header(tmp_path / "other.gguf")
    assert projector_of(str(model), model, Options(mmproj=str(other), mmproj_auto=False)) == other
    with pytest.raises(ModelNotFoundError, match=r"missing\.gguf: No such file"):
        projector_of(str(model), model, Options(mmproj=str(tmp_path / "missing.gguf")))


def test_what_a_projector_encodes(tmp_path: Path) -> None:
    assert media_kinds(write_projector_header(tmp_path / "a.gguf")) == {"image"}
    assert media_kinds(write_projector_header(tmp_path / "b.gguf", image=False, audio=True)) == {"audio"}
    assert media_kinds(write_projector_header(tmp_path / "c.gguf", audio=True)) == {"image", "audio"}
    assert media_kinds(write_projector_header(tmp_path / "d.gguf", kind="telepathy")) == set()  # not supported
    (tmp_path / "damaged.gguf").write_bytes(b"GGUF")
    assert media_kinds(tmp_path / "damaged.gguf") == set()
    assert media_kinds(tmp_path / "missing.gguf") == set()
    assert media_kinds(None) == set()


def test_projector_of_ollama(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "ollama"
    monkeypatch.setenv("OLLAMA_MODELS", str(root))
    (root / "blobs").mkdir(parents=True)
    layers = []
    model, projector = (write(tmp_path / f"{write.__name__}.gguf") for write in (tiny_llama, write_projector_header))
    for kind, path in ("model", model), ("projector", projector):
        content = path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        (root / "blobs" / f"sha256-{digest}").write_bytes(content)
        layers.append({"mediaType": KIND + kind, "digest": f"sha256:{digest}", "size": len(content)})
    manifest = root / "manifests" / "registry.ollama.ai" / "library" / "seer" / "latest"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"layers": layers}))
    found = find_projector("ollama:seer", resolve.find("ollama:seer"))
    assert found is not None
    assert found.read_bytes() == projector.read_bytes()
    manifest.write_text(json.dumps({"layers": layers[:1]}))
    assert find_projector("ollama:seer", resolve.find("ollama:seer")) is None


@pytest.fixture
def repo(hub: Hub, model_bytes: bytes, tmp_path: Path) -> dict[str, bytes]:
    projector = write_projector_header(tmp_path / "projector.gguf").read_bytes()
    hub.repos[REPO] = {
        "m-F16.gguf": model_bytes[:-32] + bytes(32), "m-Q4_K_M.gguf": model_bytes,
        "mmproj-BF16.gguf": projector[:-32] + bytes(31) + b"1", "mmproj-F16.gguf": projector,
    }  # fmt: skip
    return hub.repos[REPO]


def test_projector_of_the_hub(repo: dict[str, bytes]) -> None:
    path = pull(f"hf:{REPO}")
    assert find_projector(f"hf:{REPO}", path) is None
    projector = pull_projector(f"hf:{REPO}")
    assert projector is not None
    assert projector.read_bytes() == repo["mmproj-F16.gguf"]
    assert find_projector(f"hf:{REPO}", path) == projector
    assert find_projector("", path) == projector  # beside the file, too


def test_options_tell_which_projector_is_downloaded(
    repo: dict[str, bytes], hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALINFER_MMPROJ_AUTO", "0")
    find_or_fetch_with_projector(f"hf:{REPO}", {}, Status())
    path = resolve.find(f"hf:{REPO}")
    assert find_projector(f"hf:{REPO}", path) is None
    hub.repos["owner/encoders"] = {"mmproj-F16.gguf": repo["mmproj-F16.gguf"]}
    other = "hf:owner/encoders/mmproj-F16.gguf"
    (tmp_path / "models.toml").write_text(f'[models.mine]\nsource = "hf:{REPO}"\noptions = {{ mmproj = "{other}" }}\n')
    monkeypatch.setenv("LOCALINFER_CONFIG_DIR", str(tmp_path))
    find_or_fetch_with_projector("mine", {"mmproj_auto": False}, Status())
    find_or_fetch_with_projector("mine", {}, Status())  # the variable counts more than models.toml
    with pytest.raises(resolve.NotDownloadedError):
        resolve.find(other)
    monkeypatch.delenv("LOCALINFER_MMPROJ_AUTO")
    find_or_fetch_with_projector("mine", {}, Status())
    assert resolve.find(other).read_bytes() == repo["mmproj-F16.gguf"]
    assert find_projector(f"hf:{REPO}", path) is None


def test_pull_of_names_in_models_toml(
    repo: dict[str, bytes], hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries have the projector of their repository, or the one that their options name."""
    hub.repos["owner/encoders"] = {"mmproj-F16.gguf": repo["mmproj-F16.gguf"]}
    named = "hf:owner/encoders/mmproj-F16.gguf"
    (tmp_path / "models.toml").write_text(
        f'[models.plain]\nsource = "hf:{REPO}"\n[models.other]\nsource = "hf:{REPO}:F16"\n'
        f'options = {{ mmproj = "{named}" }}\n'
    )
    monkeypatch.setenv("LOCALINFER_CONFIG_DIR", str(tmp_path))
    run("pull", "other")
    assert resolve.find(named).read_bytes() == repo["mmproj-F16.gguf"]
    assert find_projector("other", resolve.find("other")) is None  # that of the repository is not downloaded
    run("pull", "plain")
    found = find_projector("plain", resolve.find("plain"))
    assert found is not None
    assert found.read_bytes() == repo["mmproj-F16.gguf"]


def test_repository_without_a_projector(hub: Hub, model_bytes: bytes) -> None:
    hub.repos[REPO] = {"m-Q4_K_M.gguf": model_bytes}
    pull(f"hf:{REPO}")
    assert pull_projector(f"hf:{REPO}") is None


def run(*arguments: str) -> None:
    assert __main__.run(list(arguments)) == 0


def test_pull_list_inspect_and_rm(repo: dict[str, bytes], capsys: pytest.CaptureFixture[str]) -> None:
    run("pull", f"hf:{REPO}", f"hf:{REPO}:F16")
    capsys.readouterr()
    run("list", "--json")
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows[f"hf:{REPO}:F16"]["reads"] == ["image"]
    run("list")
    assert "reads images" in capsys.readouterr().out
    run("inspect", f"hf:{REPO}")
    assert "reads images, with the projector" in capsys.readouterr().out
    run("inspect", f"hf:{REPO}", "--json")
    assert json.loads(capsys.readouterr().out)["reads"] == ["image"]

    run("rm", "--yes", f"hf:{REPO}:F16")  # the other model still needs the projector
    path = resolve.find(f"hf:{REPO}")
    assert find_projector(f"hf:{REPO}", path) is not None
    run("rm", "--yes", f"hf:{REPO}")
    assert not list(path.parent.parent.glob("*/*"))
    assert len(repo) == 4
