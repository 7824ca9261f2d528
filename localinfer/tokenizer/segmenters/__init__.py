"""How text without special tokens becomes tokens: `segmenter(f)` makes what `tokenizer.ggml.model` names.

gpt2              byte_level.py, with merging.py
gemma4            character_level.py, with merging.py; so are some names of tokenizer.ggml.pre under gpt2
whitespace        character_level.py
hybriddna         hybrid_dna.py
llama             sentence_piece.py, with sentencepiece_model.py
t5                unigram.py, with charsmap.py and prefixes.py
bert              word_piece.py
rwkv, plamo2      rwkv.py, plamo2.py
"""

import difflib
import warnings
from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from localinfer.errors import LocalInferError, Unsupported
from localinfer.files.gguf import GGUF
from localinfer.text import printable
from localinfer.tokenizer.pretokenizers import NAMED
from localinfer.tokenizer.segmenters.byte_level import ByteLevelBPE
from localinfer.tokenizer.segmenters.character_level import SPELLINGS, CharacterBPE
from localinfer.tokenizer.segmenters.hybrid_dna import HybridDna
from localinfer.tokenizer.segmenters.plamo2 import Plamo2
from localinfer.tokenizer.segmenters.rwkv import Rwkv
from localinfer.tokenizer.segmenters.sentence_piece import SentencePieceBPE
from localinfer.tokenizer.segmenters.unigram import Unigram
from localinfer.tokenizer.segmenters.word_piece import WordPiece
from localinfer.tokenizer.vocabulary import Frame, Vocabulary

MODEL, PRE = "tokenizer.ggml.model", "tokenizer.ggml.pre"


class Segmenter(Protocol):
    """What cuts a text that has no special tokens in it, and knows which bytes a token stands for."""

    vocabulary: Vocabulary
    frame: Frame
    adds_space: bool  # in front of a text, which is not part of it

    def encode(self, text: str, *, after_special: bool) -> list[int]: ...

    def piece(self, id: int) -> bytes: ...


def segmenter(f: GGUF) -> Segmenter:
    """LocalInferError or Unsupported name the key that cannot work."""
    kind = f.get(MODEL, str)
    if kind in ("none", "no_vocab"):
        raise f.error(MODEL, "this file has no vocabulary", Unsupported)
    if kind not in KINDS:
        raise unknown(f, MODEL, kind, KINDS)
    return KINDS[kind](f)


def bpe(f: GGUF) -> Segmenter:
    name = pre_tokenizer(f, (*NAMED, *SPELLINGS))
    return CharacterBPE(f, SPELLINGS[name]) if name in SPELLINGS else ByteLevelBPE(f, NAMED[name])


KINDS: dict[str, Callable[[GGUF], Segmenter]] = {
    "gpt2": bpe,
    "gemma4": lambda f: CharacterBPE(f, SPELLINGS["gemma4"]),
    "whitespace": lambda f: CharacterBPE(f, SPELLINGS["whitespace"]),
    "hybriddna": lambda f: HybridDna(f, NAMED[pre_tokenizer(f, NAMED)]),
    "llama": SentencePieceBPE,
    "t5": Unigram,
    "bert": WordPiece,
    "rwkv": Rwkv,
    "plamo2": Plamo2,
}


def pre_tokenizer(f: GGUF, known: Collection[str]) -> str:
    """Files from before there was such a key get llama.cpp's default; an unknown name is never taken for another.

    With the wrong one a model still answers, only worse, and nobody knows why.
    """
    if PRE not in f.metadata:
        problem = "is missing: words are cut in a common way, which may not be the model's; a newer conversion has it"
        warnings.warn(str(f.error(PRE, problem)), stacklevel=2)
    name = f.get(PRE, str, "default")
    if name not in known:
        raise unknown(f, PRE, name, known)
    return name


def unknown(f: GGUF, key: str, name: str, known: Iterable[str]) -> LocalInferError:
    """One line that also says which known name is the nearest, if one is near."""
    near = difflib.get_close_matches(name[:80].lower(), known, n=1, cutoff=0.5)
    hint = f"; the nearest name that is: {near[0]}" if near else ""
    return f.error(key, f"{printable(repr(name), 80)} is not known{hint}", Unsupported)
