"""Constraints on the calls of an answer: their syntax, and the JSON schemas of their arguments."""

from collections.abc import Sequence

from localinfer.errors import UnsupportedError, UsageError
from localinfer.escaping import printable
from localinfer.generation.reasoning import ReasoningTags, find_tags, single_tokens
from localinfer.generation.structured import Constraint, ConstraintSpec, Vocabulary
from localinfer.generation.structured.constraint_start import AfterMarker, Span
from localinfer.generation.tool_calls import families
from localinfer.generation.tool_calls.call_grammar import CallGrammar
from localinfer.generation.tool_calls.tool_call import Tool, function_of
from localinfer.tokenizer import Tokenizer

MODES = ("auto", "required")  # choices that are not the name of a tool


def call_constraint(
    template: str,
    tokenizer: Tokenizer,
    vocabulary: Vocabulary,
    tools: Sequence[Tool],
    choice: str,
    *,
    is_parallel: bool,
    prompt: str,
) -> Constraint | None:
    """Return the constraint for a `choice`, "auto", "required" or the name of a tool; None if there is none.

    With "auto", it begins with the first call. Otherwise the answer is reasoning, if any, and calls. Raises UsageError
    for an unknown tool, UnsupportedError if the calls of the family have no grammar.
    """
    tools = [tool for tool in tools if choice in MODES or function_of(tool).get("name") == choice]
    if not tools:
        raise UsageError(f"tool_choice: there is no tool {printable(choice, 60)}")
    family = families.find_family(template)
    tags = family.reasoning or find_tags(template, tokenizer)
    is_reasoning = bool(tags and tags.are_open(prompt))
    call = next((each for each in family.calls if each.syntax), None)
    if families.find_message_format(template):
        call = None
    if choice == "auto":
        if not call or not call.syntax:
            return None
        grammar = CallGrammar(call.syntax, (call.opening, call.closing), tools, tokenizer)
        spec = ConstraintSpec(
            grammar.text(with_opening=False, is_parallel=is_parallel), "tools", is_json=False, is_optional=True
        )
        return Constraint(spec, vocabulary, AfterMarker(call.opening, span_of(tags), is_skipping=is_reasoning))
    syntax, delimiters = (family.bare, ("", "")) if family.bare else (None, ("", ""))
    if not syntax and call:
        syntax, delimiters = call.syntax, (call.opening, call.closing)
    if not syntax:
        raise UnsupportedError("tool_choice: the format of this model's calls can only be parsed; use auto or none")
    grammar = CallGrammar(syntax, delimiters, tools, tokenizer)
    spec = ConstraintSpec(grammar.text(with_opening=True, is_parallel=is_parallel), "tool_choice", is_json=False)
    if not tags or is_reasoning:
        return Constraint(spec, vocabulary, AfterMarker(tags.closing) if tags else None)
    ids = single_tokens(tags, tokenizer)
    return Constraint(spec, vocabulary, reasoning=(ids[0], AfterMarker(tags.closing)) if ids else None)


def span_of(tags: ReasoningTags | None) -> Span | None:
    return Span(tags.opening.encode(), tags.closing.encode()) if tags else None
