"""The addresses of llama.cpp's server that OpenAI's API has none for."""

from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from localinfer.server import streams
from localinfer.server.desk import Desk, Text
from localinfer.server.fields import body_of, form_of, get, length_of, options_of
from localinfer.server.openai.chat import talk_of
from localinfer.server.openai.completions import prompts_of
from localinfer.server.openai.counts import timings
from localinfer.server.problems import bad
from localinfer.server.slots import Slot
from localinfer.server.streams import Json
from localinfer.version import VERSION


async def health(_: Request) -> Response:
    return Json({"status": "ok"})


async def props(request: Request) -> Response:
    """Of the model that is used unless a request says otherwise, and of the server."""
    desk: Desk = request.app.state.desk
    offered, model = await desk.model(request.query_params.get("model"))
    template = model.file.get("tokenizer.chat_template", str, "")
    return Json({
        "default_generation_settings": {"n_ctx": model.n_ctx, "params": request.app.state.defaults(model)},
        "total_slots": len(desk.slots.all),
        "model_alias": offered.name,
        "model_path": str(model.file.path),
        "chat_template": template,
        "build_info": f"localinfer {VERSION}",
    })  # fmt: skip


async def slots(request: Request) -> Response:
    desk: Desk = request.app.state.desk
    return Json([told_of(slot) | {"waiting": desk.slots.waiting} for slot in desk.slots.all])


def told_of(slot: Slot) -> dict[str, Any]:
    """Who is at work, with how many tokens of the context in use."""
    told = {"id": slot.number, "is_processing": slot.busy}
    return told | ({"n_ctx": slot.model.n_ctx, "n_past": slot.model.engine.n_past} if slot.model else {})


async def tokenize(request: Request) -> Response:
    fields = await body_of(request)
    content = get(fields, "content", str, "")
    _, model = await request.app.state.desk.model(get(fields, "model", str, ""))
    ids = model.tokenize(
        content,
        add_special=get(fields, "add_special", bool, False),
        parse_special=get(fields, "parse_special", bool, True),
    )
    if not get(fields, "with_pieces", bool, False):
        return Json({"tokens": ids})
    return Json({"tokens": [{"id": id, "piece": piece_of(model.tokenizer.token_bytes(id, special=True))}
                                    for id in ids]})  # fmt: skip


def piece_of(spelled: bytes) -> str | list[int]:
    """A text, or the bytes of a part of a character."""
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        return list(spelled)


async def detokenize(request: Request) -> Response:
    fields = await body_of(request)
    _, model = await request.app.state.desk.model(get(fields, "model", str, ""))
    return Json({"content": model.detokenize(get(fields, "tokens", list, []), special=True)})


async def apply_template(request: Request) -> Response:
    """The prompt that a conversation becomes."""
    fields = await body_of(request)
    talk = talk_of(fields)
    async with request.app.state.desk.seat(get(fields, "model", str, "") or None) as seat:
        prompt = await seat.slot.call(lambda: seat.model.render(
            talk.messages, tools=talk.tools, template_kwargs=talk.template_kwargs,
            continue_final_message=talk.continue_final_message))  # fmt: skip
    return Json({"prompt": prompt.text})


# --- /completion: older than OpenAI's form, and still used ---


async def completion(request: Request) -> Response:
    fields = await body_of(request)
    prompts = prompts_of(fields)
    if len(prompts) > 1:
        raise bad("prompt", "must be one text, or its tokens")
    options = options_of(fields) | length_of(fields, "n_predict", "max_tokens") | form_of(fields)
    wanted = get(fields, "model", str, "") or None
    desk: Desk = request.app.state.desk
    parts = completion_parts(desk, wanted, prompts[0], options)
    if get(fields, "stream", bool, False):
        return await streams.parts(parts, streams.EVENTS)
    *before, last = [part async for part in parts]
    content = "".join(part["content"] for part in before)
    return Json(last | {"content": content, "tokens": [id for part in before for id in part["tokens"]]})


async def completion_parts(
    desk: Desk, wanted: str | None, prompt: Text, options: dict[str, Any]
) -> AsyncGenerator[dict[str, Any], None]:
    async with desk.seat(wanted) as seat, seat.run(prompt, options) as run:
        async for piece in run.pieces:
            yield {"index": 0, "content": piece.text, "tokens": [piece.id], "stop": False, "id_slot": seat.slot.number}
    stats = run.stats
    yield {
        "index": 0,
        "content": "",
        "tokens": [],
        "id_slot": seat.slot.number,
        "stop": True,
        "model": seat.name,
        "tokens_predicted": stats.generated_tokens,
        "tokens_evaluated": stats.prompt_tokens,
        "tokens_cached": stats.prompt_tokens + stats.generated_tokens,
        "stop_type": "limit" if run.finish_reason == "length" else "eos",
        "truncated": False,
        "timings": timings(stats),
    }
