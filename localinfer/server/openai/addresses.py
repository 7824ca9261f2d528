"""OpenAI's addresses: HTTP around questions and answers, which know nothing of it."""

from starlette.requests import Request
from starlette.responses import Response

from localinfer.server import streams
from localinfer.server.desk import Desk
from localinfer.server.fields import body_of, get
from localinfer.server.openai import chat
from localinfer.server.openai import completions as texts
from localinfer.server.openai import embeddings as vectors
from localinfer.server.openai import responses as newer
from localinfer.server.streams import Json


async def chat_completions(request: Request) -> Response:
    question = chat.question_of(await body_of(request))
    if question.common.stream:
        return await streams.parts(chat.chunks(question, desk_of(request)), streams.OPENAI_EVENTS)
    return Json(await chat.completion(question, desk_of(request)))


async def completions(request: Request) -> Response:
    question = texts.question_of(await body_of(request))
    if question.common.stream:
        return await streams.parts(texts.chunks(question, desk_of(request)), streams.OPENAI_EVENTS)
    return Json(await texts.completion(question, desk_of(request)))


async def responses(request: Request) -> Response:
    fields = await body_of(request)
    question = newer.question_of(fields)
    if get(fields, "stream", bool, False):
        return await streams.parts(newer.events(question, desk_of(request)), streams.NAMED_EVENTS)
    return Json(await newer.response(question, desk_of(request)))


async def embeddings(request: Request) -> Response:
    return Json(await vectors.embeddings(await body_of(request), desk_of(request)))


def desk_of(request: Request) -> Desk:
    desk: Desk = request.app.state.desk
    return desk
