"""The command `localinfer edit`: change the metadata of a model file."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.models.loading import find_or_fetch, require_known_model
from cli.models.shown_fields import shown_field
from cli.terminal import screen
from cli.terminal.tables import table
from localinfer.errors import UsageError

if TYPE_CHECKING:
    from localinfer.gguf.editing import Changes, Edit
    from localinfer.gguf.source import Field


def edit_command(
    model: Annotated[str, typer.Argument(metavar="FILE", help="A GGUF file. With -o also a model name.")],
    given: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set a value, of a new key TYPE:VALUE. May be repeated."),
    ] = None,
    from_files: Annotated[
        list[str] | None,
        typer.Option("--set-file", metavar="KEY=FILE", help="Set a text to the content of a file. May be repeated."),
    ] = None,
    removed: Annotated[
        list[str] | None, typer.Option("--remove", metavar="KEY", help="Remove a key. May be repeated.")
    ] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", metavar="OUT", help="Write a new file.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it exists.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")] = False,
) -> None:
    """Change the metadata of a model file: set, add or remove keys.

    A value keeps the type of the old one; arrays are JSON. TYPE of a new key is str, bool, int, float, or a type of
    GGUF such as u32. A change that fits is written into the file; otherwise a complete copy takes the file's place, so
    that an interruption leaves the old file. Tensors stay as they are. Of a split model, the first file is changed.

    \b
    Examples:
      localinfer edit model.gguf --set general.name="My model"
      localinfer edit model.gguf --set tokenizer.ggml.eos_token_id=2 --dry-run
      localinfer edit model.gguf --set-file tokenizer.chat_template=template.jinja -o new.gguf
      localinfer edit model.gguf --set general.url=str:https://example.org --remove general.license
    """
    from localinfer.gguf.editing import parse_value, plan_edit
    from localinfer.gguf.source import Field

    if not (given or from_files or removed):
        raise UsageError("edit: requires --set, --set-file or --remove")
    if force and out is None:
        raise UsageError("--force: requires -o")
    path = find_or_fetch(model, screen.Status()) if out is not None else file_to_change(model)
    texts = {key: Field.text(read(value)) for key, value in map(split_setting, from_files or ())}

    def change(fields: "Mapping[str, Field]") -> "Changes":
        changes = {key: parse_value(key, value, fields.get(key)) for key, value in map(split_setting, given or ())}
        for key in removed or ():
            if key not in fields:
                raise UsageError(f"--remove: {screen.one_line(key)}: the file has no such key")
        return changes | texts | dict.fromkeys(removed or ())

    edit = plan_edit(path, change, out)
    screen.write("".join(f"{line}\n" for line in lines_of(edit)))
    if not dry_run and (edit.changed_keys or out is not None):
        status = screen.Status()
        edit.apply(out, replace=force, progress=status.percentage("writing"))
        status.erase()


def file_to_change(name: str) -> Path:
    """Return the file with this name. Raises UsageError if it is the name of a model, whose file stays as it is."""
    if not Path(name).exists():
        require_known_model(name)
        raise UsageError(f"{screen.one_line(name)}: is a model name, not a file; -o OUT writes a changed copy")
    return Path(name)


def split_setting(text: str) -> tuple[str, str]:
    """Return the key and the value of KEY=VALUE."""
    key, equals, value = text.partition("=")
    if not key or not equals or not key.isascii():
        raise UsageError(f"{screen.one_line(text)}: must be KEY=VALUE, such as general.name=Tiny")
    return key, value


def read(name: str) -> str:
    """Return the text of a file. Raises UsageError."""
    try:
        return Path(name).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--set-file: {screen.one_line(name)}: {error.strerror}") from None
    except ValueError:
        raise UsageError(f"--set-file: {screen.one_line(name)}: is not valid UTF-8") from None


def lines_of(edit: "Edit") -> list[str]:
    """Return the changes as a table: key, old value, new value."""
    keys = edit.changed_keys
    if not keys:
        return ["nothing changes"]
    values = ((shown_field(edit.before.get(key)), "->", shown_field(edit.after.get(key))) for key in keys)
    rows = [(screen.one_line(key), *value) for key, value in zip(keys, values, strict=True)]
    return list(table("", "<<<<", rows, screen.output_columns()))[2:]
