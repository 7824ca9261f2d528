"""The HTTP endpoints of OpenAI's API. The modules that build the responses do not depend on HTTP."""

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from localinfer.server.dispatcher import Dispatcher
from localinfer.server.http import streaming
from localinfer.server.http.streaming import JSONResponse
from localinfer.server.openai import chat
from localinfer.server.openai import completions as completion_api
from localinfer.server.openai import embeddings as embedding_api
from localinfer.server.openai import responses as response_api
from localinfer.server.openai import transcriptions as transcription_api
from localinfer.server.openai.response_request import parse_response_request
from localinfer.server.requests.forms import read_form
from localinfer.server.requests.request_fields import Fields, get, parse_fields, ping_interval, read_json_object


async def chat_completions(request: Request) -> Response:
    """`/v1/chat/completions`"""
    fields = await read_json_object(request)
    chat_request = await parse_fields(chat.parse_chat_request, fields)
    if chat_request.common.stream:
        chunks = chat.chunks(chat_request, get_dispatcher(request))
        return await streaming.stream_response(chunks, streaming.OPENAI_EVENTS, pings(fields, request))
    return JSONResponse(await chat.completion(chat_request, get_dispatcher(request)))


async def completions(request: Request) -> Response:
    """`/v1/completions`"""
    fields = await read_json_object(request)
    completion_request = completion_api.parse_completion_request(fields)
    if completion_request.common.stream:
        chunks = completion_api.chunks(completion_request, get_dispatcher(request))
        return await streaming.stream_response(chunks, streaming.OPENAI_EVENTS, pings(fields, request))
    return JSONResponse(await completion_api.completion(completion_request, get_dispatcher(request)))


async def responses(request: Request) -> Response:
    """`/v1/responses`"""
    fields = await read_json_object(request)
    response_request = await parse_fields(parse_response_request, fields)
    if get(fields, "stream", bool, False):
        events = response_api.events(response_request, get_dispatcher(request))
        return await streaming.stream_response(events, streaming.NAMED_EVENTS, pings(fields, request))
    return JSONResponse(await response_api.response(response_request, get_dispatcher(request)))


async def count_input_tokens(request: Request) -> Response:
    """`/v1/responses/input_tokens`"""
    return JSONResponse(await response_api.count_input_tokens(await read_json_object(request), get_dispatcher(request)))


async def embeddings(request: Request) -> Response:
    """`/v1/embeddings`"""
    fields = await read_json_object(request)
    return JSONResponse(await embedding_api.encoded_embeddings(fields, get_dispatcher(request)))


async def transcriptions(request: Request) -> Response:
    """`/v1/audio/transcriptions`"""
    transcription_request = transcription_api.parse_transcription_request(await read_form(request))
    if transcription_request.stream:
        events = transcription_api.events(transcription_request, get_dispatcher(request))
        return await streaming.stream_response(events, streaming.OPENAI_EVENTS, pings({}, request))
    found = await transcription_api.transcription(transcription_request, get_dispatcher(request))
    if write := transcription_api.TEXTS.get(transcription_request.format):
        return PlainTextResponse(write(found))
    return JSONResponse(transcription_api.OBJECTS[transcription_request.format](found))


def pings(fields: Fields, request: Request) -> float:
    """Return the seconds between comments in a silent stream."""
    return ping_interval(fields, get_dispatcher(request).settings.ping_interval)


def get_dispatcher(request: Request) -> Dispatcher:
    """Return the dispatcher of the application."""
    dispatcher: Dispatcher = request.app.state.dispatcher
    return dispatcher
