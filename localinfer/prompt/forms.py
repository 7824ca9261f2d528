"""The form in which a template takes what it is given, where there are two.

    content     a text, or a list of parts
    arguments   of a tool's call: a mapping, or the text of one in JSON

Everybody writes messages in their own form, and many templates take only one: they fail with the other, leave it
out, or write it as Python would show it. As in Hugging Face, they get what was given, unless the same conversation
with other words shows that they do not understand it, but would understand another form. Knows nothing of tokens.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import product
from typing import NamedTuple, cast

from localinfer.errors import LocalInferError
from localinfer.prompt.conversation import Message
from localinfer.prompt.template import ChatTemplate, Rendering

Change = Callable[[object], object]
Form = tuple[Change, Change]  # of contents, and of arguments

WORDS, WORDS_OF_PARTS = "words-5f1d0a7c", "words-of-parts-5f1d0a7c"  # in no template
PATIENCE = 5.0  # seconds for all attempts: a rendering takes a millisecond
HOPELESS = 1000  # more than there can be flaws


class Rendered(NamedTuple):
    """A conversation's text, and its messages in the form that it is the text of."""

    text: str
    messages: list[Message]


def render_in_form(template: ChatTemplate, variables: Mapping[str, object]) -> Rendered:
    """LocalInferError says what the template finds wrong with the conversation as it was given."""
    rendering = template.attempt(variables)
    messages = cast(list[Message], variables["messages"])
    other = in_form(messages, understood(template, variables))
    if other != messages:
        fitting = template.attempt({**variables, "messages": other})
        if not fitting.problem:
            rendering, messages = fitting, other
    return Rendered(template.text_of(rendering), messages)


def understood(template: ChatTemplate, variables: Mapping[str, object]) -> Form:
    """The form with the fewest flaws; the one that was given, if no other has fewer."""
    messages = [in_other_words(message) for message in cast(list[Message], variables["messages"])]
    best: Form = unchanged, unchanged
    fewest = HOPELESS
    seen: list[list[Message]] = []
    until = time.monotonic() + PATIENCE
    for form in product((unchanged, joined, parted), (unchanged, parsed, dumped)):
        other = in_form(messages, form)
        if not fewest or other in seen or time.monotonic() > until:
            continue
        seen.append(other)
        with suppress(LocalInferError):  # it takes too long
            found = flaws(template.attempt({**variables, "messages": other}), other)
            if found < fewest:
                best, fewest = form, found
    return best


# --- forms ---


def in_form(messages: list[Message], form: Form) -> list[Message]:
    content, arguments = form
    return [with_content(with_arguments(message, arguments), content) for message in messages]


def with_content(message: Message, change: Change) -> Message:
    return {**message, "content": change(message["content"])} if "content" in message else message


def with_arguments(message: Message, change: Change) -> Message:
    calls = message.get("tool_calls")
    return {**message, "tool_calls": [changed(call, change) for call in calls]} if isinstance(calls, list) else message


def changed(call: Mapping[str, object], change: Change) -> Mapping[str, object]:
    """`call` as OpenAI writes it, inside of "function", or as it is there."""
    if isinstance(function := call.get("function"), Mapping):
        return {**call, "function": changed(function, change)}
    return {**call, "arguments": change(call["arguments"])} if "arguments" in call else call


def unchanged(value: object) -> object:
    return value


def joined(content: object) -> object:
    return "\n".join(part["text"] for part in content) if isinstance(content, list) else content


def parted(content: object) -> object:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def parsed(arguments: object) -> object:
    with suppress(ValueError, RecursionError):
        value = json.loads(arguments) if isinstance(arguments, str) else None
        return value if isinstance(value, dict) else arguments
    return arguments


def dumped(arguments: object) -> object:
    return json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, Mapping) else arguments


# --- what is not understood ---


def in_other_words(message: Message) -> Message:
    """Which can be told from a template's own, and have no tags in them that a template takes away."""
    return with_content(message, lambda content: reworded(content) if content else content)


def reworded(content: object) -> object:
    if isinstance(content, list):
        return [{"type": "text", "text": WORDS_OF_PARTS}]
    return WORDS if isinstance(content, str) else content


def flaws(rendering: Rendering, messages: list[Message]) -> int:
    """How much is left out or written as a programmer sees it."""
    if rendering.problem:
        return HOPELESS
    said = str([message.get("content") for message in messages])
    left_out = [words for words in (WORDS, WORDS_OF_PARTS) if words in said and words not in rendering.text]
    return len(left_out) + sum(mark in rendering.text for mark in marks_of_code(messages))


def marks_of_code(messages: list[Message]) -> Iterator[str]:
    """What is in a text only where a template has taken one form for the other."""
    for message in messages:
        content, calls = message.get("content"), message.get("tool_calls")
        for part in content if isinstance(content, list) else ():
            yield from (repr(part), json.dumps(part, ensure_ascii=False))
        for call in calls if isinstance(calls, list) else ():
            arguments = arguments_of(call)
            if isinstance(arguments, Mapping) and arguments:
                yield repr(arguments)
            elif isinstance(arguments, str) and '"' in arguments:
                yield json.dumps(arguments, ensure_ascii=False)[1:-1]


def arguments_of(call: Mapping[str, object]) -> object:
    function = call.get("function")
    return arguments_of(function) if isinstance(function, Mapping) else call.get("arguments")
