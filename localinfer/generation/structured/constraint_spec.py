"""Constraint specifications: from options to a grammar, or to an error that names the unsupported feature."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from localinfer.errors import ConstraintError, UsageError
from localinfer.escaping import printable
from localinfer.options import CONSTRAINT_OPTIONS, FLAGS, Options, Value

from .json_schema import parse_json, schema_to_grammar
from .lark import gbnf_to_lark

JSON_OBJECT = {"type": "object"}
REGEX_SPECIAL = frozenset(r"\.+*?()|[]{}^$#&-~/")  # special characters of regular expressions
LARK_PREFIX = "%llguidance"  # begins a grammar in llguidance's own language, as in llama.cpp


@dataclass(frozen=True, slots=True)
class ConstraintSpec:
    """A constraint: `grammar` is in llguidance's format, and `name` stands for the constraint in errors.

    With `is_optional`, the text need not reach the part that is constrained, nor its end.
    """

    grammar: str
    name: str
    is_json: bool
    is_optional: bool = False


def constraint_spec(options: Options) -> ConstraintSpec:
    """Return the constraint that the options select, one of CONSTRAINT_OPTIONS.

    Raises ConstraintError with the flag, the JSON pointer in a schema and the problem; UsageError for a file that
    cannot be read and for mutually exclusive options.
    """
    names = [name for name in CONSTRAINT_OPTIONS if getattr(options, name)]
    if len(names) > 1:
        raise UsageError(f"{' and '.join(FLAGS[name].long_name for name in names)}: mutually exclusive")
    [name] = names
    value: Value = getattr(options, name)
    flag = FLAGS[name].long_name
    text = read_text_file(flag, str(value)) if name.endswith("_file") else str(value)
    if name == "choice":
        assert isinstance(value, tuple)
        text = "|".join(map(escape_regex, value))
    is_json = name.startswith("json")
    return ConstraintSpec(CONVERTERS[name](text, flag), "JSON" if is_json else flag, is_json)


def read_text_file(flag: str, path: str) -> str:
    try:
        return Path(path).expanduser().read_text("utf-8-sig")
    except (OSError, ValueError) as error:  # not UTF-8, or a NUL in the name
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{flag}: {printable(path)}: {reason}") from None


def escape_regex(text: str) -> str:
    """Return a regular expression that matches just this text."""
    return "".join("\\" + char if char in REGEX_SPECIAL else char for char in text)


def regex_to_grammar(text: str, flag: str) -> str:
    from llguidance import LLMatcher

    return validate_grammar(LLMatcher.grammar_from_regex(text), flag)


def gbnf_to_grammar(text: str, flag: str) -> str:
    from llguidance import LLMatcher

    lark = text if text.lstrip().startswith(LARK_PREFIX) else gbnf_to_lark(text, flag)
    return validate_grammar(LLMatcher.grammar_from_lark(lark), flag)


def validate_grammar(grammar: str, flag: str) -> str:
    from llguidance import LLMatcher

    failed, messages = LLMatcher.validate_grammar_with_warnings(grammar)
    if failed:
        raise ConstraintError(f"{flag}: {first_error(messages[0])}")
    return grammar


def first_error(message: str) -> str:
    """Return the first error of a library's multi-line message, without its source excerpt."""
    lines = [line.strip() for line in message.splitlines()]
    reasons = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return printable(reasons[0] if reasons else lines[0], 300)


CONVERTERS: dict[str, Callable[[str, str], str]] = {
    "json_schema": lambda text, flag: schema_to_grammar(parse_json(text, flag), flag),
    "json_schema_file": lambda text, flag: schema_to_grammar(parse_json(text, flag), flag),
    "json_mode": lambda _, flag: schema_to_grammar(JSON_OBJECT, flag),
    "grammar": gbnf_to_grammar,
    "grammar_file": gbnf_to_grammar,
    "regex": regex_to_grammar,
    "choice": regex_to_grammar,
}
