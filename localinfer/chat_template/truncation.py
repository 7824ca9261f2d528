"""Truncation of conversations that exceed the context: drops the oldest turns.

A turn is a user message and everything up to the next one: answers, tool calls and their results. The messages before
the first turn, such as the system prompt, stay, and so does the last turn.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence

from localinfer.chat_template.conversation import Message


def drop_oldest_turns(
    messages: Sequence[Message], count_tokens: Callable[[Sequence[Message]], int], max_tokens: int
) -> list[Message]:
    """Return the messages without the oldest turns, so that they have at most `max_tokens` tokens.

    Keeps the last turn even if it is too long. `count_tokens` must be monotonic: fewer turns have fewer tokens. It is
    called O(log n) times.
    """
    starts = [index for index, message in enumerate(messages) if message["role"] == "user"]
    if not starts:
        return list(messages)

    def remaining(start: int) -> list[Message]:
        return [*messages[: starts[0]], *messages[start:]]

    dropped = bisect_left(starts[:-1], True, key=lambda start: count_tokens(remaining(start)) <= max_tokens)
    return remaining(starts[dropped])
