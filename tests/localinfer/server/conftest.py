"""A server with a tiny model, whose text makes no sense but never ends by itself too soon."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from served import Served
from tiny import tiny_llama

from cli.serve import NEEDED


@pytest.fixture(scope="session", autouse=True)
def _extra() -> None:
    for name in NEEDED:
        pytest.importorskip(name, reason=f"there is no package {name}")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Room for 16,384 tokens: long enough to leave in the midst."""
    return tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf", n_ctx=16384)


@pytest.fixture(scope="module")
def server(tiny: Path) -> Iterator[Served]:
    with Served(tiny, "--queue", "2", "--parallel", "1") as served:
        yield served
