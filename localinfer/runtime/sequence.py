"""A sequence: token ids, and the KV cache and recurrent states of its layers."""

from collections import abc

from localinfer.graph.cache.kv_cache import KVCache
from localinfer.graph.cache.sequence_cache import Bytes, SequenceCache
from localinfer.graph.properties.embedded_adapters import EmbeddedAdapters
from localinfer.runtime.control_tokens import ControlTokens
from localinfer.runtime.encoder_tokens import encoder_length
from localinfer.runtime.media.media_table import MediaTable
from localinfer.runtime.media.sequence_media import SequenceMedia
from localinfer.runtime.modifiers import NO_MODIFIERS, Modifiers


class Sequence:
    """A sequence of tokens with its caches. `tokens` are the ids of all cached tokens, from position 0: of the
    vocabulary, or of media rows, whose places `media` knows. `modifiers` are those of all tokens. `control_tokens` are
    those that switch on adapters of the model, if it has `embedded` ones. If it `can_rewind`, any number of its
    last tokens can be discarded; otherwise only tokens after a checkpoint can.

    A sequence with hooks is not shared with others: its caches have what the hooks made of it.
    """

    def __init__(
        self, caches: abc.Sequence[SequenceCache], media_table: MediaTable | None = None,
        modifiers: Modifiers = NO_MODIFIERS, embedded: EmbeddedAdapters | None = None,
    ) -> None:  # fmt: skip
        self.caches, self.modifiers = caches, modifiers
        self.kv_caches = [cache for cache in caches if isinstance(cache, KVCache)]
        self.can_rewind = all(cache.can_rewind for cache in caches)
        self.tokens: list[int] = []
        self._no_media = self.media = SequenceMedia(media_table)
        self.control_tokens = ControlTokens(embedded)

    def __len__(self) -> int:
        return len(self.tokens)

    def fork(self) -> "Sequence":
        """Return a copy of the sequence. Both share cache pages until one of them changes a page (copy-on-write)."""
        assert not self.modifiers.hooks
        other = Sequence([cache.fork() for cache in self.caches], self.media.table, self.modifiers)
        other.tokens[:], other.media, other.control_tokens = self.tokens, self.media, self.control_tokens
        return other

    def reserve(self, count: int) -> None:
        """Allocate cache space for `count` more tokens. Raises OutOfPagesError."""
        for cache in self.caches:
            cache.reserve(len(self), count)

    @property
    def encoder_length(self) -> int:
        """The number of tokens of an encoder, which come first."""
        return 0 if self.media.table else encoder_length(self.tokens)

    def common_prefix(self, tokens: abc.Sequence[int]) -> int:
        """Return the length of the common prefix with `tokens`: 0 if these have other tokens of an encoder."""
        n = common_prefix_length(self.tokens, tokens)
        return 0 if self.encoder_length and n < len(tokens) and tokens[n] < 0 else n

    def set_inputs(self, count: int, row: int = 0, media: SequenceMedia | None = None) -> None:
        """Point the kernels to this sequence's cache for its next `count` tokens, which begin at `row` of the batch.
        `media` includes that of these tokens."""
        first = len(self)
        for cache in self.caches:
            cache.set_inputs(first, count, row)
        if length := self.encoder_length:
            for cache in self.kv_caches:
                cache.hide_before(length, count, row)
        for placed in media.bidirectional(first, first + count) if media else ():
            for cache in self.kv_caches:
                cache.set_bidirectional(placed.start, placed.end, row + placed.start - first)

    def fits(self, lengths: abc.Sequence[int]) -> bool:
        """Return whether texts of these lengths can be packed: a recurrent state holds only one text."""
        return len(self.kv_caches) == len(self.caches) and all(cache.fits(lengths) for cache in self.kv_caches)

    def pack(self, lengths: abc.Sequence[int]) -> None:
        """Discard all tokens and prepare a batch of independent texts of these lengths.

        The texts are not cached. The caller must call `reset` afterwards.
        """
        assert len(self.kv_caches) == len(self.caches)
        self._clear()
        for cache in self.kv_caches:
            cache.pack(lengths)

    def commit(self, ids: abc.Sequence[int]) -> None:
        """Append tokens that have been computed; `reserve` has allocated their space."""
        self.media = self.media.extended(ids, len(self))
        self.control_tokens = self.control_tokens.extended(ids, len(self))
        self.tokens.extend(ids)
        for cache in self.caches:
            cache.commit(len(self))

    def rewind(self, n: int) -> int:
        """Discard all but the first `n` tokens and return how many remain.

        Fewer than `n` remain where the caches no longer hold what token `n` attends to.
        """
        target = self.rewind_target(max(0, min(n, len(self))))
        if not target:
            self.reset()
        for cache in self.caches if target else ():
            cache.rewind(target)
        del self.tokens[target:]
        self.media = self.media.truncated(target)
        self.control_tokens = self.control_tokens.truncated(target)
        if self.modifiers.hooks:
            self.modifiers.hooks.rewind(target)
        return target

    def rewind_target(self, n: int) -> int:
        """Return the largest number of tokens, at most `n`, to which all caches can rewind, and which does not end
        within a bidirectional span."""
        n = self._border(n)
        while (nearest := self._border(min((cache.rewind_target(n) for cache in self.caches), default=n))) < n:
            n = nearest
        return n

    def _border(self, n: int) -> int:
        """Return the largest number of tokens, at most `n`, that does not end within a bidirectional span, or within
        the tokens of an encoder."""
        return 0 if n < self.encoder_length else self.media.border(n)

    def checkpoint(self) -> None:
        """Keep the current length as a rewind target for some time."""
        for cache in self.caches:
            cache.checkpoint()

    def begin_draft(self, n_confirmed: int) -> None:
        """Mark all following tokens but the first `n_confirmed` as draft tokens, until the next `rewind`.

        That call can rewind to any of them, and at least to the confirmed ones.
        """
        for cache in self.caches:
            cache.begin_draft(n_confirmed)

    def reset(self) -> None:
        """Discard all tokens."""
        self._clear()
        if self.modifiers.hooks:
            self.modifiers.hooks.rewind(0)

    def _clear(self) -> None:
        self.tokens.clear()
        self.media = self._no_media
        self.control_tokens = self.control_tokens.truncated(0)
        for cache in self.caches:
            cache.reset()

    def save(self) -> list[abc.Sequence[Bytes]]:
        """Return copies of all cache contents, for `load`."""
        return [cache.save() for cache in self.caches]

    def load(self, tokens: abc.Sequence[int], saved: abc.Sequence[abc.Sequence[Bytes]]) -> None:
        """Restore the tokens and cache contents that `save` returned for the same graph.

        Raises ValueError if the contents do not fit.
        """
        for cache, arrays in zip(self.caches, saved, strict=True):
            cache.load(arrays)
        self.accept_loaded(tokens)

    def accept_loaded(self, tokens: abc.Sequence[int]) -> None:
        """Take over the tokens whose cache contents were loaded. Raises ValueError if the caches hold others."""
        self.media = self._no_media.extended(tokens, 0)
        self.control_tokens = self.control_tokens.truncated(0).extended(tokens, 0)
        if self.rewind_target(len(tokens)) != len(tokens):
            raise ValueError(f"the cache does not hold {len(tokens)} tokens")
        self.tokens[:] = tokens


def common_prefix_length(a: abc.Sequence[int], b: abc.Sequence[int]) -> int:
    """Return the length of the common prefix of two token sequences."""
    pairs = zip(a, b, strict=False)
    return next((n for n, (left, right) in enumerate(pairs) if left != right), min(len(a), len(b)))
