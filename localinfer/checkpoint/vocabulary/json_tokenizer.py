"""tokenizer.json, as the library `tokenizers` writes it -> the tokens, their merges, and how text is cut into words.

WordPiece and Unigram have files of their own. Two kinds of BPE: one spells bytes as characters (GGUF calls it gpt2),
the other is SentencePiece's, with "▁" for spaces and bytes as a last resort (llama). What the file says about cutting
is compared with what is known, as a whole.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from localinfer.checkpoint.folder import Table
from localinfer.checkpoint.vocabulary import known_tokenizers, unigram, word_piece
from localinfer.checkpoint.vocabulary.tokens import Token, Tokens
from localinfer.errors import Unsupported
from localinfer.text import printable
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
HARMLESS_NORMALIZERS = {"NFC", "Sequence", "Prepend", "Replace"}

# The words of all vocabularies that this program knows are cut by these, which GGUF spells in another way.
CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED = r"[^\r\n\p{{L}}\p{{N}}]?{0}*{1}+{2}|[^\r\n\p{{L}}\p{{N}}]?{0}+{1}*{2}"
MARKED = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"
SPELLED_SPACE = "Ġ"  # of a token: the space between two parts of a merge is another
WHOLE_GPT2, EACH_DIGIT = "ByteLevel", "Digits"  # steps that have a name instead of a pattern

# The steps of cutting -> tokenizer.ggml.pre, where merges are followed and where a word that is a token stays whole.
PRE = {
    (WHOLE_GPT2,): ("gpt-2", "gpt-2"),
    (EACH_DIGIT, WHOLE_GPT2): ("smollm", "smollm"),
    (f"{CONTRACTION}|{LETTERS}|{UP_TO_3_DIGITS}|{SYMBOLS}|{LINES}",): ("smaug-bpe", "llama-bpe"),
    (f"{CONTRACTION}|{LETTERS}|{DIGIT}|{SYMBOLS}|{LINES}",): ("qwen2", "qwen2"),
    (rf"{CONTRACTION}|{MARKED}|{DIGIT}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{LINES}",): ("qwen35", "qwen35"),
    (f"{CASED.format(UPPER, LOWER, '')}|{DIGIT}|{PATHS}",): ("tekken", "tekken"),
    (f"{CASED.format(UPPER, LOWER, CONTRACTION + '?')}|{UP_TO_3_DIGITS}|{PATHS}",): ("gpt-4o", "gpt-4o"),
}


OTHERS = {"WordPiece": word_piece.read, "Unigram": unigram.read}


def read(file: Table, characters: str = "") -> Tokens:
    """Raises LocalInferError naming the key that is odd, Unsupported for what GGUF has no tokenizer for."""
    model = file.table("model")
    kind = model.get("type", str, "BPE")
    if kind in OTHERS:
        return OTHERS[kind](file)
    if kind != "BPE":
        what = f"{printable(repr(kind), 40)} is not supported (only BPE, {', '.join(OTHERS)})"
        raise model.error("type", what, Unsupported)
    ids, pairs = vocabulary_of(model), list(merges_of(model))
    steps = list(flattened(file, "normalizer", "normalizers")), list(flattened(file, "pre_tokenizer", "pretokenizers"))
    for step in steps[0]:
        if step.get("type", str) not in HARMLESS_NORMALIZERS:
            raise step.error("type", f"{printable(repr(step.values['type']), 40)} is not supported", Unsupported)
    if model.get("byte_fallback", bool, False):
        if characters:
            return of_characters(model, ids, pairs, characters)
        return like_sentencepiece(model, ids, pairs, [*steps[0], *steps[1]])
    by_id = {id: Token(text) for text, id in ids.items()}
    merges = [" ".join(part.replace(" ", SPELLED_SPACE) for part in pair) for pair in pairs]
    known = known_tokenizers.find(dict(file.values))
    pre = known or pre_tokenizer(file, steps[1], model.get("ignore_merges", bool, False))
    return Tokens("gpt2", pre, by_id, merges)


def vocabulary_of(model: Table) -> dict[str, int]:
    """Text -> id; no two of them the same."""
    vocab = Table(model.path, model.get("vocab", dict), "model.vocab.")
    ids = {text: vocab.get(text, int) for text in vocab.values}
    if len(set(ids.values())) < len(ids) or min(ids.values(), default=0) < 0:
        raise model.error("vocab", "two tokens have the same id, or one has none")
    return ids


def merges_of(model: Table) -> Iterator[tuple[str, str]]:
    """Pairs of texts, the most frequent first; older files have a space between the two."""
    for place, merge in enumerate(model.get("merges", list)):
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, str) and part for part in pair)):
            raise model.error(f"merges[{place}]", f"{printable(repr(merge), 80)} is not a pair of texts")
        yield pair[0], pair[1]


def flattened(file: Table, key: str, members: str) -> Iterator[Table]:
    """The steps of a normalizer or pre-tokenizer, which may be one, or a sequence of some."""
    step = file.table(key)
    if step.values.get("type") == "Sequence":
        yield from step.tables(members)
    elif step.values:
        yield step


# --- byte-level BPE ---


def pre_tokenizer(file: Table, steps: Sequence[Table], ignore_merges: bool) -> str:
    """GGUF's name for this way of cutting. Never a guess: with the wrong one a model answers, only worse."""
    cuts = tuple(cut for step in steps for cut in cuts_of(step))
    if not steps or steps[-1].values.get("type") != "ByteLevel":
        raise file.error("pre_tokenizer", "neither spells bytes as characters nor falls back to them", Unsupported)
    if cuts not in PRE:
        shown = printable(json.dumps(cuts), 200)
        raise file.error("pre_tokenizer", f"cuts text in a way that is not known: {shown}", Unsupported)
    return PRE[cuts][ignore_merges]


def cuts_of(step: Table) -> Iterator[str]:
    """What a step cuts by: a regular expression, or the name of one that the library has; nothing for spelling only."""
    kind = step.get("type", str)
    if kind == "Split":
        pattern = step.table("pattern")
        yield pattern.get("Regex", str, f"the text {pattern.values.get('String')!r}")
    elif kind == "Digits" and step.get("individual_digits", bool, False):
        yield EACH_DIGIT
    elif kind == "ByteLevel":
        if step.get("add_prefix_space", bool, True):
            raise step.error("add_prefix_space", "is not supported", Unsupported)
        if step.get("use_regex", bool, True):
            yield WHOLE_GPT2
    else:
        yield kind


# --- SentencePiece's BPE ---


def like_sentencepiece(
    model: Table, ids: dict[str, int], pairs: Sequence[tuple[str, str]], steps: Sequence[Table]
) -> Tokens:
    """Scores are what is missing: among neighbours, the union that was merged first in training scores highest."""
    ranks: dict[str, int] = {}
    for first, second in pairs:
        ranks.setdefault(first + second, len(ranks))
    unknown = model.get("unk_token", str, "")

    def token(text: str) -> Token:
        kind = BYTE if text in BYTE_TOKENS else UNKNOWN if text == unknown else NORMAL
        return Token(text, kind, -float(ranks.get(text, len(ranks))) if kind == NORMAL else 0.0)

    by_id = {id: token(text) for text, id in ids.items()}
    return Tokens("llama", "default", by_id, adds_space=any(map(prepends_space, steps)))


def of_characters(model: Table, ids: dict[str, int], pairs: Sequence[tuple[str, str]], kind: str) -> Tokens:
    """The same, where a reader follows the merges themselves."""
    unknown = model.get("unk_token", str, "")
    by_id = {
        id: Token(text, BYTE if text in BYTE_TOKENS else UNKNOWN if text == unknown else NORMAL)
        for text, id in ids.items()
    }
    return Tokens(kind, kind, by_id, [" ".join(pair) for pair in pairs], adds_space=False)


def prepends_space(step: Table) -> bool:
    """Whether a text begins with a space that is not part of it."""
    kind = step.get("type", str)
    scheme: Any = step.values.get("prepend_scheme", "always" if step.values.get("add_prefix_space") else "never")
    return kind == "Prepend" or (kind == "Metaspace" and scheme in ("first", "always"))
