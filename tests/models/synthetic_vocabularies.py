"""Synthetic vocabularies of every tokenizer model of llama.cpp: files without tensors, with some hundred tokens.

    write(path, VOCABULARIES["unigram"]())
    write(path, every_pair() | {"pre": "tekken"})

Merges and scores are useful only for tests: a different word boundary yields different tokens. Keys are those of
tokenizer.ggml. Independent of localinfer's code.
"""

import hashlib
import itertools
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
from tiny import Field, add_key, as_field, byte_level_alphabet
from tokenizer_texts import CODE, EMOJI, LANGUAGES, NUMBERS, SYMBOLS

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
TEXT = "\n".join((*LANGUAGES, *CODE, *NUMBERS, *EMOJI, *SYMBOLS, "  two   spaces\r\n\n\n\tand a tab"))

Keys = dict[str, Any]


def write(path: Path, keys: Mapping[str, Any], **general: str) -> Path:
    """Write a vocabulary as a GGUF file. `general` are keys such as name="Phi-3"."""
    writer = gguf.GGUFWriter(path, general.pop("architecture", "llama"))
    for key, value in general.items():
        writer.add_string(f"general.{key}", value)
    for key, value in keys.items():
        if value is not None:
            add_key(writer, f"tokenizer.ggml.{key}", as_field(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def keys_of(model: str, special: Sequence[str], normal: Sequence[str], **keys: Any) -> Keys:
    """Return the keys of a vocabulary: control tokens, then normal tokens in order, without duplicates."""
    tokens = list(dict.fromkeys((*special, *normal)))
    types = [CONTROL if token in special else BYTE if token in BYTE_TOKENS else NORMAL for token in tokens]
    return {"model": model, "tokens": strings(tokens), "token_type": Field("ARRAY", types, "INT32"), **keys}


def strings(values: Sequence[str]) -> Field:
    return Field("ARRAY", values, "STRING")


def scores(keys: Keys) -> Field:
    """Return random scores of the normal tokens, between -15 and 0, some of them equal."""
    draw = random.Random(1).random
    types = keys["token_type"].value
    values = [-round(15 * draw(), int(4 * draw())) if type in (NORMAL, UNUSED) else 0.0 for type in types]
    return Field("ARRAY", values, "FLOAT32")


def substrings(n: int, longest: int, seed: int, text: str = TEXT) -> Iterator[str]:
    """Yield `n` random substrings of a text with 1 to `longest` characters."""
    draw = random.Random(seed).random
    for _ in range(n):
        start = int(draw() * len(text))
        yield text[start : start + 1 + int(draw() * longest)]


def digest_of_ids(encode: Callable[..., list[int]], texts: Iterable[str]) -> str:
    """Return a digest of the ids of all texts, each as plain text and with special tokens parsed and added."""
    both = ({"add_special": flag, "parse_special": flag} for flag in (False, True))
    ids = [encode(text, **flags) for text, flags in itertools.product(texts, both)]
    return hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:32]


# ------------------------------------------------------------------------------------------------ BPE

LETTERS = "aBst'.!/-($~ 1\n\r\té\u0301ſ字か가٣½\xa0\u3000、“😀"


def every_pair(alphabet: str = LETTERS) -> Keys:
    """Return byte-level BPE in which any two bytes may merge, in a random order, but no three."""
    spelled = byte_level_alphabet()
    chars = [spelled[byte] for byte in sorted(set(alphabet.encode()))]
    pairs = [*itertools.product(chars, chars)]
    draw = random.Random(2).random
    pairs.sort(key=lambda _: draw())
    merges = strings([f"{first} {second}" for first, second in pairs])
    tokens = [*spelled, *(first + second for first, second in pairs)]
    return keys_of("gpt2", ["<s>"], tokens, merges=merges, bos_token_id=0, eos_token_id=0)


def mixed_letters(n: int) -> list[str]:
    """Return random texts of these characters."""
    draw = random.Random(8).random
    return ["".join(LETTERS[int(draw() * len(LETTERS))] for _ in range(40)) for _ in range(n)]


def characters(pre: str, *, byte_tokens: bool = True) -> Keys:
    """Return BPE of characters, some without a token. Runs of line breaks are tokens that do not result from merges."""
    text = TEXT.replace(" ", "▁") if pre != "whitespace" else "".join(TEXT.split())
    known = [char for char in dict.fromkeys(text) if char not in "xyz字😀"]
    created, merges = set(known), []
    for piece in substrings(4000, 6, seed=3, text=text):
        halves = piece[: len(piece) // 2], piece[len(piece) // 2 :]
        if piece not in created and created.issuperset(halves) and "\n" not in piece:
            created.add(piece)
            merges.append(" ".join(halves))
    tokens = [
        *(BYTE_TOKENS if byte_tokens else []),
        *known,
        *(merge.replace(" ", "") for merge in merges),
        "\n\n",
        "\n\n\n",
    ]
    ids = {"bos_token_id": 0, "eos_token_id": 1, "unknown_token_id": 2}
    model = {"gemma4": "gemma4", "whitespace": "whitespace"}.get(pre, "gpt2")
    return keys_of(model, ["<s>", "<end>", "<unk>"], tokens, pre=pre, merges=strings(merges), **ids)


def genes() -> Keys:
    """Return byte-level BPE with six DNA letters per token between two tags."""
    keys = every_pair()
    kmers = ["".join(letters) + "\ue000" for letters in itertools.product("ACGT", repeat=6)]
    tokens = [*keys["tokens"].value[1:], "<dna>", "</dna>", "<oov>", *kmers]
    return keys | keys_of("hybriddna", ["<s>"], tokens, pre="gpt-2")


# ------------------------------------------------------------------------------------------ the others


def unigram(**keys: Any) -> Keys:
    pieces = (piece.replace(" ", "▁") for piece in substrings(1500, 7, seed=4))
    created = keys_of("t5", ["<pad>", "</s>", "<unk>"], [*pieces, "[PAD1]"], precompiled_charsmap=charsmap(), **keys)
    created["token_type"].value[-1] = UNUSED
    return created | {"scores": scores(created)}


def word_pieces(**keys: Any) -> Keys:
    """Return a WordPiece vocabulary with lower and upper case letters, with and without accents."""
    pieces = [piece for piece in substrings(3000, 6, seed=5) if not set(piece) & set(" \t\r\n")]
    pieces += [piece.lower() for piece in pieces]
    tokens = [f"▁{piece}" if position % 2 else piece for position, piece in enumerate(pieces)]
    tokens += [f"▁{char}" for char in dict.fromkeys(TEXT) if not char.isspace()]
    ids = {"unknown_token_id": 1, "bos_token_id": 2, "seperator_token_id": 3}
    return keys_of("bert", ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], tokens, **ids, **keys)


def rwkv() -> Keys:
    """Return RWKV's vocabulary of byte strings; some end within a character."""
    content = TEXT.encode()
    draw = random.Random(6).random
    starts = (int(draw() * len(content)) for _ in range(1500))
    tokens = [bytes([byte]) for byte in range(256)] + [content[start : start + 2 + int(draw() * 9)] for start in starts]
    spelled = [repr(token)[2:-1] for token in tokens]
    return keys_of("rwkv", ["<|rwkv|>"], spelled, bos_token_id=0, eos_token_id=0)


def plamo2() -> Keys:
    special = ["<|plamo:unk|>", "<|plamo:bos|>", "<|plamo:eos|>", "<|plamo:pad|>"]
    created = keys_of("plamo2", special, [*BYTE_TOKENS, *substrings(1500, 7, seed=7)], pre="default")
    return created | {"scores": scores(created), "add_space_prefix": False}


VOCABULARIES: dict[str, Callable[[], Keys]] = {
    "gemma4": lambda: characters("gemma4"),
    "sarvam-moe": lambda: characters("sarvam-moe", byte_tokens=False),
    "whitespace": lambda: characters("whitespace", byte_tokens=False) | {"normalizer.lowercase": True},
    "hybriddna": genes,
    "unigram": lambda: unigram(add_space_prefix=True, remove_extra_whitespaces=True),
    "unigram, all spaces": lambda: unigram(add_space_prefix=True, remove_extra_whitespaces=False),
    "unigram, bare": unigram,
    "word pieces": word_pieces,
    "word pieces, cased": lambda: word_pieces(**{"normalizer.lowercase": False}),
    "rwkv": rwkv,
    "plamo2": plamo2,
}


# ---------------------------------------------------------------------------- a precompiled charsmap

REPLACED = {
    "\t": " ", "\n": " ", "\r": " ", "\u3000": " ", "\u200b": "", "ﬁ": "fi", "½": "1⁄2", "１": "1", "２": "2",
    "e\u0301": "é", "a\u0300": "à", "a\u0300\u0301": "à\u0301", "\u1100\u1161\u11a8": "\uac01", "…": "...",
}  # fmt: skip


def charsmap(replaced: Mapping[str, str] = REPLACED) -> Field:
    """Return a charsmap in SentencePiece's format: see localinfer/tokenizer/segmenters/charsmap.py. Each node occupies
    256 units.
    """
    nodes: list[dict[int, int]] = [{}]  # byte -> node
    replacement_of: dict[int, str] = {}
    for text, replacement in replaced.items():
        node = 0
        for byte in text.encode():
            if byte not in nodes[node]:
                nodes[node][byte] = len(nodes)
                nodes.append({})
            node = nodes[node][byte]
        replacement_of[node] = replacement
    units = [0] * (256 * (len(nodes) + 1))
    index_of = {0: 0}
    strings_ = b""
    for node, children in enumerate(nodes):
        base = 256 * (node + 1)
        position = index_of[node]
        units[position] |= (position ^ base) << 10 | (node in replacement_of) << 8
        for byte, child in children.items():
            index_of[child] = base ^ byte
            units[base ^ byte] = byte
        if node in replacement_of:
            units[base] = 1 << 31 | len(strings_)
            strings_ += replacement_of[node].encode() + b"\0"
    trie = b"".join(unit.to_bytes(4, "little") for unit in units)
    return Field("ARRAY", list(len(trie).to_bytes(4, "little") + trie + strings_), "UINT8")
