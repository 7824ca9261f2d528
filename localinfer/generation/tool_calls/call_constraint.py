"""Constraints on the calls of an answer: their syntax, and the JSON schemas of their arguments."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from localinfer.errors import ConstraintError, UnsupportedError, UsageError
from localinfer.generation.reasoning import ReasoningTags, find_tags, single_tokens
from localinfer.generation.structured.constraint import Constraint
from localinfer.generation.structured.constraint_source import CALLS, ConstraintSource
from localinfer.generation.structured.constraint_start import AfterMarker, Span
from localinfer.generation.structured.vocabulary import Vocabulary
from localinfer.generation.tool_calls import bare_json, families
from localinfer.generation.tool_calls.addressed_messages import MessageFormat
from localinfer.generation.tool_calls.call_grammar import CallGrammar
from localinfer.generation.tool_calls.call_syntax import CallSyntax
from localinfer.generation.tool_calls.fenced_calls import FencedCallRules
from localinfer.generation.tool_calls.tool_call import Tool, closed_schema, function_of
from localinfer.generation.tool_calls.tool_choice import ToolChoice
from localinfer.tokenizer import Tokenizer


def call_constraint(
    template: str,
    tokenizer: Tokenizer,
    vocabulary: Vocabulary,
    tools: Sequence[Tool],
    choice: ToolChoice,
    *,
    is_parallel: bool,
    prompt: str,
    on_wait: Callable[[], None] = lambda: None,
) -> Constraint | None:
    """Return the constraint for a `choice`; None if there is none.

    For `on_wait` see `Constraint`.

    With the mode "auto", it begins with the first call. Otherwise the answer is reasoning, if any, and calls. Raises
    UsageError for an unknown tool, ConstraintError for a forced call of a tool whose JSON schema cannot be compiled.
    """
    is_forced = choice.mode == "required"
    tools = [tool for tool in choice.allowed(tools) if isinstance(function_of(tool).get("name"), str)]
    if not tools and is_forced:
        raise UsageError("tool_choice: required needs tools with names")
    if not tools:
        return None
    family, messages = families.find_family(template), families.find_message_format(template)
    tags = None if messages else family.reasoning or find_tags(template, tokenizer)
    is_reasoning = bool(tags and tags.are_open(prompt))
    opening, closing, syntax = find_syntax(family, messages, is_forced=is_forced)
    if not is_forced and (not syntax or not opening):
        return None
    assert syntax
    grammar = CallGrammar(
        syntax, (opening, closing), tools, tokenizer, lambda schema: vocabulary.rewritten_schema(schema, on_wait),
        is_strict=is_forced)
    text = grammar.text(with_opening=is_forced, is_parallel=is_parallel)
    if not is_forced:
        bare = None if messages else bare_call_pattern(tools)
        start = AfterMarker(opening, span_of(tags), bare, is_skipping=is_reasoning)
        return Constraint(ConstraintSource(CALLS, text, "tools", is_optional=True), vocabulary, start, on_wait=on_wait)
    source = ConstraintSource(CALLS, text, "tool_choice")
    if not tags or is_reasoning:
        return Constraint(source, vocabulary, AfterMarker(tags.closing) if tags else None, on_wait=on_wait)
    ids = single_tokens(tags, tokenizer)
    reasoning = (ids[0], AfterMarker(tags.closing)) if ids else None
    return Constraint(source, vocabulary, reasoning=reasoning, on_wait=on_wait)


def find_syntax(
    family: families.Family, messages: MessageFormat | None, *, is_forced: bool
) -> tuple[str, str, CallSyntax | None]:
    """Return the delimiters of calls, and their syntax between them."""
    if messages:
        return messages.opening, "", messages.syntax
    if family.bare and is_forced:
        return "", "", family.bare
    calls = ((call.opening, call.closing, call.syntax) for call in family.calls if call.syntax)
    return next(calls, ("", "", None))


def bare_call_pattern(tools: Sequence[Tool]) -> re.Pattern[bytes]:
    """Return the pattern of the beginning of a call without delimiters, up to the name of a tool."""
    openings = "|".join(map(re.escape, bare_json.OPENINGS))
    names = "|".join(re.escape(json.dumps(function_of(tool).get("name"))) for tool in tools)
    return re.compile(rf'\s*(?:{openings})\s*(?P<constrained>\{{\s*"name"\s*:\s*(?:{names})\s*,)'.encode())


def span_of(tags: ReasoningTags | None) -> Span | None:
    return Span(tags.opening.encode(), tags.closing.encode()) if tags else None


def fenced_call_rules(
    tools: Sequence[Tool], vocabulary: Callable[[], Vocabulary], *, is_parallel: bool, on_wait: Callable[[], None]
) -> FencedCallRules:
    """Return the rules of calls in Markdown: their arguments must match the JSON schemas of the tools.

    `vocabulary` is called if there are such calls. For `on_wait` see `Constraint`.
    """
    functions = {function.get("name"): function for function in map(function_of, tools)}

    def problem_of(name: str, arguments: Mapping[str, Any]) -> str:
        try:
            problem = vocabulary().value_problem(closed_schema(functions[name]), arguments, on_wait)
        except (ConstraintError, UnsupportedError) as error:  # too complex to be checked
            problem = str(error)
        return problem and f"{name}: {problem}"

    return FencedCallRules(problem_of, None if is_parallel else 1)
