"""Read tokenizer.json of the `tokenizers` library: tokens, merges, and the pre-tokenizer.

WordPiece and Unigram have separate modules. Two kinds of BPE are read here: byte-level BPE, which writes bytes
as characters (gpt2 in GGUF), and SentencePiece's, with "▁" for spaces and byte fallback (llama in GGUF). The
sequence of pre-tokenizer steps must match a known one as a whole.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.vocabulary import known_tokenizers, unigram, word_piece
from localinfer.conversion.vocabulary.token_list import Token, TokenList
from localinfer.errors import UnsupportedError
from localinfer.escaping import printable
from localinfer.tokenizer.pretokenizers import (
    DIGIT,
    LETTERS,
    LINES,
    PATHS,
    SYMBOLS,
    UP_TO_3_DIGITS,
)
from localinfer.tokenizer.vocabulary import BYTE, NORMAL, UNKNOWN

NAME = "tokenizer.json"
BYTE_TOKENS = frozenset(f"<0x{byte:02X}>" for byte in range(256))
SUPPORTED_NORMALIZERS = {"NFC", "Sequence", "Prepend", "Replace"}

# The splitting patterns of all known pre-tokenizers; GGUF readers write them differently.
CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED = r"[^\r\n\p{{L}}\p{{N}}]?{0}*{1}+{2}|[^\r\n\p{{L}}\p{{N}}]?{0}+{1}*{2}"
LETTERS_WITH_MARKS = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"
SPACE_SYMBOL = "Ġ"  # space within a token, unlike the space between the two texts of a merge
GPT2_REGEX, EACH_DIGIT = "ByteLevel", "Digits"  # steps with a name instead of a pattern

# Splitting steps -> tokenizer.ggml.pre without and with ignore_merges.
PRE_TOKENIZERS = {
    (GPT2_REGEX,): ("gpt-2", "gpt-2"),
    (EACH_DIGIT, GPT2_REGEX): ("smollm", "smollm"),
    (f"{CONTRACTION}|{LETTERS}|{UP_TO_3_DIGITS}|{SYMBOLS}|{LINES}",): ("smaug-bpe", "llama-bpe"),
    (f"{CONTRACTION}|{LETTERS}|{DIGIT}|{SYMBOLS}|{LINES}",): ("qwen2", "qwen2"),
    (rf"{CONTRACTION}|{LETTERS_WITH_MARKS}|{DIGIT}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{LINES}",): (
        "qwen35",
        "qwen35",
    ),
    (f"{CASED.format(UPPER, LOWER, '')}|{DIGIT}|{PATHS}",): ("tekken", "tekken"),
    (f"{CASED.format(UPPER, LOWER, CONTRACTION + '?')}|{UP_TO_3_DIGITS}|{PATHS}",): ("gpt-4o", "gpt-4o"),
}


OTHER_MODELS = {"WordPiece": word_piece.read, "Unigram": unigram.read}


def read(file: JsonObject, characters: str = "") -> TokenList:
    """Read the tokenizer. Raises LocalInferError naming an invalid key, UnsupportedError if GGUF cannot express it."""
    model = file.child("model")
    kind = model.get("type", str, "BPE")
    if kind in OTHER_MODELS:
        return OTHER_MODELS[kind](file)
    if kind != "BPE":
        what = f"{printable(repr(kind), 40)} is not supported (only BPE, {', '.join(OTHER_MODELS)})"
        raise model.error("type", what, UnsupportedError)
    ids, pairs = read_vocabulary(model), list(read_merges(model))
    steps = (
        list(flatten_steps(file, "normalizer", "normalizers")),
        list(flatten_steps(file, "pre_tokenizer", "pretokenizers")),
    )
    for step in steps[0]:
        if step.get("type", str) not in SUPPORTED_NORMALIZERS:
            raise step.error("type", f"{printable(repr(step.values['type']), 40)} is not supported", UnsupportedError)
    if model.get("byte_fallback", bool, False):
        if characters:
            return character_bpe_tokens(model, ids, pairs, characters)
        return sentencepiece_tokens(model, ids, pairs, [*steps[0], *steps[1]])
    by_id = {id: Token(text) for text, id in ids.items()}
    merges = [" ".join(half.replace(" ", SPACE_SYMBOL) for half in pair) for pair in pairs]
    known = known_tokenizers.identify(dict(file.values))
    for step in steps[0]:
        if not known and step.get("type", str) in ("Prepend", "Replace"):
            raise step.error("type", f"{step.get('type', str)} with byte-level BPE is not supported", UnsupportedError)
    pre = known or pre_tokenizer(file, steps[1], model.get("ignore_merges", bool, False))
    return TokenList("gpt2", pre, by_id, merges)


def read_vocabulary(model: JsonObject) -> dict[str, int]:
    """Return text -> id; ids must be unique."""
    vocab = JsonObject(model.path, model.get("vocab", dict), "model.vocab.")
    ids = {text: vocab.get(text, int) for text in vocab.values}
    if len(set(ids.values())) < len(ids) or min(ids.values(), default=0) < 0:
        raise model.error("vocab", "two tokens have the same id, or one has none")
    return ids


def read_merges(model: JsonObject) -> Iterator[tuple[str, str]]:
    """Yield pairs of texts in order of their rank; older files separate the two by a space."""
    for index, merge in enumerate(model.get("merges", list)):
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(text, str) and text for text in pair)):
            raise model.error(f"merges[{index}]", f"{printable(repr(merge), 80)} is not a pair of strings")
        yield pair[0], pair[1]


def flatten_steps(file: JsonObject, key: str, list_key: str) -> Iterator[JsonObject]:
    """Yield the steps of a normalizer or pre-tokenizer, which may be a single step or a sequence."""
    step = file.child(key)
    if step.values.get("type") == "Sequence":
        yield from step.children(list_key)
    elif step.values:
        yield step


# --- byte-level BPE ---


def pre_tokenizer(file: JsonObject, steps: Sequence[JsonObject], ignore_merges: bool) -> str:
    """Return GGUF's name of the pre-tokenizer.

    Raises UnsupportedError if no known one matches: with a wrong one a model silently answers worse.
    """
    cuts = tuple(cut for step in steps for cut in step_patterns(step))
    if not steps or steps[-1].values.get("type") != "ByteLevel":
        raise file.error("pre_tokenizer", "has neither a ByteLevel step nor byte fallback", UnsupportedError)
    if cuts not in PRE_TOKENIZERS:
        shown = printable(json.dumps(cuts), 200)
        raise file.error("pre_tokenizer", f"unknown splitting patterns: {shown}", UnsupportedError)
    return PRE_TOKENIZERS[cuts][ignore_merges]


def step_patterns(step: JsonObject) -> Iterator[str]:
    """Yield the pattern or name of a splitting step; nothing for a step that only converts bytes to characters."""
    kind = step.get("type", str)
    if kind == "Split":
        pattern = step.child("pattern")
        yield pattern.get("Regex", str, f"the text {pattern.values.get('String')!r}")
    elif kind == "Digits" and step.get("individual_digits", bool, False):
        yield EACH_DIGIT
    elif kind == "ByteLevel":
        if step.get("add_prefix_space", bool, True):
            raise step.error("add_prefix_space", "is not supported", UnsupportedError)
        if step.get("use_regex", bool, True):
            yield GPT2_REGEX
    else:
        yield kind


# --- SentencePiece's BPE ---


def sentencepiece_tokens(
    model: JsonObject, ids: dict[str, int], pairs: Sequence[tuple[str, str]], steps: Sequence[JsonObject]
) -> TokenList:
    """Return the tokens with scores derived from the order of the merges: an earlier merge has a higher score."""
    ranks: dict[str, int] = {}
    for first, second in pairs:
        ranks.setdefault(first + second, len(ranks))
    unknown = model.get("unk_token", str, "")

    def token(text: str) -> Token:
        kind = BYTE if text in BYTE_TOKENS else UNKNOWN if text == unknown else NORMAL
        return Token(text, kind, -float(ranks.get(text, len(ranks))) if kind == NORMAL else 0.0)

    by_id = {id: token(text) for text, id in ids.items()}
    return TokenList("llama", "default", by_id, adds_space=any(map(prepends_space, steps)))


def character_bpe_tokens(
    model: JsonObject, ids: dict[str, int], pairs: Sequence[tuple[str, str]], kind: str
) -> TokenList:
    """Return the tokens of a character-level BPE, where readers use the merges themselves."""
    unknown = model.get("unk_token", str, "")
    by_id = {
        id: Token(text, BYTE if text in BYTE_TOKENS else UNKNOWN if text == unknown else NORMAL)
        for text, id in ids.items()
    }
    return TokenList(kind, kind, by_id, [" ".join(pair) for pair in pairs], adds_space=False)


def prepends_space(step: JsonObject) -> bool:
    """Return whether a step puts a space in front of a text."""
    kind = step.get("type", str)
    scheme: Any = step.values.get("prepend_scheme", "always" if step.values.get("add_prefix_space") else "never")
    return kind == "Prepend" or (kind == "Metaspace" and scheme in ("first", "always"))
