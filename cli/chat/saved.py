"""Which session a chat is kept in, and what the model remembers of it: see `localinfer.sessions`."""

from typing import TYPE_CHECKING

from cli import screen
from localinfer.errors import LocalInferError, UsageError

if TYPE_CHECKING:
    from localinfer import Model
    from localinfer.sessions import Session

WORTH_KEEPING = 500  # tokens: fewer are read again sooner than a file of them


def session_for(*, go_on: bool, name: str | None) -> "Session | None":
    """The session that is gone on with: the last one, or the one of that name if it exists. None: it is a new one."""
    from localinfer import sessions

    if go_on and name is not None:
        raise UsageError("--continue goes on with the last session, --session with the one of a name: give one of them")
    if go_on:
        found = sessions.latest()
        if found is None:
            raise UsageError("--continue: there is no session yet")
        return found
    return sessions.named(name) if name in sessions.names() else None


def new_session(model: str, name: str | None) -> "Session":
    from localinfer import sessions

    return sessions.create(model, name or "")


def resume(model: "Model", session: "Session") -> None:
    """Go on where the session was left: at once, if what the model remembered was kept."""
    if session.messages:
        screen.aside(f"Session {session.name}, {len(session.messages)} messages: {session.title}")
    if session.damaged:
        screen.warn(f"{session.path}: {session.damaged} lines could not be read")
    if session.snapshot.exists():
        try:
            model.load_cache(session.snapshot)
        except LocalInferError as error:  # the messages are there: they are read again
            screen.warn(str(error))


def keep(model: "Model", session: "Session") -> None:
    """Keep what the model remembers of the session, so that it can be gone on with at once."""
    from localinfer import paths, sessions

    if session.messages and len(model.engine.sequence) >= WORTH_KEEPING:
        paths.private_directory(paths.snapshots_dir())
        model.save_cache(session.snapshot)
        sessions.prune_snapshots()
