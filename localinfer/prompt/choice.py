"""Which chat template is used: one that the user asks for, or one of those that a model's file may have.

A file has one by default and may have others by name, as Hugging Face's checkpoints do: `tool_use` is for when
there are tools.
"""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from localinfer.errors import LocalInferError, Unsupported, UsageError
from localinfer.files.gguf import GGUF, StringArray
from localinfer.options import Options
from localinfer.prompt.known import known
from localinfer.prompt.template import MAX_SOURCE
from localinfer.text import printable

KEY = "tokenizer.chat_template"
TOOL_USE = "tool_use"
NO_SIGN = "there is no {{ and no {% in it"
BY_TEXT, BY_FILE = "--chat-template", "--chat-template-file"


class Source(NamedTuple):
    """A template's text, and where it comes from."""

    text: str
    where: str


def chosen(f: GGUF, options: Options, *, with_tools: bool) -> Source:
    """What the options say, otherwise the file's own.

    UsageError for a name that nobody knows, LocalInferError for a file that cannot be read, Unsupported where there
    is no template at all.
    """
    if options.chat_template and options.chat_template_file:
        raise UsageError(f"{BY_TEXT} and {BY_FILE}: only one of them can be what is used")
    if options.chat_template_file:
        return from_file(options.chat_template_file)
    keys = own_keys(f)
    if options.chat_template and options.chat_template not in keys:
        return Source(by_name_or_text(options.chat_template, keys), BY_TEXT)
    name = options.chat_template or (TOOL_USE if with_tools and TOOL_USE in keys else "default")
    if name not in keys:
        raise f.error(KEY, missing(keys), Unsupported)
    return Source(f.get(keys[name], str), f"{f.path}: {keys[name]}")


def own_keys(f: GGUF) -> dict[str, str]:
    """Name -> key of each template in the file."""
    names = [name.decode("utf-8", "replace") for name in f.get(f"{KEY}s", StringArray, ())]
    keys = {"default": KEY} | {name: f"{KEY}.{name}" for name in names}
    return {name: key for name, key in keys.items() if f.get(key, str, "")}


def missing(keys: Mapping[str, str]) -> str:
    if keys:
        return f"missing: the file has only templates with names ({BY_TEXT} {' or '.join(keys)})"
    return (
        "missing: a base model continues texts, as `localinfer generate` does; it cannot chat"
        f" ({BY_TEXT} chatml tries it)"
    )


def by_name_or_text(given: str, keys: Mapping[str, str]) -> str:
    if given in known():
        return known()[given]
    if is_template(given):
        return given
    near = difflib.get_close_matches(given.lower(), [*keys, *known()], n=1)
    is_path = any(sign in given for sign in ("/", "\\", ".jinja", ".txt"))
    hint = f"{BY_FILE} reads a file" if is_path else f"did you mean {near[0]}?" if near else ""
    what = f"{printable(repr(given), 80)} is neither a template's name nor a template"
    raise UsageError(f"{BY_TEXT}: {what}: {hint or NO_SIGN}")


def is_template(text: str) -> bool:
    return "{{" in text or "{%" in text


def from_file(name: str) -> Source:
    try:
        with Path(name).expanduser().open(encoding="utf-8") as file:
            text = file.read(MAX_SOURCE + 1)
    except OSError as error:
        raise LocalInferError(f"{BY_FILE}: {name}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise LocalInferError(f"{BY_FILE}: {name}: not UTF-8 at byte {error.start}") from None
    except (ValueError, RuntimeError) as error:  # a NUL inside; a home that is not known
        raise LocalInferError(f"{BY_FILE}: {name!r}: {error}") from None
    if not is_template(text):
        raise UsageError(f"{BY_FILE}: {name}: is no template: {NO_SIGN}")
    return Source(text, f"{BY_FILE}: {name}")
