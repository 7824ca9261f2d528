"""Embedding endpoints for models with and without embeddings."""

import pytest
from server_process import ServerProcess

from localinfer import Model


@pytest.mark.parametrize(
    ("path", "fields"),
    [("/v1/embeddings", {"input": "a"}), ("/api/embed", {"input": ["a", "b"]}), ("/api/embeddings", {"prompt": "a"})],
)
def test_every_route(server: ServerProcess, path: str, fields: dict[str, object]) -> None:
    status, answer, _ = server.post(path, {"model": "tiny", **fields})
    if hasattr(Model, "embed"):
        assert status == 200
        assert answer.keys() & {"data", "embeddings", "embedding"}
    else:
        assert status == 501
        assert "not supported" in str(answer["error"])


@pytest.mark.parametrize("fields", [{}, {"input": []}, {"input": 5}, {"input": "a", "encoding_format": "int4"}])
def test_invalid_fields(server: ServerProcess, fields: dict[str, object]) -> None:
    assert server.post("/v1/embeddings", fields).status == 400
