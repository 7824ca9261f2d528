"""`/v1/chat/completions`: a conversation in, the next message out."""

import json
import time
import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from localinfer.server.choices import together
from localinfer.server.desk import Desk, Seat, Talk
from localinfer.server.fields import Fields, count, form_of, get, length_of, options_of
from localinfer.server.openai.counts import timings, usage
from localinfer.server.openai.probabilities import of_chat
from localinfer.server.openai.requests import Common, common
from localinfer.server.problems import bad
from localinfer.server.written import Pattern, Written

if TYPE_CHECKING:
    from localinfer.generation.pieces import Call, Piece, Stats
    from localinfer.model import Model

LENGTH = ("max_completion_tokens", "max_tokens", "n_predict")
MOST_LOGPROBS = 20
FIELD_OF = {"text": "content", "thought": "reasoning_content"}  # of a message, by the kind of its pieces


@dataclass(frozen=True, slots=True)
class Question:
    common: Common
    talk: Talk
    top_logprobs: int | None  # None: no probabilities at all


# --- the question ---


def question_of(fields: Fields) -> Question:
    """Problem names the first field that makes no sense."""
    top = count(fields, "top_logprobs", 0, 0, MOST_LOGPROBS)
    wants_logprobs = get(fields, "logprobs", bool, False)
    if top and not wants_logprobs:
        raise bad("top_logprobs", "needs logprobs to be true")
    options = options_of(fields) | length_of(fields, *LENGTH) | form_of(fields)
    if wants_logprobs:
        options |= {"logprobs": max(top, 1)}
    return Question(common(fields, options), talk_of(fields), top if wants_logprobs else None)


def talk_of(fields: Fields) -> Talk:
    """The conversation. A message of the assistant at its end is gone on with."""
    if "chat_template" in fields:
        raise bad("chat_template", "is not for a request to choose; the server has --chat-template")
    if get(fields, "modalities", list, ["text"]) != ["text"] or fields.get("audio"):
        raise bad("modalities", "must be text: this server neither hears nor speaks")
    messages = get(fields, "messages", list, [])
    if not messages:
        raise bad("messages", "must be a list of at least one message")
    last = messages[-1]
    is_begun = isinstance(last, Mapping) and last.get("role") == "assistant" and not last.get("tool_calls")
    tools = None if fields.get("tool_choice") == "none" else get(fields, "tools", list, []) or None
    kwargs = get(fields, "chat_template_kwargs", dict, {})
    if effort := get(fields, "reasoning_effort", str, ""):
        kwargs = {"reasoning_effort": effort, "enable_thinking": effort != "none"} | kwargs
    return Talk(messages, tools, kwargs, continue_final_message=is_begun)


# --- the answer ---


async def chunks(question: Question, desk: Desk) -> AsyncGenerator[Written, None]:
    """Piece by piece; each choice ends with why it does, and llama.cpp's timings."""
    all_stats: list[Stats] = []

    async def answer(index: int, seat: Seat) -> AsyncGenerator[Written, None]:
        def event(delta: Mapping[str, Any], *told: Any) -> dict[str, Any]:
            return head | {"choices": [choice(index, delta, *told)]}

        plain = Pattern(lambda text: event({"content": text}))
        async with seat.run(question.talk, question.common.options_for(index)) as run:
            yield event({"role": "assistant", "content": ""})
            calls: list[Call] = []
            async for piece in run.pieces:
                if piece.kind == "text" and piece.text and not piece.calls and question.top_logprobs is None:
                    yield plain.filled(piece.text)
                elif delta := delta_of(piece, len(calls)):
                    yield event(delta, logprobs_of([piece], question, seat.model))
                calls += piece.calls
        all_stats.append(run.stats)
        yield event({}, None, "tool_calls" if calls else run.finish_reason) | {"timings": timings(run.stats)}

    async with desk.seat(question.common.wanted) as seat:
        head = head_of("chat.completion.chunk", seat)
        head |= {"usage": None} if question.common.include_usage else {}
        answers = [partial(answer, index) for index in range(question.common.n)]
        async with aclosing(together(answers, seat, desk)) as told:
            async for part in told:
                yield part
    if question.common.include_usage:
        yield head | {"choices": [], "usage": usage(all_stats)}


def delta_of(piece: "Piece", n_calls: int) -> dict[str, Any]:
    """What a piece adds to the message, in which there are so many calls already."""
    delta: dict[str, Any] = {}
    if piece.kind != "tag" and (piece.text or piece.logprob is not None):
        delta[FIELD_OF[piece.kind]] = piece.text
    if piece.calls:
        delta["tool_calls"] = [{"index": n_calls + i} | as_text(call) for i, call in enumerate(piece.calls)]
    return delta


def as_text(call: "Call") -> dict[str, Any]:
    """With its arguments as a text in JSON."""
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return call.as_entry() | {"function": {"name": call.name, "arguments": arguments}}


def choice(
    index: int, delta: Mapping[str, Any], logprobs: Mapping[str, Any] | None = None, finish_reason: str | None = None
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}


async def completion(question: Question, desk: Desk) -> dict[str, Any]:
    """The whole answer."""
    all_stats: list[Stats] = []

    async def answer(index: int, seat: Seat) -> AsyncGenerator[dict[str, Any], None]:
        async with seat.run(question.talk, question.common.options_for(index)) as run:
            pieces = [piece async for piece in run.pieces]
        all_stats.append(run.stats)
        message = message_of(pieces)
        yield {
            "index": index,
            "message": message,
            "logprobs": logprobs_of(pieces, question, seat.model),
            "finish_reason": "tool_calls" if "tool_calls" in message else run.finish_reason,
        }

    async with desk.seat(question.common.wanted) as seat:
        answers = [partial(answer, index) for index in range(question.common.n)]
        choices = [choice async for choice in together(answers, seat, desk)]
        counts = {"usage": usage(all_stats), "timings": timings(all_stats[-1])}
        return head_of("chat.completion", seat) | {"choices": sorted(choices, key=itemgetter("index"))} | counts


def message_of(pieces: "list[Piece]") -> dict[str, Any]:
    texts = {kind: "".join(piece.text for piece in pieces if piece.kind == kind) for kind in FIELD_OF}
    thoughts = {"reasoning_content": texts["thought"].strip()} if texts["thought"] else {}
    if calls := [as_text(call) for piece in pieces for call in piece.calls]:
        return {"role": "assistant", "content": texts["text"] or None, **thoughts, "tool_calls": calls}
    return {"role": "assistant", "content": texts["text"], **thoughts}


def logprobs_of(pieces: "list[Piece]", question: Question, model: "Model") -> dict[str, Any] | None:
    most = question.top_logprobs
    if most is None:
        return None
    told = [of_chat(piece, most, model) for piece in pieces if piece.kind == "text" and piece.logprob is not None]
    return {"content": told}


def head_of(kind: str, seat: Seat, prefix: str = "chatcmpl-") -> dict[str, Any]:
    id = f"{prefix}{uuid.uuid4().hex}"
    return {"id": id, "object": kind, "created": int(time.time()), "model": seat.name}
