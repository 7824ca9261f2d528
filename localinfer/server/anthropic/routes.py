"""The HTTP endpoints of Anthropic's API. The modules that build the responses do not depend on HTTP."""

from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from localinfer.server.anthropic import messages as message_api
from localinfer.server.anthropic.errors import error_body
from localinfer.server.anthropic.request import parse_message_request
from localinfer.server.dispatcher import Dispatcher
from localinfer.server.http import streaming
from localinfer.server.http.streaming import JSONResponse
from localinfer.server.requests.request_fields import parse_fields, read_json_object

EVENTS = streaming.NAMED_EVENTS._replace(format_error=error_body)


async def messages(request: Request) -> Response:
    """`/v1/messages`"""
    message_request = await parse_fields(parse_message_request, await read_json_object(request))
    dispatcher: Dispatcher = request.app.state.dispatcher
    if message_request.stream:
        return await streaming.stream_response(message_api.events(message_request, dispatcher), EVENTS)
    return JSONResponse(await message_api.message(message_request, dispatcher))


async def count_tokens(request: Request) -> Response:
    """`/v1/messages/count_tokens`: the number of tokens of the prompt."""
    message_request = await parse_fields(parse_message_request, await read_json_object(request))
    dispatcher: Dispatcher = request.app.state.dispatcher
    async with dispatcher.using(message_request.model_name) as (_, model):
        prompt = replace(message_request.prompt, access=dispatcher.settings.media_access)
        options = message_request.options_for(model)
        rendered = await dispatcher.run_in_background(lambda _: prompt.render(model, options))
    return JSONResponse({"input_tokens": len(rendered.ids)})
