"""The file of `serve --models-preset`."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cli.app import build_program
from cli.server.presets import Preset, read_presets
from localinfer.errors import LocalInferError

Read = Callable[[str], list[Preset]]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def read(text: str) -> list[Preset]:
        path = tmp_path / "models.ini"
        path.write_text(text)
        program = build_program(["serve"]).commands["serve"]
        with program.make_context("serve", []) as context:
            return read_presets(path, context)

    return read


def test_sections(read: Read) -> None:
    first, second, third = read(
        "version = 1\n; a comment\n[*]\nc = 8192\nn-gpu-layers = 8\n\n"
        "[OWNER/REPO:Q8_0]\nLLAMA_ARG_CTX_SIZE = 512\njinja = true\nmmap = 0\nload-on-startup = true\n"
        "[own]\nmodel = a.gguf\ntop-k = 0\nspec-default = 1\nchat-template-kwargs = {}\n[hub]\nhf = O/R:Q4_K_M\n"
    )  # fmt: skip
    assert (first.name, first.model) == ("OWNER/REPO:Q8_0", "hf:OWNER/REPO:Q8_0")
    assert first.options == {"ctx_size": 512, "mmap": False}
    assert (second.name, second.model) == ("own", "a.gguf")
    assert (second.options["ctx_size"], second.options["top_k"]) == (8192, 0)
    assert second.options.keys() == {"ctx_size", "top_k", "spec_type", "chat_template_kwargs"}
    assert (third.name, third.model) == ("hub", "hf:O/R:Q4_K_M")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no section for a model"),
        ("version = 1\n[*]\nc = 1\n", "has no section for a model"),
        ("[a]\nmodel = a.gguf\nnonsense\n", "line 3: must be [NAME] or KEY = VALUE"),
        ("[a]\nmodel = a.gguf\nctx-sze = 3\n", "[a]: --ctx-sze: no such option"),
        ("[a]\nmodel = a.gguf\nctx-size = many\n", "[a]: --ctx-size: "),
        ("[a]\nmodel = a.gguf\njinja = perhaps\n", "[a]: jinja: must be true or false, not perhaps"),
    ],
)
def test_mistakes(read: Read, text: str, message: str) -> None:
    with pytest.raises(LocalInferError) as caught:
        read(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
