"""Models of the Hugging Face hub: requests, the shared cache, and removal."""

import hashlib
import os
import shutil
import subprocess
from collections import namedtuple
from pathlib import Path

import huggingface_hub
import pytest
from checkpoints import CHECKPOINTS
from huggingface_hub import constants
from loopback_hub import COMMIT, Fault, Hub, git_blob_id, sha256
from split_files import split
from tiny import tiny_llama

from cli import __main__
from localinfer import paths
from localinfer.errors import LocalInferError, ModelNotFoundError, UsageError
from localinfer.gguf.reader import open_gguf
from localinfer.hub import huggingface as store
from localinfer.hub import resolve
from localinfer.hub.pull import pull
from localinfer.hub.resolve import NotDownloadedError

REPO = "owner/repo-GGUF"
OTHER_COMMIT = "ab" * 20


@pytest.fixture
def repo(hub: Hub, model_bytes: bytes) -> dict[str, bytes]:
    hub.repos[REPO] = {
        "README.md": b"# Model",
        "m-F16.gguf": model_bytes[:-32] + bytes(32),
        "m-Q4_K_M.gguf": model_bytes,
        "mmproj-m-F16.gguf": b"not a model",
    }
    return hub.repos[REPO]


def cached_files() -> list[str]:
    """Return the files of the cache without the locks."""
    root = Path(constants.HF_HUB_CACHE)
    files = [path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()]
    return sorted(file for file in files if not file.endswith(".lock"))


def downloads(hub: Hub) -> list[str]:
    """Return the paths of the requested files."""
    return [each.path.rpartition("/")[2] for each in hub.requests_for("/resolve/")]


class TestDownload:
    def test_file_is_downloaded_once(self, hub: Hub, repo: dict[str, bytes]) -> None:
        with pytest.raises(NotDownloadedError, match=f"^hf:{REPO}: not downloaded; run `localinfer pull hf:{REPO}`"):
            resolve.find(f"hf:{REPO}")
        path = pull(f"hf:{REPO}")
        assert path.read_bytes() == repo["m-Q4_K_M.gguf"]
        requests = len(hub.requests)
        for name in (REPO, f"{REPO}:q4_k_m", f"{REPO}/m-Q4_K_M.gguf"):
            assert resolve.find(f"hf:{name}") == path
        assert resolve.find(f"https://huggingface.co/{REPO}") == path
        assert resolve.find(f"hf.co/{REPO}:Q4_K_M") == path
        assert resolve.find(f"https://huggingface.co/{REPO}/blob/main/m-Q4_K_M.gguf?download=true") == path
        assert len(hub.requests) == requests
        with pytest.raises(NotDownloadedError):
            resolve.find(f"hf:{REPO}:F16")

    def test_file_is_in_the_shared_cache(self, hub: Hub, repo: dict[str, bytes]) -> None:
        path = pull(f"hf:{REPO}:F16")
        digest = sha256(repo["m-F16.gguf"])
        folder = "models--owner--repo-GGUF"
        assert cached_files() == [
            f"{folder}/blobs/{digest}", f"{folder}/refs/main", f"{folder}/snapshots/{COMMIT}/m-F16.gguf",
        ]  # fmt: skip
        assert path.readlink() == Path("..", "..", "blobs", digest)
        assert huggingface_hub.try_to_load_from_cache(REPO, "m-F16.gguf", constants.HF_HUB_CACHE) == str(path)
        scanned = huggingface_hub.scan_cache_dir(constants.HF_HUB_CACHE)
        assert [each.repo_id for each in scanned.repos] == [REPO]
        assert not scanned.warnings
        hub.requests.clear()
        assert huggingface_hub.hf_hub_download(REPO, "m-F16.gguf", cache_dir=constants.HF_HUB_CACHE) == str(path)
        assert hub.requests_for("/blobs/") == []

    def test_files_of_other_programs_are_found(self, hub: Hub, repo: dict[str, bytes]) -> None:
        downloaded = huggingface_hub.hf_hub_download(REPO, "m-Q4_K_M.gguf", cache_dir=constants.HF_HUB_CACHE)
        assert str(resolve.find(f"hf:{REPO}")) == downloaded
        hub.requests.clear()
        assert str(pull(f"hf:{REPO}")) == downloaded
        assert downloads(hub) == []
        with pytest.raises(UsageError, match="downloaded by another program into the shared cache"):
            resolve.plan_removal(f"hf:{REPO}")

    def test_file_in_a_subdirectory_without_lfs(self, hub: Hub, model_bytes: bytes) -> None:
        hub.lfs = False
        hub.repos[REPO] = {"sub dir/m.gguf": model_bytes}
        path = pull(f"hf:{REPO}/sub dir/m.gguf")
        assert path.resolve().name == git_blob_id(model_bytes)
        assert path.read_bytes() == model_bytes
        assert [each.name for each in store.list_models()] == [f"hf:{REPO}/sub dir/m.gguf"]

    def test_split_model(self, hub: Hub, tmp_path: Path) -> None:
        parts = split(tiny_llama(tmp_path / "m-Q8_0.gguf"), 8)
        hub.repos[REPO] = {f"Q8_0/{part.name}": part.read_bytes() for part in reversed(parts)}
        observed: list[tuple[str, int, int]] = []
        path = pull(f"hf:{REPO}", lambda *report: observed.append(report))
        assert path.name == parts[0].name
        assert list(open_gguf(path).tensors) == list(open_gguf(parts[0]).tensors)
        assert observed[-1][1:] == (sum(part.stat().st_size for part in parts),) * 2
        [model] = store.list_models()
        assert (model.name, len(model.files)) == (f"hf:{REPO}:Q8_0", 3)
        model.files[1].unlink()
        with pytest.raises(NotDownloadedError):
            resolve.find(f"hf:{REPO}")
        hub.requests.clear()
        assert pull(f"hf:{REPO}") == path
        assert downloads(hub) == []

    def test_new_commit(self, hub: Hub, repo: dict[str, bytes], model_bytes: bytes) -> None:
        """The current commit of the branch is found; a file that is equal in both commits is not downloaded again."""
        old = pull(f"hf:{REPO}")
        pull(f"hf:{REPO}:F16")
        hub.commit = OTHER_COMMIT
        repo["m-Q4_K_M.gguf"] = model_bytes[:-32] + bytes(range(32))
        new = pull(f"hf:{REPO}")
        assert new != old
        assert resolve.find(f"hf:{REPO}") == new
        assert OTHER_COMMIT not in str(resolve.find(f"hf:{REPO}:F16"))
        hub.requests.clear()
        assert OTHER_COMMIT in str(pull(f"hf:{REPO}:F16"))
        assert downloads(hub) == []
        assert sorted(each.name for each in store.list_models()) == [f"hf:{REPO}:F16", f"hf:{REPO}:Q4_K_M"]

    def test_system_without_symlinks(self, repo: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(sampler: Path, target: str) -> None:
            raise OSError(1, "Operation not permitted")

        monkeypatch.setattr(Path, "symlink_to", refuse)
        path = pull(f"hf:{REPO}")
        assert not path.is_symlink()
        assert path.read_bytes() == repo["m-Q4_K_M.gguf"]
        assert pull(f"hf:{REPO}") == path
        resolve.plan_removal(f"hf:{REPO}").delete()
        assert cached_files() == []


class TestRequests:
    def test_requests_and_authentication(
        self, hub: Hub, repo: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One API request and one download; the token is sent to the hub, but not to redirect targets."""
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        hub.private[REPO] = "hf_secret"
        pull(f"hf:{REPO}")
        assert [each.path.partition("?")[0] for each in hub.requests] == [
            f"/api/models/{REPO}", f"/{REPO}/resolve/{COMMIT}/m-Q4_K_M.gguf", f"/blobs/{sha256(repo['m-Q4_K_M.gguf'])}",
        ]  # fmt: skip
        headers = [{name.lower(): value for name, value in each.headers.items()} for each in hub.requests]
        assert [each.get("authorization") for each in headers] == ["Bearer hf_secret", "Bearer hf_secret", None]

    def test_private_repository(self, hub: Hub, repo: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
        hub.private[REPO] = "hf_secret"
        with pytest.raises(ModelNotFoundError, match="no such repository, or it is private; to authenticate"):
            pull(f"hf:{REPO}")
        monkeypatch.setenv("HF_TOKEN", "hf_other")
        with pytest.raises(ModelNotFoundError, match=r"no such repository, or it is private$"):
            pull(f"hf:{REPO}")

    def test_gated_repository(self, hub: Hub, repo: dict[str, bytes]) -> None:
        hub.gated.add(REPO)
        form = f"if the repository is gated, request access at {hub.url}/{REPO}; to authenticate, set HF_TOKEN"
        restricted = r"denies access \(403\): Access to model .* is restricted\."
        with pytest.raises(ModelNotFoundError, match=f"{restricted}; {form}"):
            pull(f"hf:{REPO}")
        hub.info_statuses.append((403, {"X-Error-Code": "GatedRepo"}))
        with pytest.raises(ModelNotFoundError, match=f"^hf:{REPO}: {form}"):
            pull(f"hf:{REPO}")
        assert not store.repo_directory(REPO).exists()

    def test_rejected_token(self, hub: Hub, repo: dict[str, bytes]) -> None:
        hub.info_statuses.append((403, {}))
        with pytest.raises(ModelNotFoundError, match="answers 403 Forbidden"):
            pull(f"hf:{REPO}")

    @pytest.mark.parametrize("name", ["hf:a..b/c", "hf:a--b/c", f"hf:a/{'b' * 100}"])
    def test_invalid_repository_names(self, hub: Hub, name: str) -> None:
        with pytest.raises(UsageError, match=f"^{name}: "):
            pull(name)
        assert hub.requests == []

    def test_unknown_repository(self, hub: Hub) -> None:
        with pytest.raises(ModelNotFoundError, match=r"^hf:no/such: the hub has no such repository"):
            pull("hf:no/such")

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("Q4_K_N", "has no such model; did you mean Q4_K_M[?] it has F16, Q4_K_M$"),
            ("Z", "has no such model; it has F16, Q4_K_M$"),
        ],
    )
    def test_unknown_quantization_type(self, repo: dict[str, bytes], name: str, message: str) -> None:
        with pytest.raises(ModelNotFoundError, match=message):
            pull(f"hf:{REPO}:{name}")

    def test_repository_without_models(self, hub: Hub) -> None:
        hub.repos[REPO] = {"config.json": b"{}"}
        with pytest.raises(ModelNotFoundError, match="has no such model; it has no GGUF file"):
            pull(f"hf:{REPO}")

    def test_busy_server(self, hub: Hub, repo: dict[str, bytes]) -> None:
        hub.info_statuses += [(429, {}), (503, {})]
        pull(f"hf:{REPO}")
        hub.info_statuses += [(429, {})] * 3
        with pytest.raises(LocalInferError, match=f"{hub.url} answers 429 Too Many Requests"):
            pull(f"hf:{REPO}")

    def test_unreachable_server(self, hub: Hub, repo: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
        with pytest.raises(LocalInferError, match=r"^hf:.*: http://127\.0\.0\.1:9: .*refused"):
            pull(f"hf:{REPO}")

    @pytest.mark.parametrize("info", [[], {}, "text", {"sha": 5}, {"sha": "../../x", "siblings": []}, {"siblings": 3}])
    def test_invalid_api_response(self, hub: Hub, repo: dict[str, bytes], info: object) -> None:
        hub.info = info
        with pytest.raises(LocalInferError, match=f"{hub.url} sends an invalid response"):
            pull(f"hf:{REPO}")

    @pytest.mark.parametrize(
        "changed",
        [
            {"rfilename": "../../evil.gguf"},
            {"rfilename": "/etc/evil.gguf"},
            {"rfilename": "a/../evil.gguf"},
            {"rfilename": "a\nb.gguf"},
            {"rfilename": "a\\b.gguf"},
            {"rfilename": 3},
            {"rfilename": "a/" * 2000 + "m.gguf"},
            {"size": -1},
            {"size": "many"},
            {"size": 1 << 60},
            {"lfs": {"sha256": "../" + "0" * 61, "size": 1, "pointerSize": 1}},
            {"lfs": {"sha256": 7, "size": 1, "pointerSize": 1}},
        ],
    )
    def test_hostile_names_and_sizes(self, hub: Hub, repo: dict[str, bytes], changed: dict[str, object]) -> None:
        sibling = hub.describe(REPO)["siblings"][2]
        hub.info = hub.describe(REPO) | {"siblings": [sibling | changed]}
        with pytest.raises(ModelNotFoundError, match="it has no GGUF file"):
            pull(f"hf:{REPO}")
        assert cached_files() == []

    @pytest.mark.parametrize("info", [b"[" * 100_000, b'{"siblings": ' + b"[" * 2000 + b"]" * 2000 + b"}", b"\xff"])
    def test_damaged_api_response(self, hub: Hub, repo: dict[str, bytes], info: bytes) -> None:
        hub.info = info
        with pytest.raises(LocalInferError, match=f"{hub.url} sends an invalid response"):
            pull(f"hf:{REPO}")

    def test_deep_directory_in_the_cache(self, repo: dict[str, bytes], tmp_path: Path) -> None:
        first = pull(f"hf:{REPO}")
        parent = os.open(first.parent, os.O_RDONLY)
        for _ in range(2000):
            os.mkdir("a", dir_fd=parent)
            child = os.open("a", os.O_RDONLY, dir_fd=parent)
            os.close(parent)
            parent = child
        os.close(parent)
        assert resolve.find(f"hf:{REPO}") == first
        subprocess.run(["rm", "-rf", first.parent / "a"], check=True)  # shutil.rmtree is recursive

    def test_offline(self, hub: Hub, repo: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        with pytest.raises(ModelNotFoundError, match="HF_HUB_OFFLINE forbids downloads"):
            pull(f"hf:{REPO}")
        assert hub.requests == []


class TestInterrupted:
    def test_download_is_resumed(self, hub: Hub, repo: dict[str, bytes]) -> None:
        hub.faults += [
            Fault(n_bytes=100_000),
            Fault(n_bytes=200_000, stall=1),
            Fault(ignore_range=True, n_bytes=50_000),
        ]
        assert pull(f"hf:{REPO}").read_bytes() == repo["m-Q4_K_M.gguf"]
        assert [each.headers.get("Range") for each in hub.requests_for("/blobs/")] == [
            None, "bytes=100000-", "bytes=300000-", "bytes=50000-",
        ]  # fmt: skip

    def test_next_pull_resumes(self, hub: Hub, repo: dict[str, bytes], model_bytes: bytes) -> None:
        hub.faults += [Fault(n_bytes=100_000), *[Fault(n_bytes=0)] * 5]
        with pytest.raises(LocalInferError):
            pull(f"hf:{REPO}")
        with pytest.raises(NotDownloadedError):
            resolve.find(f"hf:{REPO}")
        [model] = store.list_models()
        assert (model.name, model.size) == (f"hf:{REPO}/m-Q4_K_M.gguf", len(model_bytes))
        hub.requests.clear()
        pull(f"hf:{REPO}/m-Q4_K_M.gguf")
        assert [each.headers.get("Range") for each in hub.requests_for("/blobs/")] == ["bytes=100000-"]
        assert [each.fraction for each in store.list_models()] == [1]

    @pytest.mark.parametrize("name", [REPO, f"{REPO}:Q4_K_M", f"{REPO}/m-Q4_K_M.gguf"])
    def test_unfinished_download_is_removed(self, hub: Hub, repo: dict[str, bytes], name: str) -> None:
        hub.faults += [Fault(n_bytes=100_000), *[Fault(n_bytes=0)] * 5]
        with pytest.raises(LocalInferError):
            pull(f"hf:{REPO}")
        with pytest.raises(NotDownloadedError):
            resolve.plan_removal(f"hf:{REPO}:F16")
        resolve.plan_removal(f"hf:{name}").delete()
        assert cached_files() == []

    def test_wrong_digest(self, hub: Hub, repo: dict[str, bytes]) -> None:
        wrong = bytes(len(repo["m-Q4_K_M.gguf"]))
        hub.faults.append(Fault(body=wrong))
        digests = sha256(repo["m-Q4_K_M.gguf"]), hashlib.sha256(wrong).hexdigest()
        with pytest.raises(LocalInferError, match="sha256 mismatch: expected {}, got {}$".format(*digests)):
            pull(f"hf:{REPO}")
        assert cached_files() == []

    def test_wrong_git_digest(self, hub: Hub, repo: dict[str, bytes]) -> None:
        hub.lfs = False
        hub.faults.append(Fault(body=bytes(len(repo["m-Q4_K_M.gguf"]))))
        with pytest.raises(LocalInferError, match="git sha1 mismatch"):
            pull(f"hf:{REPO}")

    @pytest.mark.usefixtures("repo")
    def test_full_disk_is_detected_before_the_download(self, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
        usage = namedtuple("usage", "total used free")(1 << 40, 1 << 40, 65 << 20)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
        with pytest.raises(LocalInferError, match=f"hf:{REPO} needs 65 MiB, 65 MiB are free"):
            pull(f"hf:{REPO}")
        assert downloads(hub) == []


class TestRemoval:
    def test_all_of_a_repository(self, repo: dict[str, bytes]) -> None:
        pull(f"hf:{REPO}")
        removal = resolve.plan_removal(f"hf:{REPO}")
        assert removal.size >= len(repo["m-Q4_K_M.gguf"])
        removal.delete()
        assert cached_files() == []
        assert not store.repo_directory(REPO).exists()
        assert list(paths.models_dir().rglob("*.gguf")) == []

    def test_one_file_of_two(self, repo: dict[str, bytes]) -> None:
        pull(f"hf:{REPO}")
        other = pull(f"hf:{REPO}:F16")
        resolve.plan_removal(f"hf:{REPO}:Q4_K_M").delete()
        assert resolve.find(f"hf:{REPO}") == other
        assert huggingface_hub.scan_cache_dir(constants.HF_HUB_CACHE).size_on_disk == len(repo["m-F16.gguf"])

    def test_only_the_link_target_is_removed(self, repo: dict[str, bytes], tmp_path: Path) -> None:
        """Blobs may be links to a store that several caches share."""
        shared = tmp_path / "shared"
        blob = pull(f"hf:{REPO}").resolve()
        blob.rename(shared)
        blob.symlink_to(shared)
        resolve.plan_removal(f"hf:{REPO}").delete()
        assert cached_files() == []
        assert shared.read_bytes() == repo["m-Q4_K_M.gguf"]

    def test_from_all_commits(self, hub: Hub, repo: dict[str, bytes]) -> None:
        pull(f"hf:{REPO}")
        hub.commit = OTHER_COMMIT
        pull(f"hf:{REPO}")
        resolve.plan_removal(f"hf:{REPO}").delete()
        assert cached_files() == []

    def test_model_that_is_not_cached(self, repo: dict[str, bytes]) -> None:
        with pytest.raises(NotDownloadedError):
            resolve.plan_removal(f"hf:{REPO}")


def test_checkpoint(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`quantize --remote` downloads the files that conversion reads, and no others."""
    files = {path.name: path.read_bytes() for path in (CHECKPOINTS / "llama").iterdir()}
    program = {"encoding/encoding_dsv4.py": b"def encode_messages(messages): ..."}
    others = {"model.bin": b"pickle", "../evil.json": b"{}", "model.gguf": b"GGUF", "modeling_x.py": b""}
    hub.repos["owner/checkpoint"] = files | program | others
    monkeypatch.chdir(tmp_path)
    assert __main__.run(["quantize", "owner/checkpoint", "F16", "--remote"]) == 0
    assert __main__.run(["quantize", str(CHECKPOINTS / "llama"), "local.gguf", "F16"]) == 0
    remote, local = open_gguf(tmp_path / "ggml-model-F16.gguf"), open_gguf(tmp_path / "local.gguf")
    assert remote.tensors.keys() == local.tensors.keys()
    assert all((remote.tensors[name].data == tensor.data).all() for name, tensor in local.tensors.items())
    assert remote.metadata["general.name"] == "Checkpoint"
    assert remote.metadata["general.license"] == local.metadata["general.license"]  # from README.md
    cached = {path.name for path in (tmp_path / "hub").rglob("*") if path.is_symlink()}
    assert cached == files.keys() - {"expected.npz"} | {"encoding_dsv4.py"}
    assert b"DSML" in remote.metadata["tokenizer.chat_template"].encode()


def test_repository_without_a_checkpoint(hub: Hub, repo: dict[str, bytes], capsys: pytest.CaptureFixture[str]) -> None:
    [name] = hub.repos
    assert __main__.run(["quantize", name, "F16", "--remote"]) == 3
    assert "the repository has no checkpoint" in capsys.readouterr().err
