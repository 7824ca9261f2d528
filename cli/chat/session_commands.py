"""The slash commands /save, /load and /export."""

from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from cli import screen
from cli.chat import session_state
from cli.output_files import writable_path, write_atomically
from localinfer.errors import UsageError

if TYPE_CHECKING:
    from cli.chat.conversation import Conversation
    from localinfer import Model


class Chat(Protocol):
    """The interface of the chat that these commands use."""

    name: str
    model: "Model"
    conversation: "Conversation"
    files: list[str]
    used: int


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
        session = sessions.create(chat.name, name)
        session.replace_messages(chat.conversation.messages)
        chat.conversation.session = session
        screen.note_dim(f"saved as {name}; resume it with `localinfer chat --session {name}`")


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
    if chat.conversation.session:
        session_state.save_snapshot(chat.model, chat.conversation.session)
    elif chat.conversation.messages:
        screen.warn("the previous conversation is not saved")
    chat.conversation.switch_session(session)
    chat.files.clear()
    chat.used = 0
    session_state.resume(chat.model, session)
    if session.model not in ("", chat.name):
        screen.note_dim(f"this session used {session.model}")


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
    session = chat.conversation.session or Session("", chat.name, now, list(messages))
    write_atomically(path, session.markdown().encode("utf-8", "replace"))
    screen.note_dim(f"{len(messages)} messages written to {screen.one_line(str(path))}")
