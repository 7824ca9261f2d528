"""pull, list and rm, and the names that every command takes, as a user types them; the hub is one on loopback."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from loopback_hub import Hub
from places import TALKER
from terminal import Terminal
from tiny import tiny_llama

Done = subprocess.CompletedProcess[bytes]
Run = Callable[..., Done]
REPO = "own/er-GGUF"


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
def places(hub: Hub, tmp_path: Path) -> dict[str, str]:
    """The environment of somebody who has fetched nothing yet."""
    return {
        "HF_ENDPOINT": hub.url,
        "HF_HUB_CACHE": str(tmp_path / "hub"),
        "HF_HUB_DOWNLOAD_TIMEOUT": "2",
        "HOME": str(tmp_path),
        "LOCALINFER_CACHE_DIR": str(tmp_path / "cache"),
        "NO_PROXY": "*",
    }


@pytest.fixture
def run(talker: Run, places: dict[str, str]) -> Run:
    def run(*arguments: str, **changed: str) -> Done:
        return talker(*arguments, **(places | changed))

    return run


def last_line(done: Done, code: int) -> str:
    assert done.returncode == code, done.stderr
    assert done.stdout == b""
    assert b"Traceback" not in done.stderr
    return done.stderr.decode().splitlines()[-1]


def rows(run: Run) -> list[dict[str, object]]:
    """What `list` shows beside models.toml."""
    return [row for row in json.loads(run("list", "--json").stdout) if row["store"] != "models.toml"]


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

        requests = len(hub.seen)
        assert run("generate", "-hf", REPO, "-p", "a b").stdout == b"a b"
        assert run("generate", f"hf:{REPO}:q4_k_m", "--offline", "-p", "a b").stdout == b"a b"
        assert len(hub.seen) == requests

        assert last_line(run("rm", f"hf:{REPO}"), 2) == (
            "error: nobody can be asked here: --yes removes without a question")
        assert last_line(run("rm", "--yes", f"hf:{REPO}"), 0).endswith("removed, 1.3 MiB are free again")
        assert rows(run) == []
        assert not [path for path in tmp_path.rglob("*") if path.name.endswith(".gguf")]

    def test_run_fetches_what_is_not_here(self, run: Run) -> None:
        done = run("generate", "--hf-repo", f"{REPO}:Q8_0", "-p", "a b")
        assert (done.returncode, done.stdout) == (0, b"a b")
        assert done.stderr.startswith(f"fetching hf:{REPO}:Q8_0\n".encode())

    def test_inspect_and_tokenize(self, run: Run) -> None:
        assert b"GGUF version 3" in run("inspect", "-hf", REPO).stdout
        assert run("tokenize", f"hf.co/{REPO}", "-p", "Hello", "--ids").returncode == 0

    def test_one_model_at_a_time(self, run: Run, own: str) -> None:
        line = last_line(run("generate", own, "-hf", REPO, "-p", "x"), 2)
        assert line == f"error: Got unexpected extra argument(s) ({own})"

    @pytest.mark.parametrize(
        ("arguments", "code", "line"),
        [
            (["pull", "hf:own/er-GGUF:Q4_K_N"], 3, "did you mean Q4_K_M? it has Q4_K_M, Q8_0"),
            (["pull", "hf:no/such"], 3, "hf:no/such: the hub has no such repository, or it is private; HF_TOKEN"),
            (["pull", "hf:own"], 2, "hf:own: must be hf:OWNER/REPO, hf:OWNER/REPO:QUANT or hf:OWNER/REPO/FILE.gguf"),
            (["pull", "smollm2", "smolm2"], 3, "smolm2: neither a file nor a known model; did you mean smollm2?"),
            (["generate", "own/er", "-p", "x"], 3, "own/er: No such file or directory; a repository of the hub"),
            (["generate", "hf:own/er-GGUF", "-p", "x", "--offline"], 3, "LOCALINFER_OFFLINE says to ask nobody for it"),
            (["pull", "ollama:llama3.2"], 3, "`ollama pull llama3.2` fetches it"),
            (["pull", "lmstudio:a/b"], 3, "lmstudio:a/b: not in a folder of LM Studio, which is not here"),
            (["rm", "--yes", "hf:own/er-GGUF"], 3, "hf:own/er-GGUF: not fetched yet"),
            (["rm", "--yes", "smollm2"], 3, "smollm2: not fetched yet"),
        ],
    )
    def test_what_does_not_work(self, run: Run, arguments: list[str], code: int, line: str) -> None:
        done = run(*arguments)
        assert line in last_line(done, code)
        assert len(done.stderr.splitlines()) <= 2

    def test_server_that_is_away(self, run: Run) -> None:
        line = last_line(run("pull", f"hf:{REPO}", HF_ENDPOINT="http://127.0.0.1:9"), 1)
        assert line.startswith(f"error: hf:{REPO}: http://127.0.0.1:9: ")

    def test_interrupted_and_gone_on_with(
        self, run: Run, hub: Hub, environment: dict[str, str], places: dict[str, str], model_bytes: bytes
    ) -> None:
        hub.rate = 0.02
        process = subprocess.Popen([*TALKER, "pull", f"hf:{REPO}"], env=environment | places, stderr=subprocess.PIPE)
        while not hub.asked("/blobs/"):
            time.sleep(0.02)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=20)
        assert process.returncode == 130
        assert error.decode().splitlines() == [
            f"fetching hf:{REPO}", f"hf:{REPO}: interrupted; the same command goes on from there",
        ]  # fmt: skip
        hub.rate = 0
        [row] = rows(run)
        assert row["name"] == f"hf:{REPO}/m-Q4_K_M.gguf"
        assert str(row["state"]).endswith("% here")
        hub.seen.clear()
        assert run("pull", f"hf:{REPO}").returncode == 0
        [blob] = hub.asked("/blobs/")
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
    def open(self, terminal: Callable[..., Terminal], places: dict[str, str]) -> Callable[..., Terminal]:
        def open(*arguments: str, **changed: str) -> Terminal:
            return terminal(*arguments, **(places | changed))

        return open

    @pytest.mark.parametrize(("answer", "said"), [("y\n", "are free again"), ("\n", "stays")])
    def test_asks_before_it_removes(self, run: Run, open: Callable[..., Terminal], answer: str, said: str) -> None:
        assert run("pull", f"hf:{REPO}").returncode == 0
        screen = open("rm", f"hf:{REPO}")
        assert "m-Q4_K_M.gguf" in screen.expect(f"Remove hf:{REPO}, 1.3 MiB? [y/N] ")
        screen.type(answer)
        screen.expect(said)
        assert screen.code() == 0
        assert bool(rows(run)) == (said == "stays")

    def test_progress(self, hub: Hub, open: Callable[..., Terminal]) -> None:
        hub.rate = 0.02
        screen = open("pull", f"hf:{REPO}")
        screen.expect(f"fetching hf:{REPO}")
        screen.expect("of 1.3 MiB")
        screen.expect(f"hf:{REPO}: /")
        assert screen.code() == 0


def test_nothing_of_it_is_imported_when_it_is_not_used(environment: dict[str, str], own: str) -> None:
    code = f"""
import sys, localinfer.models.registry as registry
registry.find({own!r}), registry.catalogue(), registry.default_options("smollm2")
print([name for name in ("huggingface_hub", "httpx2", "filelock", "localinfer.models.hub") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
    assert done.stdout == b"[]\n"
