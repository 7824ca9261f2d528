"""Selection of the chat template: the one that the user specifies, or one of the model file.

A file contains a default template, and may contain others by name, as Hugging Face checkpoints do. The template
`tool_use` is used if there are tools.
"""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from localinfer.chat_template.builtin_templates import builtin_templates
from localinfer.chat_template.template import MAX_SOURCE
from localinfer.errors import LocalInferError, UnsupportedError, UsageError
from localinfer.escaping import printable
from localinfer.gguf.reader import GGUF, StringArray
from localinfer.options import Options

TEMPLATE_KEY = "tokenizer.chat_template"
TOOL_USE = "tool_use"
NOT_A_TEMPLATE = "it contains neither {{ nor {%"
TEMPLATE_OPTION, TEMPLATE_FILE_OPTION = "chat_template", "chat_template_file"


class TemplateSource(NamedTuple):
    """The source text of a template, and its location."""

    text: str
    location: str


def select_template(f: GGUF, options: Options, *, with_tools: bool) -> TemplateSource:
    """Return the template that the options specify, otherwise that of the file.

    Raises UsageError for an unknown name, LocalInferError for a file that cannot be read, UnsupportedError if there is
    no template.
    """
    if options.chat_template and options.chat_template_file:
        raise UsageError(f"{TEMPLATE_OPTION} and {TEMPLATE_FILE_OPTION}: only one of them can be used")
    if options.chat_template_file:
        return read_template_file(options.chat_template_file)
    keys = template_keys(f)
    if options.chat_template and options.chat_template not in keys:
        return TemplateSource(resolve_template(options.chat_template, keys), TEMPLATE_OPTION)
    name = options.chat_template or (TOOL_USE if with_tools and TOOL_USE in keys else "default")
    if name not in keys:
        raise f.error(TEMPLATE_KEY, missing_template_message(keys), UnsupportedError)
    return TemplateSource(f.get(keys[name], str), f"{f.path}: {keys[name]}")


def template_keys(f: GGUF) -> dict[str, str]:
    """Return the metadata key of each template in the file, by the name of the template."""
    names = [name.decode("utf-8", "replace") for name in f.get(f"{TEMPLATE_KEY}s", StringArray, ())]
    keys = {"default": TEMPLATE_KEY} | {name: f"{TEMPLATE_KEY}.{name}" for name in names}
    return {name: key for name, key in keys.items() if f.get(key, str, "")}


def missing_template_message(keys: Mapping[str, str]) -> str:
    """Return the error message for a model without a default template."""
    if keys:
        names = " or ".join(keys)
        return f"missing: the file has only named templates: set {TEMPLATE_OPTION} (--chat-template) to {names}"
    return (
        "missing: a base model cannot chat; `localinfer generate` continues a text"
        f"; to chat anyway, set {TEMPLATE_OPTION} (--chat-template) to chatml"
    )


def resolve_template(value: str, keys: Mapping[str, str]) -> str:
    """Return the source of a built-in template by its name, or the given text if it is a template itself."""
    if value in builtin_templates():
        return builtin_templates()[value]
    if is_template(value):
        return value
    similar = difflib.get_close_matches(value.lower(), [*keys, *builtin_templates()], n=1)
    is_path = any(marker in value for marker in ("/", "\\", ".jinja", ".txt"))
    hint = f"did you mean {similar[0]}?" if similar else NOT_A_TEMPLATE
    if is_path:
        hint = f"{TEMPLATE_FILE_OPTION} (--chat-template-file) reads a file"
    problem = f"{printable(repr(value), 80)} is neither a template name nor a template"
    raise UsageError(f"{TEMPLATE_OPTION}: {problem}: {hint}")


def is_template(text: str) -> bool:
    return "{{" in text or "{%" in text


def read_template_file(name: str) -> TemplateSource:
    """Read a template from a file. Raises LocalInferError, or UsageError if the file contains no template."""
    try:
        with Path(name).expanduser().open(encoding="utf-8") as file:
            text = file.read(MAX_SOURCE + 1)
    except OSError as error:
        raise LocalInferError(f"{TEMPLATE_FILE_OPTION}: {name}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise LocalInferError(f"{TEMPLATE_FILE_OPTION}: {name}: not UTF-8 at byte {error.start}") from None
    except (ValueError, RuntimeError) as error:  # a NUL character, or an unknown home directory
        raise LocalInferError(f"{TEMPLATE_FILE_OPTION}: {name!r}: {error}") from None
    if not is_template(text):
        raise UsageError(f"{TEMPLATE_FILE_OPTION}: {name}: not a template: {NOT_A_TEMPLATE}")
    return TemplateSource(text, f"{TEMPLATE_FILE_OPTION}: {name}")
