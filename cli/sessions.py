"""The command `localinfer sessions`: list, show, export or remove saved chat sessions."""

from typing import TYPE_CHECKING, Annotated

import typer

from cli import screen
from cli.models import confirm
from cli.output_files import writable_path, write_atomically
from cli.tables import table
from localinfer.errors import UsageError

if TYPE_CHECKING:
    from localinfer.sessions import Session

NO_SESSIONS = "there are no saved sessions"


def sessions_command(
    action: Annotated[str, typer.Argument(metavar="[ACTION]", help="list, show, export or rm.")] = "list",
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Session names. [default: the latest; all for list]")
    ] = None,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE", help="Write the export to FILE instead of stdout.")
    ] = None,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """List, show, export or remove saved chat sessions.

    `export` writes Markdown. Session files are in JSON Lines format.

    \b
    Examples:
      localinfer sessions
      localinfer sessions show
      localinfer sessions export 2026-11-22-093015 -o chat.md
      localinfer sessions rm 2026-11-22-093015
    """
    if output is not None and action != "export":
        raise UsageError("-o: only for `localinfer sessions export`")
    match action:
        case "list":
            show_list(names)
        case "show":
            screen.write("\n".join(map(as_text, find_sessions(names))))
        case "export":
            export("\n".join(each.markdown() for each in find_sessions(names)), output)
        case "rm":
            remove_sessions(names, yes)
        case _:
            raise UsageError(f"{screen.one_line(action)}: must be list, show, export or rm")


def show_list(names: list[str] | None) -> None:
    """Print a line for each session, the latest first."""
    from localinfer import paths, sessions

    found = find_sessions(names or sessions.list_names())
    rows = [(each.name, each.model, f"{len(each.messages)} messages", each.title) for each in found]
    for line in [*table("", "<<><", [[screen.one_line(cell) for cell in row] for row in rows])][2:] if rows else []:
        screen.write(line.strip() + "\n")
    screen.note_dim(f"sessions are in {paths.sessions_dir()}" if rows else NO_SESSIONS)


def find_sessions(names: list[str] | None) -> "list[Session]":
    """Return the sessions with these names, or the latest one for None. Raises UsageError if there is none."""
    from localinfer import sessions

    found = [sessions.open_session(name) for name in names] if names is not None else [sessions.latest()]
    if None in found:
        raise UsageError(NO_SESSIONS)
    for session in found:
        if session and session.n_damaged:
            screen.warn(f"{session.path}: {session.n_damaged} damaged lines are skipped")
    return [session for session in found if session]


def as_text(session: "Session") -> str:
    """Return the messages as the chat showed them in a terminal."""
    from localinfer.sessions import message_text

    return "".join(f"{'> ' if each['role'] == 'user' else ''}{message_text(each)}\n\n" for each in session.messages)


def export(text: str, output: str | None) -> None:
    if output is None:
        screen.write(text)
    else:
        write_atomically(writable_path("-o", output), text.encode("utf-8", "replace"))


def remove_sessions(names: list[str] | None, yes: bool) -> None:
    if not names:
        raise UsageError("rm: NAME is missing; `localinfer sessions` lists the sessions")
    for session in find_sessions(names):
        if yes or confirm(f"Remove {session.name}, {len(session.messages)} messages?"):
            session.remove()
            screen.note(f"{session.name}: removed")
        else:
            screen.note(f"{session.name}: not removed")
