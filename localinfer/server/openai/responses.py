"""`/v1/responses`: the newer way to ask, for texts and calls of functions. Nothing is kept between requests."""

import itertools
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from localinfer.server.desk import Desk, Run, Talk
from localinfer.server.fields import Fields, form_of, get, length_of, options_of
from localinfer.server.openai.chat import as_text
from localinfer.server.problems import bad

if TYPE_CHECKING:
    from localinfer.generation.pieces import Call

Item = dict[str, Any]
TEXTS = ("input_text", "output_text", "text")


@dataclass(frozen=True, slots=True)
class Question:
    wanted: str | None
    talk: Talk
    options: Mapping[str, Any]
    told: Item  # of the request, again in the answer


# --- the question ---


def question_of(fields: Fields) -> Question:
    if fields.get("previous_response_id") or fields.get("conversation"):
        raise bad("previous_response_id", "nothing is kept here between requests: send the whole conversation")
    form = get(get(fields, "text", dict, {}), "format", dict, {})
    as_of_chat = {"type": form.get("type", "text"), "json_schema": {"schema": form.get("schema")}}
    options = options_of(fields) | length_of(fields, "max_output_tokens") | form_of({"response_format": as_of_chat})
    tools = [tool_of(tool) for tool in get(fields, "tools", list, [])]
    effort = get(fields, "reasoning", dict, {}).get("effort")
    kwargs = {"reasoning_effort": effort} if isinstance(effort, str) else {}
    told = {name: fields.get(name) for name in ("instructions", "temperature", "top_p", "max_output_tokens")}
    told |= {"tools": fields.get("tools") or [], "tool_choice": "auto", "parallel_tool_calls": True, "metadata": {}}
    talk = Talk(messages_of(fields), tools or None, kwargs)
    return Question(get(fields, "model", str, "") or None, talk, options, told)


def messages_of(fields: Fields) -> list[Item]:
    given = fields.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(items, list) or not items:
        raise bad("input", "must be a text, or a list of items")
    instructions = get(fields, "instructions", str, "")
    before = [{"role": "system", "content": instructions}] if instructions else []
    return before + [message_of(item) for item in items if not is_thought(item)]


def is_thought(item: object) -> bool:
    """Of an answer that is sent back."""
    return isinstance(item, dict) and item.get("type") == "reasoning"


def message_of(item: object) -> Item:
    match item:
        case {"type": "function_call", "name": name, "arguments": arguments, "call_id": id}:
            function = {"name": name, "arguments": arguments}
            call = {"id": id, "type": "function", "function": function}
            return {"role": "assistant", "content": None, "tool_calls": [call]}
        case {"type": "function_call_output", "call_id": id, "output": output}:
            return {"role": "tool", "tool_call_id": id, "content": output}
        case {"role": role, "content": str(content)}:
            return {"role": role, "content": content}
        case {"role": role, "content": list(parts)}:
            return {"role": role, "content": "".join(map(text_of, parts))}
    raise bad("input", "must be a text, or a list of messages, calls and their outputs")


def text_of(part: object) -> str:
    match part:
        case {"type": kind, "text": str(text)} if kind in TEXTS:
            return text
    raise bad("input", "only texts can be read")


def tool_of(tool: object) -> Item:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        raise bad("tools", "only functions can be called")
    function = {key: value for key, value in tool.items() if key not in ("type", "strict")}
    return {"type": "function", "function": function}


# --- the answer ---


async def response(question: Question, desk: Desk) -> Item:
    """The whole answer."""
    *_, last = [event async for event in events(question, desk)]
    whole: Item = last["response"]
    return whole


async def events(question: Question, desk: Desk) -> AsyncGenerator[Item, None]:
    """From response.created to response.completed, which carries all of it."""
    numbers = itertools.count()

    def event(kind: str, **more: Any) -> Item:
        return {"type": f"response.{kind}", "sequence_number": next(numbers), **more}

    async with desk.seat(question.wanted) as seat, seat.run(question.talk, question.options) as run:
        head = {"id": new("resp"), "object": "response", "created_at": int(time.time()), "model": seat.name}
        head |= question.told | {"error": None, "incomplete_details": None}
        begun = head | {"status": "in_progress", "output": [], "usage": None}
        yield event("created", response=begun)
        yield event("in_progress", response=begun)
        output = Output()
        async for piece in run.pieces:
            output.thoughts += piece.text if piece.kind == "thought" else ""
            output.calls += piece.calls
            if piece.kind == "text" and piece.text:
                if not output.text:
                    yield event("output_item.added", output_index=0, item=output.message("in_progress"))
                    yield event("content_part.added", **output.place, part=part_of(""))
                output.text += piece.text
                yield event("output_text.delta", **output.place, delta=piece.text, logprobs=[])
        if run.finish_reason == "length":
            output.status = "incomplete"
            head["incomplete_details"] = {"reason": "max_output_tokens"}
        for item in output.ended(event):
            yield item
        end = head | {"status": output.status, "output": output.items, "usage": usage(run)}
        yield event(output.status, response=end)


class Output:
    """What has been written: a message, the thoughts before it, and calls."""

    def __init__(self) -> None:
        self.text = self.thoughts = ""
        self.status = "completed"  # or incomplete: of the message, and of all
        self.calls: list[Call] = []
        self.id = new("msg")
        self.place: Item = {"item_id": self.id, "output_index": 0, "content_index": 0}

    def message(self, status: str) -> Item:
        content = [] if status == "in_progress" else [part_of(self.text)]
        return {"id": self.id, "type": "message", "status": status, "role": "assistant", "content": content}

    @property
    def items(self) -> list[Item]:
        """The message first: it has been told to be number 0."""
        items = [self.message(self.status)] if self.text or not self.calls else []
        return items + [call_of(call) for call in self.calls] + self._reasoning

    @property
    def _reasoning(self) -> list[Item]:
        if not self.thoughts:
            return []
        content = [{"type": "reasoning_text", "text": self.thoughts.strip()}]
        return [{"id": f"rs_{self.id}", "type": "reasoning", "summary": [], "content": content}]

    def ended(self, event: Callable[..., Item]) -> list[Item]:
        """The events that are left to tell of every item."""
        told = []
        if self.text:
            told.append(event("output_text.done", **self.place, text=self.text, logprobs=[]))
            told.append(event("content_part.done", **self.place, part=part_of(self.text)))
        for index, item in enumerate(self.items):
            if item["id"] != self.id or not self.text:
                told.append(event("output_item.added", output_index=index, item=item))
            told.append(event("output_item.done", output_index=index, item=item))
        return told


def part_of(text: str) -> Item:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def call_of(call: "Call") -> Item:
    function = as_text(call)["function"]
    return {"id": f"fc_{call.id}", "type": "function_call", "status": "completed", "call_id": call.id, **function}


def usage(run: Run) -> Item:
    read, written = run.stats.prompt_tokens, run.stats.generated_tokens
    return {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": run.stats.reused_tokens},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": read + written,
    }


def new(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"
