"""Compilation of JSON schemas by llguidance."""

import json
from typing import Any

OPTIONS = {
    "whitespace_pattern": r" |\n{1,2}[ \t]{0,20}",  # as in llama.cpp; limits white space
    "lenient": True,  # what a grammar cannot express is checked when the answer is finished
}


def compiled(schema: dict[str, Any]) -> str:
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=OPTIONS)  # type: ignore[arg-type]


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
