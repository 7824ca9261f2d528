"""Original token ids of answers with tool calls.

A template renders tool calls in one canonical format, but models generate them with other white space, another order of
keys or a missing token. The KV cache of all tokens after such an answer would be invalid. This module finds the span
of the answer in the rendered text, and replaces it by the original tokens. The span begins where the conversation
before the answer ends with its generation prompt, and ends before the first end-of-generation token. Other deviations,
such as answers without their reasoning, stay as the template renders them.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

from localinfer.chat_template.content_format import RenderedConversation
from localinfer.chat_template.conversation import REASONING_KEYS, Message
from localinfer.chat_template.placeholders import Placeholders
from localinfer.chat_template.template import ChatTemplate
from localinfer.errors import LocalInferError
from localinfer.tokenizer import Tokenizer


def tool_call_ids(messages: Sequence[Message], tokenizer: Tokenizer) -> dict[int, list[int]]:
    """Return the token ids of each answer with tool calls, including its reasoning, by index of the message.

    Messages whose token ids are unknown, or do not match their content, are omitted.
    """
    ids_by_index = {}
    for index, message in enumerate(messages):
        ids = [id for key in ("reasoning_ids", "ids") for id in as_list(message.get(key))]
        if ids and as_list(message.get("tool_calls")) and matches_ids(message, ids, tokenizer):
            ids_by_index[index] = ids
    return ids_by_index


class MessageSpans:
    """The spans of answers in the text of a conversation, cached while the conversation grows."""

    def __init__(self) -> None:
        self._rendered = RenderedConversation("", [])  # the conversation of the latest search
        self._spans: dict[int, slice | None] = {}

    def find(
        self,
        template: ChatTemplate,
        variables: Mapping[str, object],
        rendered: RenderedConversation,
        ends: Sequence[str],
        indices: Collection[int],
    ) -> dict[int, slice]:
        """Return the spans of the messages with these indices, as far as found; `ends` are the texts that end an
        answer.
        """
        previous, previous_spans = self._rendered, self._spans
        self._rendered, self._spans = rendered, {}
        for answer in indices:
            if answer in previous_spans and is_unchanged(previous, rendered, answer, previous_spans[answer]):
                self._spans[answer] = previous_spans[answer]
            else:
                self._spans[answer] = find_span(template, variables, rendered, answer, ends)
        return {answer: span for answer, span in self._spans.items() if span}


def is_unchanged(
    previous: RenderedConversation, rendered: RenderedConversation, answer: int, span: slice | None
) -> bool:
    """Return whether the conversation up to this answer is the same as before."""
    stop = span.stop if span else 0
    same_text = previous.text[:stop] == rendered.text[:stop]
    return same_text and previous.messages[: answer + 1] == rendered.messages[: answer + 1]


def insert_original_tokens(
    template: ChatTemplate,
    variables: Mapping[str, object],
    rendered: RenderedConversation,
    spans: MessageSpans,
    known: Mapping[int, list[int]],
    tokenizer: Tokenizer,
    placeholders: Placeholders,
) -> str:
    """Return the rendered text with placeholders for the answers whose token ids are known."""
    ends = list(filter(None, (ids_to_text([id], tokenizer) for id in tokenizer.eog)))
    try:
        span_by_index = spans.find(template, variables, rendered, ends, known)
    except LocalInferError:  # timeout
        return rendered.text
    text = rendered.text
    for answer, span in sorted(span_by_index.items(), reverse=True):
        reasoning = rendered.messages[answer].get(REASONING_KEYS[0], "")
        if str(reasoning) in text[span]:
            placeholder = placeholders.add_ids(known[answer], ids_to_text(known[answer], tokenizer))
            text = text[: span.start] + placeholder + text[span.stop :]
    return text


def find_span(
    template: ChatTemplate,
    variables: Mapping[str, object],
    rendered: RenderedConversation,
    answer: int,
    ends: Sequence[str],
) -> slice | None:
    """Return the span of an answer in the rendered text; None if it is ambiguous."""
    text, messages = rendered
    prefix = template.try_render({**variables, "messages": messages[:answer], "add_generation_prompt": True})
    last = template.try_render({**variables, "messages": messages[: answer + 1], "add_generation_prompt": False})
    if prefix.problem or last.problem or not (last.text.startswith(prefix.text) and text.startswith(prefix.text)):
        return None
    start = len(prefix.text)
    span, span_in_last = (slice(start, find_first(ends, rendered_text, start)) for rendered_text in (text, last.text))
    if span.stop < 0 or span_in_last.stop < 0:
        return None
    # A template may shorten an answer before the last one. Any other text in between is not part of the answer.
    return span if last.text[span_in_last].endswith(text[span]) else None


def find_first(needles: Sequence[str], text: str, start: int) -> int:
    """Return the first index of any of the texts, or -1."""
    return min((index for needle in needles if (index := text.find(needle, start)) >= 0), default=-1)


def matches_ids(message: Message, ids: Sequence[int], tokenizer: Tokenizer) -> bool:
    """Return whether the token ids encode this message; a client may have modified its content but not its ids."""
    if not all(0 <= id < tokenizer.n_vocab and id not in tokenizer.eog for id in ids):
        return False
    text = ids_to_text(ids, tokenizer)
    return all(isinstance(generated, str) and generated in text for generated in generated_texts(message))


def generated_texts(message: Message) -> Iterator[object]:
    """Yield the texts of a message that the model has generated."""
    yield message.get("content", "")
    yield message.get(REASONING_KEYS[0], "")
    for call in as_list(message.get("tool_calls")):
        function = call.get("function", call)
        yield function.get("name") if isinstance(function, Mapping) else None


def ids_to_text(ids: Sequence[int], tokenizer: Tokenizer) -> str:
    """Return the text of token ids, with control tokens."""
    return b"".join(tokenizer.token_bytes(id, special=True) for id in ids).decode("utf-8", "replace")


def as_list(value: object) -> Sequence:  # type: ignore[type-arg]
    """Return the value if it is a list or tuple, otherwise an empty tuple."""
    return value if isinstance(value, list | tuple) else ()
