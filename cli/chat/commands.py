"""What begins with a slash. A message that begins with a path is no command.

Each command is a function of the chat and of what stands behind its name.
"""

import ast
import base64
import difflib
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from cli import screen
from cli.chat import keeping
from cli.generate import statistics
from cli.texts import from_file
from localinfer.errors import LocalInferError, UsageError
from localinfer.options import FLAGS, Value, from_flags, shown, unknown

if TYPE_CHECKING:
    from cli.chat.conversation import Conversation
    from localinfer import Model, Piece

CLIPBOARD = "\x1b]52;c;{}\x07"  # the terminal puts it there, be it on another machine
SECTIONS = ("sampling", "generation", "form", "speculation", "chat")  # of options that can change from answer to answer


class Chat(Protocol):
    """What commands see of the chat that they are given in."""

    name: str
    model: "Model"
    conversation: "Conversation"
    files: list[str]  # what goes in front of the next message
    draft: str  # of the next message
    used: int  # tokens of the context
    is_over: bool

    def say(self, message: str) -> None: ...

    def show(self, pieces: Iterator["Piece"]) -> None: ...


class Command(NamedTuple):
    names: tuple[str, ...]
    argument: str
    about: str
    run: Callable[[Chat, str], None]


def obey(chat: Chat, typed: str) -> bool:
    """Carry out what was typed; False if that is no command but a message."""
    word, _, argument = typed.strip().partition(" ")
    command = BY_NAME.get(word.lower())
    if command:
        command.run(chat, argument.strip())
    elif not is_path(word):
        near = difflib.get_close_matches(word.lower(), BY_NAME, n=1, cutoff=0.7)
        hint = f"did you mean {near[0]}?" if near else "/help shows what there is"
        screen.tell(f"{screen.one_line(word)} is no command: {hint}")
    return bool(command) or not is_path(word)


def is_path(word: str) -> bool:
    """What can be none of our names, such as /etc/hosts, /tmp or a slash alone."""
    try:
        return not word[1:].isalnum() or Path(word).exists()
    except (OSError, ValueError):
        return True


# --- one by one ---


def help_(_: Chat, __: str) -> None:
    rows = [(" ".join(filter(None, [command.names[0], command.argument])), command.about) for command in COMMANDS]
    width = max(len(name) for name, _ in rows) + 2
    for name, about in rows:
        screen.tell(f"{name:{width}}{about}", hanging=width)
    screen.note("")
    screen.tell(KEYS)


def system(chat: Chat, text: str) -> None:
    if text:
        chat.conversation.clear()
        chat.conversation.system = "" if text == '""' else text
        screen.aside("a new conversation")
    else:
        screen.note(chat.conversation.system or "there is no system prompt")


def set_(chat: Chat, text: str) -> None:
    """Also in Ollama's words: /set parameter temperature 0, /set system TEXT, /set nothink."""
    name, _, value = text.removeprefix("parameter ").strip().partition(" ")
    name, value = SAME.get((name.lower(), value), (name, value.strip()))
    name = SAME_NAMES.get(name.lower(), name.lower().lstrip("-").replace("-", "_"))
    if not name:
        show_settings(chat)
    elif name == "system_prompt" and value:
        system(chat, value)
    elif value:
        chat.conversation.settings |= setting(name, value)
        screen.aside(f"{name} is {shown(chat.conversation.settings[name])}")
    elif name in FLAGS:
        screen.tell(f"{name} is {shown(value_of(chat, name))}: {FLAGS[name].about}")
    else:
        screen.tell(unknown(name))


def setting(name: str, text: str) -> dict[str, Value]:
    """UsageError says what is wrong with it."""
    if name not in FLAGS:
        raise UsageError(f"{screen.one_line(name)}: {unknown(name)}")
    if FLAGS[name].section not in SECTIONS:
        raise UsageError(f"{name}: can only be chosen when the model is loaded: {FLAGS[name].long}")
    try:
        return from_flags({name: FLAGS[name].parse(text)})
    except ValueError as problem:
        raise UsageError(f"{name}: {problem}") from None


def show(chat: Chat, _: str) -> None:
    screen.note(f"model      {chat.name}")
    screen.note(f"context    {chat.used:,} of {chat.model.n_ctx:,} tokens")
    screen.note(f"messages   {len(chat.conversation.messages)}")
    screen.tell(f"system     {screen.one_line(chat.conversation.system) or '-'}", hanging=11)
    show_settings(chat)


def show_settings(chat: Chat) -> None:
    names = [name for name, flag in FLAGS.items() if flag.section in SECTIONS and name != "system_prompt"]
    width = max(map(len, names))
    for name in names:
        mark = " *" if name in chat.conversation.settings else ""
        screen.tell(f"{name:{width}}  {shown(value_of(chat, name))}{mark}", hanging=width + 2)


def value_of(chat: Chat, name: str) -> object:
    return chat.conversation.settings.get(name, getattr(chat.model.options, name))


def regen(chat: Chat, _: str) -> None:
    if chat.conversation.messages:
        chat.show(chat.conversation.regenerate())
    else:
        screen.note("there is no answer yet")


def undo(chat: Chat, _: str) -> None:
    question = chat.conversation.undo()
    if question:
        screen.aside(f"forgotten: {short(question)}")
    else:
        screen.note("there is nothing to undo")


def edit(chat: Chat, _: str) -> None:
    chat.draft = chat.conversation.undo()
    if not chat.draft:
        screen.note("there is no message yet")


def tokens(chat: Chat, text: str) -> None:
    if text:
        screen.note(f"{len(chat.model.tokenize(text, add_special=False)):,} tokens")
    else:
        screen.note(f"{chat.used:,} of {chat.model.n_ctx:,} tokens, {chat.model.n_ctx - chat.used:,} are left")


def stats(chat: Chat, _: str) -> None:
    screen.tell(statistics(chat.model.stats))


def file(chat: Chat, argument: str) -> None:
    """With a question behind the path it is asked at once; otherwise the file goes with the next message."""
    path, question = path_and_rest(argument)
    text = from_file(str(Path(path).expanduser()))
    chat.files.append(f"{path}:\n```\n{text}\n```\n")
    size = len(chat.model.tokenize(text, add_special=False))
    screen.aside(f"{screen.one_line(path)}: {size:,} tokens" + ("" if question else ", with your next message"))
    if question:
        chat.say(question)


def path_and_rest(argument: str) -> tuple[str, str]:
    """A path with spaces stands in quotes, or is all that there is."""
    if not argument:
        raise UsageError("/file: which one? /file PATH")
    if Path(argument).expanduser().exists():
        return argument, ""
    try:
        path = shlex.split(argument)[0] if argument[0] in "\"'" else argument.split()[0]
    except ValueError as error:
        raise UsageError(f"/file: {error}") from None
    quotes = 2 if argument[0] in "\"'" else 0
    return path, argument[len(path) + quotes :].strip()


def clear(chat: Chat, _: str) -> None:
    chat.conversation.clear()
    chat.files.clear()
    screen.aside("the conversation is forgotten")


def why(chat: Chat, argument: str) -> None:
    from cli.chat.why import show_all, show_one  # rich takes a moment

    pieces = scored(chat)
    if argument and pieces:
        show_one(pieces, place(argument, len(pieces)))
    elif pieces:
        show_all(pieces)


def branch(chat: Chat, argument: str) -> None:
    pieces = scored(chat)
    if not pieces:
        return
    number, _, text = argument.partition(" ")
    at = place(number, len(pieces))
    if not text:
        raise UsageError("/branch: to which token? /branch N TOKEN")
    chat.show(chat.conversation.regenerate([*chat.conversation.written[:at], *instead(chat.model, pieces[at], text)]))


def scored(chat: Chat) -> "list[Piece]":
    from cli.chat.why import ALTERNATIVES

    pieces = chat.conversation.scored(ALTERNATIVES)
    if not pieces:
        screen.note("there is no answer yet" if not chat.conversation.messages else "its tokens are not known")
    return pieces


def place(text: str, count: int) -> int:
    """Where a token of an answer stands, from 0 on; users count from 1."""
    if not text.isdecimal() or not 1 <= int(text) <= count:
        raise UsageError(f"{screen.one_line(text) or 'N'}: must be the number of a token, from 1 to {count}: see /why")
    return int(text) - 1


def instead(model: "Model", piece: "Piece", text: str) -> list[int]:
    """The tokens that come in the place of a piece: the alternative that looks so, or what spells the text."""
    quoted = text[0] in "\"'" and text[-1:] == text[0]
    try:
        exact = str(ast.literal_eval(text)) if quoted else text
    except (SyntaxError, ValueError):
        raise UsageError(f"/branch: {screen.one_line(text)} is not a text in quotes") from None
    same = [each.id for each in piece.top if each.text == exact]
    similar = [each.id for each in piece.top if each.text.strip() == exact.strip()] if not quoted else []
    found = [*same, *similar][:1]
    if found and found[0] in model.tokenizer.eog:
        raise UsageError(f"/branch: {screen.one_line(text)} ends the answer")
    space = " " if not quoted and piece.text.startswith(" ") else ""
    return found or model.tokenizer.encode(space + exact, add_special=False, goes_on=True)


def copy(chat: Chat, _: str) -> None:
    if not chat.conversation.answer:
        screen.note("there is no answer yet")
    elif not screen.is_live():
        screen.note("this terminal has no clipboard")
    else:
        text = base64.b64encode(chat.conversation.answer.encode("utf-8", "replace")).decode()
        sys.stderr.write(CLIPBOARD.format(text))
        screen.aside("the answer is in the clipboard, if the terminal lets programs write there")


def leave(chat: Chat, _: str) -> None:
    chat.is_over = True


def short(text: str) -> str:
    line = screen.one_line(text)
    return line if len(line) <= 60 else line[:57] + "..."


COMMANDS = [
    Command(("/help", "/?"), "", "this list", help_),
    Command(("/system",), "[TEXT]", "begin anew with TEXT as what the model is told; without it, show it", system),
    Command(("/set",), "[NAME VALUE]", "change an option, such as temp; without a value, show it", set_),
    Command(("/show",), "", "the model and what is set", show),
    Command(("/regen", "/retry"), "", "answer the last message once more", regen),
    Command(("/undo",), "", "forget the last message and its answer", undo),
    Command(("/edit",), "", "the same, and change the message", edit),
    Command(("/tokens",), "[TEXT]", "how much of the context is used, or how many tokens TEXT has", tokens),
    Command(("/stats",), "", "how the last answer went", stats),
    Command(("/file", "/read"), "PATH [QUESTION]", "show the model a file", file),
    Command(("/save",), "NAME", "keep the conversation under this name", keeping.save),
    Command(("/load",), "SESSION", "go on with another conversation", keeping.load),
    Command(("/export",), "PATH", "write the conversation to a file, as Markdown", keeping.export),
    Command(("/clear", "/reset", "/new"), "", "forget the conversation", clear),
    Command(("/why",), "[N]", "how probable each token of the last answer was; or what might have been the Nth", why),
    Command(("/branch",), "N TOKEN", "answer once more, the same up to the Nth token and then TOKEN", branch),
    Command(("/copy",), "", "put the last answer into the clipboard", copy),
    Command(("/exit", "/bye", "/quit"), "", "leave; so does Ctrl-D", leave),
]
BY_NAME = {name: command for command in COMMANDS for name in command.names}
NAMES = {name: command.argument.partition(" ")[0] for name, command in BY_NAME.items()}
KEYS = (
    'Alt-Enter, a line that ends in \\ or """ goes on in the next line. Ctrl-R searches what was typed before, Ctrl-G '
    "opens your editor, Tab completes. Ctrl-C stops an answer and keeps what there is of it."
)
SAME_NAMES = {  # Ollama's
    "temperature": "temp", "num_predict": "n_predict", "system": "system_prompt",
}  # fmt: skip
SAME = {("think", ""): ("think", "on"), ("nothink", ""): ("think", "off")}


def run(chat: Chat, typed: str) -> bool:
    """`obey`; what a command cannot do ends nothing."""
    try:
        return obey(chat, typed)
    except LocalInferError as error:
        screen.error(str(error), error.exit_code)
        return True
