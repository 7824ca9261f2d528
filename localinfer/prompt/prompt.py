"""From a conversation to the token ids of a prompt: where template and tokenizer meet.

What users write never becomes a control token: stand_ins.py keeps it apart while the template runs. What the model
wrote is shown to it in the tokens that it wrote. A conversation with nothing of either kind is not changed at all: then
the ids are those of the rendered text as a whole.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from localinfer.errors import UsageError
from localinfer.prompt.conversation import Conversation, Message
from localinfer.prompt.forms import render_in_form, unchanged
from localinfer.prompt.stand_ins import StandIns
from localinfer.prompt.template import ChatTemplate
from localinfer.prompt.written import Places, with_written_calls, written_calls
from localinfer.tokenizer import Tokenizer

Variables = dict[str, object]


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a model sees. In the `text`, what users wrote looks like the control tokens that it spells; `ids` differ."""

    text: str
    ids: list[int]


def chat_prompt(template: ChatTemplate, tokenizer: Tokenizer, conversation: Conversation, *,
                parse_special: bool = False, places: Places | None = None) -> Prompt:
    """What asks for the next message; with `parse_special`, users' texts may spell control tokens. The same `places`
    spare a conversation that goes on some work.

    LocalInferError says what the template does wrong, UsageError that a value has no end.
    """
    try:
        variables = conversation.variables()
        stand_ins, messages = StandIns(tokenizer, variables), cast(list[Message], variables.pop("messages"))
        harmless = unchanged if parse_special else stand_ins.put_into
        variables = {name: harmless(value) for name, value in variables.items()}
        # The last ones, and one by one: the stand-ins of a conversation remain the same when it goes on.
        variables["messages"] = [harmless(stand_ins.put_for_ids(each)) for each in messages]
    except RecursionError:
        raise UsageError("messages: a value is nested too deeply, or contains itself") from None
    if conversation.continue_final_message:
        text = up_to_the_end_of_the_last_message(template, variables, stand_ins.unused())
    else:
        rendered = render_in_form(template, variables)
        calls = {} if parse_special else written_calls(messages, tokenizer)
        text = with_written_calls(template, variables, rendered, places or Places(), calls, tokenizer, stand_ins)
    return with_one_bos(tokenizer, text, stand_ins)


def up_to_the_end_of_the_last_message(template: ChatTemplate, variables: Variables, mark: str) -> str:
    """Without what the template writes behind it. LocalInferError if it leaves the message out."""
    *before, last = cast(list[Message], variables["messages"])
    # The space tells, by being gone, that the template trims messages: then so is the end of this one.
    marked = {**last, "content": with_end(last.get("content", ""), f"{mark} ")}
    text, found, behind = render_in_form(template, {**variables, "messages": [*before, marked]}).text.rpartition(mark)
    if not found:
        raise template.error("leaves out the message that is to be continued")
    return text if behind.startswith(" ") else text.rstrip()


def with_end(content: object, end: str) -> object:
    if isinstance(content, list):
        *parts, last = content or [{"type": "text", "text": ""}]
        return [*parts, {**last, "text": last["text"] + end}]
    return f"{content}{end}"


def with_one_bos(tokenizer: Tokenizer, text: str, stand_ins: StandIns) -> Prompt:
    """The rule against two BOS: many templates write it, many models want it, and some say both.

    The model gets one where it wants one and the template has not begun with it, be it behind white space; and
    never a second one right behind the first.
    """
    bos, parts = tokenizer.bos, tokenizer.split(text)
    while parts[:2] == [bos, bos]:
        parts, text = parts[1:], text.removeprefix(text_of(tokenizer, bos))
    first = next((part for part in parts if not isinstance(part, str) or part.strip()), None)
    if tokenizer.add_bos and bos is not None and first != bos:
        parts, text = [bos, *parts], text_of(tokenizer, bos) + text
    return Prompt(stand_ins.undo(text), list(ids_of(parts, tokenizer, stand_ins)))


def ids_of(parts: list[str | int], tokenizer: Tokenizer, stand_ins: StandIns) -> Iterator[int]:
    for part in parts:
        if isinstance(part, int):
            yield part
            continue
        goes_on = False
        for piece in stand_ins.cut(part):
            yield from piece if isinstance(piece, list) else tokenizer.encode(
                stand_ins.undo(piece), add_special=False, goes_on=goes_on)
            goes_on = True


def text_of(tokenizer: Tokenizer, id: int | None) -> str:
    """A special token's; empty where there is none."""
    return "" if id is None else tokenizer.token_bytes(id, special=True).decode("utf-8", "replace")
