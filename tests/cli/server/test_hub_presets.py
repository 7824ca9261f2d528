"""`preset.ini` in a repository of the hub, on loopback."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from loopback_hub import Hub
from server_process import ServerProcess
from tiny import CHATML, Field, tiny_llama

from cli.app import build_program
from cli.server.hub_presets import TEXT_OPTIONS, find_hub_presets
from cli.server.presets import PresetFile
from localinfer.errors import LocalInferError, ModelNotFoundError
from localinfer.options import FLAGS

Read = Callable[..., PresetFile | None]
PRESETS = """
[*]
ctx-size = 96

[small]
hf = owner/model-GGUF:Q8_0
temp = 0
top-k = 1
alias = tiny

[other]
hf = owner/model-GGUF:Q4_K_M
ctx-size = 64
"""


@pytest.fixture(scope="module")
def model_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("model") / "m.gguf"
    return tiny_llama(path, **{"tokenizer.chat_template": Field("STRING", CHATML)}).read_bytes()


@pytest.fixture
def hub(model_bytes: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A fake hub for this process and for servers, with an empty cache."""
    from huggingface_hub import constants

    from localinfer.hub import download

    with Hub() as hub:
        hub.repos["owner/model-GGUF"] = {"m-Q8_0.gguf": model_bytes}
        hub.repos["owner/both"] = {"m-Q8_0.gguf": model_bytes, "preset.ini": PRESETS.encode()}
        hub.repos["owner/presets"] = {"preset.ini": PRESETS.encode()}
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, hub.url)
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(download, "METADATA_RETRY_DELAYS", (0.01,) * 2)
        for name, value in {
            "HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(tmp_path / "hub"), "NO_PROXY": "*",
        }.items():  # fmt: skip
            monkeypatch.setenv(name, value)
        yield hub


@pytest.fixture
def read(hub: Hub) -> Read:
    def read(source: str = "hf:owner/presets", text: str = "") -> PresetFile | None:
        if text:
            hub.repos["owner/presets"] = {"preset.ini": text.encode()}
        with build_program(["serve"]).commands["serve"].make_context("serve", []) as context:
            found = find_hub_presets(source)
            return found and found.read(context)

    return read


def test_served(hub: Hub) -> None:
    with ServerProcess("-hf", "owner/presets") as server:
        assert "options come from hf:owner/presets: preset.ini\n" in server.lines
        listed = {each["id"]: each for each in server.get("/models").body["data"]}
        assert list(listed) == ["small", "other"]
        assert listed["small"]["status"]["args"][-6:] == ["--ctx-size", "96", "--temp", "0", "--top-k", "1"]
        answer = server.post("/v1/chat/completions", {
            "model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2})  # fmt: skip
        assert answer.status == 200
        assert server.get("/props?model=small").body["default_generation_settings"]["n_ctx"] == 96
    with ServerProcess("-hf", "owner/presets:small", "--ctx-size", "80", "--offline") as server:  # flags are stronger
        assert [each["id"] for each in server.get("/models").body["data"]] == ["small"]
        assert server.get("/props?model=small").body["default_generation_settings"]["n_ctx"] == 80


def test_found(read: Read, hub: Hub) -> None:
    file = read()
    assert file
    assert [(each.name, each.source) for each in file.presets.values()] == [
        ("small", "hf:owner/model-GGUF:Q8_0"), ("other", "hf:owner/model-GGUF:Q4_K_M"),
    ]  # fmt: skip
    n_requests = len(hub.requests)
    only = read("https://huggingface.co/owner/presets:other")
    assert only
    assert [*only.presets] == ["other"]
    assert len(hub.requests) == n_requests, "the file is on this machine"


def test_other_models_have_no_presets(read: Read, hub: Hub) -> None:
    assert read("hf:owner/model-GGUF") is None
    assert read("hf:owner/both") is not None
    assert read("hf:owner/both:Q8_0") is None  # no section, so it is the type of a model
    assert read("hf:owner/both/m-Q8_0.gguf") is None
    n_requests = len(hub.requests)
    for source in "smollm2", "/a.gguf", "https://example.com/a.gguf":
        assert read(source) is None
    assert len(hub.requests) == n_requests


def test_downloaded_model_needs_no_network(read: Read, hub: Hub) -> None:
    from localinfer.hub.pull import pull

    pull("hf:owner/model-GGUF:Q8_0")
    n_requests = len(hub.requests)
    assert read("hf:owner/model-GGUF:Q8_0") is None
    assert len(hub.requests) == n_requests


@pytest.mark.parametrize(("text", "message"), [
    ("[a]\nmodel = /a.gguf\n", "[a]: needs hf = OWNER/REPO:QUANT"),
    ("[a]\nmodel-url = https://example.com/a.gguf\n", "[a]: needs hf = OWNER/REPO:QUANT"),
    ("[/a.gguf]\ntemp = 0\n", "needs hf = OWNER/REPO:QUANT"),
    ("[smollm2]\ntemp = 0\n", "[smollm2]: needs hf = OWNER/REPO:QUANT"),
    ("[a]\nhf = o/r\narchitecture = evil.py\n", "[a]: --architecture: may name a file"),
    ("[*]\narchitecture = evil.py\n[a]\nhf = o/r\n", "--architecture: may name a file"),
    ("[a]\nhf = o/r\nchat-template-file = t.jinja\n", "[a]: --chat-template-file: "),
    ("[a]\nhf = o/r\ngrammar-file = /etc/passwd\n", "[a]: --grammar-file: "),
    ("[a]\nhf = o/r\nmodel-draft = d.gguf\n", "[a]: --spec-draft-model: needs hf = "),
    ("[a]\nhf = o/r\nctx-sze = 3\n", "[a]: --ctx-sze: no such option"),
    ("[a]\nnonsense\n", "line 2: must be [NAME] or KEY = VALUE"),
    ("\n", "has no section for a model"),
    (";" * (1 << 20) + "\n[a]\nhf = o/r\n", "is larger than"),
])  # fmt: skip
def test_refused(read: Read, text: str, message: str) -> None:
    with pytest.raises(LocalInferError) as caught:
        read(text=text)
    assert str(caught.value).startswith("hf:owner/presets: preset.ini: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_options_that_may_name_files_are_refused() -> None:
    """An option that is added and takes a text is refused, unless it is listed."""
    assert FLAGS.keys() >= TEXT_OPTIONS
    assert not [name for name in TEXT_OPTIONS if "file" in name]
    assert not {"architecture", "spec_draft_model"} & TEXT_OPTIONS


def test_missing_repository(read: Read) -> None:
    with pytest.raises(ModelNotFoundError, match="no such repository"):
        read("hf:owner/missing")
