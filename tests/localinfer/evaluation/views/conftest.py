"""A tiny model that is looked at, in float32."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny import tiny_gemma3

import localinfer
from localinfer import Model


@pytest.fixture(scope="package")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gemma3(tmp_path_factory.mktemp("model") / "gemma.gguf", type="F32")


@pytest.fixture(scope="package")
def model(file: Path) -> Iterator[Model]:
    exact = {"precision": "high", "cache_type_k": "f32", "cache_type_v": "f32"}
    with localinfer.load(file, threads=1, ctx_size=128, **exact) as loaded:
        yield loaded
