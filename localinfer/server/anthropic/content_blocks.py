"""The content blocks of an answer, as the events of a stream.

A block begins with content_block_start, grows with content_block_delta and ends with content_block_stop. Blocks follow
each other; the index counts them.
"""

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from localinfer.server.requests.call_ids import unique_id

if TYPE_CHECKING:
    from localinfer.generation.pieces import Piece

Event = dict[str, Any]


class ContentBlocks:
    """Converts the pieces of one answer to events. At most one block is open."""

    def __init__(self) -> None:
        self.n_calls = 0  # complete tool calls
        self._n_blocks = 0
        self._open: object = None  # "text", "thinking", or the index of a call
        self._thinking = hashlib.sha256()  # of the open block
        self._streamed_calls: set[int] = set()

    def push(self, piece: "Piece") -> Iterator[Event]:
        """Yield the events of a piece."""
        if piece.text and piece.kind == "reasoning":
            yield from self._begin("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            self._thinking.update(piece.text.encode("utf-8", "replace"))
            yield self._delta("thinking_delta", "thinking", piece.text)
        elif piece.text and piece.kind == "text":
            yield from self._begin("text", {"type": "text", "text": ""})
            yield self._delta("text_delta", "text", piece.text)
        for part in piece.call_parts:
            self._streamed_calls.add(part.index)
            yield from self._begin_call(part.index, part.id, part.name)
            yield self._delta("input_json_delta", "partial_json", part.text)
        for call in piece.calls:
            if self.n_calls not in self._streamed_calls:
                yield from self._begin_call(self.n_calls, call.id, call.name)
                arguments = json.dumps(call.arguments, ensure_ascii=False)
                yield self._delta("input_json_delta", "partial_json", arguments)
            self.n_calls += 1

    def close(self) -> Iterator[Event]:
        """Yield the events that end the open block, if any."""
        if self._open == "thinking":
            signature = base64.b64encode(self._thinking.digest()).decode()
            yield self._delta("signature_delta", "signature", signature)
        if self._open is not None:
            yield {"type": "content_block_stop", "index": self._n_blocks - 1}
        self._open = None

    def _begin(self, kind: object, block: Event) -> Iterator[Event]:
        """Yield the events that begin a block of another kind than the open one, or of another call."""
        if kind != self._open:
            yield from self.close()
            self._open, self._thinking = kind, hashlib.sha256()
            yield {"type": "content_block_start", "index": self._n_blocks, "content_block": block}
            self._n_blocks += 1

    def _begin_call(self, index: int, id: str, name: str) -> Iterator[Event]:
        if index != self._open:
            yield from self._begin(index, {"type": "tool_use", "id": unique_id(id), "name": name, "input": {}})

    def _delta(self, kind: str, field: str, text: str) -> Event:
        delta = {"type": kind, field: text}
        return {"type": "content_block_delta", "index": self._n_blocks - 1, "delta": delta}


def join_events(events: Iterable[Event]) -> list[Event]:
    """Return the content blocks that these events describe."""
    blocks: list[Event] = []
    texts: list[str] = []
    for event in events:
        match event:
            case {"type": "content_block_start", "content_block": block}:
                blocks.append(dict(block))
                texts = []
            case {"type": "content_block_delta", "delta": {"signature": signature}}:
                blocks[-1]["signature"] = signature
            case {"type": "content_block_delta", "delta": delta}:
                texts.append(delta.get("text") or delta.get("thinking") or delta.get("partial_json") or "")
            case {"type": "content_block_stop"}:
                text, kind = "".join(texts), blocks[-1]["type"]
                blocks[-1] |= {"input": json.loads(text)} if kind == "tool_use" else {kind: text}
    return blocks
