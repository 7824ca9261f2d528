"""`localinfer pull`, `list` and `rm`, and model names on the command line, with a hub on loopback."""

import hashlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from locations import FAKE_CLI
from loopback_hub import Hub
from terminal import Terminal
from tiny import tiny_llama

Done = subprocess.CompletedProcess[bytes]
Run = Callable[..., Done]
REPO = "owner/repo-GGUF"


@pytest.fixture(scope="module")
def model_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return tiny_llama(tmp_path_factory.mktemp("model") / "m.gguf", **{"general.file_type": 15}).read_bytes()


@pytest.fixture
def hub(model_bytes: bytes) -> Iterator[Hub]:
    with Hub() as hub:
        hub.repos[REPO] = {"m-Q4_K_M.gguf": model_bytes, "m-Q8_0.gguf": model_bytes[:-32] + bytes(32)}
        hub.files["/web.gguf"] = model_bytes
        yield hub


@pytest.fixture
def hub_env(hub: Hub, tmp_path: Path) -> dict[str, str]:
    """Return the environment of a user with an empty model store."""
    return {
        "HF_ENDPOINT": hub.url,
        "HF_HUB_CACHE": str(tmp_path / "hub"),
        "HF_HUB_DOWNLOAD_TIMEOUT": "2",
        "HOME": str(tmp_path),
        "LOCALINFER_CACHE_DIR": str(tmp_path / "cache"),
        "NO_PROXY": "*",
    }


@pytest.fixture
def run(fake_cli: Run, hub_env: dict[str, str]) -> Run:
    def run(*arguments: str, **changed: str) -> Done:
        return fake_cli(*arguments, **(hub_env | changed))

    return run


def last_line(done: Done, code: int) -> str:
    assert done.returncode == code, done.stderr
    assert done.stdout == b""
    assert b"Traceback" not in done.stderr
    return done.stderr.decode().splitlines()[-1]


def rows(run: Run) -> list[dict[str, object]]:
    """Return the rows of `list` except those of models.toml."""
    return [row for row in json.loads(run("list", "--json").stdout) if row["store"] != "models.toml"]


class TestVerification:
    def test_files_are_compared_with_their_digests(self, run: Run, hub: Hub, tmp_path: Path) -> None:
        name = f"hf:{REPO}"
        assert last_line(run("pull", "--verify", name), 0) == f"{name}: verified"
        [blob] = (tmp_path / "hub").glob("models--*/blobs/*")
        blob.write_bytes(blob.read_bytes()[:-1] + b"x")
        assert f"sha256 mismatch: expected {blob.name}, got " in last_line(run("pull", "--verify", name), 1)

    def test_digest_that_the_url_names(self, run: Run, hub: Hub, model_bytes: bytes) -> None:
        name = f"{hub.url}/web.gguf#sha256={hashlib.sha256(model_bytes).hexdigest()}"
        done = run("pull", "--verify", name)
        assert last_line(done, 0) == f"{name}: verified"
        assert b"names no digest" not in done.stderr

    def test_no_digest_is_reported(self, run: Run, hub: Hub, tmp_path: Path, model_bytes: bytes) -> None:
        name = f"{hub.url}/web.gguf"
        done = run("pull", name)
        assert f"{name}: the server names no digest, so the content is not verified" in done.stderr.decode()
        assert f"{name}: not verified: no digest of" in last_line(run("pull", "--verify", name), 0)
        (tmp_path / "own.gguf").write_bytes(model_bytes)
        assert "own.gguf is known" in last_line(run("pull", "--verify", str(tmp_path / "own.gguf")), 0)

    def test_ollama(self, run: Run, tmp_path: Path, model_bytes: bytes) -> None:
        root, digest = tmp_path / "ollama", hashlib.sha256(model_bytes).hexdigest()
        manifest, blob = root / "manifests/registry.ollama.ai/library/m/latest", root / f"blobs/sha256-{digest}"
        for path in (manifest, blob):
            path.parent.mkdir(parents=True)
        kind = "application/vnd.ollama.image.model"
        layer = {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(model_bytes)}
        manifest.write_text(json.dumps({"layers": [layer]}))
        blob.write_bytes(model_bytes)
        assert last_line(run("pull", "--verify", "ollama:m", OLLAMA_MODELS=str(root)), 0) == "ollama:m: verified"
        blob.write_bytes(bytes(len(model_bytes)))
        assert "sha256 mismatch" in last_line(run("generate", "ollama:m", "-p", "a", OLLAMA_MODELS=str(root)), 1)


class TestFromTheHub:
    def test_pull_list_run_and_remove(self, run: Run, hub: Hub, tmp_path: Path, model_bytes: bytes) -> None:
        done = run("pull", f"hf:{REPO}")
        assert done.returncode == 0
        assert done.stdout == b""
        fetching, where = done.stderr.decode().splitlines()
        assert fetching == f"fetching hf:{REPO}"
        assert where.startswith(f"hf:{REPO}: {tmp_path / 'hub'}")

        [row] = rows(run)
        assert (row["name"], row["size"], row["type"], row["state"]) == (
            f"hf:{REPO}:Q4_K_M", len(model_bytes), "Q4_K_M", "here",
        )  # fmt: skip
        shown = run("list").stdout.decode().splitlines()
        assert f"Hugging Face: {tmp_path / 'hub'}" in shown
        assert shown[-1].split() == [f"hf:{REPO}:Q4_K_M", "1.3", "MiB", "Q4_K_M", "here"]

        requests = len(hub.requests)
        assert run("generate", "-hf", REPO, "-p", "a b").stdout == b"a b"
        assert run("generate", f"hf:{REPO}:q4_k_m", "--offline", "-p", "a b").stdout == b"a b"
        assert len(hub.requests) == requests

        assert last_line(run("rm", f"hf:{REPO}"), 2) == (
            "error: cannot ask for confirmation without a terminal; use --yes"
        )
        assert last_line(run("rm", "--yes", f"hf:{REPO}"), 0).endswith("removed, 1.3 MiB freed")
        assert rows(run) == []
        assert not [path for path in tmp_path.rglob("*") if path.name.endswith(".gguf")]

    def test_run_downloads_a_missing_model(self, run: Run) -> None:
        done = run("generate", "--hf-repo", f"{REPO}:Q8_0", "-p", "a b")
        assert (done.returncode, done.stdout) == (0, b"a b")
        assert done.stderr.startswith(f"fetching hf:{REPO}:Q8_0\n".encode())

    def test_inspect_and_tokenize(self, run: Run) -> None:
        assert b"GGUF version 3" in run("inspect", "-hf", REPO).stdout
        assert run("tokenize", f"hf.co/{REPO}", "-p", "Hello", "--ids").returncode == 0

    def test_one_model_at_a_time(self, run: Run, fake_model: str) -> None:
        line = last_line(run("tokenize", fake_model, "-hf", REPO, "-p", "x"), 2)
        assert line == f"error: Got unexpected extra argument(s) ({fake_model})"

    @pytest.mark.parametrize(
        ("arguments", "code", "line"),
        [
            (["pull", "hf:owner/repo-GGUF:Q4_K_N"], 3, "did you mean Q4_K_M? it has Q4_K_M, Q8_0"),
            (["pull", "hf:no/such"], 3, "hf:no/such: the hub has no such repository, or it is private"),
            (["pull", "hf:own"], 2, "hf:own: must be hf:OWNER/REPO, hf:OWNER/REPO:QUANT or hf:OWNER/REPO/FILE.gguf"),
            (["pull", "smollm2", "smolm2"], 3, "smolm2: neither a file nor a known model; did you mean smollm2?"),
            (
                ["generate", "owner/repo", "-p", "x"],
                3,
                "owner/repo: No such file or directory; for a Hugging Face repository use hf:",
            ),
            (["generate", "hf:owner/repo-GGUF", "-p", "x", "--offline"], 3, "LOCALINFER_OFFLINE forbids downloads"),
            (["pull", "ollama:llama3.2"], 3, "run `ollama pull llama3.2`"),
            (["pull", "lmstudio:a/b"], 3, "lmstudio:a/b: not in LM Studio's directory, which does not exist"),
            (["rm", "--yes", "hf:owner/repo-GGUF"], 3, "hf:owner/repo-GGUF: not downloaded"),
            (["rm", "--yes", "smollm2"], 3, "smollm2: not downloaded"),
        ],
    )
    def test_errors(self, run: Run, arguments: list[str], code: int, line: str) -> None:
        done = run(*arguments)
        assert line in last_line(done, code)
        assert len(done.stderr.splitlines()) <= 2

    def test_unreachable_server(self, run: Run) -> None:
        line = last_line(run("pull", f"hf:{REPO}", HF_ENDPOINT="http://127.0.0.1:9"), 1)
        assert line.startswith(f"error: hf:{REPO}: http://127.0.0.1:9: ")

    def test_interrupted_download_is_resumed(
        self, run: Run, hub: Hub, environment: dict[str, str], hub_env: dict[str, str], model_bytes: bytes
    ) -> None:
        hub.rate = 0.02
        process = subprocess.Popen([*FAKE_CLI, "pull", f"hf:{REPO}"], env=environment | hub_env, stderr=subprocess.PIPE)
        while not hub.requests_for("/blobs/"):
            time.sleep(0.02)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=20)
        assert process.returncode == 130
        assert error.decode().splitlines() == [
            f"fetching hf:{REPO}", f"hf:{REPO}: interrupted; run the same command to resume",
        ]  # fmt: skip
        hub.rate = 0
        [row] = rows(run)
        assert row["name"] == f"hf:{REPO}/m-Q4_K_M.gguf"
        assert str(row["state"]).endswith("% here")
        hub.requests.clear()
        assert run("pull", f"hf:{REPO}").returncode == 0
        [blob] = hub.requests_for("/blobs/")
        assert blob.headers["Range"] != "bytes=0-"


class TestFromTheWeb:
    def test_pull_list_run_and_remove(self, run: Run, hub: Hub) -> None:
        address = f"{hub.url}/web.gguf"
        assert run("generate", address, "-p", "a b").stdout == b"a b"
        [row] = rows(run)
        assert (row["name"], row["type"], row["state"]) == (address, "Q4_K_M", "here")
        assert run("generate", address, "-p", "a b", "--offline").stderr.startswith(b"compiling")
        assert run("rm", "-y", address).returncode == 0
        assert rows(run) == []

    def test_not_found(self, run: Run, hub: Hub) -> None:
        assert last_line(run("pull", f"{hub.url}/other.gguf"), 3).endswith("127.0.0.1 has no such file (404)")

    def test_web_page(self, run: Run, hub: Hub) -> None:
        hub.files["/page.gguf"] = b"<!doctype html>"
        assert "this is a web page" in last_line(run("pull", f"{hub.url}/page.gguf"), 1)


class TestOnATerminal:
    @pytest.fixture
    def open(self, terminal: Callable[..., Terminal], hub_env: dict[str, str]) -> Callable[..., Terminal]:
        def open(*arguments: str, **changed: str) -> Terminal:
            return terminal(*arguments, **(hub_env | changed))

        return open

    @pytest.mark.parametrize(("answer", "outcome"), [("y\n", "freed"), ("\n", "not removed")])
    def test_asks_before_it_removes(self, run: Run, open: Callable[..., Terminal], answer: str, outcome: str) -> None:
        assert run("pull", f"hf:{REPO}").returncode == 0
        screen = open("rm", f"hf:{REPO}")
        assert "m-Q4_K_M.gguf" in screen.expect(f"Remove hf:{REPO}, 1.3 MiB? [y/N] ")
        screen.type(answer)
        screen.expect(outcome)
        assert screen.wait() == 0
        assert bool(rows(run)) == (outcome == "not removed")

    def test_progress(self, hub: Hub, open: Callable[..., Terminal]) -> None:
        hub.rate = 0.02
        screen = open("pull", f"hf:{REPO}")
        screen.expect(f"fetching hf:{REPO}")
        screen.expect("of 1.3 MiB")
        screen.expect(f"hf:{REPO}: /")
        assert screen.wait() == 0


def test_hub_modules_are_imported_lazily(environment: dict[str, str], fake_model: str) -> None:
    code = f"""
import sys, localinfer.hub.resolve as resolve
resolve.find({fake_model!r}), resolve.model_registry(), resolve.default_options("smollm2")
print([name for name in ("huggingface_hub", "httpx2", "filelock", "localinfer.hub.huggingface") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
    assert done.stdout == b"[]\n"


@pytest.mark.parametrize("columns", [80, 120])
def test_list_does_not_cut_words(terminal: Callable[..., Terminal], hub_env: dict[str, str], columns: int) -> None:
    t = terminal("list", columns=columns, **hub_env, LOCALINFER_CONFIG_DIR="/c", LOCALINFER_DATA_DIR="/d")
    assert t.wait() == 0
    lines = t.text.splitlines()
    assert "    SmolLM2 135M: to try localinfer out; knows little and is often wrong" in lines or columns > 80
    assert max(map(len, lines[:-2])) < columns  # the last ones have paths of directories


def test_errors_name_the_model_as_the_user_did(run: Run, hub: Hub, model_bytes: bytes) -> None:
    """Not its path in the cache, which no user has typed."""
    hub.files["/damaged.gguf"] = model_bytes.replace(b"llama.block_count", b"lama0.block_count")
    name = f"{hub.url}/damaged.gguf"
    for command in (["inspect", name], ["bench", name, "-p", "1", "-n", "0"]):
        done = run(*command)
        assert done.stderr.decode().splitlines()[-1] == (
            f"error: {name}: llama.block_count: is missing; it must be an integer"
        )
