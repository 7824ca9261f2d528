"""Text to token ids and back, with the ids that llama.cpp has for the same file and text.

    tokenizer = from_gguf(f)
    ids = tokenizer.encode("Hello <|im_end|>")            # the text of a control token stays text
    tokenizer.decode(ids)                                 # the text again

Knows nothing of models, templates or terminals.
"""

from collections.abc import Iterable

from localinfer.errors import UsageError
from localinfer.files.gguf import GGUF
from localinfer.tokenizer.partition import Partition
from localinfer.tokenizer.segmenters import Segmenter, segmenter
from localinfer.tokenizer.stream import StreamDecoder
from localinfer.tokenizer.swallowing import read_swallowing
from localinfer.tokenizer.vocabulary import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED


def from_gguf(f: GGUF) -> "Tokenizer":
    """The tokenizer of an open file; LocalInferError or Unsupported name the key that cannot work."""
    return Tokenizer(f, segmenter(f))


class Tokenizer:
    """`bos` and `eos` are None where a file has none; `eog` are all ids that end a generation."""

    def __init__(self, f: GGUF, segmenter: Segmenter) -> None:
        vocabulary = segmenter.vocabulary
        self.n_vocab = len(vocabulary)
        self.bos, self.eos, self.eog = vocabulary.bos, vocabulary.eos, vocabulary.eog
        self._vocabulary, self._segmenter = vocabulary, segmenter
        self._partition = Partition(vocabulary, read_swallowing(f, vocabulary))
        self._pieces: dict[int, bytes] = {}

    @property
    def add_bos(self) -> bool:
        """Does a text begin with `bos`?"""
        return bool(self._segmenter.frame.first)

    @property
    def ending(self) -> list[int]:
        """What a text ends with, if the file asks for something."""
        return list(self._segmenter.frame.last)

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = False, goes_on: bool = False
    ) -> list[int]:
        """The ids of any text; what UTF-8 cannot write (lone surrogates) counts as U+FFFD.

        `add_special`: with the first and last token that the file asks for. `parse_special`: text that spells
        a control token becomes that token; never do this with text that a user wrote. `goes_on`: other text is before
        it, so that it gets no space in front.
        """
        ids: list[int] = []
        after_special = not goes_on
        for part in self._partition.split(_well_formed(text), parse_special):
            if isinstance(part, str):
                ids += self._segmenter.encode(part, after_special=after_special)
            else:
                ids.append(part)
            after_special = not isinstance(part, str)
        first, last = self._segmenter.frame
        return [*first, *ids, *last] if add_special else ids

    def split(self, text: str, *, swallow: bool = True) -> list[str | int]:
        """A text as `parse_special` sees it: ids of special tokens, and the texts between them.

        Some vocabularies' special tokens swallow the whitespace beside them; not so without `swallow`.
        """
        return list(self._partition.split(_well_formed(text), parse_special=True, swallow=swallow))

    def token_bytes(self, id: int, *, special: bool = False) -> bytes:
        """What the token stands for, perhaps a part of a character; control tokens are shown if `special`."""
        if not 0 <= id < self.n_vocab:
            raise UsageError(f"there is no token {id}, the vocabulary has {self.n_vocab}")
        kind = int(self._vocabulary.types[id])
        if kind in (CONTROL, UNKNOWN) and not special:
            return b""
        if id not in self._pieces:
            self._pieces[id] = self._piece(id, kind)
        return self._pieces[id]

    def _piece(self, id: int, kind: int) -> bytes:
        if kind in (NORMAL, BYTE):
            return self._segmenter.piece(id)
        shown = kind in (CONTROL, UNKNOWN, USER_DEFINED)
        return self._vocabulary.tokens[id] if shown else b""

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """The text of `ids`: undoes `encode`. Bytes that are not UTF-8 become U+FFFD.

        The space that `encode` puts in front of a text is taken away where the first token brings it: the first one
        behind a `bos` that is not shown, but of no other control token.
        """
        ids = list(ids)
        if self.add_bos and ids[:1] == [self.bos] and not special:
            ids = ids[1:]
        pieces = [self.token_bytes(id, special=special) for id in ids]
        if self._segmenter.adds_space:
            pieces[:1] = (piece.removeprefix(b" ") for piece in pieces[:1])
        return b"".join(pieces).decode("utf-8", "replace")

    def stream(self, *, special: bool = False) -> StreamDecoder:
        """A decoder for tokens that come one at a time."""
        return StreamDecoder(lambda id: self.token_bytes(id, special=special))


def _well_formed(text: object) -> str:
    """Two surrogates that make a character become it, a lone one becomes U+FFFD. UsageError for what is no text."""
    if not isinstance(text, str):
        raise UsageError(f"text: must be a text, not {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
