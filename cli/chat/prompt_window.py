"""The messages of a conversation that are part of the prompt: all, or the latest ones if the context is full."""

from collections.abc import Callable, Sequence
from typing import Any

Message = dict[str, Any]


class PromptWindow:
    """Leaves the oldest turns out of the prompt if they no longer fit in the context.

    The first `n_dropped` messages are left out; `on_drop` gets further ones before they are. `count_excess` returns how
    many of the messages it is given do not fit.
    """

    def __init__(self, count_excess: Callable[[Sequence[Message]], int]) -> None:
        self.n_dropped = 0
        self.on_drop: Callable[[list[Message]], None] = lambda _: None
        self._count_excess = count_excess

    def select(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages for the prompt, without the oldest turns if they do not fit in the context."""
        candidates = list(messages[self.n_dropped :])
        if n_more := self._count_excess(candidates):
            self.n_dropped += n_more
            self.on_drop(candidates[:n_more])
        return candidates[n_more:]

    def next_dropped(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages that a short next question would leave out."""
        candidates, question = list(messages[self.n_dropped :]), {"role": "user", "content": ""}
        return candidates[: self._count_excess([*candidates, question])]
