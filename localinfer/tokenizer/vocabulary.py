"""The vocabulary of a GGUF file: token bytes, scores and types, and the ids of special tokens.

    vocabulary = read_vocabulary(f)
    vocabulary.tokens[5]        # b'...': as stored in the file
    vocabulary.types[5]         # NORMAL, CONTROL, ...
    vocabulary.eog              # the end-of-generation ids

Everything is validated here, so the segmenters need no checks.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import LocalInferError
from localinfer.escaping import printable
from localinfer.gguf.reader import GGUF, StringArray
from localinfer.tokenizer import known_special_tokens
from localinfer.tokenizer.known_special_tokens import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED

__all__ = ["BYTE", "CONTROL", "NORMAL", "UNKNOWN", "UNUSED", "USER_DEFINED", "Vocabulary", "read_vocabulary"]

TOKENS = "tokenizer.ggml.tokens"
SUPPRESSED = "tokenizer.ggml.suppress_tokens"
MAX_TOKENS = 1 << 20
MAX_TOKEN_BYTES = (1 << 16) - 1
MAX_EMPTY = 1000  # tokens
NO_DEFAULTS: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a file. `types` are the file's, except that a token whose text is a known special token counts as
    CONTROL.
    """

    tokens: StringArray
    types: NDArray[np.int32]  # (n_vocab,)
    bos: int | None
    eos: int | None
    unk: int | None
    sep: int | None
    eog: frozenset[int]
    fim: Mapping[str, int]  # fill-in-the-middle tokens by role: pre, suf, mid, pad, rep, sep
    relabelled: list[int]  # NORMAL in the file, but known to be special tokens
    suppressed: frozenset[int]  # tokens that must never be generated

    def __len__(self) -> int:
        return len(self.tokens)

    def ids_of(self, *types: int) -> list[int]:
        """Return the ids of the tokens with one of these types, in order."""
        ids: list[int] = np.flatnonzero(np.isin(self.types, types)).tolist()
        return ids


def read_vocabulary(f: GGUF, defaults: Mapping[str, int] = NO_DEFAULTS) -> Vocabulary:
    """Read the vocabulary of an open file. `defaults` are the ids of "bos", ... if the file does not state them.

    Raises LocalInferError naming the key that is missing or too short. A key that names a nonexistent token only
    warns: some converters wrote -1 for "none".
    """
    tokens = _tokens(f)
    types = _types(f, len(tokens))
    normal = types == NORMAL

    def named(*names: str) -> dict[str, int]:
        ids = {name: _token_id(f, name, len(tokens), defaults.get(name)) for name in names}
        return {name: id for name, id in ids.items() if id is not None}

    ids = named("bos", "eos", "unknown", "seperator")  # sic: the name of GGUF's key
    ends = [*named("eos", "eot", "eom").values()]
    roles = {role: id for key, role in known_special_tokens.FIM_ROLE_BY_KEY.items() for id in named(key).values()}
    known = known_special_tokens.find_tokens(tokens)
    eog = known_special_tokens.classify(known, types, ends, roles)
    fim = known_special_tokens.fill_in_the_middle_tokens(known, roles)
    relabelled = np.flatnonzero(normal & (types == CONTROL)).tolist()
    return Vocabulary(
        tokens, types, ids.get("bos"), ids.get("eos"), ids.get("unknown"), ids.get("seperator"), eog, fim,
        relabelled, _suppressed_tokens(f, len(tokens)),
    )


class BosEos(NamedTuple):
    """The tokens added before and after a whole text: none or one each."""

    first: list[int]
    last: list[int]


def read_bos_eos(f: GGUF, vocabulary: Vocabulary, *, add_bos: bool = False, add_eos: bool = False) -> BosEos:
    """Return the BOS and EOS tokens to add; `add_bos` and `add_eos` are the defaults if the file does not state it.

    Raises LocalInferError if the file requires a token that it does not name.
    """

    def tokens_to_add(name: str, id: int | None, default: bool) -> list[int]:
        is_added = f.get(f"tokenizer.ggml.add_{name}_token", bool, default and id is not None)
        if is_added and id is None:
            raise f.error(f"tokenizer.ggml.{name}_token_id", f"missing, but add_{name}_token is true")
        return [id] if is_added and id is not None else []

    return BosEos(tokens_to_add("bos", vocabulary.bos, add_bos), tokens_to_add("eos", vocabulary.eos, add_eos))


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


def duplicate_token_error(f: GGUF, tokens: StringArray) -> LocalInferError:
    """Return an error that names two tokens with the same text, for a vocabulary that a library rejected."""
    ids: dict[bytes, int] = {}
    for id, text in enumerate(tokens):
        if ids.setdefault(text, id) != id:
            shown = printable(repr(text), 80)
            return f.error(TOKENS, f"tokens {ids[text]} and {id} are the same, {shown}")
    return f.error(TOKENS, "not a usable vocabulary")


def _with_placeholders(tokens: StringArray) -> StringArray:
    """Return the same tokens with a unique text for each empty one, because token texts must be unique."""
    texts = [text or b"[EMPTY_%d]" % id for id, text in enumerate(tokens)]
    stored = b"".join(len(text).to_bytes(8, "little") + text for text in texts)  # as in a file
    starts = np.cumsum([8] + [len(text) + 8 for text in texts])
    return StringArray(np.frombuffer(stored, np.uint8), starts)


def _types(f: GGUF, n_vocab: int) -> NDArray[np.int32]:
    """Return a copy of the token types. A file without types has only normal tokens."""
    key = "tokenizer.ggml.token_type"
    if key not in f.metadata:
        return np.full(n_vocab, NORMAL, np.int32)
    types = read_per_token(f, key, n_vocab)
    if types.dtype.kind not in "iu":
        raise f.error(key, f"the types of tokens are integers, not {types.dtype}")
    return types.astype(np.int32)


def read_scores(f: GGUF, n_vocab: int) -> NDArray[np.float32]:
    """Return the score of each token, (n_vocab,). Raises LocalInferError if one is not finite."""
    key = "tokenizer.ggml.scores"
    scores = read_per_token(f, key, n_vocab).astype(np.float32)
    invalid = np.flatnonzero(~np.isfinite(scores))
    if len(invalid):
        raise f.error(key, f"the score of token {invalid[0]} is {scores[invalid[0]]}")
    return scores


def read_per_token(f: GGUF, key: str, n_vocab: int) -> NDArray[np.generic]:
    """Return a numeric array with one value per token, (n_vocab,), in the file's own dtype."""
    values = f.get(key, np.ndarray)
    if len(values) < n_vocab:
        raise f.error(key, f"{len(values)} values for {n_vocab} tokens")
    return values[:n_vocab]


def _suppressed_tokens(f: GGUF, n_vocab: int) -> frozenset[int]:
    """Return the ids of tokens that must never be generated. Ids of tokens that do not exist are ignored."""
    if SUPPRESSED not in f.metadata:
        return frozenset()
    listed = f.get(SUPPRESSED, np.ndarray)
    if listed.dtype.kind not in "iu":
        raise f.error(SUPPRESSED, f"the ids of tokens are integers, not {listed.dtype}")
    ids = frozenset(id for id in listed.astype(np.int64).tolist() if 0 <= id < n_vocab)
    if len(ids) == n_vocab:
        raise f.error(SUPPRESSED, "lists all tokens: none is left to generate")
    return ids


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
