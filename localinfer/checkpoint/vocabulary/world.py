"""RWKV's World vocabulary: a text file with a line for each token but the first, as in `1 '\\x00' 1`.

Behind the token's number stand its text or its bytes as Python spells them, and how many bytes these are.
"""

import ast
from pathlib import Path

from localinfer.checkpoint.vocabulary.tokens import Token, Tokens
from localinfer.errors import LocalInferError
from localinfer.text import printable
from localinfer.tokenizer.vocabulary import CONTROL

NAME = "rwkv_vocab_v20230424.txt"
END_OF_TEXT = 0  # which no text can spell
END_OF_TURN = b"\n\n"
LONGEST = 4096  # of a line


def read(path: Path, text: str) -> Tokens:
    """GGUF has the bytes of a token as they stand between the quotes of Python's b"".

    Raises LocalInferError naming the line that is no token.
    """
    tokens = [bytes_of(path, number, line) for number, line in enumerate(text.splitlines(), 1)]
    by_id = {id: Token(repr(token)[2:-1]) for id, token in enumerate(tokens, 1)}
    ends = {"bos": END_OF_TEXT, "eos": END_OF_TEXT}
    if END_OF_TURN in tokens:
        ends["eot"] = 1 + tokens.index(END_OF_TURN)
    return Tokens("rwkv", "", {END_OF_TEXT: Token("<s>", CONTROL), **by_id}, special=ends)


def bytes_of(path: Path, number: int, line: str) -> bytes:
    id, _, rest = line.partition(" ")
    literal, _, length = rest.rpartition(" ")
    try:
        token = ast.literal_eval(literal) if len(line) <= LONGEST else None
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        token = None
    found = token.encode(errors="replace") if isinstance(token, str) else token
    if not isinstance(found, bytes) or (id, length) != (str(number), str(len(found))):
        raise LocalInferError(f"{printable(str(path))}: line {number}: is no token")
    return found
