"""A model's vocabulary for llguidance: a trie of all tokens, built when the first constraint needs it."""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import UnsupportedError
from localinfer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer


class Vocabulary:
    """The vocabulary of a tokenizer. `n_vocab` is the number of logits, at least the number of tokens.

    Raises UnsupportedError if the tokenizer has no end-of-generation token.
    """

    def __init__(self, tokenizer: Tokenizer, n_vocab: int) -> None:
        if not tokenizer.eog:
            raise UnsupportedError("this model has no end-of-generation token, which structured output requires")
        self.n_vocab = n_vocab
        self._tokenizer = tokenizer

    @cached_property
    def trie(self) -> "LLTokenizer":
        """The trie of all tokens. Building it takes about a second for 150,000 tokens.

        Control tokens have no text, so no constraint allows them.
        """
        from llguidance import LLTokenizer, TokenizerWrapper

        return LLTokenizer(TokenizerWrapper(self), eos_token=self.eos_token_id, slices=LLTokenizer.json_slices())

    @property
    def eog(self) -> frozenset[int]:
        """The end-of-generation tokens."""
        return self._tokenizer.eog

    def visible_bytes(self, id: int) -> bytes:
        """Return the text of a token, also of a control token."""
        return self._tokenizer.token_bytes(id, special=True)

    def text_of(self, ids: Sequence[int]) -> str:
        return b"".join(map(self._tokenizer.token_bytes, ids)).decode("utf-8", "replace")

    def allowed_by(self, matcher: "LLMatcher") -> NDArray[np.bool_]:
        """Return the mask of tokens that may come next, bool (n_vocab,)."""
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        known = np.unpackbits(bits, count=self._tokenizer.n_vocab, bitorder="little").view(bool)
        known[sorted(self.eog)] = known[self.eos_token_id]
        return np.pad(known, (0, self.n_vocab - known.size)) if known.size < self.n_vocab else known

    # --- interface of TokenizerWrapper ---

    @property
    def eos_token_id(self) -> int:
        """One of the end-of-generation tokens, which stands for all of them."""
        return min(self.eog)

    @property
    def bos_token_id(self) -> int | None:
        return self._tokenizer.bos

    @property
    def tokens(self) -> list[bytes]:
        return [self._tokenizer.token_bytes(id) for id in range(self._tokenizer.n_vocab)]

    @property
    def special_token_ids(self) -> list[int]:
        return []

    def __call__(self, text: bytes | str) -> list[int]:
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace")
        return self._tokenizer.encode(text, add_special=False)
