"""Shell completion of commands, flags, models and types.

    eval "$(localinfer --show-completion bash)"

The shell runs the program with the partial command line in an environment variable. Typer provides the shell scripts
and completes commands and flags. This module completes values, based on their metavar in the help.
"""

import os
import re
import sys
from collections.abc import Callable, Iterable
from glob import escape, glob
from typing import Any

from cli.arguments.commands import COMPLETION_VARIABLE, SHELLS
from cli.arguments.suggestions import did_you_mean
from localinfer.errors import LocalInferError, UsageError

NAME = "localinfer"
LINE_VARIABLES = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")  # the partial command line, from bash and from other shells


def typed_words() -> list[str]:
    """Return the arguments of the partial command line."""
    return next((os.environ[name].split() for name in LINE_VARIABLES if name in os.environ), [])[1:]


def write_completions(program: Any, instruction: str) -> int:
    """Write the completions that the shell requested and return the exit code."""
    sys.modules["rich"] = None  # type: ignore[assignment]  # only strips markup, which the help texts do not have

    from typer._completion_classes import completion_init
    from typer.completion import shell_complete

    for command in program.commands.values():
        for param in command.params:
            set_completer(param)
    completion_init()
    return shell_complete(program, {}, NAME, COMPLETION_VARIABLE, instruction)


def set_completer(param: Any) -> None:
    """Set the completion function of an argument or option."""
    from typer._click.shell_completion import CompletionItem

    metavar = param.metavar or ""
    choices = metavar.split("|") if "|" in metavar else []
    values = next((COMPLETERS[word] for word in re.findall(r"\w+", metavar) if word in COMPLETERS), lambda _: choices)
    param.shell_complete = lambda _, incomplete: [
        CompletionItem(value) for value in values(incomplete) if value.startswith(incomplete)
    ]


def complete_models(incomplete: str) -> Iterable[str]:
    """Return model names, those on this machine first, and GGUF files."""
    from localinfer.hub import resolve

    try:
        entries = sorted(resolve.model_registry().entries.values(), key=lambda entry: not entry.is_present)
    except LocalInferError:  # an invalid models.toml is reported when a command runs
        entries = []
    files = glob(f"{escape(incomplete)}*.gguf")  # noqa: PTH207  # keeps ./ and ~ as typed
    return [*(entry.name for entry in entries), *files]


def complete_types(incomplete: str) -> Iterable[str]:
    """Return the types of `quantize`, in the letter case of the input."""
    from localinfer.quantization.recipes import COPY, RECIPES

    return (name.lower() if incomplete.islower() else name for name in (*RECIPES, COPY))


COMPLETERS: dict[str, Callable[[str], Iterable[str]]] = {
    **dict.fromkeys(("MODEL", "BASE", "SOURCE", "NAME"), complete_models), "TYPE": complete_types,
}  # fmt: skip


def print_script(shell: str) -> None:
    """Print the completion script for a shell."""
    from typer._completion_shared import get_completion_script

    print(get_completion_script(prog_name=NAME, complete_var=COMPLETION_VARIABLE, shell=checked_shell(shell)))


def install_script(shell: str) -> None:
    """Install the completion script for a shell."""
    from typer._completion_shared import install

    from cli.terminal import screen

    _, path = install(shell=checked_shell(shell), prog_name=NAME, complete_var=COMPLETION_VARIABLE)
    screen.note(f"{path}: completion for {shell} installed; restart the shell to use it")


def checked_shell(shell: str) -> str:
    if shell not in SHELLS:
        raise UsageError(f"{shell or 'SHELL'}: must be {' or '.join(SHELLS)}{did_you_mean(shell, SHELLS)}")
    return shell
