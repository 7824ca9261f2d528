"""The slash commands for sessions. None of them removes anything from a session file."""

import shlex
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from cli.chat import session_state
from cli.chat.attachments import Attachment
from cli.files.output_files import writable_path, write_atomically
from cli.terminal import screen
from localinfer.errors import UsageError

if TYPE_CHECKING:
    from cli.chat.conversation import Conversation
    from localinfer import Model

SHOWN_SESSIONS = 20


class Chat(Protocol):
    """The interface of the chat that these commands use."""

    @property
    def name(self) -> str: ...

    model: "Model"
    conversation: "Conversation"
    files: list[str]  # content of files to prepend to the next message
    attachments: list[Attachment]  # images and sounds of the next message
    used: int  # tokens in the context

    def show_last_turns(self) -> None: ...

    def request_tool_results(self) -> None: ...


def save(chat: Chat, name: str) -> None:
    """Copy the conversation to a new session and continue there. The old session is not changed."""
    from localinfer import sessions

    session = chat.conversation.session
    if not name:
        where = f"saved as {session.name}" if session else "not saved"
        screen.note_wrapped(f"this conversation is {where}; use /save NAME to save it under that name")
    elif session and session.name == name:
        screen.note_dim(f"already saved as {name}")
    else:
        chat.conversation.save_as(sessions.create(chat.name, name))
        screen.note_dim(f"saved as {name}; resume it with `localinfer chat --session {shlex.quote(name)}`")


def load(chat: Chat, name: str) -> None:
    """Switch to another session. The current conversation remains in its own session."""
    from localinfer import sessions

    if not name:
        names = sessions.list_names()
        screen.note_wrapped(
            "use /load NAME to resume a session: " + (", ".join(names) or "there are no saved sessions")
        )
        return
    session = sessions.open_session(name)
    leave_session(chat)
    if not chat.conversation.session and chat.conversation.messages:
        screen.warn("the previous conversation is not saved")
    chat.conversation.switch_session(session)
    session_state.announce(session)
    if session.model not in ("", chat.name):
        screen.note_dim(f"this session used {session.model}")
    chat.show_last_turns()
    chat.request_tool_results()


def leave_session(chat: Chat) -> None:
    """Forget what belongs to the current conversation only."""
    chat.files.clear()
    chat.attachments.clear()
    chat.used = 0


def clear(chat: Chat, _: str) -> None:
    """Start a new conversation. The current one remains in its session, or without a session in memory."""
    session = chat.conversation.session
    if not chat.conversation.messages:
        chat.files.clear()
        chat.attachments.clear()
        screen.note_dim("started a new conversation")
        return
    leave_session(chat)
    chat.conversation.start_over(session_state.create_session(chat.name) if session else None)
    where = f"; the last one is saved as session {session.name}" if session else ""
    screen.note_dim(f"started a new conversation{where}; /undo goes back to it")


def system(chat: Chat, text: str) -> None:
    """Start a new conversation with a system prompt, or show the system prompt."""
    if text:
        clear(chat, "")
        chat.conversation.system = "" if text == '""' else text
    else:
        screen.note(chat.conversation.system or "there is no system prompt")


def undo(chat: Chat, _: str) -> None:
    """Remove the last question and its answer. In a conversation that has none yet, return to the one before it."""
    conversation = chat.conversation
    if question := conversation.undo():
        screen.note_dim(f"removed: {beginning(question)}; /redo restores it")
    elif not conversation.messages and conversation.go_back():
        chat.used = 0
        where = f"session {conversation.session.name}" if conversation.session else "the last conversation"
        screen.note_dim(f"back in {where}, {len(conversation.messages)} messages")
    else:
        screen.note("there is nothing to undo")


def redo(chat: Chat, argument: str) -> None:
    """Restore the conversation before the latest removal, or before the Nth latest one, from its session."""
    if argument and not (argument.isdecimal() and int(argument)):
        raise UsageError(f"/redo: {screen.one_line(argument)}: must be a number from 1")
    if chat.conversation.restore(int(argument or 1)):
        count = sum(1 for _ in chat.conversation.history.removed_versions())
        others = "another version" if count == 1 else f"one of {count} other versions"
        hint = f"; /redo {'N ' if count > 1 else ''}restores {others}" if count else ""
        screen.note_dim(
            f"restored: {beginning(chat.conversation.answer)} ({len(chat.conversation.messages)} messages{hint})"
        )
    else:
        screen.note("there is nothing to restore")


def sessions_(_: Chat, text: str) -> None:
    """List the saved sessions, the latest first, or those that contain all words of a text."""
    from cli.chat.sessions import NOTHING, find_lines, table_lines

    found = find_lines(text.split(), is_search=bool(text))
    for line in table_lines(found[:SHOWN_SESSIONS], screen.columns() - 1 if sys.stderr.isatty() else 0):
        screen.note(line)
    if len(found) > SHOWN_SESSIONS:
        screen.note_dim(f"and {len(found) - SHOWN_SESSIONS} more: /sessions TEXT finds those that contain TEXT")
    if found:
        screen.note_dim("/load NAME switches to one of them")
    else:
        screen.note(NOTHING["search" if text else "list"])


def beginning(text: str) -> str:
    from localinfer.sessions import shortened

    return screen.one_line(shortened(text))


def export(chat: Chat, file: str) -> None:
    """Write the conversation as Markdown to a new file. Raises UsageError if the file exists."""
    from localinfer.sessions import Session

    messages = chat.conversation.messages
    if not file:
        raise UsageError("/export: missing path: /export FILE.md")
    if not messages:
        raise UsageError("/export: the conversation is empty")
    path = writable_path("/export", file.strip("\"'"))
    if path.exists():
        raise UsageError(f"/export: {screen.one_line(file)}: file already exists")
    now = datetime.now().astimezone().isoformat("T", "seconds")
    session = chat.conversation.session or Session("", chat.name, now, messages=[*messages])
    write_atomically(path, session.markdown().encode("utf-8", "replace"))
    screen.note_dim(f"{len(messages)} messages written to {screen.one_line(str(path))}")
