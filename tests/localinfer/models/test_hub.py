"""Models of a hub: what is asked, what lands in the cache that all its programs share, and what is removed from it."""

import hashlib
import shutil
from collections import namedtuple
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants
from loopback_hub import COMMIT, Fault, Hub, git_name, sha256
from splits import split
from tiny import tiny_llama

from localinfer import paths
from localinfer.errors import LocalInferError, ModelNotFound, UsageError
from localinfer.files.gguf import open_gguf
from localinfer.models import hub as store
from localinfer.models import registry
from localinfer.models.fetch import pull
from localinfer.models.registry import NotFetched

REPO = "own/er-GGUF"
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


def in_cache() -> list[str]:
    """The files of the cache, but for the locks."""
    root = Path(constants.HF_HUB_CACHE)
    files = [path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()]
    return sorted(file for file in files if not file.endswith(".lock"))


def downloads(hub: Hub) -> list[str]:
    """The files that were asked for."""
    return [each.path.rpartition("/")[2] for each in hub.asked("/resolve/")]


class TestFound:
    def test_is_fetched_once(self, hub: Hub, repo: dict[str, bytes]) -> None:
        with pytest.raises(NotFetched, match=f"^hf:{REPO}: not fetched yet; `localinfer pull hf:{REPO}`"):
            registry.find(f"hf:{REPO}")
        path = pull(f"hf:{REPO}")
        assert path.read_bytes() == repo["m-Q4_K_M.gguf"]
        requests = len(hub.seen)
        for name in (REPO, f"{REPO}:q4_k_m", f"{REPO}/m-Q4_K_M.gguf"):
            assert registry.find(f"hf:{name}") == path
        assert registry.find(f"https://huggingface.co/{REPO}") == path
        assert registry.find(f"hf.co/{REPO}:Q4_K_M") == path
        assert registry.find(f"https://huggingface.co/{REPO}/blob/main/m-Q4_K_M.gguf?download=true") == path
        assert len(hub.seen) == requests
        with pytest.raises(NotFetched):
            registry.find(f"hf:{REPO}:F16")

    def test_lies_where_all_programs_look(self, hub: Hub, repo: dict[str, bytes]) -> None:
        path = pull(f"hf:{REPO}:F16")
        digest = sha256(repo["m-F16.gguf"])
        folder = "models--own--er-GGUF"
        assert in_cache() == [
            f"{folder}/blobs/{digest}", f"{folder}/refs/main", f"{folder}/snapshots/{COMMIT}/m-F16.gguf",
        ]  # fmt: skip
        assert path.readlink() == Path("..", "..", "blobs", digest)
        assert huggingface_hub.try_to_load_from_cache(REPO, "m-F16.gguf", constants.HF_HUB_CACHE) == str(path)
        scanned = huggingface_hub.scan_cache_dir(constants.HF_HUB_CACHE)
        assert [each.repo_id for each in scanned.repos] == [REPO]
        assert not scanned.warnings
        hub.seen.clear()
        assert huggingface_hub.hf_hub_download(REPO, "m-F16.gguf", cache_dir=constants.HF_HUB_CACHE) == str(path)
        assert hub.asked("/blobs/") == []

    def test_what_others_have_fetched(self, hub: Hub, repo: dict[str, bytes]) -> None:
        theirs = huggingface_hub.hf_hub_download(REPO, "m-Q4_K_M.gguf", cache_dir=constants.HF_HUB_CACHE)
        assert str(registry.find(f"hf:{REPO}")) == theirs
        hub.seen.clear()
        assert str(pull(f"hf:{REPO}")) == theirs
        assert downloads(hub) == []
        with pytest.raises(UsageError, match="another program has put it into the cache"):
            registry.removal(f"hf:{REPO}")

    def test_file_in_a_folder_and_not_in_lfs(self, hub: Hub, model_bytes: bytes) -> None:
        hub.lfs = False
        hub.repos[REPO] = {"sub dir/m.gguf": model_bytes}
        path = pull(f"hf:{REPO}/sub dir/m.gguf")
        assert path.resolve().name == git_name(model_bytes)
        assert path.read_bytes() == model_bytes
        assert [each.name for each in store.listed()] == [f"hf:{REPO}/sub dir/m.gguf"]

    def test_several_files(self, hub: Hub, tmp_path: Path) -> None:
        parts = split(tiny_llama(tmp_path / "m-Q8_0.gguf"), 8)
        hub.repos[REPO] = {f"Q8_0/{part.name}": part.read_bytes() for part in reversed(parts)}
        seen: list[tuple[str, int, int]] = []
        path = pull(f"hf:{REPO}", lambda *report: seen.append(report))
        assert path.name == parts[0].name
        assert list(open_gguf(path).tensors) == list(open_gguf(parts[0]).tensors)
        assert seen[-1][1:] == (sum(part.stat().st_size for part in parts),) * 2
        [model] = store.listed()
        assert (model.name, len(model.files)) == (f"hf:{REPO}:Q8_0", 3)
        model.files[1].unlink()
        with pytest.raises(NotFetched):
            registry.find(f"hf:{REPO}")
        hub.seen.clear()
        assert pull(f"hf:{REPO}") == path
        assert downloads(hub) == []

    def test_new_commit(self, hub: Hub, repo: dict[str, bytes], model_bytes: bytes) -> None:
        """What the branch has now is found; a file that is the same in both is not fetched again."""
        old = pull(f"hf:{REPO}")
        pull(f"hf:{REPO}:F16")
        hub.commit = OTHER_COMMIT
        repo["m-Q4_K_M.gguf"] = model_bytes[:-32] + bytes(range(32))
        new = pull(f"hf:{REPO}")
        assert new != old
        assert registry.find(f"hf:{REPO}") == new
        assert OTHER_COMMIT not in str(registry.find(f"hf:{REPO}:F16"))
        hub.seen.clear()
        assert OTHER_COMMIT in str(pull(f"hf:{REPO}:F16"))
        assert downloads(hub) == []
        assert sorted(each.name for each in store.listed()) == [f"hf:{REPO}:F16", f"hf:{REPO}:Q4_K_M"]

    def test_where_there_are_no_links(self, repo: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(link: Path, target: str) -> None:
            raise OSError(1, "Operation not permitted")

        monkeypatch.setattr(Path, "symlink_to", refuse)
        path = pull(f"hf:{REPO}")
        assert not path.is_symlink()
        assert path.read_bytes() == repo["m-Q4_K_M.gguf"]
        assert pull(f"hf:{REPO}") == path
        registry.removal(f"hf:{REPO}").carry_out()
        assert in_cache() == []


class TestAsked:
    def test_who_asks_and_how_often(self, hub: Hub, repo: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
        """One question, one file; the token goes to the hub, and not to where it leads."""
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        hub.private[REPO] = "hf_secret"
        pull(f"hf:{REPO}")
        assert [each.path.partition("?")[0] for each in hub.seen] == [
            f"/api/models/{REPO}", f"/{REPO}/resolve/{COMMIT}/m-Q4_K_M.gguf", f"/blobs/{sha256(repo['m-Q4_K_M.gguf'])}",
        ]  # fmt: skip
        headers = [{name.lower(): value for name, value in each.headers.items()} for each in hub.seen]
        assert [each.get("authorization") for each in headers] == ["Bearer hf_secret", "Bearer hf_secret", None]

    def test_private(self, hub: Hub, repo: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
        hub.private[REPO] = "hf_secret"
        with pytest.raises(ModelNotFound, match="no such repository, or it is private; HF_TOKEN, or `hf auth login`"):
            pull(f"hf:{REPO}")
        monkeypatch.setenv("HF_TOKEN", "hf_other")
        with pytest.raises(ModelNotFound, match=r"no such repository, or it is private$"):
            pull(f"hf:{REPO}")

    def test_gated(self, hub: Hub, repo: dict[str, bytes]) -> None:
        hub.gated.add(REPO)
        form = f"if its owner wants to be asked first, {hub.url}/{REPO} has the form; HF_TOKEN, or `hf auth login`"
        restricted = r"does not let us have it \(403\): Access to model .* is restricted\."
        with pytest.raises(ModelNotFound, match=f"{restricted}; {form}"):
            pull(f"hf:{REPO}")
        hub.info_statuses.append((403, {"X-Error-Code": "GatedRepo"}))
        with pytest.raises(ModelNotFound, match=f"^hf:{REPO}: {form}"):
            pull(f"hf:{REPO}")
        assert not store.repo_folder(REPO).exists()

    def test_token_that_the_hub_does_not_take(self, hub: Hub, repo: dict[str, bytes]) -> None:
        hub.info_statuses.append((403, {}))
        with pytest.raises(ModelNotFound, match="answers 403 Forbidden"):
            pull(f"hf:{REPO}")

    @pytest.mark.parametrize("name", ["hf:a..b/c", "hf:a--b/c", f"hf:a/{'b' * 100}"])
    def test_names_that_no_repository_has(self, hub: Hub, name: str) -> None:
        with pytest.raises(UsageError, match=f"^{name}: "):
            pull(name)
        assert hub.seen == []

    def test_no_such_repository(self, hub: Hub) -> None:
        with pytest.raises(ModelNotFound, match=r"^hf:no/such: the hub has no such repository"):
            pull("hf:no/such")

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("Q4_K_N", "has no such model; did you mean Q4_K_M[?] it has F16, Q4_K_M$"),
            ("Z", "has no such model; it has F16, Q4_K_M$"),
        ],
    )
    def test_no_such_type(self, repo: dict[str, bytes], name: str, message: str) -> None:
        with pytest.raises(ModelNotFound, match=message):
            pull(f"hf:{REPO}:{name}")

    def test_no_model_at_all(self, hub: Hub) -> None:
        hub.repos[REPO] = {"config.json": b"{}"}
        with pytest.raises(ModelNotFound, match="has no such model; it has no GGUF file"):
            pull(f"hf:{REPO}")

    def test_busy(self, hub: Hub, repo: dict[str, bytes]) -> None:
        hub.info_statuses += [(429, {}), (503, {})]
        pull(f"hf:{REPO}")
        hub.info_statuses += [(429, {})] * 3
        with pytest.raises(LocalInferError, match=f"{hub.url} answers 429 Too Many Requests"):
            pull(f"hf:{REPO}")

    def test_out_of_reach(self, hub: Hub, repo: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
        with pytest.raises(LocalInferError, match=r"^hf:.*: http://127\.0\.0\.1:9: .*refused"):
            pull(f"hf:{REPO}")

    @pytest.mark.parametrize("info", [[], {}, "text", {"sha": 5}, {"sha": "../../x", "siblings": []}, {"siblings": 3}])
    def test_no_hub(self, hub: Hub, repo: dict[str, bytes], info: object) -> None:
        hub.info = info
        with pytest.raises(LocalInferError, match=f"{hub.url} does not answer as a hub does"):
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
        with pytest.raises(ModelNotFound, match="it has no GGUF file"):
            pull(f"hf:{REPO}")
        assert in_cache() == []

    def test_offline(self, hub: Hub, repo: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        with pytest.raises(ModelNotFound, match="HF_HUB_OFFLINE says to ask nobody"):
            pull(f"hf:{REPO}")
        assert hub.seen == []


class TestBrokenOff:
    def test_goes_on_where_it_was(self, hub: Hub, repo: dict[str, bytes]) -> None:
        hub.faults += [Fault(cut=100_000), Fault(cut=200_000, stall=1), Fault(ignore_range=True, cut=50_000)]
        assert pull(f"hf:{REPO}").read_bytes() == repo["m-Q4_K_M.gguf"]
        assert [each.headers.get("Range") for each in hub.asked("/blobs/")] == [
            None, "bytes=100000-", "bytes=300000-", "bytes=50000-",
        ]  # fmt: skip

    def test_given_up_and_gone_on_with(self, hub: Hub, repo: dict[str, bytes], model_bytes: bytes) -> None:
        hub.faults += [Fault(cut=100_000), *[Fault(cut=0)] * 5]
        with pytest.raises(LocalInferError):
            pull(f"hf:{REPO}")
        with pytest.raises(NotFetched):
            registry.find(f"hf:{REPO}")
        [model] = store.listed()
        assert (model.name, model.size) == (f"hf:{REPO}/m-Q4_K_M.gguf", len(model_bytes))
        hub.seen.clear()
        pull(f"hf:{REPO}/m-Q4_K_M.gguf")
        assert [each.headers.get("Range") for each in hub.asked("/blobs/")] == ["bytes=100000-"]
        assert [each.share for each in store.listed()] == [1]

    @pytest.mark.parametrize("name", [REPO, f"{REPO}:Q4_K_M", f"{REPO}/m-Q4_K_M.gguf"])
    def test_begun_is_removed(self, hub: Hub, repo: dict[str, bytes], name: str) -> None:
        hub.faults += [Fault(cut=100_000), *[Fault(cut=0)] * 5]
        with pytest.raises(LocalInferError):
            pull(f"hf:{REPO}")
        with pytest.raises(NotFetched):
            registry.removal(f"hf:{REPO}:F16")
        registry.removal(f"hf:{name}").carry_out()
        assert in_cache() == []

    def test_other_bytes(self, hub: Hub, repo: dict[str, bytes]) -> None:
        wrong = bytes(len(repo["m-Q4_K_M.gguf"]))
        hub.faults.append(Fault(body=wrong))
        digests = sha256(repo["m-Q4_K_M.gguf"]), hashlib.sha256(wrong).hexdigest()
        with pytest.raises(LocalInferError, match="sha256 mismatch: expected {}, got {}$".format(*digests)):
            pull(f"hf:{REPO}")
        assert in_cache() == []

    def test_other_bytes_without_lfs(self, hub: Hub, repo: dict[str, bytes]) -> None:
        hub.lfs = False
        hub.faults.append(Fault(body=bytes(len(repo["m-Q4_K_M.gguf"]))))
        with pytest.raises(LocalInferError, match="git sha1 mismatch"):
            pull(f"hf:{REPO}")

    @pytest.mark.usefixtures("repo")
    def test_full_disk_is_noticed_first(self, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
        usage = namedtuple("usage", "total used free")(1 << 40, 1 << 40, 65 << 20)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
        with pytest.raises(LocalInferError, match=f"hf:{REPO} needs 65 MiB, 65 MiB are free"):
            pull(f"hf:{REPO}")
        assert downloads(hub) == []


class TestRemoved:
    def test_all_of_a_repository(self, repo: dict[str, bytes]) -> None:
        pull(f"hf:{REPO}")
        removal = registry.removal(f"hf:{REPO}")
        assert removal.size >= len(repo["m-Q4_K_M.gguf"])
        removal.carry_out()
        assert in_cache() == []
        assert not store.repo_folder(REPO).exists()
        assert list(paths.models_dir().rglob("*.gguf")) == []

    def test_one_file_of_two(self, repo: dict[str, bytes]) -> None:
        pull(f"hf:{REPO}")
        other = pull(f"hf:{REPO}:F16")
        registry.removal(f"hf:{REPO}:Q4_K_M").carry_out()
        assert registry.find(f"hf:{REPO}") == other
        assert huggingface_hub.scan_cache_dir(constants.HF_HUB_CACHE).size_on_disk == len(repo["m-F16.gguf"])

    def test_never_more_than_the_link_names(self, repo: dict[str, bytes], tmp_path: Path) -> None:
        """Blobs may be links themselves, to what several caches share."""
        shared = tmp_path / "shared"
        blob = pull(f"hf:{REPO}").resolve()
        blob.rename(shared)
        blob.symlink_to(shared)
        registry.removal(f"hf:{REPO}").carry_out()
        assert in_cache() == []
        assert shared.read_bytes() == repo["m-Q4_K_M.gguf"]

    def test_from_all_commits(self, hub: Hub, repo: dict[str, bytes]) -> None:
        pull(f"hf:{REPO}")
        hub.commit = OTHER_COMMIT
        pull(f"hf:{REPO}")
        registry.removal(f"hf:{REPO}").carry_out()
        assert in_cache() == []

    def test_what_is_not_there(self, repo: dict[str, bytes]) -> None:
        with pytest.raises(NotFetched):
            registry.removal(f"hf:{REPO}")
