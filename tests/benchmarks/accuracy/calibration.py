"""What quantizers may look at before quality.py judges them.

    varied   tests/data/varied.txt: some 2,000 tokens of different kinds
    topics   the documentation of Python that comes with it: one kind, and long
    mixed    the texts tests/data/quality/*_b.txt, some paragraphs of each in turn, and then topics

None of it is what they are judged on: tests/data/quality/*_a.txt, of the same kinds. Both were written for this.
"""

import itertools
import pydoc_data.topics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from localinfer import tokenizer
from localinfer.files.gguf import open_gguf

DATA = Path(__file__).parents[2] / "data"
QUALITY = DATA / "quality"
KINDS = ("prose", "code", "languages", "chat")
N_CTX = 512
MARGIN = 32  # tokens; a text that was cut is not always cut into the same ones again


def varied() -> str:
    return (DATA / "varied.txt").read_text(encoding="utf-8")


def topics() -> str:
    found = pydoc_data.topics.topics
    return "\n\n".join(found[name] for name in sorted(found))


def mixed() -> str:
    texts = [(QUALITY / f"{kind}_b.txt").read_text(encoding="utf-8") for kind in KINDS]
    return in_turn(texts) + topics()


CALIBRATIONS: dict[str, Callable[[], str]] = {"varied": varied, "topics": topics, "mixed": mixed}


def in_turn(texts: Sequence[str], size: int = 1500) -> str:
    """Pieces of each text in turn, so that a few chunks have something of all."""
    turns = itertools.zip_longest(*(pieces(text, size) for text in texts), fillvalue="")
    return "".join(itertools.chain.from_iterable(turns))


def pieces(text: str, size: int) -> Iterator[str]:
    """Whole paragraphs, together at least `size` characters, but for the last ones."""
    piece = ""
    for paragraph in text.rstrip().split("\n\n"):
        piece += paragraph + "\n\n"
        if len(piece) >= size:
            yield piece
            piece = ""
    yield piece


def beginning(model: Path, text: str, chunks: int) -> tuple[int, str]:
    """As much of a text as makes so many chunks for a model; before it how many it is, for there may be fewer."""
    words = tokenizer.from_gguf(open_gguf(model))
    ids = words.encode(text, add_special=False)
    return min(chunks, len(ids) // N_CTX), words.decode(ids[: chunks * N_CTX + MARGIN])
