"""Slash commands of the chat. A message that begins with a path is not a command.

Each command is a function of the chat and of the argument after its name.
"""

import ast
import base64
import difflib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from cli.chat.attachments import attachments_of
from cli.chat.display.answer_scores import answer_tokens
from cli.chat.slash_commands import model_commands, session_commands, settings
from cli.files.media_input import MediaFile, read_media_file
from cli.files.text_input import read_text_file
from cli.generation.generate import statistics_line
from cli.terminal import screen
from localinfer.errors import LocalInferError, UsageError

if TYPE_CHECKING:
    from localinfer import Model, Piece

CLIPBOARD_SEQUENCE = "\x1b]52;c;{}\x07"  # OSC 52; also works over SSH


class Chat(model_commands.Chat, Protocol):
    """The interface of the chat that commands use."""

    draft: str  # initial text of the next message
    is_over: bool

    def send(self, message: str) -> None: ...

    def try_send(self, message: str) -> None: ...

    def attach(self, file: MediaFile, *, waits: bool = False) -> None: ...

    def show(self, pieces: Iterator["Piece"]) -> None: ...


class Command(NamedTuple):
    names: tuple[str, ...]
    argument: str
    about: str
    run: Callable[[Chat, str], None]


def run_command(chat: Chat, typed: str) -> bool:
    """Run a slash command. Return False if the input is a message and not a command."""
    word, _, argument = typed.strip().partition(" ")
    command = BY_NAME.get(word.lower())
    if command:
        command.run(chat, argument.strip())
    elif not is_path(word):
        near = difflib.get_close_matches(word.lower(), BY_NAME, n=1, cutoff=0.7)
        hint = f"did you mean {near[0]}?" if near else "/help lists the commands"
        screen.note_wrapped(f"{screen.one_line(word)}: no such command; {hint}")
    return bool(command) or not is_path(word)


def is_path(word: str) -> bool:
    """Return whether the word is a path, such as /etc/hosts or /tmp, or cannot be the name of a command."""
    try:
        return not word[1:].isalnum() or Path(word).exists()
    except (OSError, ValueError):
        return True


# --- commands ---


def help_(_: Chat, __: str) -> None:
    rows = [(" ".join(filter(None, [command.names[0], command.argument])), command.about) for command in COMMANDS]
    width = max(len(name) for name, _ in rows) + 2
    for name, about in rows:
        screen.note_wrapped(f"{name:{width}}{about}", hanging=width)
    screen.note("")
    screen.note_wrapped(KEYS)


def show(chat: Chat, _: str) -> None:
    screen.note(f"model      {chat.name}")
    screen.note(f"context    {chat.used:,} of {chat.model.n_ctx:,} tokens")
    screen.note(f"messages   {len(chat.conversation.messages)}")
    screen.note_wrapped(f"system     {screen.one_line(chat.conversation.system) or '-'}", hanging=11)
    settings.show_settings(chat)


def regen(chat: Chat, _: str) -> None:
    if chat.conversation.messages:
        chat.show(chat.conversation.regenerate())
    else:
        screen.note("there is no answer yet")


def edit(chat: Chat, _: str) -> None:
    questions = [message for message in chat.conversation.messages if message["role"] == "user"]
    attachments = attachments_of(questions[-1], chat.conversation.media) if questions else []
    chat.draft = chat.conversation.undo()
    chat.attachments[:] = attachments
    if not chat.draft:
        screen.note("there is no message yet")


def tokens(chat: Chat, text: str) -> None:
    if text:
        screen.note(f"{len(chat.model.tokenize(text, add_special=False)):,} tokens")
    else:
        screen.note(f"{chat.used:,} of {chat.model.n_ctx:,} tokens, {chat.model.n_ctx - chat.used:,} left")


def stats(chat: Chat, _: str) -> None:
    screen.note_wrapped(statistics_line(chat.conversation.stats))


def file(chat: Chat, argument: str) -> None:
    """Add a file to the next message. If a question follows the path, ask it at once."""
    path, question = split_path(argument)
    text = read_text_file(str(Path(path).expanduser()))
    entry = f"{path}:\n```\n{text}\n```\n"
    size = len(chat.model.tokenize(text, add_special=False))
    screen.note_dim(f"{screen.one_line(path)}: {size:,} tokens" + ("" if question else ", with your next message"))
    if question:
        chat.send(f"{entry}\n{question}")
    else:
        chat.files.append(entry)


def image(chat: Chat, argument: str) -> None:
    """Attach an image or a sound to the next message. If a question follows the path, ask it at once.

    Without a path, remove what is attached.
    """
    attach_media(chat, argument, "/image")


def video(chat: Chat, argument: str) -> None:
    """Attach a video, as `image` does."""
    attach_media(chat, argument, "/video")


def attach_media(chat: Chat, argument: str, command: str) -> None:
    if not argument and chat.attachments:
        names = ", ".join(str(each.part["name"]) for each in chat.attachments)
        chat.attachments.clear()
        screen.note_dim(f"removed from your next message: {screen.one_line(names)}")
        return
    path, question = split_path(argument, command)
    chat.attach(read_media_file(path, command), waits=not question)
    if question:
        chat.try_send(question)


def split_path(argument: str, command: str = "/file") -> tuple[str, str]:
    """Split the argument into a path and a question. A path with spaces is quoted, or is the whole argument."""
    if not argument:
        raise UsageError(f"{command}: missing path: {command} PATH")
    if Path(argument).expanduser().exists():
        return argument, ""
    if argument[0] not in "\"'":
        path, *rest = argument.split(maxsplit=1)
        question = rest[0] if rest else ""
    elif argument[0] in argument[1:]:
        path, question = argument[1:].split(argument[0], 1)
    else:
        raise UsageError(f"{command}: missing {argument[0]} behind the path")
    return path, question.strip()


def why(chat: Chat, argument: str) -> None:
    from cli.chat.display.token_table import print_token, print_tokens  # importing rich is slow

    pieces = scored_answer(chat)
    if argument and pieces:
        print_token(pieces, token_index(argument, len(pieces)))
    elif pieces:
        print_tokens(pieces)


def branch(chat: Chat, argument: str) -> None:
    pieces = scored_answer(chat)
    if not pieces:
        return
    number, _, text = argument.partition(" ")
    at = token_index(number, len(pieces))
    if not text:
        raise UsageError("/branch: missing token: /branch N TOKEN")
    chat.show(
        chat.conversation.regenerate(
            [*answer_tokens(chat.conversation.messages)[:at], *replacement_tokens(chat.model, pieces[at], text)]
        )
    )


def scored_answer(chat: Chat) -> "list[Piece]":
    from cli.chat.display.token_table import ALTERNATIVES

    pieces = chat.conversation.score_answer(ALTERNATIVES)
    if not pieces:
        screen.note(
            "there is no answer yet" if not chat.conversation.messages else "the tokens of the answer are not known"
        )
    return pieces


def token_index(text: str, count: int) -> int:
    """Parse the 1-based number of a token and return its 0-based index."""
    if not text.isdecimal() or not 1 <= int(text) <= count:
        raise UsageError(f"{screen.one_line(text) or 'N'}: must be the number of a token, from 1 to {count}: see /why")
    return int(text) - 1


def replacement_tokens(model: "Model", piece: "Piece", text: str) -> list[int]:
    """Return the tokens that replace a piece: the alternative with this text, or the tokens of the text."""
    quoted = text[0] in "\"'" and text[-1:] == text[0]
    try:
        exact = str(ast.literal_eval(text)) if quoted else text
    except (SyntaxError, ValueError):
        raise UsageError(f"/branch: {screen.one_line(text)} is not a valid quoted string") from None
    same = [each.id for each in piece.top if each.text == exact]
    similar = [each.id for each in piece.top if each.text.strip() == exact.strip()] if not quoted else []
    found = [*same, *similar][:1]
    if found and found[0] in model.tokenizer.eog:
        raise UsageError(f"/branch: {screen.one_line(text)} ends the answer")
    space = " " if not quoted and piece.text.startswith(" ") else ""
    return found or model.tokenizer.encode(space + exact, add_special=False, continues_text=True)


def copy(chat: Chat, _: str) -> None:
    if not chat.conversation.answer:
        screen.note("there is no answer yet")
    elif not screen.is_redrawable():
        screen.note("this terminal has no clipboard access")
    else:
        text = base64.b64encode(chat.conversation.answer.encode("utf-8", "replace")).decode()
        sys.stderr.write(CLIPBOARD_SEQUENCE.format(text))
        screen.note_dim("copied the answer to the clipboard, if the terminal supports OSC 52")


def mcp(chat: Chat, argument: str) -> None:
    from cli.mcp.chat_command import mcp as run  # few chats have MCP servers

    run(chat, argument)


def exit_(chat: Chat, _: str) -> None:
    chat.is_over = True


COMMANDS = [
    Command(("/help", "/?"), "", "list the commands", help_),
    Command(("/system",), "[TEXT]", "start a new session with system prompt TEXT, or show it", session_commands.system),
    Command(("/set",), "[OPTION VALUE]", "set an option, such as temp, or show its value", settings.set_),
    Command(("/model",), "[MODEL]", "continue with another model, or list those on this machine", model_commands.model),
    Command(("/tools",), "[PATH]", "list the tools, read them from a file, or turn them off", model_commands.tools),
    Command(("/mcp",), "[restart SERVER]", "list the MCP servers and their tools, or restart one", mcp),
    Command(("/show",), "", "show the model and all options", show),
    Command(("/regen", "/retry"), "", "regenerate the last answer", regen),
    Command(("/undo",), "", "remove the last message and its answer; after /clear, go back", session_commands.undo),
    Command(("/redo",), "[N]", "restore what was removed or replaced, N times ago", session_commands.redo),
    Command(("/edit",), "", "remove the last answer and edit its message", edit),
    Command(("/tokens",), "[TEXT]", "show the used context, or count the tokens of TEXT", tokens),
    Command(("/stats",), "", "show the statistics of the last answer", stats),
    Command(("/file", "/read"), "PATH [QUESTION]", "add a file to the next message", file),
    Command(("/image", "/audio"), "[PATH [QUESTION]]", "add an image or a sound to the next message, or remove all",
            image),
    Command(("/video",), "[PATH [QUESTION]]", "add a video to the next message, or remove all", video),
    Command(("/save",), "NAME", "save the conversation as session NAME", session_commands.save),
    Command(("/load",), "SESSION", "switch to another session", session_commands.load),
    Command(("/sessions",), "[TEXT]", "list the saved sessions, or those with TEXT", session_commands.sessions_),
    Command(("/export",), "PATH", "export the conversation as Markdown", session_commands.export),
    Command(("/clear", "/reset", "/new"), "", "start a new session; this one stays saved", session_commands.clear),
    Command(("/why",), "[N]", "show token probabilities of the last answer, or alternatives of the Nth token", why),
    Command(("/branch",), "N TOKEN", "regenerate the last answer from the Nth token on, starting with TOKEN", branch),
    Command(("/copy",), "", "copy the last answer to the clipboard", copy),
    Command(("/exit", "/bye", "/quit"), "", "exit, as Ctrl-D does", exit_),
]
BY_NAME = {name: command for command in COMMANDS for name in command.names}
NAMES = {name: command.argument.strip("[]").partition(" ")[0] for name, command in BY_NAME.items()}
KEYS = (
    'Alt-Enter, \\ at the end of a line, or """ start a new line of the message. Ctrl-R searches the history, Ctrl-G '
    "opens your editor, Tab completes. Ctrl-C stops an answer and keeps its text."
)


def try_command(chat: Chat, typed: str) -> bool:
    """Run a slash command and report its error, if any. Return False if the input is a message."""
    try:
        return run_command(chat, typed)
    except LocalInferError as error:
        screen.error(str(error), error.exit_code)
        return True
