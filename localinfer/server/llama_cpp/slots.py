"""`/slots`: the state of each slot, and its KV cache in files."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from localinfer.server.dispatcher import Dispatcher
from localinfer.server.http.api_errors import APIError, field_error
from localinfer.server.http.streaming import JSONResponse
from localinfer.server.lease import Lease
from localinfer.server.requests.request_fields import get, read_json_object
from localinfer.server.slots import Slot

POLL_SECONDS = 0.05
ACTIONS = ("save", "restore", "erase")
FILE_NAME = re.compile(r"[\w\-. ]{1,255}")


async def slots(request: Request) -> Response:
    """`/slots`: the state of each slot. With `fail_on_no_slot=1`, the status is 503 if none is free."""
    dispatcher: Dispatcher = request.app.state.dispatcher
    if not dispatcher.settings.has_slots:
        raise APIError(501, "/slots: the server was started with --no-slots")
    if request.query_params.get("fail_on_no_slot") == "1" and all(slot.is_busy for slot in dispatcher.slots.all):
        raise APIError(503, "no slot is free", code="busy")
    return JSONResponse([describe_slot(slot, dispatcher) for slot in dispatcher.slots.all])


def describe_slot(slot: Slot, dispatcher: Dispatcher) -> dict[str, Any]:
    """Return whether the slot is busy, how many tokens of the context its sequence uses, and where its latest prompt
    diverged from an earlier one.
    """
    state = {
        "id": slot.number, "is_processing": slot.is_busy, "waiting": dispatcher.slots.n_waiting,
        "prompt_divergence": slot.divergence,
    }  # fmt: skip
    if slot.model:
        return state | {"n_ctx": slot.model.n_ctx, "n_past": slot.model.engine.n_past}
    loaded = next(iter(reversed(dispatcher.model_cache.loaded.values())), None)
    return state | ({"n_ctx": loaded.n_ctx} if loaded else {})


async def act_on_slot(request: Request) -> Response:
    """`POST /slots/N?action=save|restore|erase`: save the KV cache of a slot, restore it, or discard it."""
    dispatcher: Dispatcher = request.app.state.dispatcher
    number, action = slot_number(request, dispatcher), request.query_params.get("action")
    if action not in ACTIONS:
        raise field_error("action", f"must be one of {', '.join(ACTIONS)}")
    path = None if action == "erase" else slot_file(await read_json_object(request), dispatcher)
    name = request.query_params.get("model")
    async with lease_slot(dispatcher, name, number) as lease:
        return JSONResponse({"id_slot": number} | await lease.slot.call(lambda: perform(action, path, lease)))


@asynccontextmanager
async def lease_slot(dispatcher: Dispatcher, name: str | None, number: int) -> AsyncIterator[Lease]:
    """Wait until this slot is free, and lease it."""
    while True:
        async with dispatcher.lease(name, number) as lease:
            if lease.slot.number == number:
                yield lease
                return
        await asyncio.sleep(POLL_SECONDS)


def slot_number(request: Request, dispatcher: Dispatcher) -> int:
    number = request.path_params["number"]
    if not number.isdecimal() or int(number) >= len(dispatcher.slots.all):
        raise field_error("id_slot", f"must be from 0 to {len(dispatcher.slots.all) - 1}")
    return int(number)


def slot_file(fields: dict[str, Any], dispatcher: Dispatcher) -> Path:
    """Return the file that a request names, in the folder of --slot-save-path and nowhere else."""
    folder, name = dispatcher.settings.slot_save_path, get(fields, "filename", str, "")
    if not folder:
        raise APIError(501, "/slots: the server was not started with --slot-save-path")
    if not FILE_NAME.fullmatch(name) or name.strip(". ") == "":
        raise field_error("filename", "must be a name of letters, digits, dots, hyphens, underscores and spaces")
    return Path(folder) / name


def perform(action: str, path: Path | None, lease: Lease) -> dict[str, Any]:
    """Save, restore or erase the sequence of the slot's model, and return what the response says about it."""
    model, start = lease.model, perf_counter()
    if path is None:
        n_erased = model.engine.n_past
        model.engine.reset()
        return {"n_erased": n_erased}
    if action == "save":
        model.save_cache(path)
        counts = {"n_saved": model.engine.n_past, "n_written": path.stat().st_size}
    else:
        if not path.is_file():
            raise field_error("filename", "there is no such file")
        if not (n_restored := model.load_cache(path)):
            raise field_error("filename", "is damaged, or belongs to another model or other options")
        counts = {"n_restored": n_restored, "n_read": path.stat().st_size}
    return {"filename": path.name, **counts, "timings": {f"{action}_ms": 1000 * (perf_counter() - start)}}
