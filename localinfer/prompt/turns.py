"""What goes when a conversation no longer fits in the context: whole turns, the oldest first.

A turn is a message of the user with all that follows it up to the next one: answers, calls of tools and their results.
What stands before the first turn, such as the system prompt, stays, and so does the last turn.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence

from localinfer.prompt.conversation import Message


def without_oldest(
    messages: Sequence[Message], tokens_of: Callable[[Sequence[Message]], int], most: int
) -> list[Message]:
    """The messages without as many of the oldest turns as must go for `most` tokens; all but the last, if that is not
    enough. `tokens_of` is asked about few of the lists that could be left, and is to be smaller for shorter ones.
    """
    starts = [at for at, message in enumerate(messages) if message["role"] == "user"]
    if not starts:
        return list(messages)

    def left(start: int) -> list[Message]:
        return [*messages[: starts[0]], *messages[start:]]

    dropped = bisect_left(starts[:-1], True, key=lambda start: tokens_of(left(start)) <= most)
    return left(starts[dropped])
