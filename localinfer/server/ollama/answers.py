"""`/api/chat` and `/api/generate`."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from json import dumps
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from localinfer.options import Layer
from localinfer.server import streams
from localinfer.server.desk import Asked, Desk, Seat, Talk, Text
from localinfer.server.fields import SAMPLING, Fields, body_of, get, length_of, options_of
from localinfer.server.ollama.keeping import kept_for
from localinfer.server.openai.probabilities import of_chat
from localinfer.server.problems import bad
from localinfer.server.streams import Json

if TYPE_CHECKING:
    from localinfer.generation.pieces import Call, Piece, Stats

Part = dict[str, Any]
FIELD_OF = {"text": "content", "thought": "thinking"}  # of a message, by the kind of its pieces
MOST_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class Question:
    """`shown` makes a part of an answer of a field of a message and its text."""

    wanted: str | None
    asked: Asked | None  # None: the model shall be loaded, or let go of
    options: Layer
    stream: bool
    kept_for: float | None  # seconds that the model stays in memory behind the answer, if the request says so
    top_logprobs: int | None
    shown: Callable[[str, str], Part]


async def chat(request: Request) -> Response:
    fields = await body_of(request)
    messages = [message_of(each) for each in get(fields, "messages", list, [])]
    tools = get(fields, "tools", list, []) or None
    asked = Talk(messages, tools, thinking_of(fields)) if messages else None
    return await answered(request, question_of(fields, asked, in_message))


async def generate(request: Request) -> Response:
    """A prompt is a message, unless it is `raw`."""
    fields = await body_of(request)
    prompt, system = get(fields, "prompt", str, ""), get(fields, "system", str, "")
    if fields.get("suffix"):
        raise bad("suffix", "filling gaps is not supported")
    if fields.get("images"):
        raise bad("images", "only texts can be read")
    asked: Asked | None = None
    if prompt and get(fields, "raw", bool, False):
        asked = Text(prompt)
    elif prompt:
        before = [{"role": "system", "content": system}] if system else []
        asked = Talk([*before, {"role": "user", "content": prompt}], None, thinking_of(fields))
    return await answered(request, question_of(fields, asked, in_response))


# --- the question ---


def question_of(fields: Fields, asked: Asked | None, shown: Callable[[str, str], Part]) -> Question:
    given = get(fields, "options", dict, {})
    options = options_of(given, SAMPLING) | length_of(given, "num_predict") | form_of(fields)
    if isinstance(fields.get("think"), bool):
        options |= {"think": "on" if fields["think"] else "off"}
    wants_logprobs, top = get(fields, "logprobs", bool, False), get(fields, "top_logprobs", int, 0)
    if wants_logprobs:
        options |= {"logprobs": min(max(top, 1), MOST_LOGPROBS)}
    return Question(
        wanted=get(fields, "model", str, "") or None,
        asked=asked,
        options=options,
        stream=get(fields, "stream", bool, True),
        kept_for=kept_for(fields),
        top_logprobs=top if wants_logprobs else None,
        shown=shown,
    )


def thinking_of(fields: Fields) -> Mapping[str, Any]:
    """How much, where it is a word."""
    return {"reasoning_effort": fields["think"]} if isinstance(fields.get("think"), str) else {}


def form_of(fields: Fields) -> Layer:
    form = fields.get("format")
    if form is None or form == "":
        return {}
    if form == "json":
        return {"json_mode": True}
    if not isinstance(form, dict):
        raise bad("format", "must be json, or a schema")
    return {"json_schema": dumps(form)}


def message_of(message: object) -> Mapping[str, Any]:
    """In the words that templates know."""
    if not isinstance(message, Mapping):
        raise bad("messages", "must be a list of objects with role and content")
    if message.get("images"):
        raise bad("messages", "images: only texts can be read")
    named = {"name": message["tool_name"]} if "tool_name" in message else {}
    return {key: value for key, value in message.items() if key not in ("images", "tool_name")} | named


# --- the answer ---


def in_message(field: str, text: str) -> Part:
    return {"message": {"role": "assistant", "content": "", field: text}}


def in_response(field: str, text: str) -> Part:
    return {"response": text} if field == "content" else {"response": "", "thinking": text}


def in_calls(calls: "Sequence[Call]") -> Part:
    told = [{"function": {"name": call.name, "arguments": call.arguments}} for call in calls]
    return {"message": {"role": "assistant", "content": "", "tool_calls": told}}


async def answered(request: Request, question: Question) -> Response:
    desk: Desk = request.app.state.desk
    found = parts(question, desk)
    if question.stream:
        return await streams.parts(found, streams.LINES)
    *before, last = [part async for part in found]
    return Json(joined([*before, last]) | {key: last[key] for key in last if key not in TEXTS})


TEXTS = ("message", "response", "thinking", "logprobs")


def joined(all_parts: list[Part]) -> Part:
    """The texts of all parts in one."""
    whole: Part = {}
    for part in all_parts:
        for key in ("response", "thinking", "logprobs"):
            if key in part:
                whole[key] = whole[key] + part[key] if key in whole else part[key]
        if "message" in part:
            message = whole.setdefault("message", {"role": "assistant", "content": ""})
            for field in ("content", "thinking", "tool_calls"):
                if field in part["message"]:
                    added = part["message"][field]
                    message[field] = message[field] + added if field in message else added
    return whole


async def parts(question: Question, desk: Desk) -> AsyncGenerator[Part, None]:
    began = perf_counter_ns()
    async with desk.seat(question.wanted) as seat:
        try:
            async with aclosing(parts_of(seat, question, began)) as found:
                async for part in found:
                    yield part
        finally:
            desk.keep(seat.name, question.kept_for)
        if question.kept_for == 0:
            await desk.let_go(seat)


async def parts_of(seat: Seat, question: Question, began: int) -> AsyncGenerator[Part, None]:
    loaded = perf_counter_ns()
    head = {"model": seat.name}
    if question.asked is None:
        reason = "unload" if question.kept_for == 0 else "load"
        yield head | now() | question.shown("content", "") | {"done": True, "done_reason": reason}
        return
    async with seat.run(question.asked, question.options) as run:
        async for piece in run.pieces:
            if piece.kind != "tag" and (piece.text or piece.logprob is not None):
                told = probabilities(piece, question, seat.model)
                text = question.shown(FIELD_OF[piece.kind], piece.text)
                yield head | now() | text | told | {"done": False}
            if piece.calls:
                yield head | now() | in_calls(piece.calls) | {"done": False}
    end = {"done": True, "done_reason": run.finish_reason, "total_duration": perf_counter_ns() - began}
    end |= {"load_duration": loaded - began} | counts(run.stats)
    yield head | now() | question.shown("content", "") | end


def probabilities(piece: "Piece", question: Question, model: Any) -> Part:
    if question.top_logprobs is None or piece.logprob is None:
        return {}
    return {"logprobs": [of_chat(piece, question.top_logprobs, model)]}


def now() -> Part:
    return {"created_at": datetime.now(UTC).isoformat().replace("+00:00", "Z")}


def counts(stats: "Stats") -> Part:
    return {
        "prompt_eval_count": stats.prompt_tokens,
        "prompt_eval_duration": int(1e9 * stats.prompt_seconds),
        "eval_count": stats.generated_tokens,
        "eval_duration": int(1e9 * stats.generate_seconds),
    }
