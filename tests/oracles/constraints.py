"""Shared helpers for tests of constraints: a byte vocabulary, and llama.cpp's grammars as a reference."""

import ctypes
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from numpy.typing import NDArray

from localinfer import tokenizer
from localinfer.generation.structured.constraint_source import constraint_source
from localinfer.generation.structured.constraint_spec import ConstraintSpec, compile_constraint, gbnf_to_grammar
from localinfer.generation.structured.vocabulary import Vocabulary
from localinfer.generation.structured.worker import Worker, WorkerVocabulary
from localinfer.gguf.reader import open_gguf
from localinfer.options import Options

Mask = NDArray[np.bool_]


class ByteTokenizer:
    """A tokenizer with a token for each byte, and an end token."""

    n_vocab, bos, eog = 257, None, frozenset({256})

    def token_bytes(self, id: int, *, special: bool = False) -> bytes:
        return bytes([id]) if id < 256 else b""

    def encode(self, text: str, *, add_special: bool = True, continues_text: bool = False) -> list[int]:
        return list(text.encode())


BYTES = Vocabulary(ByteTokenizer(), 257)  # type: ignore[arg-type]


def trie_of(vocabulary: Vocabulary) -> LLTokenizer:
    """Return the trie that a worker builds."""
    return Worker(worker_vocabulary(vocabulary)).trie


def worker_vocabulary(vocabulary: Vocabulary) -> WorkerVocabulary:
    """Return the vocabulary that a worker receives."""
    end, text, lengths = vocabulary.frames
    return WorkerVocabulary(int(end), text, lengths, vocabulary.encode)


BYTE_TRIE = trie_of(BYTES)


def constraint_spec(**options: object) -> ConstraintSpec:
    return compile_constraint(constraint_source(Options(**options)))  # type: ignore[arg-type]


def matcher_of(grammar: str) -> LLMatcher:
    matcher = LLMatcher(BYTE_TRIE, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return matcher


def allowed_by_llama_cpp(path: Path, grammar: str, text: str) -> Iterator[tuple[Mask, Mask, Mask]]:
    """Yield, before each token of the text and at its end, our mask, llama.cpp's mask, and the mask of plain tokens."""
    import llama_cpp as peer

    tokens = tokenizer.from_gguf(open_gguf(path))
    vocabulary = Vocabulary(tokens, tokens.n_vocab)
    matcher = LLMatcher(trie_of(vocabulary), gbnf_to_grammar(grammar, "--grammar"), log_level=0)
    plain = np.array([is_plain(tokens.token_bytes(id)) for id in range(tokens.n_vocab)])
    parameters = peer.llama_model_default_params()
    parameters.vocab_only = True
    model = peer.llama_model_load_from_file(str(path).encode(), parameters)
    sampler = peer.llama_sampler_init_grammar(peer.llama_model_get_vocab(model), grammar.encode(), b"root")
    data = (peer.llama_token_data * tokens.n_vocab)()
    view = np.frombuffer(data, [("id", "i4"), ("logit", "f4"), ("p", "f4")])
    for id in [*tokens.encode(text, add_special=False), None]:
        view["id"], view["logit"] = np.arange(tokens.n_vocab), 0
        array = peer.llama_token_data_array(data=data, size=tokens.n_vocab, selected=-1, sorted=False)
        peer.llama_sampler_apply(sampler, ctypes.byref(array))
        yield vocabulary.unpack_mask(matcher.compute_bitmask()), view["logit"] > -1, plain
        if id is not None:
            peer.llama_sampler_accept(sampler, id)
            assert matcher.consume_token(id)
    peer.llama_sampler_free(sampler)
    peer.llama_model_free(model)


def is_plain(token: bytes) -> bool:
    """Return whether the token consists of at least one whole character."""
    try:
        return bool(token.decode().strip("\0"))
    except UnicodeDecodeError:
        return False


