"""Selection of the chat session: see `localinfer.sessions`."""

import shlex
from typing import TYPE_CHECKING

from cli.terminal import screen
from localinfer.errors import UsageError

if TYPE_CHECKING:
    from cli.chat.options import SessionOptions
    from localinfer.sessions import Session


def select_session(options: "SessionOptions") -> "Session | None":
    """Return the session to resume: the latest one, or the one with this name; None for a new session, or for none.

    Raises UsageError for a name that no session can have, and for options that exclude each other.
    """
    from localinfer import sessions

    name = options.session_name
    given = [flag for flag, value in (("--continue", options.resume_latest), ("--session", name is not None)) if value]
    if len(given) > 1:
        raise UsageError("--continue and --session cannot be combined")
    if given and options.no_save:
        raise UsageError(f"{given[0]} and --no-save cannot be combined")
    if options.resume_latest:
        found = sessions.latest()
        if found is None:
            raise UsageError("--continue: there are no saved sessions")
        return found
    if name is None:
        return None
    if sessions.validate_name(name) in sessions.list_names():
        return sessions.open_session(name)
    sessions.create("", name)  # writes nothing; a name that cannot be used is an error before a model is loaded
    return None


def create_session(model: str, name: str = "") -> "Session":
    from localinfer import sessions

    return sessions.create(model, name)


def begin_session(
    resumed: "Session | None", model: str, options: "SessionOptions", *, interactive: bool
) -> "Session | None":
    """Announce the session that the chat resumes, or create one if the chat is saved."""
    if resumed is None and options.creates_session(interactive=interactive):
        resumed = create_session(model, options.session_name or "")
    if resumed:
        announce(resumed)
    return resumed


def announce(session: "Session") -> None:
    """Show which session is resumed. Its messages are in the prefix store, unless it was switched off."""
    if session.messages:
        screen.note_dim(f"Session {session.name}, {len(session.messages)} messages: {session.title}")
        if session.messages[-1]["role"] == "user":
            screen.note("The last question was not answered; /regen answers it.")
    if session.n_damaged:
        screen.warn(f"{session.path}: {session.n_damaged} damaged lines are skipped")


def note_how_to_resume(session: "Session") -> None:
    """Tell how to resume the session, if its messages are saved."""
    from localinfer import sessions

    if session.messages and session.path.exists():
        latest = sessions.latest()
        is_continued = latest and latest.name == session.name and not session.has_own_name
        which = "--continue" if is_continued else f"--session {shlex.quote(session.name)}"
        screen.note_dim(f"`localinfer chat {which}` resumes this chat")
