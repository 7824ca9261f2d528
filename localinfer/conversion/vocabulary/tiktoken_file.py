"""The vocabulary of the tiktoken library: a text file with one line for each token, its bytes in base64 and its rank.

A token is what the merges of lower rank make of its bytes, so the file has no merges. Of the models that have such a
file, those of Moonshot AI (Kimi) are supported, whose tokenizers split texts alike.
"""

import base64
import binascii
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from localinfer.conversion.checkpoint_folder import CheckpointFolder
from localinfer.conversion.vocabulary.token_list import Token, TokenList
from localinfer.errors import LocalInferError, UnsupportedError
from localinfer.escaping import printable
from localinfer.tokenizer.segmenters.byte_level import BYTE_OF
from localinfer.tokenizer.vocabulary import CONTROL

NAME = "tiktoken.model"
CLASS, PRE = "TikTokenTokenizer", "kimi-k2"
CHARACTER_OF = {byte: character for character, byte in BYTE_OF.items()}
MAX_TOKEN = 1024  # bytes
RESERVED = 256  # tokens behind the others, of which tokenizer_config.json names some


def read(folder: CheckpointFolder, text: str) -> TokenList:
    """Read the tokens and find their merges. Raises LocalInferError naming an invalid line, UnsupportedError for the
    vocabulary of another tokenizer."""
    config = folder.optional_json("tokenizer_config.json")
    if config.get("tokenizer_class", str, "") != CLASS:
        raise config.error("tokenizer_class", f"must be {CLASS} with {NAME}", UnsupportedError)
    path = folder.path / NAME
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        token = parse_line(path, number, line)
        if ranks.setdefault(token, len(ranks)) != number - 1:
            raise LocalInferError(f"{printable(str(path))}: line {number}: has a token of another line")
    by_id = {rank: Token(written(token)) for token, rank in ranks.items()}
    by_id |= {id: Token(f"<|reserved_token_{id}|>", CONTROL) for id in range(len(ranks), len(ranks) + RESERVED)}
    merges = [" ".join(map(written, halves)) for token in ranks if len(halves := last_merge(ranks, token)) == 2]
    return TokenList("gpt2", PRE, by_id, merges)


def parse_line(path: Path, number: int, line: str) -> bytes:
    """Return the bytes of the token of a line `base64 rank`. Raises LocalInferError unless ranks count the lines."""
    encoded, _, rank = line.partition(" ")
    try:
        token = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        token = b""
    if not 0 < len(token) <= MAX_TOKEN or rank != str(number - 1):
        raise LocalInferError(f"{printable(str(path))}: line {number}: is not a token and its rank")
    return token


def last_merge(ranks: Mapping[bytes, int], token: bytes) -> list[bytes]:
    """Return the parts of a token after all merges of a lower rank than its own."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 1:
        found = [ranks.get(first + second, len(ranks)) for first, second in pairwise(parts)]
        lowest = min(found)
        if lowest >= ranks[token]:
            break
        at = found.index(lowest)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def written(token: bytes) -> str:
    """Return a token as byte-level BPE writes it: a character for each byte."""
    return "".join(CHARACTER_OF[bytes([byte])] for byte in token)
