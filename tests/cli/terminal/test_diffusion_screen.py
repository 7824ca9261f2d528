"""The screen of a diffusion language model, in a pseudo-terminal: stdout has the final text and nothing else."""

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import checkpoints
import pytest
import reference_models
from rich.console import Console
from terminal import Terminal

from cli.terminal.diffusion_screen import MASK, styled_text, visible_lines
from localinfer.gguf.reader import open_gguf
from localinfer.tokenizer import from_gguf

WORDS = "-p Hello -t 1 -n 40 --ignore-eos --seed 2 --diffusion-steps 10 --diffusion-block-length 10 --temp 0"
UNREADABLE = [f"-l {id}-inf" for id in (*range(32), *range(127, 264))]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("screen")
    checkpoint = reference_models.checkpoint("llada", folder)
    (checkpoint / "chat_template.jinja").write_text("{{ messages[-1].content }}")
    return checkpoints.as_type(checkpoint, folder / "model.gguf", "Q8_0")


def command(name: str, model: Path, *more: str) -> str:
    words = [sys.executable, "-m", "localinfer", name, str(model), *WORDS.split(), *more]
    return " ".join([*map(shlex.quote, words), *UNREADABLE])


def in_terminal(line: str, environment: dict[str, str]) -> Terminal:
    terminal = Terminal(["sh", "-c", line], environment)
    assert terminal.wait(60) == 0, terminal.text
    return terminal


def test_steps_are_shown_and_erased(
    model: Path, environment: dict[str, str], tmp_path: Path, run: Callable[..., tuple[int, str, str]]
) -> None:
    words = [word for each in UNREADABLE for word in each.split()]
    code, out, err = run("generate", model, *WORDS.split(), *words, "--json", "--no-stdin")
    expected = json.loads(out)
    assert (code, expected["finish_reason"], expected["timings"]["diffusion_steps"]) == (0, "length", 10)
    assert "[ 40 tokens in 10 steps, " in err
    shown = in_terminal(command("generate", model), environment).text
    assert "step 1 of 10" in shown
    assert MASK * 20 in shown
    assert shown.count(expected["text"]) >= 1
    to_file = in_terminal(f"{command('generate', model)} > {tmp_path}/out", environment).text
    assert (tmp_path / "out").read_text() == expected["text"]
    assert "step 10 of 10" in to_file
    plain = in_terminal(command("generate", model, "--no-diffusion-visual"), environment).text
    assert "step 1 of" not in plain
    assert expected["text"] in plain


def test_the_text_is_cut_to_the_rows_around_the_first_masked_token(model: Path) -> None:
    tokenizer = from_gguf(open_gguf(model))
    ids = [*b"known " * 40, *[-1] * 30, *b"later " * 60, *tokenizer.eog, *b"not shown"]
    text = styled_text(tokenizer, ids, [*ids[:5], -1, *ids[6:]])
    assert text.plain == "known " * 40 + MASK * 30 + "later " * 60
    assert [str(span.style) for span in text.spans if span.start == 5] == ["bold green"]
    lines = visible_lines(Console(width=30, height=8), text)
    assert len(lines) == 6
    assert MASK in lines[3].plain
    assert len(visible_lines(Console(width=200, height=24), text)) == 4
