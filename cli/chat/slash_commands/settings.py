"""The slash command /set: options by any of their names, those of llama.cpp, Ollama and OpenAI included."""

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from cli.arguments.compatibility import EQUIVALENTS
from cli.arguments.suggestions import did_you_mean
from cli.chat.slash_commands import session_commands
from cli.files.text_input import read_text_file
from cli.terminal import screen
from localinfer.errors import UsageError
from localinfer.hub.ollama import PARAMETERS
from localinfer.options import FLAGS, Value, format_value, from_flags

if TYPE_CHECKING:
    from localinfer.options import Layer

# Sections whose options may change between two answers, and options for which the model is opened again.
SECTIONS = ("sampling", "generation", "diffusion", "structured", "speculative", "chat")
REOPENING = ("ctx_size",)
EMPTY = ('""', "''")  # typed to remove the value of an option, such as a grammar
SETTING_ALIASES = {("think", ""): ("think", "on"), ("nothink", ""): ("think", "off")}


class Chat(session_commands.Chat, Protocol):
    """The interface of the chat that /set uses."""

    def reopen(self, name: str, changes: "Layer") -> None: ...


def set_(chat: Chat, text: str) -> None:
    """Set an option. The syntax of Ollama works, too: /set parameter temperature 0, /set system TEXT, /set nothink."""
    typed, _, value = text.removeprefix("parameter ").strip().partition(" ")
    typed, value = SETTING_ALIASES.get((typed.lower(), value), (typed, value.strip()))
    name = option_name(typed)
    if not typed:
        show_settings(chat)
    elif name == "system_prompt" and value:
        session_commands.system(chat, value)
    elif name in REOPENING and value:
        chat.reopen(chat.name, setting(name, value))
    elif value:
        chat.conversation.settings |= setting(name, value)
        screen.note_dim(f"{name} is {format_value(chat.conversation.settings[name])}")
    elif name in FLAGS:
        screen.note_wrapped(f"{name} is {format_value(value_of(chat, name))}: {FLAGS[name].help}")
    else:
        screen.note_wrapped(unknown_option(name))


def option_name(typed: str) -> str:
    """Return the option with a name, a flag or a name in another program; the word itself if there is none."""
    return NAMES.get(normalized(typed), typed)


def normalized(word: str) -> str:
    return word.lower().lstrip("-").replace("-", "_")


def option_names() -> dict[str, str]:
    """Return the options by all of their names in normalized spelling."""
    names = {normalized(flag): name for name in FLAGS for flag in FLAGS[name].names}
    names |= {normalized(flag): names[normalized(words[0])] for flag, words in EQUIVALENTS.items()
              if len(words) == 1 and normalized(words[0]) in names}  # fmt: skip
    return names | PARAMETERS | {name: name for name in FLAGS} | {"system": "system_prompt"}


NAMES = option_names()


def unknown_option(typed: str) -> str:
    names = [name for name, option in NAMES.items() if FLAGS[option].section in SECTIONS or option in REOPENING]
    return f"{screen.one_line(typed)}: no such option{did_you_mean(normalized(typed), names)}"


def setting(name: str, text: str) -> dict[str, Value]:
    """Parse the new value of an option. Raises UsageError if the name or the value is invalid.

    Raises LocalInferError if the value is a file that cannot be read.
    """
    if name not in FLAGS:
        raise UsageError(unknown_option(name))
    if FLAGS[name].section not in SECTIONS and name not in REOPENING:
        raise UsageError(f"{name}: can only be set on the command line: {FLAGS[name].long_name}")
    if text in EMPTY:
        return empty_setting(name)
    try:
        text = str(Path(text).expanduser()) if name.endswith("_file") else text
        value = from_flags({name: FLAGS[name].parse(text)})
    except (ValueError, RuntimeError) as problem:  # RuntimeError: the home directory is not known
        raise UsageError(f"{name}: {problem}") from None
    if name.endswith("_file"):
        read_text_file(text)  # raises an error now, not with each following message
    return value


def empty_setting(name: str) -> dict[str, Value]:
    """Return the option without a value. Raises UsageError if it must have one."""
    if FLAGS[name].default in ("", ()):
        return {name: FLAGS[name].default}
    raise UsageError(f"{name}: must have a value; its default is {format_value(FLAGS[name].default)}")


def show_settings(chat: Chat) -> None:
    names = [name for name, flag in FLAGS.items() if flag.section in SECTIONS and name != "system_prompt"]
    width = max(map(len, names))
    for name in names:
        mark = " *" if name in chat.conversation.settings else ""
        screen.note_wrapped(f"{name:{width}}  {format_value(value_of(chat, name))}{mark}", hanging=width + 2)


def value_of(chat: Chat, name: str) -> object:
    return chat.conversation.settings.get(name, getattr(chat.model.options, name))
