"""Text to token ids and back, with the ids that llama.cpp has for the same file and text.

    tokenizer = from_gguf(f)
    ids = tokenizer.encode("Hello <|im_end|>")            # the text of a control token stays text
    tokenizer.decode(ids)                                 # the text again

Knows nothing of models, templates or terminals.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from localinfer.errors import Unsupported, UsageError
from localinfer.files.gguf import GGUF
from localinfer.text import printable

from .byte_level import ByteLevelBPE
from .partition import Partition
from .sentence_piece import SentencePieceBPE
from .stream import StreamDecoder
from .vocabulary import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED, Vocabulary


class Merger(Protocol):
    """What cuts a text that has no special tokens in it, and knows which bytes a token stands for."""

    vocabulary: Vocabulary
    add_bos: bool  # where the file does not say
    adds_space: bool  # in front of a text, which is not part of it

    def encode(self, text: str, *, after_special: bool) -> list[int]: ...

    def piece(self, id: int) -> bytes: ...


MERGERS: dict[str, Callable[[GGUF], Merger]] = {"gpt2": ByteLevelBPE, "llama": SentencePieceBPE}


def from_gguf(f: GGUF) -> "Tokenizer":
    """The tokenizer of an open file; LocalInferError or Unsupported name the key that cannot work."""
    key = "tokenizer.ggml.model"
    kind = f.get(key, str)
    if kind not in MERGERS:
        what = f"{printable(repr(kind), 80)} is not supported, only {' and '.join(MERGERS)} are"
        raise f.error(key, what, Unsupported)
    return Tokenizer(f, MERGERS[kind](f))


class Tokenizer:
    """`bos` and `eos` are None where a file has none; `eog` are all ids that end a generation."""

    def __init__(self, f: GGUF, merger: Merger) -> None:
        vocabulary = merger.vocabulary
        self.n_vocab = len(vocabulary)
        self.bos, self.eos, self.eog = vocabulary.bos, vocabulary.eos, vocabulary.eog
        self.add_bos = f.get("tokenizer.ggml.add_bos_token", bool, merger.add_bos)
        self.add_eos = f.get("tokenizer.ggml.add_eos_token", bool, False)
        for name, wanted, id in (("bos", self.add_bos, self.bos), ("eos", self.add_eos, self.eos)):
            if wanted and id is None:
                raise f.error(f"tokenizer.ggml.{name}_token_id", f"missing, but add_{name}_token is true")
        self._vocabulary, self._merger = vocabulary, merger
        self._partition = Partition(vocabulary)
        self._pieces: dict[int, bytes] = {}

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """The ids of any text; what UTF-8 cannot write (lone surrogates) counts as U+FFFD.

        `add_special`: with the first and last token that the file asks for. `parse_special`: text that spells
        a control token becomes that token; never do this with text that a user wrote.
        """
        ids = [self.bos] if add_special and self.add_bos and self.bos is not None else []
        after_special = True
        for part in self._partition.split(_well_formed(text), parse_special):
            if isinstance(part, str):
                ids += self._merger.encode(part, after_special=after_special)
            else:
                ids.append(part)
            after_special = not isinstance(part, str)
        if add_special and self.add_eos and self.eos is not None:
            ids.append(self.eos)
        return ids

    def split(self, text: str) -> list[str | int]:
        """A text as `parse_special` sees it: ids of special tokens, and the texts between them."""
        return list(self._partition.split(_well_formed(text), parse_special=True))

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
            return self._merger.piece(id)
        shown = kind in (CONTROL, UNKNOWN, USER_DEFINED)
        return self._vocabulary.tokens[id] if shown else b""

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """The text of `ids`: undoes `encode`. Bytes that are not UTF-8 become U+FFFD."""
        text = b"".join(self.token_bytes(id, special=special) for id in ids).decode("utf-8", "replace")
        return text.removeprefix(" ") if self._merger.adds_space else text

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
