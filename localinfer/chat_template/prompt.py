"""From a conversation to the token ids of a prompt: combines chat template and tokenizer.

User texts never become control tokens: placeholders.py replaces their control tokens while the template runs. The
model's own output is repeated with its original token ids. A conversation with neither is not modified: its ids are
those of the rendered text as a whole.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from localinfer.chat_template.content_format import detect_format, identity, parts_to_text, render_in_supported_format
from localinfer.chat_template.conversation import Conversation, Message
from localinfer.chat_template.placeholders import Placeholders
from localinfer.chat_template.template import ChatTemplate
from localinfer.chat_template.template_variables import reasoning_keys
from localinfer.chat_template.tool_call_tokens import MessageSpans, insert_original_tokens, tool_call_ids
from localinfer.errors import UsageError
from localinfer.tokenizer import Tokenizer

Variables = dict[str, object]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered prompt. `text` shows control tokens that user texts contain like real ones; in `ids` they are plain
    text. Where `ids` has an image or a sound, `text` has the marker <__media__>.
    """

    text: str
    ids: list[int]


def build_prompt(
    template: ChatTemplate,
    tokenizer: Tokenizer,
    conversation: Conversation,
    *,
    parse_special: bool = False,
    spans: MessageSpans | None = None,
) -> Prompt:
    """Render a conversation and tokenize it.

    With `parse_special`, user texts may contain control tokens. Pass the same `spans` for every prompt of a growing
    conversation, to search each answer only once.

    Raises LocalInferError for an error of the template, UsageError for a value that contains itself.
    """
    try:
        variables = conversation.variables(reasoning_keys(template.source))
        placeholders, messages = Placeholders(tokenizer, variables), cast(list[Message], variables.pop("messages"))
        escape = identity if parse_special else placeholders.replace_control_tokens
        variables = {name: escape(value) for name, value in variables.items()}
        # Messages come last, in order, so that their placeholders stay the same when the conversation grows.
        without_ids = (placeholders.replace_known_ids(placeholders.replace_media(each)) for each in messages)
        variables["messages"] = [escape(each) for each in without_ids]
    except RecursionError:
        raise UsageError("messages: a value is nested too deeply, or contains itself") from None
    if conversation.continue_final_message:
        text = render_open_message(template, variables, placeholders.new_placeholder())
    else:
        rendered = render_in_supported_format(template, variables)
        calls = {} if parse_special else tool_call_ids(messages, tokenizer)
        text = insert_original_tokens(
            template, variables, rendered, spans or MessageSpans(), calls, tokenizer, placeholders
        )
    if not placeholders.has_all_media(text):
        raise template.error("leaves out an image or a sound of the messages, or repeats it")
    return tokenize_with_single_bos(tokenizer, text, placeholders)


def render_open_message(template: ChatTemplate, variables: Variables, marker: str) -> str:
    """Render a conversation up to the end of its last message, so that the model continues this message.

    Raises LocalInferError if the template omits the message.
    """
    *previous, last = cast(list[Message], variables["messages"])
    if isinstance(last.get("content"), list) and detect_format(template, variables)[1] is parts_to_text:
        last = {**last, "content": paragraphs(cast(list[Message], last["content"]))}
    # If the space after the marker is missing, the template trims messages, and this one is trimmed too.
    marked = {**last, "content": append_to_content(last.get("content", ""), f"{marker} ")}
    rendered = render_in_supported_format(template, {**variables, "messages": [*previous, marked]})
    text, separator, suffix = rendered.text.rpartition(marker)
    if not separator:
        raise template.error("omits the message that is to be continued")
    return text if suffix.startswith(" ") else text.rstrip()


def paragraphs(parts: list[Message]) -> str:
    """Return the parts of a message that is continued as one text, as llama.cpp does."""
    return "\n\n".join(str(part["text"]) for part in parts)


def append_to_content(content: object, suffix: str) -> object:
    """Append a text to a content, which is a string or a list of parts."""
    if isinstance(content, list):
        *parts, last = content or [{"type": "text", "text": ""}]
        return [*parts, {**last, "text": last["text"] + suffix}]
    return f"{content}{suffix}"


def tokenize_with_single_bos(tokenizer: Tokenizer, text: str, placeholders: Placeholders) -> Prompt:
    """Tokenize a rendered text so that it begins with exactly one BOS, if the model expects one.

    Many templates write a BOS that the tokenizer also adds. BOS is added only if the text does not begin with it,
    ignoring leading white space. Repeated BOS tokens at the start are removed.
    """
    bos, parts = tokenizer.bos, tokenizer.split(text)
    while parts[:2] == [bos, bos]:
        parts, text = parts[1:], text.removeprefix(special_token_text(tokenizer, bos))
    first = next((part for part in parts if not isinstance(part, str) or part.strip()), None)
    if tokenizer.add_bos and bos is not None and first != bos:
        parts, text = [bos, *parts], special_token_text(tokenizer, bos) + text
    return Prompt(placeholders.restore(text), list(encode_parts(parts, tokenizer, placeholders)))


def encode_parts(parts: list[str | int], tokenizer: Tokenizer, placeholders: Placeholders) -> Iterator[int]:
    """Yield the token ids of control tokens and texts, with placeholders replaced by their texts or token ids."""
    for part in parts:
        if isinstance(part, int):
            yield part
            continue
        is_continuation = False
        for piece in placeholders.split(part):
            yield from (
                piece
                if isinstance(piece, list)
                else tokenizer.encode(placeholders.restore(piece), add_special=False, continues_text=is_continuation)
            )
            is_continuation = True


def special_token_text(tokenizer: Tokenizer, id: int | None) -> str:
    """Return the text of a special token; "" for None."""
    return "" if id is None else tokenizer.token_text(id)
