"""The token ids of earlier answers, so that the next prompt of a conversation repeats them exactly.

Clients send answers back as text. Tokenized again, a text may become other tokens than those that the model generated,
and a chat template renders tool calls in one canonical form, where the model may have written another one. Then the
model's own answer, and everything after it, would have to be evaluated again.
"""

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from localinfer.chat_template.content_format import parse_arguments

Message = Mapping[str, Any]

LIMIT = 1000  # answers
ID_FIELDS = ("ids", "reasoning_ids")


class AnswerMemory:
    """The token ids of the latest answers of one server, by model and conversation: an answer is found again only
    behind the same messages. Slots call the methods in their threads.
    """

    def __init__(self) -> None:
        self._ids: OrderedDict[bytes, Message] = OrderedDict()

    def add(self, model_name: str, messages: Sequence[Message], answer: Message) -> None:
        """Add the answer to a conversation, as `GenerationResult.as_message` returns it."""
        *_, key = conversation_digests(model_name, [*messages, answer])
        self._ids[key] = {name: answer[name] for name in ID_FIELDS if name in answer}
        while len(self._ids) > LIMIT:
            self._ids.popitem(last=False)

    def with_token_ids(self, model_name: str, messages: Sequence[Message]) -> list[Message]:
        """Return the messages, with token ids in those that are answers of this model to the messages before them."""
        found = []
        for message, key in zip(messages, conversation_digests(model_name, messages), strict=True):
            if ids := self._ids.pop(key, None):
                self._ids[key] = ids  # now the latest one
            found.append({**message, **ids} if ids else message)
        return found


def conversation_digests(model_name: str, messages: Sequence[Message]) -> Iterator[bytes]:
    """Yield a digest for each message: of the model's name and of all messages up to this one.

    Fields in which APIs and clients differ, such as the ids of calls, do not count. Messages may be invalid.
    """
    digest = blake2b(model_name.encode(errors="surrogatepass"), digest_size=16)
    for message in messages:
        digest.update(json.dumps(comparable(message), sort_keys=True, default=str).encode())
        yield digest.copy().digest()


def comparable(message: object) -> object:
    """Return the role, the text and the calls of a message."""
    if not isinstance(message, Mapping):
        return message
    calls = message.get("tool_calls") or []
    if isinstance(calls, list):
        calls = [function_of(call) for call in calls]
    return message.get("role"), text_of(message.get("content")), calls


def function_of(call: object) -> object:
    """Return the function of a call, with its arguments as an object: some clients send other JSON text for it."""
    function = call.get("function") if isinstance(call, Mapping) else call
    if not isinstance(function, Mapping) or "arguments" not in function:
        return function
    return {**function, "arguments": parse_arguments(function["arguments"])}


def text_of(content: object) -> object:
    """Return the content of a message as one text if it consists of texts: clients send it in both forms."""
    if isinstance(content, list) and all(isinstance(part, Mapping) and "text" in part for part in content):
        return "".join(str(part["text"]) for part in content)
    return content or ""
