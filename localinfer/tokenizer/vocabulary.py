"""What a GGUF file says about its tokens: their bytes, scores and types, and which ids are special.

    vocabulary = read_vocabulary(f)
    vocabulary.tokens[5]        # b'...': as the file spells it
    vocabulary.types[5]         # NORMAL, CONTROL, ...
    vocabulary.eog              # the ids that end a generation

Everything is checked here, so that the tokenizers need not. Knows no way to cut text into tokens.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import LocalInferError
from localinfer.files.gguf import GGUF, StringArray
from localinfer.text import printable
from localinfer.tokenizer import marks
from localinfer.tokenizer.marks import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED

__all__ = ["BYTE", "CONTROL", "NORMAL", "UNKNOWN", "UNUSED", "USER_DEFINED", "Vocabulary", "read_vocabulary"]

TOKENS = "tokenizer.ggml.tokens"
MAX_TOKENS = 1 << 20
MAX_TOKEN_BYTES = (1 << 16) - 1
MAX_EMPTY = 1000  # tokens
NO_DEFAULTS: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True)
class Vocabulary:
    """`types` are the file's, except that a token whose text is known to be a mark counts as CONTROL."""

    tokens: StringArray
    types: NDArray[np.int32]  # (n_vocab,)
    bos: int | None
    eos: int | None
    unk: int | None
    sep: int | None
    eog: frozenset[int]
    relabelled: list[int]  # normal ones in the file, but known to be marks

    def __len__(self) -> int:
        return len(self.tokens)

    def ids_of(self, *types: int) -> list[int]:
        """The tokens that have one of these types, in order."""
        ids: list[int] = np.flatnonzero(np.isin(self.types, types)).tolist()
        return ids


def read_vocabulary(f: GGUF, defaults: Mapping[str, int] = NO_DEFAULTS) -> Vocabulary:
    """The vocabulary of an open file; `defaults` are the ids of "bos", ... where the file does not say.

    Raises LocalInferError naming the key that is missing or too short. A key that names a token which is not
    there only warns: converters have written -1 for "none".
    """
    tokens = _tokens(f)
    types = _types(f, len(tokens))
    normal = types == NORMAL

    def named(*names: str) -> dict[str, int]:
        ids = {name: _token_id(f, name, len(tokens), defaults.get(name)) for name in names}
        return {name: id for name, id in ids.items() if id is not None}

    ids = named("bos", "eos", "unknown", "seperator")  # as the key is spelled
    ends = [*named("eos", "eot", "eom").values()]
    roles = {role: id for key, role in marks.ROLE_OF_KEY.items() for id in named(key).values()}
    eog = marks.recognise(marks.find(tokens), types, ends, roles)
    relabelled = np.flatnonzero(normal & (types == CONTROL)).tolist()
    return Vocabulary(
        tokens, types, ids.get("bos"), ids.get("eos"), ids.get("unknown"), ids.get("seperator"), eog, relabelled
    )


class Frame(NamedTuple):
    """The tokens that a whole text begins and ends with: none, or one."""

    first: list[int]
    last: list[int]


def read_frame(f: GGUF, vocabulary: Vocabulary, *, add_bos: bool = False, add_eos: bool = False) -> Frame:
    """What the file asks for; `add_bos` and `add_eos` where it does not say.

    Raises LocalInferError where it asks for a token that it does not name.
    """

    def frame(name: str, id: int | None, default: bool) -> list[int]:
        wanted = f.get(f"tokenizer.ggml.add_{name}_token", bool, default and id is not None)
        if wanted and id is None:
            raise f.error(f"tokenizer.ggml.{name}_token_id", f"missing, but add_{name}_token is true")
        return [id] if wanted and id is not None else []

    return Frame(frame("bos", vocabulary.bos, add_bos), frame("eos", vocabulary.eos, add_eos))


def _tokens(f: GGUF) -> StringArray:
    tokens = f.get(TOKENS, StringArray)
    if not 0 < len(tokens) <= MAX_TOKENS:
        raise f.error(TOKENS, f"{len(tokens)} tokens (1 to {MAX_TOKENS} are possible)")
    longest = int(tokens.lengths.argmax())
    if tokens.lengths[longest] > MAX_TOKEN_BYTES:
        size = tokens.lengths[longest]
        raise f.error(TOKENS, f"token {longest} has {size} bytes (limit {MAX_TOKEN_BYTES})")
    n_empty = len(tokens) - np.count_nonzero(tokens.lengths)
    if n_empty > MAX_EMPTY:
        raise f.error(TOKENS, f"{n_empty} tokens are empty (limit {MAX_EMPTY})")
    return _with_placeholders(tokens) if n_empty else tokens


def same_token_twice(f: GGUF, tokens: StringArray) -> LocalInferError:
    """Which two tokens have the same text: for a vocabulary that a library has refused."""
    ids: dict[bytes, int] = {}
    for id, text in enumerate(tokens):
        if ids.setdefault(text, id) != id:
            shown = printable(repr(text), 80)
            return f.error(TOKENS, f"tokens {ids[text]} and {id} are the same, {shown}")
    return f.error(TOKENS, "not a usable vocabulary")


def _with_placeholders(tokens: StringArray) -> StringArray:
    """The same tokens, but the empty ones have a text of their own: no two tokens may have the same."""
    texts = [text or b"[EMPTY_%d]" % id for id, text in enumerate(tokens)]
    stored = b"".join(len(text).to_bytes(8, "little") + text for text in texts)  # as in a file
    starts = np.cumsum([8] + [len(text) + 8 for text in texts])
    return StringArray(np.frombuffer(stored, np.uint8), starts)


def _types(f: GGUF, n_vocab: int) -> NDArray[np.int32]:
    """A copy, to be changed. A file without types has only normal tokens."""
    key = "tokenizer.ggml.token_type"
    if key not in f.metadata:
        return np.full(n_vocab, NORMAL, np.int32)
    types = read_per_token(f, key, n_vocab)
    if types.dtype.kind not in "iu":
        raise f.error(key, f"the types of tokens are integers, not {types.dtype}")
    return types.astype(np.int32)


def read_scores(f: GGUF, n_vocab: int) -> NDArray[np.float32]:
    """How much each token is wanted, (n_vocab,); LocalInferError for one that is no finite number."""
    key = "tokenizer.ggml.scores"
    scores = read_per_token(f, key, n_vocab).astype(np.float32)
    odd = np.flatnonzero(~np.isfinite(scores))
    if len(odd):
        raise f.error(key, f"the score of token {odd[0]} is {scores[odd[0]]}")
    return scores


def read_per_token(f: GGUF, key: str, n_vocab: int) -> NDArray[np.generic]:
    """A numeric array with a value for every token: (n_vocab,), in the file's own type."""
    values = f.get(key, np.ndarray)
    if len(values) < n_vocab:
        raise f.error(key, f"{len(values)} values for {n_vocab} tokens")
    return values[:n_vocab]


def _token_id(f: GGUF, name: str, n_vocab: int, default: int | None) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    id = f.get(key, int, None)
    if id is not None and id >= n_vocab:
        problem = f"there is no token {id} (the last one is {n_vocab - 1}): the key does not count"
        warnings.warn(str(f.error(key, problem)), stacklevel=2)
        id = None
    if id is None and default is not None and default < n_vocab:
        id = default
    return id
