"""The output items of a response (reasoning, message, function calls), and the events that build them up."""

import json
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from localinfer.server.requests.call_ids import unique_id

if TYPE_CHECKING:
    from localinfer.generation.pieces import Piece

Item = dict[str, Any]
MESSAGE, REASONING = "message", "reasoning"


class OutputItems:
    """Converts the pieces of one answer to events. `items` are the items so far; at most the last one is open.

    `event(kind, **fields)` makes an event.
    """

    def __init__(self, event: Callable[..., Item]) -> None:
        self.items: list[Item] = []
        self.n_calls = 0  # complete function calls
        self.n_reasoning_tokens = 0
        self._event = event
        self._open: object = None  # "message", "reasoning", or the index of a call
        self._text = ""  # of the open item
        self._streamed_calls: set[int] = set()

    def push(self, piece: "Piece", **more: Any) -> Iterator[Item]:
        """Yield the events of a piece. `more` are fields of the delta of a text."""
        self.n_reasoning_tokens += piece.kind == "reasoning"
        if piece.text and piece.kind == "reasoning":
            yield from self._begin_text(REASONING)
            yield self._delta("reasoning_text.delta", piece.text, content_index=0)
        elif piece.text and piece.kind == "text":
            yield from self._begin_text(MESSAGE)
            yield self._delta("output_text.delta", piece.text, content_index=0, logprobs=[], **more)
        for part in piece.call_parts:
            self._streamed_calls.add(part.index)
            yield from self._begin_call(part.index, part.id, part.name)
            yield self._delta("function_call_arguments.delta", part.text)
        for call in piece.calls:
            if self.n_calls not in self._streamed_calls:
                yield from self._begin_call(self.n_calls, call.id, call.name)
                arguments = json.dumps(call.arguments, ensure_ascii=False)
                yield self._delta("function_call_arguments.delta", arguments)
            self.n_calls += 1

    def close(self, status: str) -> Iterator[Item]:
        """Yield the events that end the answer with this status. It has at least one item besides the reasoning."""
        if all(item["type"] == REASONING for item in self.items):
            yield from self._begin_text(MESSAGE)
        yield from self._end(status)

    def abort(self) -> Iterator[Item]:
        """Yield the events that end an answer in which an error occurred."""
        yield from self._end("incomplete")

    def _begin_text(self, kind: str) -> Iterator[Item]:
        if kind == self._open:
            return
        yield from self._end("completed")
        if kind == MESSAGE:
            item = {"id": new_id("msg"), "type": MESSAGE, "status": "in_progress", "role": "assistant", "content": []}
        else:
            item = {"id": new_id("rs"), "type": REASONING, "status": "in_progress", "summary": [], "content": []}
        yield self._begin(kind, item)
        yield self._event("content_part.added", **self._position, content_index=0, part=text_part(kind, ""))

    def _begin_call(self, index: int, id: str, name: str) -> Iterator[Item]:
        if index == self._open:
            return
        yield from self._end("completed")
        id = unique_id(id)
        head = {"id": f"fc_{id}", "type": "function_call", "status": "in_progress"}
        yield self._begin(index, head | {"call_id": id, "name": name, "arguments": ""})

    def _begin(self, key: object, item: Item) -> Item:
        self._open, self._text = key, ""
        self.items.append(item)
        return self._event("output_item.added", output_index=len(self.items) - 1, item=item)

    def _end(self, status: str) -> Iterator[Item]:
        """Yield the events that complete the open item, if any."""
        if self._open is None:
            return
        item = self.items[-1]
        if self._open in (MESSAGE, REASONING):
            kind, part = str(self._open), text_part(str(self._open), self._text)
            more: Item = {"logprobs": []} if kind == MESSAGE else {}
            position = self._position | {"content_index": 0}
            yield self._event(f"{part['type']}.done", **position, text=self._text, **more)
            yield self._event("content_part.done", **position, part=part)
            item = item | {"status": status, "content": [part]}
        else:
            yield self._event(
                "function_call_arguments.done", **self._position, name=item["name"], arguments=self._text)  # fmt: skip
            item = item | {"status": status, "arguments": self._text}
        self.items[-1], self._open = item, None
        yield self._event("output_item.done", output_index=len(self.items) - 1, item=item)

    def _delta(self, kind: str, text: str, **more: Any) -> Item:
        self._text += text
        return self._event(kind, **self._position, **more, delta=text)

    @property
    def _position(self) -> Item:
        return {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}


def text_part(kind: str, text: str) -> Item:
    """Return the only part of a message or a reasoning item."""
    if kind == REASONING:
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"
