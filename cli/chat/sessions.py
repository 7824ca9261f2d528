"""The command `localinfer sessions`: list, search, show, export or remove saved chat sessions."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from cli.files.output_files import writable_path, write_atomically
from cli.models.store import confirm
from cli.terminal import screen
from cli.terminal.tables import model_label, table
from localinfer.errors import UsageError
from localinfer.escaping import terminal_text

if TYPE_CHECKING:
    from localinfer.sessions import Session

NO_SESSIONS = "there are no saved sessions"
NOTHING = {"list": NO_SESSIONS, "search": "no session contains these words"}


def sessions_command(
    action: Annotated[str, typer.Argument(metavar="[ACTION]", help="list, search, show, export or rm.")] = "list",
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...", help="Session names, or words for search. [default: the latest; all for list]"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array, for list, search and show.")] = False,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE", help="Write the export to FILE instead of stdout.")
    ] = None,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """List, search, show, export or remove saved chat sessions.

    `search` lists the sessions that contain all words, in upper or lower case. `export` writes Markdown. Session files
    are in JSON Lines format.

    \b
    Examples:
      localinfer sessions
      localinfer sessions search regular expression
      localinfer sessions show
      localinfer sessions export 2026-11-22-093015 -o chat.md
      localinfer sessions rm 2026-11-22-093015
    """
    if output is not None and action != "export":
        raise UsageError("-o: only for `localinfer sessions export`")
    if as_json and action not in ("list", "search", "show"):
        raise UsageError("--json: only for `localinfer sessions` list, search and show")
    match action:
        case "list" | "search":
            if action == "search" and not names:
                raise UsageError("search: a word is missing")
            show_list(find_lines(names, is_search=action == "search"), as_json, nothing=NOTHING[action])
        case "show" if as_json:
            write_json([as_object(each) | {"messages": each.messages} for each in find_sessions(names)])
        case "show":
            screen.write("\n".join(map(as_text, find_sessions(names))))
        case "export":
            export("\n".join(each.markdown() for each in find_sessions(names)), output)
        case "rm":
            remove_sessions(names, yes)
        case _:
            raise UsageError(f"{screen.one_line(action)}: must be list, search, show, export or rm")


def show_list(found: "list[tuple[Session, str]]", as_json: bool, nothing: str) -> None:
    """Print sessions, each with a line of text, as a JSON array or as a table; `nothing` is the note if there are none.
    """
    from localinfer import paths

    if as_json:
        write_json([as_object(session) | {"line": line} for session, line in found])
        return
    for line in table_lines(found, screen.output_columns()):
        screen.write(f"{line}\n")
    screen.note_dim(f"sessions are in {screen.one_line(str(paths.sessions_dir()))}" if found else nothing)


def find_lines(names: list[str] | None, *, is_search: bool) -> "list[tuple[Session, str]]":
    """Return the named sessions, or all of them, with their titles; or what `sessions.search` finds."""
    from localinfer import sessions

    if is_search:
        return list(sessions.search(" ".join(names or [])))
    return [(each, each.title) for each in find_sessions(names or sessions.list_names())]


def table_lines(found: "list[tuple[Session, str]]", width: int) -> list[str]:
    """Return a line per session: name, model, number of messages, text. If one is longer than `width` columns (0: no
    limit), the texts are below the lines.
    """
    from localinfer.sessions import shortened

    rows = [
        (session.name, model_label(session.model), f"{len(session.messages)} messages", shortened(line))
        for session, line in found
    ]
    lines = [*table("", "<<><", [[terminal_text(cell) for cell in row] for row in rows], width)][2:]
    return [line.removeprefix("  ") for line in lines]


def as_object(session: "Session") -> dict[str, object]:
    return {
        "name": session.name, "model": session.model, "created": session.created, "n_messages": len(session.messages),
        "title": session.title, "system": session.system, "path": str(session.path),
    }  # fmt: skip


def write_json(value: object) -> None:
    screen.write(json.dumps(value, indent=1) + "\n")


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
