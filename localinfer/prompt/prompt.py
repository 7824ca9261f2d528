"""From a conversation to the token ids of a prompt: where template and tokenizer meet.

What users write never becomes a control token. While the template runs, private characters stand in for the
control tokens that messages spell. The rendered text is cut at its control tokens, which are then all the
template's own; only after that, the stand-ins become again the text that they stood for. A message that spells
none is not changed at all: then the ids are those of the rendered text as a whole.
"""

from collections.abc import Iterator, Mapping, Sequence

from localinfer.errors import UsageError
from localinfer.prompt.template import ChatTemplate
from localinfer.tokenizer import Tokenizer

PRIVATE = range(0xF0000, 0xFFFFE)  # code points that no character will ever have

Message = Mapping[str, object]


def chat_prompt(template: ChatTemplate, tokenizer: Tokenizer, messages: Sequence[Message], *,
                parse_special: bool = False) -> list[int]:
    """The ids that ask for the next message; with `parse_special`, users' texts may spell control tokens.

    LocalInferError says what the template does wrong, UsageError that the messages have no end.
    """
    try:
        stand_ins = StandIns(tokenizer, messages)
        harmless = messages if parse_special else [stand_ins.put_into(each) for each in messages]
    except RecursionError:
        raise UsageError("messages: a value is nested too deeply, or contains itself") from None
    text = template.render(harmless)
    ids: list[int] = []
    for part in tokenizer.split(text):
        if isinstance(part, int):
            ids.append(part)
        else:
            ids += tokenizer.encode(stand_ins.undo(part), add_special=False)
    return with_bos(tokenizer, ids)


def with_bos(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    """The ids behind one BOS, if the model wants one: many templates write it themselves."""
    wanted = tokenizer.add_bos and tokenizer.bos is not None and ids[:1] != [tokenizer.bos]
    return [tokenizer.bos, *ids] if wanted and tokenizer.bos is not None else ids


class StandIns:
    """One private character for each control token that the messages spell."""

    def __init__(self, tokenizer: Tokenizer, messages: Sequence[Message]) -> None:
        self._tokenizer = tokenizer
        used = {char for text in texts_of(messages) for char in text}
        self._free = (chr(code) for code in PRIVATE if chr(code) not in used)
        self._char_of: dict[int, str] = {}
        self._text_of: dict[int, str] = {}  # by code point, for str.translate

    def put_into(self, message: Message) -> Message:
        changed = self._without_control(message)
        assert isinstance(changed, dict)  # as every mapping becomes one
        return changed

    def undo(self, text: str) -> str:
        return text.translate(self._text_of) if self._text_of else text

    def _without_control(self, value: object) -> object:
        """The same value, however nested, with stand-ins in its texts. A call's arguments are shown with their keys."""
        if isinstance(value, str):
            return "".join(map(self._safe, self._tokenizer.split(value)))
        if isinstance(value, Mapping):
            return {self._without_control(key): self._without_control(each) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._without_control(each) for each in value]
        return value

    def _safe(self, part: str | int) -> str:
        if isinstance(part, str):
            return part
        text = self._tokenizer.token_bytes(part, special=True).decode()
        is_control = not self._tokenizer.token_bytes(part)
        return self._stand_in(part, text) if is_control else text

    def _stand_in(self, id: int, text: str) -> str:
        if id not in self._char_of:
            char = next(self._free)
            self._char_of[id] = char
            self._text_of[ord(char)] = text
        return self._char_of[id]


def texts_of(value: object) -> Iterator[str]:
    """Every text in a value, however nested."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from texts_of([*value, *value.values()])
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from texts_of(each)


def check_messages(messages: object) -> None:
    """UsageError names the first thing that is not as it should be."""
    if not isinstance(messages, (list, tuple)) or not messages:
        raise UsageError("messages: must be a list of at least one message")
    for place, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise UsageError(f"messages[{place}]: must be a mapping with role and content")
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                raise UsageError(f"messages[{place}].{key}: must be a text")
