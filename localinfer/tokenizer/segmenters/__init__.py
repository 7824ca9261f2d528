"""Tokenizer models: how text without special tokens becomes tokens, by `tokenizer.ggml.model`.

gpt2              byte_level.py, with bpe_merger.py
gemma4            character_level.py, with bpe_merger.py; also some values of tokenizer.ggml.pre under gpt2
whitespace        character_level.py
hybriddna         hybrid_dna.py
llama             sentence_piece.py, with sentencepiece_model.py
t5                unigram.py, with charsmap.py and prefix_index.py
bert              word_piece.py
rwkv, plamo2      rwkv.py, plamo2.py
"""

import difflib
import warnings
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Protocol

from localinfer.errors import LocalInferError, UnsupportedError
from localinfer.escaping import printable
from localinfer.gguf.reader import GGUF
from localinfer.tokenizer.pretokenizers import BY_NAME
from localinfer.tokenizer.vocabulary import BosEos, Vocabulary

MODEL, PRE = "tokenizer.ggml.model", "tokenizer.ggml.pre"


class Segmenter(Protocol):
    """Encodes text without special tokens, and returns the bytes of each token."""

    vocabulary: Vocabulary
    bos_eos: BosEos
    adds_space: bool  # whether a space is put in front of a text

    def encode(self, text: str, *, after_special: bool) -> list[int]: ...

    def piece(self, id: int) -> bytes: ...


def make_segmenter(f: GGUF) -> Segmenter:
    """Return the segmenter of a file. Raises LocalInferError or UnsupportedError naming the key at fault."""
    kind = f.get(MODEL, str)
    if kind in ("none", "no_vocab"):
        raise f.error(MODEL, "this file has no vocabulary", UnsupportedError)
    if kind not in TOKENIZER_MODELS:
        raise unknown_name_error(f, MODEL, kind, TOKENIZER_MODELS)
    return TOKENIZER_MODELS[kind](f)


# One function per module, which imports it: a model needs one of them, and importing them all delays each start.


def make_bpe(f: GGUF) -> Segmenter:
    from localinfer.tokenizer.segmenters.byte_level import ByteLevelBPE
    from localinfer.tokenizer.segmenters.character_level import OPTIONS, CharacterBPE

    name = read_pre_tokenizer(f, (*BY_NAME, *OPTIONS))
    return CharacterBPE(f, OPTIONS[name]) if name in OPTIONS else ByteLevelBPE(f, BY_NAME[name])


def make_character_bpe(name: str, f: GGUF) -> Segmenter:
    from localinfer.tokenizer.segmenters.character_level import OPTIONS, CharacterBPE

    return CharacterBPE(f, OPTIONS[name])


def make_hybrid_dna(f: GGUF) -> Segmenter:
    from localinfer.tokenizer.segmenters.hybrid_dna import HybridDna

    return HybridDna(f, BY_NAME[read_pre_tokenizer(f, BY_NAME)])


def make_sentence_piece(f: GGUF) -> Segmenter:
    from localinfer.tokenizer.segmenters.sentence_piece import SentencePieceBPE

    return SentencePieceBPE(f)


def make_unigram(f: GGUF) -> Segmenter:
    from localinfer.tokenizer.segmenters.unigram import Unigram

    return Unigram(f)


def make_word_piece(f: GGUF) -> Segmenter:
    from localinfer.tokenizer.segmenters.word_piece import WordPiece

    return WordPiece(f)


def make_rwkv(f: GGUF) -> Segmenter:
    from localinfer.tokenizer.segmenters.rwkv import Rwkv

    return Rwkv(f)


def make_plamo2(f: GGUF) -> Segmenter:
    from localinfer.tokenizer.segmenters.plamo2 import Plamo2

    return Plamo2(f)


TOKENIZER_MODELS: dict[str, Callable[[GGUF], Segmenter]] = {
    "gpt2": make_bpe,
    "gemma4": partial(make_character_bpe, "gemma4"),
    "whitespace": partial(make_character_bpe, "whitespace"),
    "hybriddna": make_hybrid_dna,
    "llama": make_sentence_piece,
    "t5": make_unigram,
    "bert": make_word_piece,
    "rwkv": make_rwkv,
    "plamo2": make_plamo2,
}


def read_pre_tokenizer(f: GGUF, known: Collection[str]) -> str:
    """Return tokenizer.ggml.pre. Old files without the key use llama.cpp's default, with a warning.

    Raises UnsupportedError for an unknown name: with a wrong pre-tokenizer the model would silently answer worse.
    """
    if PRE not in f.metadata:
        problem = "is missing: the default pre-tokenizer is used, which may not be the model's; convert the model again"
        warnings.warn(str(f.error(PRE, problem)), stacklevel=2)
    name = f.get(PRE, str, "default")
    if name not in known:
        raise unknown_name_error(f, PRE, name, known)
    return name


def unknown_name_error(f: GGUF, key: str, name: str, known: Iterable[str]) -> LocalInferError:
    """Return a one-line error that also suggests the closest known name, if there is one."""
    similar = difflib.get_close_matches(name[:80].lower(), known, n=1, cutoff=0.5)
    hint = f"; did you mean {similar[0]}?" if similar else ""
    return f.error(key, f"{printable(repr(name), 80)} is not supported{hint}", UnsupportedError)
