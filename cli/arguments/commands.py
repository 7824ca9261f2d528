"""Resolution of the command name.

Commands of llama.cpp and Ollama with an equivalent here are aliases, also with the names of their programs before them:
`localinfer llama-bench -m x.gguf`, `localinfer ollama run x`. For the others, the error names what to use
instead. A model name instead of a command starts a chat with that model; a question is asked.
"""

import os
from collections.abc import Collection

from cli.arguments.questions import is_question
from localinfer.errors import ModelNotFoundError, UsageError

ALIASES = {
    "run": "chat",
    "cli": "chat",
    "client": "chat",
    "completion": "generate",
    "complete": "generate",
    "show": "inspect",
    "info": "inspect",
    "ls": "list",
    "download": "pull",
    "get": "pull",
    "embedding": "embed",
    "server": "serve",
    "retrieval": "retrieve",
    "split": "gguf-split",
    "gguf-hash": "hash",
    "gguf-dump": "inspect",
    "gguf_dump.py": "inspect",
    "gguf_hash.py": "hash",
    "cvector-generator": "control-vector",
    "simple": "generate",
    "simple-chat": "chat",
    "mtmd-cli": "chat",
    "diffusion-cli": "chat",
    "lookup": "generate",
    "speculative": "generate",
    "speculative-simple": "generate",
}
TOOL_PREFIX, OLLAMA = "llama-", "ollama"  # what stands before a command in other programs' command lines
OTHER_PROGRAMS = (OLLAMA, "llama")
TRANSLATED = {  # other programs' command lines: the function of `conversion` that makes ours of them
    "convert_hf_to_gguf.py": "convert_words",
    "export-lora": "export_words",
    "gguf-set-metadata": "set_metadata_words",
    "gguf_set_metadata.py": "set_metadata_words",
    "gguf-new-metadata": "new_metadata_words",
    "gguf_new_metadata.py": "new_metadata_words",
}
UNSUPPORTED_COMMANDS = {
    "push": "uploading models is not supported",
    "signin": "no account is needed",
    "signout": "no account is needed",
    "launch": "use `localinfer serve`, and set its URL in the other program",
    "update": "install the new version as you installed this one: docs/installation.md",
    "licenses": "use `localinfer list`, which shows the licence of each model",
    "join": "use `localinfer gguf-split --merge model-00001-of-00002.gguf OUT.gguf`",
    "convert": "use `localinfer quantize CHECKPOINT OUT.gguf F16`",
    "fit-params": "use `localinfer inspect MODEL -c N`, which shows the memory that a context needs",
    "parallel": "use `localinfer batched-bench`, or `localinfer batch` for a file of requests",
    "tts": "generating speech is not supported",
    "rpc-server": "all computation runs on this machine",
}
COMPLETION_VARIABLE = "_LOCALINFER_COMPLETE"  # environment variable that a shell sets to request completions
SHELLS = ("bash", "zsh", "fish")
COMPLETION_OPTIONS = ("--show-completion", "--install-completion")
GLOBAL_OPTIONS = ("-h", "--help", "--version", *COMPLETION_OPTIONS)
DEBUG = "--debug"


def resolve_command(arguments: list[str], commands: Collection[str]) -> list[str]:
    """Return the arguments with a command, an alias or a global option as the first one.

    Options without a command belong to `chat`, as in llama-cli. Raises UsageError for an unknown or unsupported
    command.
    """
    if not arguments:
        return ["--help"]
    word, *rest = arguments
    if word == DEBUG:
        return [DEBUG, *resolve_command(rest, commands)]
    if word in COMPLETION_OPTIONS and not rest:
        return [word, os.environ.get("SHELL", "").rpartition("/")[2]]
    if word in commands or word in ALIASES or word.partition("=")[0] in GLOBAL_OPTIONS:
        return arguments
    if word == "help":
        return [*resolve_command(rest[:1], commands), "--help"] if rest else ["--help"]
    if word in OTHER_PROGRAMS and not os.path.exists(word):  # noqa: PTH110
        return resolve_command(of_other_program(word, rest), commands)
    if word in TRANSLATED:
        from cli.arguments import conversion

        words: list[str] = getattr(conversion, TRANSLATED[word])(rest)
        return words
    tools = {*commands, *ALIASES, *UNSUPPORTED_COMMANDS, *TRANSLATED}
    if (tool := word.removeprefix(TOOL_PREFIX)) != word and tool in tools:
        return resolve_command([tool, *rest], commands)
    if word == "version":
        return ["--version"]
    if word in UNSUPPORTED_COMMANDS:
        raise UsageError(f"{word}: {UNSUPPORTED_COMMANDS[word]}")
    if not word.startswith("-") and not is_question(word):
        require_model(word, commands, is_sentence=any(not argument.startswith("-") for argument in rest[:1]))
    return ["chat", *arguments]


def of_other_program(program: str, arguments: list[str]) -> list[str]:
    """Return the arguments of `ollama` or `llama` as ours. `ollama rm` does not ask."""
    if program == OLLAMA and arguments[:1] == ["rm"]:
        return ["rm", "--yes", *arguments[1:]]
    if arguments[:1] == ["-v"]:
        return ["--version"]
    return arguments


def require_model(word: str, commands: Collection[str], *, is_sentence: bool = False) -> None:
    """Raise UsageError unless `word` is a model name or a path. It may be the first word of a sentence."""
    from cli.arguments.suggestions import did_you_mean
    from localinfer.hub import resolve

    try:
        resolve.registry_entry(word)
    except ModelNotFoundError:
        names = [*commands, *ALIASES, *resolve.model_registry().entries]
        near = did_you_mean(word, names)
        hint = "; quotation marks make a question of several words" if is_sentence or not near else ""
        raise UsageError(f"{word}: no such command or model{near}{hint}") from None
