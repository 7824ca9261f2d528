"""`/tokenize`, `/detokenize`, `/apply-template`, and the counts of tokens of chats."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from localinfer.server.dispatcher import Dispatcher
from localinfer.server.http.api_errors import APIError
from localinfer.server.http.json_output import dump_json
from localinfer.server.http.streaming import JSONResponse
from localinfer.server.openai.chat import parse_chat_prompt, render
from localinfer.server.requests.mixed_prompts import require_vocabulary_ids
from localinfer.server.requests.request_fields import get, parse_fields, read_json_object

if TYPE_CHECKING:
    from localinfer.model import Model
    from localinfer.tokenizer import Tokenizer

MAX_TOKENIZE = 5_000_000  # characters of a text
MAX_DETOKENIZE = 1 << 20  # token ids
PART = 10_000  # token ids that are encoded as JSON at once


async def tokenize(request: Request) -> Response:
    """`/tokenize`: text to token ids, with `with_pieces` also the text of each token."""
    fields = await read_json_object(request)
    content = get(fields, "content", str, "")
    require_size("content", content, MAX_TOKENIZE)
    add_special, parse_special = get(fields, "add_special", bool, False), get(fields, "parse_special", bool, True)
    with_pieces = get(fields, "with_pieces", bool, False)
    dispatcher: Dispatcher = request.app.state.dispatcher
    async with dispatcher.using(get(fields, "model", str, "")) as (_, model):

        def respond(stop_if_ended: Callable[[], None]) -> Response:
            ids = model.tokenize(
                content, add_special=add_special, parse_special=parse_special, on_wait=stop_if_ended)  # fmt: skip
            return JSONResponse(token_list(ids, model.tokenizer if with_pieces else None, stop_if_ended))

        return await dispatcher.run_in_background(respond)


def token_list(ids: list[int], tokenizer: "Tokenizer | None", stop_if_ended: Callable[[], None]) -> bytes:
    """Return the response of `/tokenize`, encoded as JSON. With a tokenizer, it has the text of each token, too.

    The encoder keeps the event loop from running, so it gets a part of the list at a time.
    """
    parts = []
    for start in range(0, len(ids), PART):
        stop_if_ended()
        part: list[Any] = ids[start : start + PART]
        if tokenizer:
            part = [{"id": id, "piece": decode_piece(tokenizer.token_bytes(id, special=True))} for id in part]
        parts.append(dump_json(part)[1:-1])
    return b'{"tokens":[%b]}' % b",".join(parts)


def require_size(field: str, value: str | list[Any], limit: int) -> None:
    """Raise APIError (413) for a text or a list that would take much memory."""
    if len(value) > limit:
        raise APIError(413, f"{field}: {len(value):,} are too many, at most {limit:,}", param=field)


def decode_piece(token_bytes: bytes) -> str | list[int]:
    """Return the token's text, or a list of its bytes if they are not valid UTF-8 on their own."""
    try:
        return token_bytes.decode()
    except UnicodeDecodeError:
        return list(token_bytes)


async def detokenize(request: Request) -> Response:
    """`/detokenize`: token ids to text."""
    fields = await read_json_object(request)
    tokens = get(fields, "tokens", list, [])
    require_size("tokens", tokens, MAX_DETOKENIZE)
    require_vocabulary_ids(tokens, "tokens")
    dispatcher: Dispatcher = request.app.state.dispatcher
    async with dispatcher.using(get(fields, "model", str, "")) as (_, model):

        def respond(stop_if_ended: Callable[[], None]) -> Response:
            return JSONResponse({"content": model.detokenize(tokens, special=True, on_wait=stop_if_ended)})

        return await dispatcher.run_in_background(respond)


async def apply_template(request: Request) -> Response:
    """`/apply-template`: messages to a prompt, rendered with the chat template."""
    fields = await read_json_object(request)
    chat = await parse_fields(parse_chat_prompt, fields)
    async with request.app.state.dispatcher.lease(get(fields, "model", str, "") or None) as lease:
        prompt = await render(chat, lease)
    return JSONResponse({"prompt": without_bos(prompt.text, lease.model)})


def without_bos(text: str, model: "Model") -> str:
    """Return a prompt without the text of BOS if the model adds that token, as `/completion` would add another one."""
    tokenizer = model.tokenizer
    if not tokenizer.add_bos or tokenizer.bos is None:
        return text
    return text.removeprefix(tokenizer.token_text(tokenizer.bos))


async def count_chat_tokens(request: Request) -> Response:
    """`/v1/chat/completions/input_tokens`: the number of tokens of the prompt of a chat."""
    fields = await read_json_object(request)
    chat = await parse_fields(parse_chat_prompt, fields)
    async with request.app.state.dispatcher.lease(get(fields, "model", str, "") or None) as lease:
        prompt = await render(chat, lease)
    return JSONResponse({"object": "response.input_tokens", "input_tokens": len(prompt.ids)})
