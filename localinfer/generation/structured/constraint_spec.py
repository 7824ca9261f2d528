"""Constraint specifications: from the text of a constraint to a grammar, or to an error that names the unsupported
feature."""

from dataclasses import dataclass
from typing import Any

from localinfer.errors import ConstraintError
from localinfer.escaping import printable

from .constraint_source import CALLS, ConstraintSource
from .json_schema import parse_json, schema_to_grammar
from .lark import gbnf_to_lark
from .schema_limits import unmasked_keywords

JSON_OBJECT = {"type": "object"}
LARK_PREFIX = "%llguidance"  # begins a grammar in llguidance's own language, as in llama.cpp


@dataclass(frozen=True, slots=True)
class ConstraintSpec:
    """A constraint: `grammar` is in llguidance's format, and `name` stands for the constraint in errors. A finished
    answer must also match `schema`; `unmasked` are JSON pointers to keywords that the grammar does not express."""

    grammar: str
    name: str
    is_json: bool
    schema: Any = None
    unmasked: tuple[str, ...] = ()


def compile_constraint(source: ConstraintSource) -> ConstraintSpec:
    """Compile a constraint.

    Raises ConstraintError with the flag, the JSON pointer in a schema and the problem.
    """
    if source.is_json:
        schema = JSON_OBJECT if source.option == "json_mode" else parse_json(source.text, source.flag)
        grammar, variant = schema_to_grammar(schema, source.flag)
        unmasked = tuple(unmasked_keywords(schema, variant))
        return ConstraintSpec(grammar, source.name, is_json=True, schema=schema, unmasked=unmasked)
    if source.option == CALLS:
        return ConstraintSpec(source.text, source.name, is_json=False)
    convert = gbnf_to_grammar if source.option.startswith("grammar") else regex_to_grammar
    return ConstraintSpec(convert(source.text, source.flag), source.name, is_json=False)


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
