"""WordPiece, `tokenizer.ggml.model` = "bert": text is split into words and normalized, then matched greedily.

In GGUF the first piece of a word begins with "▁" and the others with nothing, as in SentencePiece; BERT's own files
use nothing and "##".

As in llama.cpp, stripping accents keeps only the first character of the decomposition. BERT itself keeps all
characters that are not accents, for example all letters of a Korean syllable.
"""

import unicodedata
from functools import lru_cache

from localinfer.gguf.reader import GGUF
from localinfer.tokenizer.segmenters.prefix_index import PrefixIndex
from localinfer.tokenizer.string_arrays import decode_strings
from localinfer.tokenizer.unicode import WHITE_SPACE, characters_in, simple_lower
from localinfer.tokenizer.vocabulary import CONTROL, TOKENS, UNKNOWN, BosEos, read_vocabulary

DEFAULT_IDS = {"bos": 101, "unknown": 100, "seperator": 102}  # BERT's defaults
SPACE = "▁"
REPLACEMENT = "\ufffd"
CONTROLS, MARKS, PUNCTUATION = r"[\p{Cc}\p{Cf}\p{Co}]", r"\p{M}", r"\p{P}"
ASCII_SYMBOLS = "$+<=>^`|~"
CHINESE = (  # each character is a word; the fifth range begins late, as in the `tokenizers` library
    (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F), (0x2B920, 0x2CEAF), (0x2F800, 0x2FA1F),
)  # fmt: skip
WORD_CACHE_SIZE = 1 << 16  # cached


class WordPiece:
    """The WordPiece tokenizer. Raises LocalInferError, naming the key, if the file's vocabulary is unusable."""

    adds_space = False

    def __init__(self, f: GGUF) -> None:
        self.vocabulary = read_vocabulary(f, DEFAULT_IDS)
        bos, sep = self.vocabulary.bos, self.vocabulary.sep
        self.bos_eos = BosEos([] if bos is None else [bos], [] if sep is None else [sep])
        lower = f.get("tokenizer.ggml.normalizer.lowercase", bool, True)
        self._folded = Folding(lower, f.get("tokenizer.ggml.normalizer.strip_accents", bool, lower))
        names = decode_strings(f, TOKENS, self.vocabulary.tokens)
        control = set(self.vocabulary.ids_of(CONTROL, UNKNOWN))
        self._prefixes = PrefixIndex({name: id for id, name in enumerate(names) if id not in control})
        self._pieces_of = lru_cache(WORD_CACHE_SIZE)(self._segment)

    def encode(self, text: str, *, after_special: bool) -> list[int]:  # noqa: ARG002 (each word gets its space)
        """Return the ids of a text without special tokens."""
        return [id for word in text.translate(self._folded).split(" ") if word for id in self._pieces_of(word)]

    def piece(self, id: int) -> bytes:
        """Return the bytes of a normal token."""
        return self.vocabulary.tokens[id].replace(SPACE.encode(), b" ")

    def _segment(self, text: str) -> list[int]:
        """Return the greedy longest-match segmentation of a word; a word without one is a single unknown token."""
        text = SPACE + text
        ids = []
        end = 0
        while end < len(text):
            end, id = next(self._prefixes.matches(text, end), (0, None))
            if id is None:
                return [] if self.vocabulary.unk is None else [self.vocabulary.unk]
            ids.append(id)
        return ids


class Folding(dict[int, str]):
    """A table for str.translate that normalizes characters; afterwards only spaces separate words."""

    def __init__(self, lower: bool, strip_accents: bool) -> None:
        self._lower, self._strip_accents = lower, strip_accents

    def __missing__(self, code: int) -> str:
        self[code] = folded = self._fold(chr(code))
        return folded

    def _fold(self, char: str) -> str:
        if self._strip_accents:
            char = unicodedata.normalize("NFD", char)[0]
        if char in WHITE_SPACE:
            return " "
        if char == REPLACEMENT or characters_in(char, CONTROLS) or (self._strip_accents and characters_in(char, MARKS)):
            return ""
        folded = simple_lower(char) if self._lower else char
        return f" {folded} " if _is_a_word(char) else folded


def _is_a_word(char: str) -> bool:
    chinese = any(first <= ord(char) <= last for first, last in CHINESE)
    return chinese or char in ASCII_SYMBOLS or bool(characters_in(char, PUNCTUATION))
