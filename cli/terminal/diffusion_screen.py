"""The screen of a diffusion language model: its text while tokens are unmasked, on stderr. It is erased at the end."""

import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from cli.terminal import screen
from localinfer.escaping import terminal_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from localinfer import Model, Piece
    from localinfer.generation.diffusion.denoiser import DiffusionStep
    from localinfer.tokenizer import Tokenizer

MASK, MASK_STYLE, NEW_STYLE = "░", "dim", "bold green"
MARGIN_ROWS = 2  # the line with the step, and the cursor's


def while_unmasked(model: "Model", pieces: Iterator["Piece"], *, visual: bool) -> Iterator["Piece"]:
    """Return the pieces of a run. Those of a diffusion language model come at the end if the terminal shows the steps
    until then: the whole text if `visual`, else a status line.
    """
    if not model.is_diffusion:
        return pieces
    is_shown = visual and screen.is_redrawable()
    if is_shown or sys.stdout.isatty():
        return collected(model, pieces, is_shown=is_shown)
    return with_erased_progress(pieces)


def with_erased_progress(pieces: Iterator["Piece"]) -> Iterator["Piece"]:
    """Yield the pieces, and then erase the status line."""
    try:
        yield from pieces
    finally:
        screen.erase_progress()


def collected(model: "Model", pieces: Iterator["Piece"], *, is_shown: bool) -> Iterator["Piece"]:
    """Run to the end, show the steps meanwhile, and then yield the pieces, also those before an error or Ctrl-C."""
    found: list[Piece] = []
    error: BaseException | None = None
    shown = DiffusionScreen(model.tokenizer) if is_shown else None
    try:
        model.on_diffusion_step = shown.show if shown else None
        found.extend(pieces)
    except (Exception, KeyboardInterrupt) as raised:
        error = raised
    finally:
        model.on_diffusion_step = None
        if shown:
            shown.close()
        screen.erase_progress()
    yield from found
    if error:
        raise error


class DiffusionScreen:
    """Shows each step: masked tokens as blocks, and the tokens that the step has unmasked in another colour."""

    def __init__(self, tokenizer: "Tokenizer") -> None:
        from rich.console import Console
        from rich.live import Live

        self._tokenizer, self._last_ids = tokenizer, list[int]()
        self._console = Console(stderr=True, no_color=not screen.has_color(), highlight=False)
        self._live = Live(console=self._console, transient=True, auto_refresh=False)
        self._live.start()

    def show(self, step: "DiffusionStep") -> None:
        """Show the text after a step."""
        from rich.console import Group
        from rich.text import Text

        text = styled_text(self._tokenizer, step.ids, self._last_ids)
        self._last_ids = [*step.ids]
        line = f"{screen.progress_bar(step.number, step.total)}  step {step.number} of {step.total}"
        self._live.update(Group(Text(line, MASK_STYLE), *visible_lines(self._console, text)), refresh=True)

    def close(self) -> None:
        """Erase the text."""
        self._live.stop()


def styled_text(tokenizer: "Tokenizer", ids: Sequence[int], last_ids: Sequence[int]) -> "Text":
    """Return the text of an answer, up to its first end-of-generation token. `last_ids` are those of the step before;
    ids of masked tokens are negative.
    """
    from rich.text import Text

    end = next((at for at, id in enumerate(ids) if id in tokenizer.eog), len(ids))
    text = Text()
    for is_known, run in groupby(range(end), lambda at: ids[at] >= 0):
        positions, decoder = [*run], tokenizer.stream()
        if not is_known:
            text.append(MASK * len(positions), MASK_STYLE)
            continue
        for at in positions:
            is_new = bool(last_ids) and last_ids[at] < 0
            text.append(terminal_text(decoder.push(ids[at])), NEW_STYLE if is_new else "")
        text.append(terminal_text(decoder.flush()))
    return text


def visible_lines(console: "Console", text: "Text") -> "Sequence[Text]":
    """Return the lines that fit in the terminal, around the first masked token."""
    lines, rows = text.wrap(console, console.width), max(console.height - MARGIN_ROWS, 1)
    first = next((number for number, line in enumerate(lines) if MASK in line.plain), len(lines))
    start = max(0, min(first - rows // 2, len(lines) - rows))
    return lines[start : start + rows]
