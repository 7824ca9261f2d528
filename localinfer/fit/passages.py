"""The user's text, divided into chunks to measure with and chunks to check the result on."""

from dataclasses import dataclass

from localinfer.errors import UsageError
from localinfer.options import CHUNK_SIZE
from localinfer.tokenizer.chunks import Chunks, split_tokens
from localinfer.tokenizer.tokenizer import Tokenizer

MIN_CHUNKS = 6
MIN_SIZE = 64  # tokens in a chunk
EVERY = 3  # of so many successive chunks, the last one is held out
MAX_HELD_OUT, MAX_CALIBRATION, MAX_LAB = 4, 16, 2  # chunks


@dataclass(frozen=True, slots=True, eq=False)
class Passages:
    """Chunks of tokens, int32 (chunks, n_ctx): those for the importance matrix, and those that only check the result.
    """

    calibration: Chunks
    held_out: Chunks

    @property
    def lab(self) -> Chunks:
        """The chunks on which sensitivities are measured."""
        return self.calibration[:MAX_LAB]

    @property
    def n_ctx(self) -> int:
        """The tokens in a chunk."""
        return int(self.calibration.shape[1])


def divide(tokenizer: Tokenizer, text: str, option: str) -> Passages:
    """Divide a text into chunks of 512 tokens; of a short text, into smaller ones.

    Raises UsageError with the name of the option for a text that is too short.
    """
    size, tokens = CHUNK_SIZE, tokenizer.encode(text)
    count = len(tokens)
    while size > MIN_SIZE and count < MIN_CHUNKS * size:
        size //= 2
    if count < MIN_CHUNKS * size:
        needed = f"{MIN_CHUNKS} chunks of {size} need {MIN_CHUNKS * size}"
        raise UsageError(f"{option}: a text of {count} tokens is too short: {needed}")
    chunks = split_tokens(tokenizer, tokens, size, max_chunks=MAX_CALIBRATION + MAX_HELD_OUT * EVERY)
    held_out = range(EVERY - 1, len(chunks), EVERY)[:MAX_HELD_OUT]
    others = [number for number in range(len(chunks)) if number not in held_out]
    return Passages(chunks[others[:MAX_CALIBRATION]], chunks[list(held_out)])


def default_text() -> str:
    """Return English prose with code: the documentation that comes with Python."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))
