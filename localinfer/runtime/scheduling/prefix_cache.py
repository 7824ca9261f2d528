"""The prefix cache: finds the longest cached prefix of a prompt, and evicts sequences when memory runs out."""

from collections import abc

from localinfer.runtime.scheduling.request import RequestOwner
from localinfer.runtime.sequence import Sequence

MIN_SHARED_TOKENS = 32  # shorter prefixes are evaluated again rather than waited for or cached
MAX_CACHED_SEQUENCES = 64  # sequences that no engine uses, with at most `n_ctx` tokens in total


class PrefixCache:
    """The sequences whose prefixes can be reused: those of all engines, and unused ones, which are evicted first.

    The unused sequences have at most `max_tokens` tokens in total. Sequences share pages with those that were forked
    from them. The caller holds `ModelRunner.page_table_lock`.
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._engines: list[RequestOwner] = []
        self._unused: list[Sequence] = []  # least recently used first

    def register(self, engine: RequestOwner) -> None:
        """Add an engine, whose sequence can then be reused."""
        self._engines.append(engine)

    def longest_prefix(self, engine: RequestOwner, tokens: abc.Sequence[int], max_tokens: int) -> tuple[Sequence, int]:
        """Return the sequence with the longest reusable prefix of `tokens`, at most `max_tokens`, and its length.

        The engine's own sequence is preferred. Those with other modifiers have other contents.
        """
        others = [each.sequence for each in self._engines if each is not engine]
        modifiers = engine.sequence.modifiers
        sequences = [
            each for each in (engine.sequence, *others, *self._unused) if each.modifiers.can_share(modifiers)
        ]
        lengths = [each.rewind_target(min(each.common_prefix(tokens), max_tokens)) for each in sequences]
        best = max(range(len(lengths)), key=lengths.__getitem__)
        return sequences[best], lengths[best]

    def fork_prefix(self, engine: RequestOwner, source: Sequence, length: int) -> None:
        """Give an engine a fork of `source`, of which it uses the first `length` tokens.

        The engine's own sequence becomes an unused one. If it is `source` itself and would lose only a few tokens, the
        engine keeps it.
        """
        previous = engine.sequence
        if source is not previous or len(previous) >= length + MIN_SHARED_TOKENS:
            engine.sequence = source.fork()
            self._add_unused(previous)
        self._mark_used(source, length)

    def replace_sequence(self, engine: RequestOwner, sequence: Sequence) -> None:
        """Give an engine another sequence. Its own one becomes an unused one, unless it has hooks."""
        previous, engine.sequence = engine.sequence, sequence
        self._add_unused(previous)

    def evict(self) -> bool:
        """Discard a sequence: the least recently used one, or else that of an idle engine. Return whether there was
        one."""
        if self._unused:
            self._unused.pop(0).reset()
            return True
        idle = (engine.sequence for engine in self._engines if engine.is_idle and engine.sequence.tokens)
        sequence = next(idle, None)
        if sequence is not None:
            sequence.reset()
        return sequence is not None

    def _add_unused(self, sequence: Sequence) -> None:
        """Add a sequence that no engine uses any more. One that is short, or has hooks, is discarded."""
        if len(sequence) < MIN_SHARED_TOKENS or sequence.modifiers.hooks:
            sequence.reset()
            return
        self._unused.append(sequence)
        while len(self._unused) > MAX_CACHED_SEQUENCES or sum(map(len, self._unused)) > self._max_tokens:
            self.evict()

    def _mark_used(self, sequence: Sequence, length: int) -> None:
        """Make an unused sequence the most recently used one after its first `length` tokens were forked.

        Discard it if it has no further tokens. A sequence of an engine is ignored.
        """
        if sequence in self._unused:
            self._unused.remove(sequence)
            if len(sequence) > length:
                self._add_unused(sequence)
            else:
                sequence.reset()
