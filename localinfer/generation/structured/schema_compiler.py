"""Compilation of JSON schemas by llguidance."""

import json
from typing import Any

OPTIONS = {
    "whitespace_pattern": r" |\n{1,2}[ \t]{0,20}",  # as in llama.cpp; limits white space
    "lenient": True,  # what a grammar cannot express is checked when the answer is finished
}

ONE_OF_PROBLEM = "oneOf not fully supported"  # llguidance's warning for alternatives that may overlap


def compiled(schema: dict[str, Any]) -> str:
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=OPTIONS)  # type: ignore[arg-type]


def is_one_of_supported(options: list[Any], root: dict[str, Any]) -> bool:
    """Return whether the alternatives exclude each other as far as llguidance can tell."""
    from llguidance import LLMatcher

    definitions = {name: root[name] for name in ("$defs", "definitions") if name in root}
    grammar = LLMatcher.grammar_from_json_schema(
        json.dumps({**definitions, "oneOf": options}), overrides=OPTIONS)  # type: ignore[arg-type]
    failed, messages = LLMatcher.validate_grammar_with_warnings(grammar)
    return failed or not any(message.startswith(ONE_OF_PROBLEM) for message in messages)


def grammar_problem(schema: dict[str, Any]) -> str:
    """Return the reason why llguidance cannot compile a schema, in one line; "" if it can."""
    from llguidance import LLMatcher

    try:
        failed, messages = LLMatcher.validate_grammar_with_warnings(compiled(schema))
    except ValueError as error:
        return str(error)
    except RecursionError:
        return "nested too deeply"
    return " ".join(messages[0].split()) if failed else ""
