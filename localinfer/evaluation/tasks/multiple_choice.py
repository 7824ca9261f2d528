"""Questions with any number of answers, in the binary files of llama-perplexity --multiple-choice.

A file has the number of items, the position of each, and the items: the question, then twice (with one correct answer,
and with several) the number of answers, the answers, and a number for each, which is 1 if it is correct. All numbers
have 32 bits (little-endian), and a text is preceded by its number of bytes. The first list of answers is used.
"""

from pathlib import Path
from struct import Struct

from localinfer.errors import LocalInferError
from localinfer.evaluation.tasks.reading import read_bytes, shown
from localinfer.evaluation.tasks.task import (
    Choice,
    ChoiceItem,
    ChoiceTask,
    logprob_per_character,
    logprob_per_token,
    total_logprob,
)

UINT32 = Struct("<I")
MAX_ANSWERS = 100  # as in llama-perplexity


class Reader:
    """Reads numbers and texts one after another. Raises LocalInferError at the end of the file."""

    def __init__(self, path: Path) -> None:
        self.path, self.content, self.at = path, read_bytes(path), 0

    def take(self, count: int) -> bytes:
        taken = self.content[self.at : self.at + count]
        if len(taken) != count:
            raise self.error("ends within an item")
        self.at += count
        return taken

    def number(self) -> int:
        return int(UINT32.unpack(self.take(UINT32.size))[0])

    def text(self) -> str:
        try:
            return self.take(self.number()).decode()
        except UnicodeDecodeError:
            raise self.error("is no UTF-8 text") from None

    def answers(self) -> tuple[list[str], list[int]]:
        """Return a list of answers, and the numbers of the correct ones."""
        count = self.number()
        if count > MAX_ANSWERS:
            raise self.error(f"has {count} answers; {MAX_ANSWERS} are allowed")
        texts = [self.text() for _ in range(count)]
        return texts, [number for number in range(count) if self.number() == 1]

    def error(self, what: str) -> LocalInferError:
        return LocalInferError(f"{shown(self.path)}: byte {self.at}: {what}")


def read(path: Path) -> list[ChoiceItem]:
    """Return the items of a file. Raises LocalInferError."""
    reader = Reader(path)
    count = reader.number()
    reader.take(count * UINT32.size)  # positions: the items follow each other
    return [read_item(reader) for _ in range(count)]


def read_item(reader: Reader) -> ChoiceItem:
    question = reader.text()
    answers, correct = reader.answers()
    reader.answers()
    if not question or not all(answers) or not correct:
        raise reader.error("the item before has an empty text or no correct answer")
    return ChoiceItem(tuple(Choice(question, f" {each}", len(each)) for each in answers), tuple(correct))


TASK = ChoiceTask(
    title="multiple choice",
    read=read,
    metrics={"acc_norm_tokens": logprob_per_token, "acc_norm": logprob_per_character, "acc": total_logprob},
)
