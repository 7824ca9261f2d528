"""The calibration data of quality.py.

    varied   tests/data/varied.txt: about 2,000 tokens of different kinds
    topics   the documentation that comes with Python: one kind, and long
    mixed    the texts tests/data/quality/*_b.txt, some paragraphs of each in turn, and then topics

It does not contain the evaluation data, tests/data/quality/*_a.txt, which has the same kinds of text.
"""

import itertools
import pydoc_data.topics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from localinfer import tokenizer
from localinfer.gguf.reader import open_gguf

DATA = Path(__file__).parents[2] / "data"
QUALITY = DATA / "quality"
KINDS = ("prose", "code", "languages", "chat")
N_CTX = 512
MARGIN_TOKENS = 32  # a truncated text may be tokenized differently near its end


def varied() -> str:
    return (DATA / "varied.txt").read_text(encoding="utf-8")


def topics() -> str:
    actual = pydoc_data.topics.topics
    return "\n\n".join(actual[name] for name in sorted(actual))


def mixed() -> str:
    texts = [(QUALITY / f"{kind}_b.txt").read_text(encoding="utf-8") for kind in KINDS]
    return interleave_texts(texts) + topics()


CALIBRATIONS: dict[str, Callable[[], str]] = {"varied": varied, "topics": topics, "mixed": mixed}


def interleave_texts(texts: Sequence[str], size: int = 1500) -> str:
    """Interleave pieces of the texts, so that a few chunks cover all of them."""
    turns = itertools.zip_longest(*(split_paragraphs(text, size) for text in texts), fillvalue="")
    return "".join(itertools.chain.from_iterable(turns))


def split_paragraphs(text: str, size: int) -> Iterator[str]:
    """Yield groups of whole paragraphs with at least `size` characters; the last group may be shorter."""
    piece = ""
    for paragraph in text.rstrip().split("\n\n"):
        piece += paragraph + "\n\n"
        if len(piece) >= size:
            yield piece
            piece = ""
    yield piece


def truncate_to_chunks(model: Path, text: str, chunks: int) -> tuple[int, str]:
    """Return (number of chunks, text): the start of a text that yields up to `chunks` chunks for a model."""
    words = tokenizer.from_gguf(open_gguf(model))
    ids = words.encode(text, add_special=False)
    return min(chunks, len(ids) // N_CTX), words.decode(ids[: chunks * N_CTX + MARGIN_TOKENS])
