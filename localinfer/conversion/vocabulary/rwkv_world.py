"""RWKV's World vocabulary: a text file with one line for each token but the first, such as `1 '\\x00' 1`.

The id is followed by the text or bytes as a Python literal, and their length in bytes.
"""

import ast
from pathlib import Path

from localinfer.conversion.vocabulary.token_list import Token, TokenList
from localinfer.errors import LocalInferError
from localinfer.escaping import printable
from localinfer.tokenizer.vocabulary import CONTROL

NAME = "rwkv_vocab_v20230424.txt"
END_OF_TEXT = 0  # no text encodes to it
END_OF_TURN = b"\n\n"
MAX_LINE = 4096  # characters per line


def read(path: Path, text: str) -> TokenList:
    """Read the vocabulary. GGUF stores a token as Python writes it between the quotes of b"".

    Raises LocalInferError naming an invalid line.
    """
    tokens = [parse_line(path, number, line) for number, line in enumerate(text.splitlines(), 1)]
    by_id = {id: Token(repr(token)[2:-1]) for id, token in enumerate(tokens, 1)}
    ends = {"bos": END_OF_TEXT, "eos": END_OF_TEXT}
    if END_OF_TURN in tokens:
        ends["eot"] = 1 + tokens.index(END_OF_TURN)
    return TokenList("rwkv", "", {END_OF_TEXT: Token("<s>", CONTROL), **by_id}, special_ids=ends)


def parse_line(path: Path, number: int, line: str) -> bytes:
    """Return the bytes of the token that a line `id literal length` describes. Raises LocalInferError."""
    id, _, rest = line.partition(" ")
    literal, _, length = rest.rpartition(" ")
    try:
        token = ast.literal_eval(literal) if len(line) <= MAX_LINE else None
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        token = None
    encoded = token.encode(errors="replace") if isinstance(token, str) else token
    if not isinstance(encoded, bytes) or (id, length) != (str(number), str(len(encoded))):
        raise LocalInferError(f"{printable(str(path))}: line {number}: is not a token")
    return encoded
