"""Detection of the message format that a chat template supports.

    content         a string, or a list of parts
    empty content   beside tool calls: an empty string, or None
    arguments       of a tool call: a mapping, or a string with JSON

Clients send both formats, and many templates support only one of them: with the other they fail, omit the value, or
print its Python representation. Messages stay in the given format, as in Hugging Face's transformers, unless a probe
shows that the template does not support it but supports another one. A probe renders the same conversation with probe
texts as contents. This module does not depend on tokens.
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import product
from typing import NamedTuple, cast

from localinfer.chat_template.conversation import Message
from localinfer.chat_template.template import ChatTemplate, Rendering
from localinfer.errors import LocalInferError

Conversion = Callable[[object], object]
ContentFormat = tuple[Conversion, Conversion, Conversion]  # of empty contents beside tool calls, contents, arguments

TEXT_PROBE, PARTS_PROBE = "words-5f1d0a7c", "words-of-parts-5f1d0a7c"  # no template contains these texts
NULL_TEST = re.compile(r"content['\"]?\]?\s+is\s+(?:not\s+)?none")  # in templates that handle a content of None
MAX_DETECTION_SECONDS = 5.0  # for all probes; a rendering takes about 1 ms
MAX_DEFECTS = 1000  # more than there can be


class RenderedConversation(NamedTuple):
    """The rendered text of a conversation, and its messages in the format that was rendered."""

    text: str
    messages: list[Message]


def render_in_supported_format(template: ChatTemplate, variables: Mapping[str, object]) -> RenderedConversation:
    """Render a conversation, with its messages converted to another format if the template needs that.

    Raises LocalInferError if the template fails with the conversation as it was given.
    """
    rendering = template.try_render(variables)
    messages = cast(list[Message], variables["messages"])
    converted = convert_messages(messages, detect_format(template, variables))
    if converted != messages:
        supported = template.try_render({**variables, "messages": converted})
        if not supported.problem:
            rendering, messages = supported, converted
    return RenderedConversation(template.require_text(rendering), messages)


def detect_format(template: ChatTemplate, variables: Mapping[str, object]) -> ContentFormat:
    """Return the conversions with the fewest defects; no conversion if no other has fewer."""
    messages = [with_probe(message) for message in cast(list[Message], variables["messages"])]
    best: ContentFormat = identity, identity, identity
    fewest = MAX_DEFECTS
    tried: list[list[Message]] = []
    deadline = time.monotonic() + MAX_DETECTION_SECONDS
    empty = (empty_to_null, identity) if NULL_TEST.search(template.source) else (identity,)
    for content_format in product(
        empty, (identity, parts_to_text, text_to_parts), (identity, parse_arguments, dump_arguments)
    ):
        converted = convert_messages(messages, content_format)
        if not fewest or converted in tried or time.monotonic() > deadline:
            continue
        tried.append(converted)
        with suppress(LocalInferError):  # timeout
            n_defects = count_defects(template.try_render({**variables, "messages": converted}), converted)
            if n_defects < fewest:
                best, fewest = content_format, n_defects
    return best


# --- conversions ---


def convert_messages(messages: list[Message], target: ContentFormat) -> list[Message]:
    empty, content, arguments = target
    filled = [convert_content(each, empty) if is_empty_call(each) else each for each in messages]
    return [convert_content(convert_arguments(message, arguments), content) for message in filled]


def is_empty_call(message: Message) -> bool:
    """Return whether a message has tool calls and no content."""
    return bool(message.get("tool_calls")) and not message.get("content")


def convert_content(message: Message, change: Conversion) -> Message:
    return {**message, "content": change(message["content"])} if "content" in message else message


def convert_arguments(message: Message, change: Conversion) -> Message:
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [convert_call(call, change) for call in calls]}


def convert_call(call: Mapping[str, object], change: Conversion) -> Mapping[str, object]:
    """Convert the arguments of a tool call, which OpenAI nests inside "function"."""
    if isinstance(function := call.get("function"), Mapping):
        return {**call, "function": convert_call(function, change)}
    return {**call, "arguments": change(call["arguments"])} if "arguments" in call else call


def identity(value: object) -> object:
    return value


def empty_to_null(_: object) -> object:
    return None


def parts_to_text(content: object) -> object:
    return "\n".join(part["text"] for part in content) if isinstance(content, list) else content


def text_to_parts(content: object) -> object:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def parse_arguments(arguments: object) -> object:
    with suppress(ValueError, RecursionError):
        value = json.loads(arguments) if isinstance(arguments, str) else None
        return value if isinstance(value, dict) else arguments
    return arguments


def dump_arguments(arguments: object) -> object:
    return json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, Mapping) else arguments


# --- defects ---


def with_probe(message: Message) -> Message:
    """Return a message whose content is a probe text, which no template contains or removes."""
    return convert_content(message, lambda content: probe_content(content) if content else content)


def probe_content(content: object) -> object:
    if isinstance(content, list):
        return [{"type": "text", "text": PARTS_PROBE}]
    return TEXT_PROBE if isinstance(content, str) else content


def count_defects(rendering: Rendering, messages: list[Message]) -> int:
    """Count the probe texts that a rendering omits and the values that it prints as source code."""
    if rendering.problem:
        return MAX_DEFECTS
    contents = str([message.get("content") for message in messages])
    omitted = [probe for probe in (TEXT_PROBE, PARTS_PROBE) if probe in contents and probe not in rendering.text]
    return len(omitted) + sum(value_text in rendering.text for value_text in raw_value_texts(messages))


def raw_value_texts(messages: list[Message]) -> Iterator[str]:
    """Yield the texts that a rendering only contains if the template misinterprets the format of a value."""
    for message in messages:
        content, calls = message.get("content"), message.get("tool_calls")
        for part in content if isinstance(content, list) else ():
            yield from (repr(part), json.dumps(part, ensure_ascii=False))
        for call in calls if isinstance(calls, list) else ():
            arguments = call_arguments(call)
            if isinstance(arguments, Mapping) and arguments:
                yield repr(arguments)
            elif isinstance(arguments, str) and '"' in arguments:
                yield json.dumps(arguments, ensure_ascii=False)[1:-1]
                yield "{" + arguments  # within the braces of Gemma 4's format, which is not JSON


def call_arguments(call: Mapping[str, object]) -> object:
    function = call.get("function")
    return call_arguments(function) if isinstance(function, Mapping) else call.get("arguments")
