"""What form an answer shall have: from the options to a grammar, or an error that says what cannot be done."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from localinfer.errors import BadForm, UsageError
from localinfer.options import FLAGS, FORMS, Options, Value
from localinfer.text import printable

from .json_schema import grammar_of_schema, parsed
from .lark import lark_of

JSON_OBJECT = {"type": "object"}
MARKS = frozenset(r"\.+*?()|[]{}^$#&-~/")  # of regular expressions
LARK = "%llguidance"  # a grammar that begins with it is in llguidance's own language, as in llama.cpp


@dataclass(frozen=True, slots=True)
class Form:
    """`grammar` is as llguidance writes one; `name` is what an error calls the form."""

    grammar: str
    name: str
    is_json: bool


def form_of(options: Options) -> Form:
    """The form that the options ask for, one of FORMS.

    BadForm names the flag, the place in a schema and what is wrong or not supported; UsageError a file that cannot be
    read, and forms that exclude each other.
    """
    asked = [name for name in FORMS if getattr(options, name)]
    if len(asked) > 1:
        raise UsageError(f"{' and '.join(FLAGS[name].long for name in asked)}: an answer has one form")
    [name] = asked
    value: Value = getattr(options, name)
    flag = FLAGS[name].long
    text = file_text(flag, str(value)) if name.endswith("_file") else str(value)
    if name == "choice":
        assert isinstance(value, tuple)
        text = "|".join(map(literal, value))
    is_json = name.startswith("json")
    return Form(MAKERS[name](text, flag), "JSON" if is_json else flag, is_json)


def file_text(flag: str, path: str) -> str:
    try:
        return Path(path).expanduser().read_text("utf-8-sig")
    except (OSError, ValueError) as error:  # not UTF-8, or a NUL in the name
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{flag}: {printable(path)}: {reason}") from None


def literal(text: str) -> str:
    """A regular expression for just this text."""
    return "".join("\\" + char if char in MARKS else char for char in text)


def grammar_of_regex(text: str, flag: str) -> str:
    from llguidance import LLMatcher

    return checked(LLMatcher.grammar_from_regex(text), flag)


def grammar_of_gbnf(text: str, flag: str) -> str:
    from llguidance import LLMatcher

    lark = text if text.lstrip().startswith(LARK) else lark_of(text, flag)
    return checked(LLMatcher.grammar_from_lark(lark), flag)


def checked(grammar: str, flag: str) -> str:
    from llguidance import LLMatcher

    failed, messages = LLMatcher.validate_grammar_with_warnings(grammar)
    if failed:
        raise BadForm(f"{flag}: {summary(messages[0])}")
    return grammar


def summary(message: str) -> str:
    """What a library says over many lines, in one: what the last of its errors is, without pictures of the place."""
    lines = [line.strip() for line in message.splitlines()]
    reasons = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return printable(reasons[0] if reasons else lines[0], 300)


MAKERS: dict[str, Callable[[str, str], str]] = {
    "json_schema": lambda text, flag: grammar_of_schema(parsed(text, flag), flag),
    "json_schema_file": lambda text, flag: grammar_of_schema(parsed(text, flag), flag),
    "json_mode": lambda _, flag: grammar_of_schema(JSON_OBJECT, flag),
    "grammar": grammar_of_gbnf,
    "grammar_file": grammar_of_gbnf,
    "regex": grammar_of_regex,
    "choice": grammar_of_regex,
}
