"""The messages of a conversation that are part of the prompt: all, or the latest ones if the context is full."""

from collections.abc import Callable, Sequence
from typing import Any

Message = dict[str, Any]


class PromptWindow:
    """Leaves the oldest turns out of the prompt if they no longer fit in the context.

    The first `n_dropped` messages are left out. `select` leaves out further ones for one prompt; once the model answers
    it, `confirm` leaves them out for good, and `on_drop` gets them. `count_excess` returns how many of the messages it
    is given do not fit.
    """

    def __init__(self, count_excess: Callable[[Sequence[Message]], int]) -> None:
        self.n_dropped = 0
        self.on_drop: Callable[[list[Message]], None] = lambda _: None
        self._count_excess = count_excess
        self._selected: list[Message] = []  # what `select` left out, until `confirm`

    def select(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages for the prompt, without the oldest turns if they do not fit in the context."""
        candidates = list(messages[self.n_dropped :])
        n_more = self._count_excess(candidates)
        self._selected = candidates[:n_more]
        return candidates[n_more:]

    def confirm(self) -> None:
        """Leave out from now on what `select` has left out."""
        selected, self._selected = self._selected, []
        if selected:
            self.n_dropped += len(selected)
            self.on_drop(selected)

    def next_dropped(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages that a short next question would leave out."""
        candidates, question = list(messages[self.n_dropped :]), {"role": "user", "content": ""}
        return candidates[: self._count_excess([*candidates, question])]
