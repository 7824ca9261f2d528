"""Every flag of llama-server starts the server: it works, or a line says why nothing comes of it."""

from collections.abc import Iterator

import pytest
from locations import DATA

from cli.app import build_program
from cli.arguments.translation import CommandSpec, Redirect, translate

SILENT = {  # flags without effect and without a line, as the requested behaviour is always on
    "--jinja", "--log-disable", "--no-log-jsonl", "--no-log-prefix", "--no-log-timestamps", "--perf", "--repack",
    "-hff", "--hf-file",  # parts of -hf
    "--skip-chat-parsing", "--no-skip-chat-parsing", "--warmup", "--no-warmup",
}  # fmt: skip
OTHER_PROGRAMS = {"--help", "--usage", "--version", "list", "doctor", "--show-completion"}  # what a flag may ask for


def flags() -> Iterator[tuple[str, int]]:
    """Yield each name of each flag, and the number of its values."""
    for line in (DATA / "llama_server_flags.txt").read_text().splitlines()[1:]:
        names, values = line.split("|")
        yield from ((name, int(values)) for name in names.split())


@pytest.fixture(scope="module")
def serve() -> CommandSpec:
    program = build_program(["serve"]).commands["serve"]
    with program.make_context("serve", [], resilient_parsing=True, help_option_names=["-h", "--help"]) as context:
        context.resilient_parsing = False
        return program.spec(context)


@pytest.mark.parametrize(("name", "n_values"), list(flags()))
def test_flag(serve: CommandSpec, name: str, n_values: int) -> None:
    try:
        line = translate([name, *["1"] * n_values, "behind"], serve)
    except Redirect as redirect:
        words = redirect.words
    else:
        words = []
    if words:
        assert words[0] in OTHER_PROGRAMS
        return
    assert line.words[-1] == "behind"  # all values were taken
    has_effect = line.words != ["behind"]
    assert has_effect or any(warning.startswith(name) for warning in line.warnings) or name in SILENT


def test_what_would_change_answers_is_a_warning(serve: CommandSpec) -> None:
    """Other commands refuse these flags."""
    line = translate(["-m", "model.gguf", "--grp-attn-n", "2", "-gan", "1"], serve)
    assert line.words == ["model.gguf"]
    [warning] = line.warnings
    assert warning.startswith("--grp-attn-n is not supported: attention with grouped positions")
