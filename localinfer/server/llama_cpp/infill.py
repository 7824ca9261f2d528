"""`/infill`: completion in editors. The response is that of `/completion`."""

from collections.abc import Mapping, Sequence

from starlette.requests import Request
from starlette.responses import Response

from localinfer.server.http.api_errors import field_error
from localinfer.server.llama_cpp.completion import respond
from localinfer.server.llama_cpp.completion_request import parse_common_request
from localinfer.server.requests.infill_prompt import InfillPrompt
from localinfer.server.requests.mixed_prompts import parse_prompt
from localinfer.server.requests.request_fields import Fields, get, get_int, read_json_object


def parse_infill_prompt(fields: Fields, *, suffix_first: bool) -> InfillPrompt:
    """Parse the prompt of a request. Raises APIError (400) for an invalid field."""
    for name in ("input_prefix", "input_suffix"):
        if fields.get(name) is None:
            raise field_error(name, "is missing")
    prompt = fields.get("prompt")
    return InfillPrompt(
        prefix=parse_prompt(fields["input_prefix"], "input_prefix"),
        suffix=parse_prompt(fields["input_suffix"], "input_suffix"),
        continued=parse_prompt(prompt, "prompt") if prompt not in (None, "") else None,
        extra=parse_extra(get(fields, "input_extra", list, [])),
        n_predict=max(0, get_int(fields, "n_predict", 0, -2, 2**31 - 1)),
        suffix_first=suffix_first,
    )


def parse_extra(chunks: Sequence[object]) -> list[tuple[str, str]]:
    """Return name and text of each chunk. Raises APIError (400) for an invalid one."""
    files = []
    for index, chunk in enumerate(chunks):
        field = f"input_extra[{index}]"
        if not isinstance(chunk, Mapping) or not isinstance(chunk.get("text"), str):
            raise field_error(field, "must be an object with a text")
        if not isinstance(name := chunk.get("filename", "tmp"), str):
            raise field_error(field, "must have a text as its filename")
        files.append((name, chunk["text"]))
    return files


async def infill(request: Request) -> Response:
    """`/infill`"""
    fields, dispatcher = await read_json_object(request), request.app.state.dispatcher
    prompt = parse_infill_prompt(fields, suffix_first=dispatcher.settings.suffix_first)
    return await respond(parse_common_request(fields, [prompt], is_list=False), dispatcher, fields)
