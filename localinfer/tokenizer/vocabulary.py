"""What a GGUF file says about its tokens: their bytes, scores and types, and which ids are special.

    vocabulary = read_vocabulary(f)
    vocabulary.tokens[5]        # b'...': as the file spells it
    vocabulary.types[5]         # NORMAL, CONTROL, ...
    vocabulary.eog              # the ids that end a generation

Everything is checked here, so that the tokenizers need not. Knows nothing of how text is cut into tokens.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import LocalInferError
from localinfer.files.gguf import GGUF, StringArray
from localinfer.text import printable

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # tokenizer.ggml.token_type

MAX_TOKENS = 1 << 20
MAX_TOKEN_BYTES = (1 << 16) - 1
MAX_EMPTY = 1000  # tokens

# A file names at most one end of a turn, and often not the right one: tokens are also known by their text.
ENDS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
    "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>",
    "<｜end▁of▁sentence｜>", "[e~[",
)  # fmt: skip
# Where a code model fills in the middle. Of several spellings of a role, the first that the file has counts.
FILL_IN_MIDDLE = {
    "pre": (
        "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>",
        "<|code_prefix|>", "<|prefix|>",
    ),
    "suf": (
        "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>",
        "<|code_suffix|>", "<|suffix|>",
    ),
    "mid": (
        "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>",
        "<|code_middle|>", "<|middle|>",
    ),
    "pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "sep": ("<|file_sep|>",),
}  # fmt: skip
FILL_IN_MIDDLE_ENDS = ("pad", "rep", "sep")  # with these the model goes on to another document
CHANNEL_MARKS = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")  # of gpt-oss: part of the output
KNOWN_TEXTS = frozenset((*ENDS, *CHANNEL_MARKS, *chain.from_iterable(FILL_IN_MIDDLE.values())))


@dataclass(frozen=True)
class Vocabulary:
    """`types` are the file's, except that a token whose text is known to be a mark counts as CONTROL."""

    tokens: StringArray
    types: NDArray[np.int32]  # (n_vocab,)
    bos: int | None
    eos: int | None
    unk: int | None
    eog: frozenset[int]
    relabelled: list[int]  # normal ones in the file, but known to be marks

    def __len__(self) -> int:
        return len(self.tokens)

    def ids_of(self, *types: int) -> list[int]:
        """The tokens that have one of these types, in order."""
        ids: list[int] = np.flatnonzero(np.isin(self.types, types)).tolist()
        return ids


def read_vocabulary(f: GGUF, defaults: Mapping[str, int]) -> Vocabulary:
    """The vocabulary of an open file; `defaults` are the ids of "bos", ... where the file does not say.

    Raises LocalInferError naming the key that is missing, too short, or that names a token that is not there.
    """
    tokens = _tokens(f)
    types = _types(f, len(tokens))
    ids = {name: _token_id(f, name, len(tokens)) for name in ("bos", "eos", "eot", "eom", "unknown")}
    for name, default in defaults.items():
        if ids[name] is None and default < len(tokens):
            ids[name] = default
    ends = {id for id in (ids["eos"], ids["eot"], ids["eom"]) if id is not None}
    for role in FILL_IN_MIDDLE_ENDS:
        id = _token_id(f, f"fim_{role}", len(tokens))
        ends |= set() if id is None else {id}
    normal = types == NORMAL
    eog = _recognise(_find(tokens, KNOWN_TEXTS), types, ends)
    relabelled = np.flatnonzero(normal & (types == CONTROL)).tolist()
    return Vocabulary(tokens, types, ids["bos"], ids["eos"], ids["unknown"], eog, relabelled)


def _tokens(f: GGUF) -> StringArray:
    key = "tokenizer.ggml.tokens"
    tokens = f.get(key, StringArray)
    if not 0 < len(tokens) <= MAX_TOKENS:
        raise f.error(key, f"{len(tokens)} tokens (1 to {MAX_TOKENS} are possible)")
    longest = int(tokens.lengths.argmax())
    if tokens.lengths[longest] > MAX_TOKEN_BYTES:
        size = tokens.lengths[longest]
        raise f.error(key, f"token {longest} has {size} bytes (limit {MAX_TOKEN_BYTES})")
    n_empty = len(tokens) - np.count_nonzero(tokens.lengths)
    if n_empty > MAX_EMPTY:
        raise f.error(key, f"{n_empty} tokens are empty (limit {MAX_EMPTY})")
    return _with_placeholders(tokens) if n_empty else tokens


def same_token_twice(f: GGUF, tokens: StringArray) -> LocalInferError:
    """Which two tokens have the same text: for a vocabulary that a library has refused."""
    ids: dict[bytes, int] = {}
    for id, text in enumerate(tokens):
        if ids.setdefault(text, id) != id:
            shown = printable(repr(text), 80)
            return f.error("tokenizer.ggml.tokens", f"tokens {ids[text]} and {id} are the same, {shown}")
    return f.error("tokenizer.ggml.tokens", "not a usable vocabulary")


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


def read_per_token(f: GGUF, key: str, n_vocab: int) -> NDArray[np.generic]:
    """A numeric array with a value for every token: (n_vocab,), in the file's own type."""
    values = f.get(key, np.ndarray)
    if len(values) < n_vocab:
        raise f.error(key, f"{len(values)} values for {n_vocab} tokens")
    return values[:n_vocab]


def _token_id(f: GGUF, name: str, n_vocab: int) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    id = f.get(key, int, None)
    if id is not None and id >= n_vocab:
        raise f.error(key, f"there is no token {id} (the last one is {n_vocab - 1})")
    return id


def _find(tokens: StringArray, texts: Collection[str]) -> dict[str, int]:
    """Which of `texts` are tokens, and their ids.

    Only the tokens whose first two bytes and last byte are those of a text are looked at: thousands of others
    begin with "<" and end with ">".
    """
    wanted = {text.encode(): text for text in texts}
    starts_alike, frames_alike = np.zeros((2, 256, 256), bool)
    for text in wanted:
        starts_alike[text[0], text[1]] = frames_alike[text[0], text[-1]] = True
    first = tokens.data[tokens.offsets]
    second = tokens.data[tokens.offsets + np.minimum(tokens.lengths - 1, 1)]
    last = tokens.data[tokens.offsets + tokens.lengths - 1]
    alike = np.flatnonzero(starts_alike[first, second] & frames_alike[first, last])
    candidates = ((id, tokens[id]) for id in alike.tolist())
    return {wanted[text]: id for id, text in candidates if text in wanted}


def _recognise(found: Mapping[str, int], types: NDArray[np.int32], ends: Collection[int]) -> frozenset[int]:
    """All ids that end a generation: `ends` and those known by their text, whose `types` are put right."""
    eog = set(ends) | {found[text] for text in ENDS if text in found}
    types[[found[text] for text in ENDS if text in found]] = CONTROL
    for role, texts in FILL_IN_MIDDLE.items():
        spelled = [found[text] for text in texts if text in found][:1]
        types[spelled] = CONTROL
        eog |= set(spelled) if role in FILL_IN_MIDDLE_ENDS else set()
    types[[found[text] for text in CHANNEL_MARKS if text in found]] = USER_DEFINED
    _keep_turns_of_channels(found, types, eog)
    return frozenset(eog)


def _keep_turns_of_channels(found: Mapping[str, int], types: NDArray[np.int32], eog: set[int]) -> None:
    """Where an answer has several messages, what ends one message does not end the answer."""
    calls = "<|call|>" in found or "<|calls|>" in found
    if "<|end|>" in found and calls and ("<|return|>" in found or "<|flush|>" in found):
        eog.discard(found["<|end|>"])
        types[found["<|end|>"]] = USER_DEFINED
    if "</s>" in found and "<|tool_response>" in found:
        eog.discard(found["</s>"])
        types[found["</s>"]] = NORMAL
