"""`/api/tags`, `/api/show`, `/api/ps` and `/api/version`: which models there are, and what they can do."""

import asyncio
from collections.abc import Sized
from datetime import UTC, datetime
from math import isfinite
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from localinfer.files.gguf import open_gguf
from localinfer.server.desk import Desk
from localinfer.server.facts import Facts, facts_of
from localinfer.server.fields import body_of, get
from localinfer.server.problems import Problem
from localinfer.server.shelf import Offered, file_of
from localinfer.server.streams import Json
from localinfer.text import printable

SPEAKS = "0.12.6"  # the version of Ollama whose API this is: clients compare it with the one that they need
FOREVER = datetime(2200, 1, 1, tzinfo=UTC)  # models stay until another one needs the room, if no request says else
LONGEST = 64  # values of a list of the file's metadata that are told


async def version(_: Request) -> Response:
    return Json({"version": SPEAKS})


async def tags(request: Request) -> Response:
    desk: Desk = request.app.state.desk
    return Json({"models": await asyncio.to_thread(all_described, desk.shelf.offered())})


async def running(request: Request) -> Response:
    desk: Desk = request.app.state.desk
    loaded = {name: model.n_ctx for name, model in desk.shelf.loaded.items()}
    offered = [each for each in desk.shelf.offered() if each.name in loaded]
    ends = {name: desk.leaves_at.get(name, FOREVER).isoformat() for name in loaded}
    found = await asyncio.to_thread(all_described, offered)
    for each in found:
        name = each["name"]
        each |= {"expires_at": ends[name], "size_vram": 0, "context_length": loaded[name]}
    return Json({"models": found})


async def show(request: Request) -> Response:
    fields = await body_of(request)
    desk: Desk = request.app.state.desk
    offered = desk.shelf.resolved(get(fields, "model", str, "") or get(fields, "name", str, "") or None)
    return Json(await asyncio.to_thread(shown, offered, get(fields, "verbose", bool, False)))


def shown(offered: Offered, verbose: bool) -> dict[str, Any]:
    file = file_of(offered)
    facts = facts_of(file) if file else None
    if file is None or facts is None:
        raise Problem(404, f"model: {printable(offered.name, 100)} cannot be read", "model", "model_not_found")
    told = {key: value for key, value in open_gguf(file).metadata.items() if verbose or is_short(value)}
    return {
        "modelfile": f"FROM {file}\n",
        "parameters": "",
        "template": facts.template,
        "license": str(told.get("general.license", "")),
        "details": details_of(facts),
        "model_info": {key: plain(value) for key, value in told.items()}
        | {"general.parameter_count": facts.n_parameters},
        "capabilities": capabilities_of(facts),
        "modified_at": facts.modified.isoformat(),
    }


def capabilities_of(facts: Facts) -> list[str]:
    """By what the template knows to show."""
    tools = ["tools"] if "tools" in facts.template else []
    thinking = ["thinking"] if "<think>" in facts.template or "enable_thinking" in facts.template else []
    return ["completion", *tools, *thinking]


def is_short(value: object) -> bool:
    """Vocabularies are not told unless somebody asks for all."""
    return not isinstance(value, Sized) or isinstance(value, str | bytes) or len(value) <= LONGEST


def plain(value: Any) -> Any:
    """As JSON has it."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if isinstance(value, str | int):
        return value
    return [plain(each) for each in (value.tolist() if isinstance(value, np.ndarray) else value)]


def all_described(offered: list[Offered]) -> list[dict[str, Any]]:
    """Those that can be read."""
    files = [(each, file) for each in offered if (file := file_of(each))]
    return [described(each, facts) for each, file in files if (facts := facts_of(file))]


def described(offered: Offered, facts: Facts) -> dict[str, Any]:
    return {
        "name": offered.name,
        "model": offered.name,
        "modified_at": facts.modified.isoformat(),
        "size": facts.size,
        "digest": facts.digest,
        "details": details_of(facts),
    }


def details_of(facts: Facts) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": "gguf",
        "family": facts.architecture,
        "families": [facts.architecture],
        "parameter_size": facts.parameters,
        "quantization_level": facts.type,
    }
