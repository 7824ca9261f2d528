"""Answers that call tools, shown to a model in the tokens that it wrote them with.

Templates write calls anew, in one way, where models have many: other spaces, another order, a mark left out. Then all
that follows would be read again. So the place of such an answer in a rendered conversation is looked for: it begins
where the conversation before it ends when the model is asked for an answer, and ends before the first token that ends
answers. What a template shows otherwise than it was written, such as answers without their thoughts, remains so.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

from localinfer.errors import LocalInferError
from localinfer.prompt.conversation import REASONING, Message
from localinfer.prompt.forms import Rendered
from localinfer.prompt.stand_ins import StandIns
from localinfer.prompt.template import ChatTemplate
from localinfer.tokenizer import Tokenizer


def written_calls(messages: Sequence[Message], tokenizer: Tokenizer) -> dict[int, list[int]]:
    """The tokens of each answer with calls, thoughts and all, by its place; as far as they are known, and spell it."""
    found = {}
    for place, message in enumerate(messages):
        ids = [id for key in ("thought_ids", "ids") for id in list_of(message.get(key))]
        if ids and list_of(message.get("tool_calls")) and is_written_with(message, ids, tokenizer):
            found[place] = ids
    return found


class Places:
    """Where answers stand in the text of a conversation. One that goes on is not searched anew."""

    def __init__(self) -> None:
        self._rendered = Rendered("", [])  # that was searched last
        self._found: dict[int, slice | None] = {}

    def find(self, template: ChatTemplate, variables: Mapping[str, object], rendered: Rendered, ends: Sequence[str],
             answers: Collection[int]) -> dict[int, slice]:
        """Those of the messages with these numbers that are found; `ends` are the texts that end answers."""
        before, known = self._rendered, self._found
        self._rendered, self._found = rendered, {}
        for answer in answers:
            if answer in known and goes_on(before, rendered, answer, known[answer]):
                self._found[answer] = known[answer]
            else:
                self._found[answer] = place_of(template, variables, rendered, answer, ends)
        return {answer: place for answer, place in self._found.items() if place}


def goes_on(before: Rendered, rendered: Rendered, answer: int, place: slice | None) -> bool:
    """Is the conversation up to this answer the same as before?"""
    stop = place.stop if place else 0
    same_text = before.text[:stop] == rendered.text[:stop]
    return same_text and before.messages[: answer + 1] == rendered.messages[: answer + 1]


def with_written_calls(template: ChatTemplate, variables: Mapping[str, object], rendered: Rendered, places: Places,
                       known: Mapping[int, list[int]], tokenizer: Tokenizer, stand_ins: StandIns) -> str:
    """The rendered text with stand-ins in the places of answers whose tokens are known."""
    ends = [spelled([id], tokenizer) for id in tokenizer.eog]
    try:
        found = places.find(template, variables, rendered, ends, known)
    except LocalInferError:  # it takes too long
        return rendered.text
    text = rendered.text
    for answer, place in sorted(found.items(), reverse=True):
        thoughts = rendered.messages[answer].get(REASONING[0], "")
        if str(thoughts) in text[place]:
            stand_in = stand_ins.of_ids(known[answer], spelled(known[answer], tokenizer))
            text = text[: place.start] + stand_in + text[place.stop :]
    return text


def place_of(template: ChatTemplate, variables: Mapping[str, object], rendered: Rendered, answer: int,
             ends: Sequence[str]) -> slice | None:
    """Where it stands; None if that is not clear."""
    text, messages = rendered
    before = template.attempt({**variables, "messages": messages[:answer], "add_generation_prompt": True})
    last = template.attempt({**variables, "messages": messages[: answer + 1], "add_generation_prompt": False})
    if before.problem or last.problem or not (last.text.startswith(before.text) and text.startswith(before.text)):
        return None
    start = len(before.text)
    place, place_in_last = (slice(start, first_of(ends, each, start)) for each in (text, last.text))
    # A template may write less of it when others follow; what is more than it is theirs.
    return place if place_in_last.stop >= 0 and last.text[place_in_last].endswith(text[place]) else None


def first_of(marks: Sequence[str], text: str, start: int) -> int:
    """-1 if there is none."""
    return min((at for mark in marks if (at := text.find(mark, start)) >= 0), default=-1)


def is_written_with(message: Message, ids: Sequence[int], tokenizer: Tokenizer) -> bool:
    """Who changes a message may forget its tokens."""
    if not all(0 <= id < tokenizer.n_vocab and id not in tokenizer.eog for id in ids):
        return False
    text = spelled(ids, tokenizer)
    return all(isinstance(words, str) and words in text for words in words_of(message))


def words_of(message: Message) -> Iterator[object]:
    yield message.get("content", "")
    yield message.get(REASONING[0], "")
    for call in list_of(message.get("tool_calls")):
        function = call.get("function", call)
        yield function.get("name") if isinstance(function, Mapping) else None


def spelled(ids: Sequence[int], tokenizer: Tokenizer) -> str:
    return b"".join(tokenizer.token_bytes(id, special=True) for id in ids).decode("utf-8", "replace")


def list_of(value: object) -> Sequence:  # type: ignore[type-arg]
    return value if isinstance(value, list | tuple) else ()
