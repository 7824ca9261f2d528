"""Private characters in the place of what a template shall carry through as it is.

Of the control tokens that a conversation's texts spell: so a rendered text can be cut at its control tokens, which
are all the template's own; only after that do the characters become again the text that they stood for. And of answers
whose tokens are known: they become these tokens, be it that the tokenizer would cut their text otherwise.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from localinfer.errors import UsageError
from localinfer.tokenizer import Tokenizer

PRIVATE = range(0xF0000, 0xFFFFE)  # code points that no character will ever have
SPELLED = re.compile(r"[\U000F0000-\U000FFFFD]|\\udb[89ab]|\\U000f")  # what each of their spellings begins with
END_OF_THOUGHTS = re.compile(r"</think>|\[/THINK]|</thought>|</seed:think>")  # where templates cut answers


class StandIns:
    """One private character for each control token that the texts of a value spell, however nested these are; and one
    for each answer whose tokens are known.
    """

    def __init__(self, tokenizer: Tokenizer, value: object) -> None:
        self._tokenizer = tokenizer
        self._free = unused_characters(list(texts_of(value)))
        self._char_of: dict[int, str] = {}
        self._text_of: dict[str, str] = {}  # what each character stands for, in each spelling
        self._ids_of: dict[str, list[int]] = {}  # of answers

    def unused(self) -> str:
        """A character that stands for nothing, and is nowhere in the texts."""
        try:
            return next(self._free)
        except StopIteration:
            raise UsageError("messages: they use up all of Unicode's private characters") from None

    def put_into(self, value: object) -> object:
        """The same value with stand-ins in its texts. A call's arguments are shown with their keys."""
        if isinstance(value, str):
            return "".join(map(self._safe, self._tokenizer.split(value, swallow=False)))
        if isinstance(value, Mapping):
            return {self.put_into(key): self.put_into(each) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.put_into(each) for each in value]
        return value

    def put_for_ids(self, message: Mapping[str, object]) -> Mapping[str, object]:
        """The message without its tokens, a stand-in in the place of what they spell of its content."""
        ids, content = message.get("ids"), message.get("content")
        message = {key: value for key, value in message.items() if key not in ("ids", "thought_ids")}
        if not isinstance(ids, (list, tuple)) or not isinstance(content, str) or END_OF_THOUGHTS.search(content):
            return message
        known, end = self._spelled(ids, content)
        if not known:
            return message
        return {**message, "content": self.of_ids(known, content[:end]) + content[end:]}

    def of_ids(self, ids: list[int], text: str) -> str:
        """A character that becomes these tokens, and this text where only texts are shown."""
        char = self.unused()
        self._ids_of[char] = ids
        self._text_of |= zip(spellings(char), spellings(text), strict=True)
        return char

    def cut(self, text: str) -> list[str | list[int]]:
        """A rendered text: tokens where stand-ins of answers are, and the texts between them."""
        if not self._ids_of or not SPELLED.search(text):
            return [text]
        pieces = re.split(f"([{''.join(self._ids_of)}])", text)
        return [self._ids_of.get(piece, piece) for piece in pieces if piece]

    def undo(self, text: str) -> str:
        if SPELLED.search(text):
            for stand_in, meant in self._text_of.items():
                text = text.replace(stand_in, meant)
        return text

    def _spelled(self, ids: Sequence[int], content: str) -> tuple[list[int], int]:
        """As many of the ids as spell the beginning of a content, in whole characters and without control tokens, and
        how many characters that is.
        """
        stream, at, whole = self._tokenizer.stream(), 0, (0, 0)
        for number, id in enumerate(ids):
            if not 0 <= id < self._tokenizer.n_vocab or not self._tokenizer.token_bytes(id):
                break
            text = stream.push(id)
            if not content.startswith(text, at):
                break
            at += len(text)
            whole = whole if stream.unfinished else (number + 1, at)
        else:
            if content[at:] == stream.flush():  # it was cut off in the midst of a character
                return list(ids), len(content)
        return list(ids[: whole[0]]), whole[1]

    def _safe(self, part: str | int) -> str:
        if isinstance(part, str):
            return part
        text = self._tokenizer.token_bytes(part, special=True).decode()
        is_control = not self._tokenizer.token_bytes(part)
        return self._stand_in(part, text) if is_control else text

    def _stand_in(self, id: int, text: str) -> str:
        if id not in self._char_of:
            self._char_of[id] = char = self.unused()
            self._text_of |= zip(spellings(char), spellings(text), strict=True)
        return self._char_of[id]


def unused_characters(texts: list[str]) -> Iterator[str]:
    """Looks at the texts only when one is asked for: most conversations need none."""
    used = {char for text in texts for char in text}
    for char in map(chr, PRIVATE):
        if char not in used and not any(each in text for each in spellings(char) for text in texts):
            yield char


def spellings(text: str) -> tuple[str, str, str]:
    """As it is, as `tojson(ensure_ascii=true)` writes it, and as it shows in a list or mapping that is written out."""
    return text, json.dumps(text)[1:-1], repr(text)[1:-1]


def texts_of(value: object) -> Iterator[str]:
    """Every text in a value, however nested."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from texts_of([*value, *value.values()])
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from texts_of(each)
