"""What a shell offers when a command line is half typed: commands, flags, models, types.

    eval "$(localinfer --show-completion bash)"

The shell starts us with the line in its environment. Typer has the scripts for the shells, knows commands and flags,
and writes what a shell expects; here is what there is to offer for a value, by the name that its place has in the help.
"""

import os
import re
import sys
from collections.abc import Callable, Iterable
from glob import escape, glob
from typing import Any

from cli.arguments.commands import COMPLETING, SHELLS
from cli.arguments.nearest import did_you_mean
from localinfer.errors import LocalInferError, UsageError

NAME = "localinfer"
LINES = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")  # what is typed, from bash and from other shells


def words_typed() -> list[str]:
    """The words of the line that shall be completed."""
    return next((os.environ[name].split() for name in LINES if name in os.environ), [])[1:]


def answer(program: Any, question: str) -> int:
    """Write what the shell has asked for."""
    sys.modules["rich"] = None  # type: ignore[assignment]  # would only take markup out of help texts, which have none

    from typer._completion_classes import completion_init
    from typer.completion import shell_complete

    for command in program.commands.values():
        for param in command.params:
            teach(param)
    completion_init()
    return shell_complete(program, {}, NAME, COMPLETING, question)


def teach(param: Any) -> None:
    """Have an argument or option offer what can stand in its place."""
    from typer._click.shell_completion import CompletionItem

    metavar = param.metavar or ""
    choices = metavar.split("|") if "|" in metavar else []
    values = next((VALUES[word] for word in re.findall(r"\w+", metavar) if word in VALUES), lambda _: choices)
    param.shell_complete = lambda _, incomplete: [
        CompletionItem(value) for value in values(incomplete) if value.startswith(incomplete)
    ]


def models(incomplete: str) -> Iterable[str]:
    """Names, of models that are here first, and GGUF files."""
    from localinfer.models import registry

    try:
        entries = sorted(registry.catalogue().entries.values(), key=lambda entry: not entry.present)
    except LocalInferError:  # a models.toml with mistakes: whoever runs a command hears of them
        entries = []
    files = glob(f"{escape(incomplete)}*.gguf")  # noqa: PTH207  # as it is typed, with ./ and ~ as they are
    return [*(entry.name for entry in entries), *files]


def types(incomplete: str) -> Iterable[str]:
    """Those that `quantize` knows, in the case in which one is begun."""
    from localinfer.quantizing.recipes import COPY, RECIPES

    return (name.lower() if incomplete.islower() else name for name in (*RECIPES, COPY))


VALUES: dict[str, Callable[[str], Iterable[str]]] = {
    "MODEL": models, "BASE": models, "SOURCE": models, "NAME": models, "TYPE": types,
}  # fmt: skip


def show(shell: str) -> None:
    """What the shell must read."""
    from typer._completion_shared import get_completion_script

    print(get_completion_script(prog_name=NAME, complete_var=COMPLETING, shell=known(shell)))


def install(shell: str) -> None:
    """The same, where the shell reads it when it starts."""
    from typer._completion_shared import install

    from cli import screen

    _, path = install(shell=known(shell), prog_name=NAME, complete_var=COMPLETING)
    screen.note(f"{path}: completion for {shell}, from its next start on")


def known(shell: str) -> str:
    if shell not in SHELLS:
        raise UsageError(f"{shell or 'SHELL'}: must be {' or '.join(SHELLS)}{did_you_mean(shell, SHELLS)}")
    return shell
