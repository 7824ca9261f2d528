"""Fixtures: a fake hub on the loopback interface, an empty cache, and no delays between retries."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from loopback_hub import Hub
from tiny import tiny_llama


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A fake hub as HF_ENDPOINT, with an empty cache and without delays between retries."""
    from huggingface_hub import constants

    from localinfer.hub import download

    with Hub() as hub:
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, hub.url)
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.5)
        monkeypatch.setattr(download, "RETRY_DELAYS", (0.01,) * 5)
        monkeypatch.setattr(download, "METADATA_RETRY_DELAYS", (0.01,) * 2)
        monkeypatch.setenv("LOCALINFER_CACHE_DIR", str(tmp_path / "cache"))
        for variable in ("HF_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
            monkeypatch.delenv(variable, raising=False)
        yield hub


@pytest.fixture(scope="session")
def model_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A model file of about 1.3 MB."""
    return tiny_llama(tmp_path_factory.mktemp("model") / "m.gguf").read_bytes()
