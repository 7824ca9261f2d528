"""PLaMo's vocabulary: a file with a line of JSON for each token, `[text, score, kind, ...]`."""

import json
from pathlib import Path

from localinfer.conversion.vocabulary.token_list import Token, TokenList
from localinfer.errors import LocalInferError
from localinfer.escaping import printable
from localinfer.tokenizer.vocabulary import BYTE, CONTROL, NORMAL, UNKNOWN

NAME = "tokenizer.jsonl"
END_OF_TURN = "<|plamo:op|>"
TYPES = {"NORMAL": NORMAL, "UNKNOWN": UNKNOWN, "CONTROL": CONTROL, "BYTE": BYTE}
MAX_LINE = 1 << 16  # characters


def read(path: Path, text: str) -> TokenList:
    """Read the vocabulary. Raises LocalInferError naming an invalid line."""
    lines = [line for line in text.splitlines() if line.strip()]
    by_id = {id: parse_line(path, id, line) for id, line in enumerate(lines)}
    ends = [id for id, token in by_id.items() if token.text == END_OF_TURN]
    return TokenList("plamo2", "default", by_id, special_ids={"eot": ends[0]} if ends else {})


def parse_line(path: Path, id: int, line: str) -> Token:
    """Return the token that a line describes. Raises LocalInferError."""
    try:
        fields = json.loads(line) if len(line) <= MAX_LINE else None
    except (ValueError, RecursionError):
        fields = None
    if isinstance(fields, list) and len(fields) > 2 and fields[2] in TYPES:
        text, score = fields[:2]
        if isinstance(text, str) and type(score) in (int, float):
            is_control = text.startswith("<|plamo:") and text.endswith("|>") and fields[2] == "NORMAL"
            return Token(text, CONTROL if is_control else TYPES[fields[2]], float(score))
    raise LocalInferError(f"{printable(str(path))}: line {id + 1}: is not a token")
