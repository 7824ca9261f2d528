"""`localinfer sessions`: the conversations that were saved."""

from typing import TYPE_CHECKING, Annotated

import typer

from cli import screen
from cli.files import promised, write_whole
from cli.models import agreed
from cli.tables import table
from localinfer.errors import UsageError

if TYPE_CHECKING:
    from localinfer.sessions import Session

NONE_YET = "no conversation has been saved yet"


def sessions_command(
    action: Annotated[str, typer.Argument(metavar="[ACTION]", help="list, show, export or rm.")] = "list",
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Which ones; none: the latest, but all to list.")
    ] = None,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE", help="Export to this file instead of stdout.")
    ] = None,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask before something is removed.")] = False,
) -> None:
    """Show, export or remove the conversations that were saved.

    `export` writes Markdown. The files are lines of JSON, which other programs may read.

    \b
      localinfer sessions
      localinfer sessions show
      localinfer sessions export 2026-11-22-093015 -o talk.md
      localinfer sessions rm 2026-11-22-093015
    """
    if output is not None and action != "export":
        raise UsageError("-o: only for `localinfer sessions export`")
    match action:
        case "list":
            show_list(names)
        case "show":
            screen.write("\n".join(map(as_text, wanted(names))))
        case "export":
            export("\n".join(each.markdown() for each in wanted(names)), output)
        case "rm":
            remove(names, yes)
        case _:
            raise UsageError(f"{screen.one_line(action)}: must be list, show, export or rm")


def show_list(names: list[str] | None) -> None:
    """A line for each, the latest first."""
    from localinfer import paths, sessions

    found = wanted(names or sessions.names())
    rows = [(each.name, each.model, f"{len(each.messages)} messages", each.title) for each in found]
    for line in [*table("", "<<><", [[screen.one_line(cell) for cell in row] for row in rows])][2:] if rows else []:
        screen.write(line.strip() + "\n")
    screen.aside(f"kept in {paths.sessions_dir()}" if rows else NONE_YET)


def wanted(names: list[str] | None) -> "list[Session]":
    """The sessions of these names; without any the latest, if there is one."""
    from localinfer import sessions

    found = [sessions.named(name) for name in names] if names is not None else [sessions.latest()]
    if None in found:
        raise UsageError(NONE_YET)
    for session in found:
        if session and session.damaged:
            screen.warn(f"{session.path}: {session.damaged} damaged lines are left out")
    return [session for session in found if session]


def as_text(session: "Session") -> str:
    """As it looked in a terminal."""
    from localinfer.sessions import said

    return "".join(f"{'> ' if each['role'] == 'user' else ''}{said(each)}\n\n" for each in session.messages)


def export(text: str, output: str | None) -> None:
    if output is None:
        screen.write(text)
    else:
        write_whole(promised("-o", output), text.encode("utf-8", "replace"))


def remove(names: list[str] | None, yes: bool) -> None:
    if not names:
        raise UsageError("rm: NAME is missing; `localinfer sessions` shows which there are")
    for session in wanted(names):
        if yes or agreed(f"Remove {session.name}, {len(session.messages)} messages?"):
            session.remove()
            screen.note(f"{session.name}: removed")
        else:
            screen.note(f"{session.name}: stays")
