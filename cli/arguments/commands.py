"""The first word of a command line: which command it is, under whatever name people know it.

Commands of llama.cpp and Ollama that do the same as one of ours are that one; of the others it is said what to type.
A model in the place of a command is talked with.
"""

import os
from collections.abc import Collection

from localinfer.errors import ModelNotFound, UsageError

SAME = {
    "run": "chat",
    "cli": "chat",
    "completion": "generate",
    "show": "inspect",
    "info": "inspect",
    "ls": "list",
    "download": "pull",
    "get": "pull",
    "embedding": "embed",
    "server": "serve",
}
INSTEAD = {
    "ps": "each command lets go of its model when it ends; a server tells of its own at /api/ps",
    "stop": "no model stays in memory: Ctrl-C stops an answer, and the end of a command its model",
    "create": "`localinfer quantize SOURCE OUT TYPE` makes a file, and models.toml gives it a name and options",
    "cp": "a line in models.toml gives a file another name; `localinfer list` says where that is",
    "push": "models are fetched and never sent anywhere",
    "signin": "there is nothing to sign in to",
    "signout": "there is nothing to sign out of",
    "launch": "`localinfer serve` answers other programs; they are told its address in settings of their own",
    "update": "`python -m pip install --upgrade localinfer` brings a newer version",
    "licenses": "`localinfer list` shows the models' licences",
    "convert": "`localinfer quantize CHECKPOINT OUT.gguf F16` makes a GGUF file of a checkpoint",
}
COMPLETING = "_LOCALINFER_COMPLETE"  # is in the environment when a shell asks what could come next
SHELLS = ("bash", "zsh", "fish")
COMPLETION = ("--show-completion", "--install-completion")
OWN_OPTIONS = ("-h", "--help", "--version", *COMPLETION)  # of the program itself
DEBUG = "--debug"


def resolved(arguments: list[str], commands: Collection[str]) -> list[str]:
    """The same command line with one of `commands`, or of SAME, in its first place, or an option of the program.

    Options without a command are those of `chat`, as llama-cli has them. UsageError says what else can be typed.
    """
    if not arguments:
        return ["--help"]
    word, *rest = arguments
    if word == DEBUG:
        return [DEBUG, *resolved(rest, commands)]
    if word in COMPLETION and not rest:
        return [word, os.environ.get("SHELL", "").rpartition("/")[2]]
    if word in commands or word in SAME or word.partition("=")[0] in OWN_OPTIONS:
        return arguments
    if word == "help":
        return [*resolved(rest[:1], commands), "--help"] if rest else ["--help"]
    if word == "version":
        return ["--version"]
    if word in INSTEAD:
        raise UsageError(f"{word}: {INSTEAD[word]}")
    if not word.startswith("-"):
        require_model(word, commands)
    return ["chat", *arguments]


def require_model(word: str, commands: Collection[str]) -> None:
    """UsageError unless the word is a model's name or a path."""
    from cli.arguments.nearest import did_you_mean
    from localinfer.models import registry

    try:
        registry.named(word)
    except ModelNotFound:
        names = [*commands, *SAME, *registry.catalogue().entries]
        raise UsageError(f"{word}: neither a command nor a model{did_you_mean(word, names)}") from None
