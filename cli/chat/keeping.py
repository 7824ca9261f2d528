"""/save, /load and /export: a conversation under a name of its own, another one, and as a document."""

from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from cli import screen
from cli.chat import saved
from cli.files import promised, write_whole
from localinfer.errors import UsageError

if TYPE_CHECKING:
    from cli.chat.conversation import Conversation
    from localinfer import Model


class Chat(Protocol):
    """What these commands see of the chat that they are given in."""

    name: str
    model: "Model"
    conversation: "Conversation"
    files: list[str]
    used: int


def save(chat: Chat, name: str) -> None:
    """A copy, in which the conversation goes on; what it was saved as before stays as it is."""
    from localinfer import sessions

    session = chat.conversation.session
    if not name:
        where = f"saved as {session.name}" if session else "not saved"
        screen.tell(f"this conversation is {where}; /save NAME keeps it under that name")
    elif session and session.name == name:
        screen.aside(f"it is saved as {name} all the time")
    else:
        session = sessions.create(chat.name, name)
        session.become(chat.conversation.messages)
        chat.conversation.session = session
        screen.aside(f"saved as {name}: localinfer chat --session {name} goes on with it")


def load(chat: Chat, name: str) -> None:
    """The conversation so far stays in its own session."""
    from localinfer import sessions

    if not name:
        names = sessions.names()
        screen.tell("/load NAME goes on with a conversation: " + (", ".join(names) or "none has been saved yet"))
        return
    session = sessions.named(name)
    if chat.conversation.session:
        saved.keep(chat.model, chat.conversation.session)
    elif chat.conversation.messages:
        screen.warn("the conversation before is not saved")
    chat.conversation.take_up(session)
    chat.files.clear()
    chat.used = 0
    saved.resume(chat.model, session)
    if session.model not in ("", chat.name):
        screen.aside(f"that was with {session.model}")


def export(chat: Chat, file: str) -> None:
    """As Markdown, in a file that was not there before."""
    from localinfer.sessions import Session

    messages = chat.conversation.messages
    if not file:
        raise UsageError("/export: where to? /export FILE.md")
    if not messages:
        raise UsageError("/export: nothing has been said yet")
    path = promised("/export", file.strip("\"'"))
    if path.exists():
        raise UsageError(f"/export: {screen.one_line(file)}: there is such a file already")
    now = datetime.now().astimezone().isoformat("T", "seconds")
    session = chat.conversation.session or Session("", chat.name, now, list(messages))
    write_whole(path, session.markdown().encode("utf-8", "replace"))
    screen.aside(f"{len(messages)} messages written to {screen.one_line(str(path))}")
