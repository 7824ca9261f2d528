"""The interface of decode loops, whose steps an engine runs."""

from typing import NamedTuple, Protocol

from localinfer.runtime.batch import Logits


class StepInput(NamedTuple):
    """The tokens to evaluate in the next decode step. No logits are needed for the first `skip` of them."""

    ids: list[int]
    skip: int = 0


class DecodeLoop(Protocol):
    """A decode loop: the logits of each step determine the tokens of the next one."""

    def next_tokens(self) -> StepInput:
        """Return the tokens of the next step."""

    def process_logits(self, logits: Logits) -> bool:
        """Choose the next tokens by the logits of a step, float32 (len(ids) - skip, n_vocab).

        The logits are valid until the method returns. Return whether the loop certainly has a next step.
        """
