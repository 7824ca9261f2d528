"""Answers that call tools, shown to a model in the tokens that it wrote them with.

Templates write calls anew, in one way, where models have many: other spaces, another order, a mark left out. Then all
that follows would be read again. So the place of such an answer in a rendered conversation is looked for: it begins
where the conversation before it ends when the model is asked for an answer, and ends before the first token that ends
answers. What a template shows otherwise than it was written, such as answers without their thoughts, remains so.
"""

from collections.abc import Iterator, Mapping, Sequence

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


def with_written_calls(template: ChatTemplate, variables: Mapping[str, object], rendered: Rendered,
                       known: Mapping[int, list[int]], tokenizer: Tokenizer, stand_ins: StandIns) -> str:
    """The rendered text with stand-ins in the places of answers whose tokens are known."""
    text = rendered.text
    ends = [spelled([id], tokenizer) for id in tokenizer.eog]
    for place, ids in reversed([*known.items()]):
        try:
            found = place_of(template, variables, rendered.messages[: place + 1], text, ends)
        except LocalInferError:  # it takes too long
            break
        thoughts = str(rendered.messages[place].get(REASONING[0], ""))
        if found and thoughts in text[found]:
            text = text[: found.start] + stand_ins.of_ids(ids, spelled(ids, tokenizer)) + text[found.stop :]
    return text


def place_of(template: ChatTemplate, variables: Mapping[str, object], messages: Sequence[Message], text: str,
             ends: Sequence[str]) -> slice | None:
    """Where the last of these messages stands in the text of a conversation that begins with them."""
    before = template.attempt({**variables, "messages": messages[:-1], "add_generation_prompt": True})
    alone = template.attempt({**variables, "messages": messages, "add_generation_prompt": False})
    if before.problem or alone.problem or not (alone.text.startswith(before.text) and text.startswith(before.text)):
        return None
    found, of_it = (slice(len(before.text), first_of(ends, each, len(before.text))) for each in (text, alone.text))
    # A template may write less of it when others follow; what is more than it is theirs.
    return found if of_it.stop >= 0 and alone.text[of_it].endswith(text[found]) else None


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
