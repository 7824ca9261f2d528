"""The prefix cache: unused sequences, kept because later prompts may begin with the same tokens."""

from collections import abc

from localinfer.runtime.sequence import Sequence

MIN_SHARED_TOKENS = 32  # shorter prefixes are evaluated again rather than waited for or cached
MAX_CACHED_SEQUENCES = 64  # in the prefix cache, with at most `n_ctx` tokens in total


class PrefixCache:
    """A least-recently-used cache of sequences with at most `max_tokens` tokens in total.

    Sequences share pages with those that were forked from them. The caller holds `Engine.page_table_lock`.
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._sequences: list[Sequence] = []  # least recently used first

    def __iter__(self) -> abc.Iterator[Sequence]:
        return iter(self._sequences)

    def add(self, sequence: Sequence) -> None:
        """Add a sequence that no engine uses any more. A short one is discarded."""
        if len(sequence) < MIN_SHARED_TOKENS:
            sequence.reset()
            return
        self._sequences.append(sequence)
        while len(self._sequences) > MAX_CACHED_SEQUENCES or sum(map(len, self._sequences)) > self._max_tokens:
            self.evict()

    def mark_used(self, sequence: Sequence, n_shared: int) -> None:
        """Make a sequence the most recently used one after its first `n_shared` tokens were forked.

        Discard it if it has no further tokens. A sequence that is not in the cache is ignored.
        """
        if sequence in self._sequences:
            self._sequences.remove(sequence)
            if len(sequence) > n_shared:
                self.add(sequence)
            else:
                sequence.reset()

    def evict(self) -> bool:
        """Discard the least recently used sequence. Return whether there was one."""
        if not self._sequences:
            return False
        self._sequences.pop(0).reset()
        return True
