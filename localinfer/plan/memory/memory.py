"""What a sequence keeps of its past: keys and values in pages of cells, or a state of a fixed size.

The engine asks these things of it, and never what kind it is.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


class Memory(ABC):
    """The past of one sequence as some layers see it. Positions are counted from 0."""

    rewinds = True  # whether any number of the last positions can be forgotten; if not, only those behind a `keep`

    @abstractmethod
    def reset(self) -> None:
        """Forget everything, and leave its room to others."""

    @abstractmethod
    def fork(self) -> "Memory":
        """The same past for another sequence: shared until one of them changes it."""

    @abstractmethod
    def reserve(self, first: int, count: int) -> None:
        """Take room for the positions first .. first + count - 1. Raises NoRoom, and then has changed nothing of what
        is remembered."""

    @abstractmethod
    def place(self, first: int, count: int, at: int = 0) -> None:
        """Have the next run compute these positions, as the tokens from `at` on of its batch; a batch is begun at 0.
        Raises NoRoom unless there was room reserved."""

    def place_ahead(self, position: int, at: int) -> None:  # noqa: B027 (only what keeps keys does something)
        """Have the token `at` of the next run look from a position that is not to be remembered. Raises NoRoom."""

    def state(self, position: int) -> NDArray[np.float32] | None:  # noqa: ARG002 (only one memory knows that)
        """What the token at a position has become behind all layers, where that is known."""
        return None

    def fits(self, lengths: Sequence[int]) -> bool:  # noqa: ARG002 (what keeps a state has room for one text)
        """Whether it can `pack` so many texts."""
        return False

    def pack(self, lengths: Sequence[int]) -> None:
        """Make room for a run of texts so long, one behind the other, none of which sees another. It is empty before,
        and of no use behind them."""
        raise NotImplementedError

    @abstractmethod
    def commit(self, n_past: int) -> None:
        """The run is done: n_past positions are remembered now."""

    @abstractmethod
    def reach(self, n: int) -> int:
        """How many of the first n positions could be kept and all others forgotten, so that the next can follow."""

    @abstractmethod
    def rewind(self, n: int) -> None:
        """Forget all but the first n positions, which are within reach."""

    @abstractmethod
    def keep(self) -> None:
        """Stay able to return to what is remembered now: as long as there is room for it."""

    def guess(self, sure: int) -> None:  # noqa: B027 (what forgets any of its last positions does nothing more)
        """Positions that are computed from now on are guesses but for the first `sure`: stay able to return to these,
        and, where that takes little, to what will be between the guesses, until `rewind` says which were right."""

    @abstractmethod
    def save(self) -> Sequence[Bytes]:
        """Copies of all that is remembered, for `load`."""

    @abstractmethod
    def load(self, saved: Sequence[Bytes]) -> None:
        """Remember what was saved, of the same plan. ValueError for what cannot be that; then `reset` is due."""
