"""The choice of the first model: `localinfer chat` without a model offers those that suit this machine."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cli.models.loading import default_model, find_or_fetch, require_known_model
from cli.terminal import screen
from localinfer.errors import LocalInferError, UsageError

if TYPE_CHECKING:
    from localinfer.hub.resolve import StoredModel
    from localinfer.hub.suggestions import Suggestion

NOTE = (
    "Speeds are estimates from the measured memory bandwidth. Later models in the list answer better. Other names "
    "work, too: a GGUF file, hf:OWNER/REPO, ollama:NAME."
)


def select_model(named: str | None, resumed: str, *, again: bool) -> str:
    """Return the model of a chat: the one that the user named, that of the resumed session, or the default model.

    On a terminal, the user chooses the default model if that has not happened, or if it is to happen `again`. Raises
    UsageError if it is to happen again, but there is no terminal.
    """
    from localinfer.hub.model_registry import model_registry
    from localinfer.hub.model_store import offline_variable

    is_terminal = sys.stdin.isatty() and sys.stderr.isatty()
    if again:
        if named or not is_terminal:
            raise UsageError(f"--choose: {'cannot be combined with MODEL' if named else 'requires a terminal'}")
        return choose_default_model(again=True)
    is_settled = model_registry().has_user_default or offline_variable() or not is_terminal
    return named or resumed or (default_model() if is_settled else choose_default_model())


def choose_default_model(*, again: bool = False) -> str:
    """Let the user choose the default model, download it and remember it. Return its name. `again` measures the memory
    bandwidth again.
    """
    from localinfer.hub.model_registry import choose_model

    status = screen.Status()
    suggestions = find_suggestions(status, again=again)
    if not suggestions:
        return default_model()
    name = choose_model(ask_and_fetch(suggestions, status))  # a model that cannot be downloaded is not remembered
    shown, default = map(screen.one_line, (name, default_model()))
    screen.note_dim(
        f"{shown} is the default model from now on; `localinfer chat --choose` asks again"
        if shown == default
        else f"{default} stays the default model, because models.toml says so"
    )
    return name


def find_suggestions(status: screen.Status, *, again: bool) -> list["Suggestion"]:
    """Return the models that suit this machine, after telling the user what is known about it."""
    from localinfer.evaluation import roofline
    from localinfer.hub import resolve, suggestions
    from localinfer.machine import resources

    threads, memory = resources.default_threads(), resources.available_memory()
    with status.busy("measuring the memory bandwidth of this machine"):
        bandwidth = roofline.known_bandwidth(threads, again=again)
    found = suggestions.suggest(resolve.model_registry().entries.values(), memory, bandwidth)
    if found:
        screen.note_wrapped(
            f"Which model? This machine has {memory / 2**30:.1f} GiB of memory available, and reads "
            f"{bandwidth / 1e9:.0f} GB/s. It can run:"
        )
    return found


def ask_and_fetch(suggestions: Sequence["Suggestion"], status: screen.Status) -> str:
    """Show the list, and return the name of the model that the user chooses, after downloading it.

    If that fails, the user may choose another model.
    """
    from localinfer.hub import resolve
    from localinfer.hub.suggestions import best_choice

    here, default = resolve.list_registry(), str(best_choice(suggestions) + 1)
    for number, suggestion in enumerate(suggestions, 1):
        show_suggestion(number, suggestion, here.get(suggestion.entry.name))
    screen.note_dim(NOTE)
    while True:
        name = ask(suggestions, default)
        try:
            find_or_fetch(name, status)
            return name
        except LocalInferError as error:
            screen.error(f"{error}; choose another model, or the same one to try again", error.exit_code)
            local = list_local_models()
            screen.note_wrapped(f"On this machine: {', '.join(local) or 'no model yet'}")
            best_first = [each.entry.name for each in reversed(suggestions) if each.entry.name in local]
            default = next(iter([*best_first, *local]), default)


def list_local_models() -> list[str]:
    """Return the names of the models on this machine, as the user can type them."""
    from localinfer.hub import resolve

    stored = [*resolve.list_registry().values(), *(model for _, models in resolve.list_stores() for model in models)]
    return [screen.one_line(model.name) for model in stored if model.fraction == 1]


def ask(suggestions: Sequence["Suggestion"], default: str) -> str:
    """Return the name of the model that the user chooses; `default`, a name or a number, without an answer.

    Raises KeyboardInterrupt at the end of input.
    """
    while True:
        screen.write_question(f"Number or name [{default}]: ")
        line = sys.stdin.readline()
        if not line:
            raise KeyboardInterrupt
        answer = line.strip() or default
        if answer.isdecimal():
            if 1 <= int(answer) <= len(suggestions):
                return suggestions[int(answer) - 1].entry.name
            screen.note(f"{answer}: must be from 1 to {len(suggestions)}, or the name of a model")
            continue
        try:
            require_known_model(answer)
            return answer
        except LocalInferError as error:
            screen.note_wrapped(screen.one_line(str(error)))


def show_suggestion(number: int, suggestion: "Suggestion", stored: "StoredModel | None") -> None:
    """Print a model: its name, size, speed and licence in one line, and what it is good for below."""
    entry, speed = suggestion
    place = "" if stored is None else ", on this machine" if stored.fraction == 1 else f", {stored.fraction:.0%} here"
    rate = f"{speed:.1f}" if speed < 10 else f"{speed:.0f}"
    screen.note(
        f" {number:2}  {entry.name:20}{screen.gib(entry.size):>9}{'~' + rate:>6} tokens/s   {entry.licence}{place}"
    )
    for line in screen.wrapped_lines(entry.about, width=screen.columns() - len(INDENT)):
        screen.note_dim(INDENT + line)


INDENT = " " * 5
