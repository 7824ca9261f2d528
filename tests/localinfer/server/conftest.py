"""Fixtures: a server with a tiny random model that rarely generates an end-of-text token."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from server_process import ServerProcess
from tiny import tiny_llama

from cli.server.serve import REQUIRED_PACKAGES


@pytest.fixture(scope="session", autouse=True)
def _extra() -> None:
    for name in REQUIRED_PACKAGES:
        pytest.importorskip(name, reason=f"there is no package {name}")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a context of 16,384 tokens, long enough to disconnect during generation."""
    return tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf", n_ctx=16384)


@pytest.fixture(scope="module")
def server(tiny: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tiny, "--queue", "2", "--parallel", "1") as served:
        yield served
