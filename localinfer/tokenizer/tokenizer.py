"""Tokenizer: text to token ids and back, with the same ids as llama.cpp for the same file and text.

tokenizer = from_gguf(f)
ids = tokenizer.encode("Hello <|im_end|>")            # the text of a control token stays text
tokenizer.decode(ids)                                 # the original text
"""

from collections.abc import Callable, Iterable, Mapping

from localinfer.errors import UsageError
from localinfer.gguf.reader import GGUF
from localinfer.tokenizer.partition import Partition
from localinfer.tokenizer.segmenters import Segmenter, make_segmenter
from localinfer.tokenizer.stream import StreamDecoder
from localinfer.tokenizer.vocabulary import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED
from localinfer.tokenizer.whitespace_stripping import read_whitespace_stripping

PART = 10_000  # tokens that are decoded without interruption


def from_gguf(f: GGUF) -> "Tokenizer":
    """Return the tokenizer of an open file. Raises LocalInferError or UnsupportedError naming the key at fault."""
    return Tokenizer(f, make_segmenter(f))


class Tokenizer:
    """Encodes and decodes text. `bos` and `eos` are None if the file has none; `eog` are all end-of-generation ids,
    and `suppressed` those of tokens that must never be generated.
    """

    def __init__(self, f: GGUF, segmenter: Segmenter) -> None:
        vocabulary = segmenter.vocabulary
        self.n_vocab = len(vocabulary)
        self.bos, self.eos, self.eog = vocabulary.bos, vocabulary.eos, vocabulary.eog
        self.suppressed = vocabulary.suppressed
        self._vocabulary, self._segmenter = vocabulary, segmenter
        self._partition = Partition(vocabulary, read_whitespace_stripping(f, vocabulary))
        self._adds_separator = f.get("tokenizer.ggml.add_sep_token", bool, None)
        self._pieces: dict[int, bytes] = {}

    @property
    def add_bos(self) -> bool:
        """Whether `encode` puts `bos` in front of a text."""
        return bool(self._segmenter.bos_eos.first)

    @property
    def fim(self) -> Mapping[str, int]:
        """The fill-in-the-middle tokens by role: pre, suf, mid, pad, rep (repository), sep (file)."""
        return self._vocabulary.fim

    @property
    def eos_suffix(self) -> list[int]:
        """The tokens that `encode` appends to a text: [eos] if the file requests it, else []."""
        return list(self._segmenter.bos_eos.last)

    def pair_separator(self, *, default: bool) -> list[int]:
        """Return the tokens between the two texts of a pair: those after each text, and one more if the file requests
        it, or by `default` if the file does not state it."""
        adds = default if self._adds_separator is None else self._adds_separator
        separator = self.eos_suffix if self._vocabulary.sep is None else [self._vocabulary.sep]
        return [*self.eos_suffix, *(separator if adds else [])]

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = False, continues_text: bool = False
    ) -> list[int]:
        """Return the ids of any text. Lone surrogates, which UTF-8 cannot encode, become U+FFFD.

        `add_special`: add BOS and EOS if the file requests them. `parse_special`: the text of a control token
        becomes that token; never use it on untrusted user text. `continues_text`: other text precedes this one, so
        no space is put in front.
        """
        ids: list[int] = []
        after_special = not continues_text
        for part in self._partition.split(_replace_surrogates(text), parse_special):
            if isinstance(part, str):
                ids += self._segmenter.encode(part, after_special=after_special)
            else:
                ids.append(part)
            after_special = not isinstance(part, str)
        first, last = self._segmenter.bos_eos
        return [*first, *ids, *last] if add_special else ids

    def split(self, text: str, *, strip: bool = True) -> list[str | int]:
        """Split a text as `parse_special` does: ids of special tokens, and the texts between them.

        Without `strip`, whitespace next to special tokens stays even if the vocabulary strips it.
        """
        return list(self._partition.split(_replace_surrogates(text), parse_special=True, strip=strip))

    def may_continue_as_special(self, text: str) -> bool:
        """Return whether the end of the text and another text may form a special token together."""
        return self._partition.may_continue_as_special(text)

    def token_bytes(self, id: int, *, special: bool = False) -> bytes:
        """Return the bytes of a token, possibly part of a character; b"" for control tokens unless `special`.

        Raises UsageError if there is no such token.
        """
        if not 0 <= id < self.n_vocab:
            raise UsageError(f"there is no token {id}, the vocabulary has {self.n_vocab}")
        kind = int(self._vocabulary.types[id])
        if kind in (CONTROL, UNKNOWN) and not special:
            return b""
        if id not in self._pieces:
            self._pieces[id] = self._piece(id, kind)
        return self._pieces[id]

    def token_text(self, id: int) -> str:
        """Return the text of a token, also of a control token. Invalid UTF-8 becomes U+FFFD.

        Raises UsageError if there is no such token.
        """
        return self.token_bytes(id, special=True).decode("utf-8", "replace")

    def _piece(self, id: int, kind: int) -> bytes:
        if kind in (NORMAL, BYTE):
            return self._segmenter.piece(id)
        shown = kind in (CONTROL, UNKNOWN, USER_DEFINED)
        return self._vocabulary.tokens[id] if shown else b""

    def decode(
        self, ids: Iterable[int], *, special: bool = False, on_wait: Callable[[], None] = lambda: None
    ) -> str:
        """Return the text of `ids`, the inverse of `encode`. Invalid UTF-8 becomes U+FFFD.

        The space that `encode` puts in front of a text is removed from the first token, also after a hidden `bos`.
        `on_wait` is called after every few thousand tokens; it may raise.
        """
        ids = list(ids)
        if self.add_bos and ids[:1] == [self.bos] and not special:
            ids = ids[1:]
        pieces: list[bytes] = []
        for start in range(0, len(ids), PART):
            on_wait()
            pieces += [self.token_bytes(id, special=special) for id in ids[start : start + PART]]
        if self._segmenter.adds_space:
            pieces[:1] = (piece.removeprefix(b" ") for piece in pieces[:1])
        return b"".join(pieces).decode("utf-8", "replace")

    def stream(self, *, special: bool = False) -> StreamDecoder:
        """Return a decoder for tokens that arrive one at a time."""
        return StreamDecoder(lambda id: self.token_bytes(id, special=special))


def _replace_surrogates(text: object) -> str:
    """Join surrogate pairs and replace lone surrogates by U+FFFD. Raises UsageError if `text` is not a str."""
    if not isinstance(text, str):
        raise UsageError(f"text: must be a string, not {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
