"""The file of `serve --models-preset`."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cli.app import build_program
from cli.server.presets import PresetFile, read_presets
from localinfer.errors import LocalInferError

Read = Callable[[str], PresetFile]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def read(text: str) -> PresetFile:
        path = tmp_path / "models.ini"
        path.write_text(text)
        program = build_program(["serve"]).commands["serve"]
        with program.make_context("serve", []) as context:
            return read_presets(path, context)

    return read


def test_sections(read: Read) -> None:
    file = read(
        "version = 1\n; a comment\n[*]\nc = 8192\nn-gpu-layers = 8\n\n"
        "[OWNER/REPO:Q8_0]\nLLAMA_ARG_CTX_SIZE = 512\njinja = true\nmmap = 0\nload-on-startup = true\n"
        "[own]\nmodel = a.gguf\ntop-k = 0\nspec-default = 1\nchat-template-kwargs = {}\n[hub]\nhf = O/R:Q4_K_M\n"
    )  # fmt: skip
    first, second, third = file.presets.values()
    assert (first.name, first.model, first.source) == ("OWNER/REPO:Q8_0", "", "hf:OWNER/REPO:Q8_0")
    assert first.options == {"ctx_size": 512, "mmap": False}
    assert (second.name, second.model) == ("own", "a.gguf")
    assert (second.options["ctx_size"], second.options["top_k"]) == (8192, 0)
    assert second.options.keys() == {"ctx_size", "top_k", "spec_type", "chat_template_kwargs"}
    assert (third.name, third.model) == ("hub", "hf:O/R:Q4_K_M")
    assert file.common.options == {"ctx_size": 8192}
    assert [each.load_on_startup for each in file.presets.values()] == [True, False, False]


def test_keys_of_the_server(read: Read) -> None:
    """They are written with or without dashes, and a section's own ones come before those of all models."""
    first, second = read(
        "[*]\nsleep-idle-seconds = 60\nstop-timeout = 5\ndedup-cache-models = 1\n"
        "[a]\nmodel = a.gguf\n--alias = y, x\n--tags = t\n--sleep-idle-seconds = -1\n--no-mmap = true\n-c = 64\n"
        "[b]\nhf-repo = O/R\nspec-draft-hf = O/D\nstop-timeout = 0.5\nno-mmap = false\nport = 80\n"
    ).presets.values()  # fmt: skip
    assert (first.aliases, first.tags, first.sleep_idle_seconds, first.stop_timeout) == (("x", "y"), ("t",), 0, 5)
    assert (second.aliases, second.tags, second.sleep_idle_seconds, second.stop_timeout) == (None, None, 60, 0.5)
    assert (first.options, second.draft) == ({"mmap": False, "ctx_size": 64}, "hf:O/D")
    assert second.options["mmap"] is True
    assert first.hides_source
    assert second.hides_source


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no section for a model"),
        ("version = 1\n[*]\nc = 1\n", "has no section for a model"),
        ("[a]\nmodel = a.gguf\nnonsense\n", "line 3: must be [NAME] or KEY = VALUE"),
        ("[a]\nmodel = a.gguf\nctx-sze = 3\n", "[a]: --ctx-sze: no such option"),
        ("[a]\nmodel = a.gguf\nctx-size = many\n", "[a]: --ctx-size: "),
        ("[a]\nload-on-startup = maybe\n", "[a]: load-on-startup: must be true or false, not maybe"),
        ("[a]\nstop-timeout = long\n", "[a]: stop-timeout: must be a number of seconds, not long"),
        ("[a]\nmodel = a.gguf\njinja = perhaps\n", "[a]: jinja: must be true or false, not perhaps"),
    ],
)
def test_mistakes(read: Read, text: str, message: str) -> None:
    with pytest.raises(LocalInferError) as caught:
        read(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
