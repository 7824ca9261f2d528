"""Placeholder characters for texts that must pass through a chat template unchanged.

A private-use character replaces each control token that a text of the conversation contains, and the last character of
a text that ends in the beginning of one, because the template may put another text behind it. The rendered text can
then be split at its control tokens, which all come from the template; afterwards the placeholders become the original
texts again. A placeholder also replaces the text of an answer whose token ids are known, and becomes these ids, even if
the tokenizer would split the text differently. In the same way, one replaces each image and each sound.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from localinfer.errors import UsageError
from localinfer.tokenizer import Tokenizer

PRIVATE_USE = range(0xF0000, 0xFFFFE)  # Unicode's supplementary private use area A
PLACEHOLDER_START = re.compile(r"[\U000F0000-\U000FFFFD]|\\udb[89ab]|\\U000f")  # how each escaped text begins
MEDIA_MARKER = "<__media__>"  # how a `Prompt.text` shows an image or a sound, as llama.cpp writes it
REASONING_END = re.compile(r"</think>|\[/THINK]|</thought>|</seed:think>")  # templates cut answers here


class Placeholders:
    """Placeholders for the control tokens, and beginnings of them, in the texts of a nested value, and for answers with
    known token ids.
    """

    def __init__(self, tokenizer: Tokenizer, value: object) -> None:
        self._tokenizer = tokenizer
        self._free = unused_characters(list(iter_texts(value)))
        self._char_of: dict[str, str] = {}  # text -> placeholder
        self._text_of: dict[str, str] = {}  # escaped placeholder -> escaped text
        self._ids_of: dict[str, list[int]] = {}  # placeholder -> token ids of an answer, an image or a sound
        self._media: list[tuple[str, ...]] = []  # the escaped forms of each placeholder of an image or a sound

    def new_placeholder(self) -> str:
        """Return an unused character. Raises UsageError if there is none left."""
        try:
            return next(self._free)
        except StopIteration:
            raise UsageError("messages: they contain all private-use characters of Unicode") from None

    def replace_control_tokens(self, value: object) -> object:
        """Return the value with placeholders for the control tokens in its texts, including the keys of mappings."""
        if isinstance(value, str):
            *parts, last = self._tokenizer.split(value, strip=False) or [""]
            if isinstance(last, str) and self._tokenizer.may_continue_as_special(last):
                parts, last = [*parts, last[:-1]], self._placeholder(last[-1])
            return "".join(map(self._escape, [*parts, last]))
        if isinstance(value, Mapping):
            return {self.replace_control_tokens(key): self.replace_control_tokens(each) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.replace_control_tokens(each) for each in value]
        return value

    def replace_known_ids(self, message: Mapping[str, object]) -> Mapping[str, object]:
        """Return the message without its token ids, and a placeholder for the part of its content that they encode."""
        ids, content = message.get("ids"), message.get("content")
        message = {key: value for key, value in message.items() if key not in ("ids", "reasoning_ids")}
        if not isinstance(ids, (list, tuple)) or not isinstance(content, str) or REASONING_END.search(content):
            return message
        known, end = self._matching_prefix(ids, content)
        if not known:
            return message
        return {**message, "content": self.add_ids(known, content[:end]) + content[end:]}

    def replace_media(self, message: Mapping[str, object]) -> Mapping[str, object]:
        """Return the message with a text as its content if it has images or sounds, with a placeholder for each.

        Texts are separated by newlines, but not from an image or a sound, as llama.cpp does it.
        """
        content = message.get("content")
        if not isinstance(content, list | tuple) or not any(part["type"] != "text" for part in content):
            return message
        text, is_behind_text = "", False
        for part in content:
            is_text = part["type"] == "text"
            separator = "\n" if is_text and is_behind_text else ""
            text += separator + (part["text"] if is_text else self._media_placeholder(part.get("ids", ())))
            is_behind_text = is_text
        return {**message, "content": text}

    def _media_placeholder(self, ids: Sequence[int]) -> str:
        char = self.add_ids(list(ids), MEDIA_MARKER)
        forms = escaped_texts(char)
        self._media.append(forms)
        self._ids_of |= {form: list(ids) for form in forms}
        return char

    def has_all_media(self, text: str) -> bool:
        """Return whether a rendered text contains each image and each sound once."""
        return all(sum(map(text.count, set(forms))) == 1 for forms in self._media)

    def add_ids(self, ids: list[int], text: str) -> str:
        """Return a placeholder that becomes these token ids, and this text in a `Prompt.text`."""
        char = self.new_placeholder()
        self._ids_of[char] = ids
        self._text_of |= zip(escaped_texts(char), escaped_texts(text), strict=True)
        return char

    def split(self, text: str) -> list[str | list[int]]:
        """Split a rendered text into token ids of answers, images and sounds, and the texts between them."""
        if not self._ids_of or not PLACEHOLDER_START.search(text):
            return [text]
        pieces = re.split(f"({'|'.join(map(re.escape, self._ids_of))})", text)
        return [self._ids_of.get(piece, piece) for piece in pieces if piece]

    def restore(self, text: str) -> str:
        """Replace the placeholders in a text by the original texts."""
        if PLACEHOLDER_START.search(text):
            for placeholder, original in self._text_of.items():
                text = text.replace(placeholder, original)
        return text

    def _matching_prefix(self, ids: Sequence[int], content: str) -> tuple[list[int], int]:
        """Return the longest prefix of `ids` that encodes a prefix of `content`, and the length of that in characters.

        The prefix contains whole characters and no control tokens.
        """
        stream, position, prefix = self._tokenizer.stream(), 0, (0, 0)
        for index, id in enumerate(ids):
            if not 0 <= id < self._tokenizer.n_vocab or not self._tokenizer.token_bytes(id):
                break
            text = stream.push(id)
            if not content.startswith(text, position):
                break
            position += len(text)
            prefix = prefix if stream.has_pending_bytes else (index + 1, position)
        else:
            if content[position:] == stream.flush():  # the output ended within a character
                return list(ids), len(content)
        return list(ids[: prefix[0]]), prefix[1]

    def _escape(self, part: str | int) -> str:
        if isinstance(part, str):
            return part
        text = self._tokenizer.token_bytes(part, special=True).decode()
        is_control = not self._tokenizer.token_bytes(part)
        return self._placeholder(text) if is_control else text

    def _placeholder(self, text: str) -> str:
        if text not in self._char_of:
            self._char_of[text] = char = self.new_placeholder()
            self._text_of |= zip(escaped_texts(char), escaped_texts(text), strict=True)
        return self._char_of[text]


def unused_characters(texts: list[str]) -> Iterator[str]:
    """Yield private-use characters that the texts do not contain. The texts are only searched when a character is
    needed.
    """
    used = {char for text in texts for char in text}
    for char in map(chr, PRIVATE_USE):
        if char not in used and not any(each in text for each in escaped_texts(char) for text in texts):
            yield char


def escaped_texts(text: str) -> tuple[str, str, str]:
    """Return a text as it is, as `tojson(ensure_ascii=true)` writes it, and as Python's `repr` writes it."""
    return text, json.dumps(text)[1:-1], repr(text)[1:-1]


def iter_texts(value: object) -> Iterator[str]:
    """Yield every string in a nested value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from iter_texts([*value, *value.values()])
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from iter_texts(each)
