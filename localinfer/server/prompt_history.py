"""The latest prompts of a server: they tell why a prompt could not be reused, and whose prompt it is.

Agents send almost the same long prompt again and again. A token's keys and values depend on all tokens before it, so a
date or a counter near the beginning that changes with each request makes everything behind it be evaluated again.

    divergence = history.add("smollm2", ids, client="claude-cli/2.1")
    print(divergence.describe(tokenizer.decode))
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from localinfer.escaping import printable

LIMIT = 16  # prompts of each model; a prompt replaces the one that it continues
MIN_REPEATED = 256  # tokens; fewer are evaluated quickly, and may be the same by chance
WINDOW = 16  # tokens that are the same in both prompts count if they are so many in a row
HASH_BASE = 0x9E3779B97F4A7C15  # odd, near 2^64 / golden ratio: multiplicative hashing (Knuth, TAOCP volume 3, 6.4)
SHOWN_TOKENS = 32  # of a long difference
SHOWN_CHARS = 80
MAX_CLIENT_CHARS = 60

Ids = NDArray[np.int32]
Decode = Callable[[Sequence[int]], str]

client_name: ContextVar[str] = ContextVar("client_name", default="")  # of the request that is being answered


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference between a prompt and the earlier one that is most like it.

    Both begin with the same `n_shared` tokens. After them, the prompt has the tokens `ids` where the earlier one has
    `earlier_ids`. Behind the difference, `n_repeated` tokens of the earlier prompt occur again.
    """

    n_prompt: int
    n_shared: int
    n_repeated: int
    ids: tuple[int, ...]
    earlier_ids: tuple[int, ...]
    client: str
    earlier_client: str

    def describe(self, decode: Decode) -> str:
        """Return a sentence for the log."""
        whose = f"of {self.client} " if self.client else ""
        other = f" of {self.earlier_client}" if self.earlier_client not in ("", self.client) else ""
        return (
            f"a prompt {whose}with {self.n_prompt} tokens begins like an earlier one{other} for {self.n_shared} "
            f"tokens; then it has {shown(self.ids, decode)} instead of {shown(self.earlier_ids, decode)}. Therefore "
            f"{self.n_repeated} tokens that are the same in both are not reused"
        )

    def as_fields(self, decode: Decode) -> dict[str, Any]:
        """Return the fields that `/slots` shows."""
        return {
            "n_prompt": self.n_prompt, "n_shared": self.n_shared, "n_repeated": self.n_repeated,
            "text": shown(self.ids, decode), "earlier_text": shown(self.earlier_ids, decode),
            "client": self.client, "earlier_client": self.earlier_client,
        }  # fmt: skip


def shown(ids: Sequence[int], decode: Decode) -> str:
    """Return the text of tokens, quoted and cut after `SHOWN_CHARS`; "nothing" for no tokens."""
    return f'"{printable(decode(ids[:SHOWN_TOKENS]), SHOWN_CHARS)}"' if ids else "nothing"


@dataclass(frozen=True, slots=True)
class PastPrompt:
    ids: Ids
    client: str


class PromptHistory:
    """The latest prompts by model. Slots call `add` in their threads; they may lose a prompt to each other, no more."""

    def __init__(self) -> None:
        self._prompts: dict[str, deque[PastPrompt]] = {}

    def add(self, model_name: str, prompt: Sequence[int], client: str) -> Divergence | None:
        """Remember a prompt. Return where it diverges from the earlier one that is most like it, if that costs more
        than `MIN_REPEATED` tokens.
        """
        ids, client = np.asarray(prompt, np.int32), printable(client, MAX_CLIENT_CHARS)
        earlier = list(self._prompts.get(model_name, ()))
        shared = [shared_tokens(ids, each.ids) for each in earlier]
        continued = [each for each, n_shared in zip(earlier, shared, strict=True) if n_shared == len(each.ids)]
        kept = [each for each in earlier if not any(each is other for other in continued)]
        self._prompts[model_name] = deque([*kept, PastPrompt(ids, client)], LIMIT)
        if continued or len(ids) - max(shared, default=0) < MIN_REPEATED:
            return None
        found = [diverge(ids, client, each, n_shared) for each, n_shared in zip(earlier, shared, strict=True)]
        nearest = max(found, key=lambda each: each.n_shared + each.n_repeated, default=None)
        return nearest if nearest and nearest.n_repeated >= MIN_REPEATED else None


def shared_tokens(first: Ids, second: Ids) -> int:
    """Return the length of the longest common prefix."""
    n = min(len(first), len(second))
    differences = np.flatnonzero(first[:n] != second[:n])
    return int(differences[0]) if len(differences) else n


def diverge(ids: Ids, client: str, earlier: PastPrompt, n_shared: int) -> Divergence:
    """Return the first difference between a prompt and an earlier one, after which tokens of the latter may occur
    again.
    """
    new, old = ids[n_shared:], earlier.ids[n_shared:]
    new_hashes, old_hashes = window_hashes(new), window_hashes(old)
    starts = np.flatnonzero(np.isin(old_hashes, new_hashes))  # of windows of the earlier prompt that occur again
    n_repeated = int(np.minimum(np.diff(starts, append=len(old)), WINDOW).sum())
    new_end, old_end = len(new), len(old)
    if len(starts):
        old_end = int(starts[0])
        new_end = int(np.flatnonzero(new_hashes == old_hashes[old_end])[0])
    return Divergence(
        len(ids), n_shared, n_repeated, tuple(new[:new_end].tolist()), tuple(old[:old_end].tolist()),
        client, earlier.client,
    )  # fmt: skip


def window_hashes(ids: Ids) -> NDArray[np.uint64]:
    """Return a polynomial hash of each `WINDOW` consecutive tokens, modulo 2^64."""
    if len(ids) < WINDOW:
        return np.empty(0, np.uint64)
    powers = np.array([pow(HASH_BASE, exponent, 1 << 64) for exponent in range(WINDOW)], np.uint64)
    return sliding_window_view(ids.astype(np.uint64) + np.uint64(1), WINDOW) @ powers
