"""`/api/delete`, `/api/copy` and `/api/create`, which do what `localinfer rm`, `cp` and `create` do."""

import asyncio
import re
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncGenerator
from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response

from localinfer import paths
from localinfer.errors import LocalInferError, UsageError
from localinfer.escaping import printable
from localinfer.hub import modelfile, user_registry
from localinfer.hub.modelfile import OptionValues
from localinfer.hub.resolve import default_options
from localinfer.server.http.api_errors import APIError, field_error, without_directory
from localinfer.server.models.model_cache import ModelCache, ServedModel
from localinfer.server.ollama.progress import SUCCESS, Line, model_name, require_management, respond
from localinfer.server.requests.request_fields import Fields, get, read_json_object

REFUSED_FIELDS = {
    "files": "uploaded files are not supported; copy them to the machine of the server",
    "adapters": "adapters are not supported; `localinfer quantize --lora` merges them into a model",
    "messages": "examples of a conversation are not supported; put them into system",
}
ALLOWED_OPTIONS = {  # other options may name files of the server
    *(modelfile.OPTIONS.get(name, name) for name in modelfile.KNOWN), "system_prompt", "chat_template"
}  # fmt: skip
QUANTIZATION = re.compile(r"[A-Za-z0-9_]{2,20}")


async def delete(request: Request) -> Response:
    """`/api/delete`: remove what `localinfer rm` removes, after the model is unloaded."""
    fields, dispatcher = await read_json_object(request), request.app.state.dispatcher
    require_management(dispatcher.model_cache)
    served = await asyncio.to_thread(find_model, dispatcher.model_cache, model_name(fields, "model", "name"))
    try:
        removal = await asyncio.to_thread(user_registry.plan_removal, served.source)
    except UsageError:
        problem = "its file belongs to you or to another program, and is not removed"
        raise APIError(400, f"model: {printable(served.name, 100)}: {problem}", "model") from None
    async with dispatcher.unloaded(served.name):
        await asyncio.to_thread(removal.delete)
    return Response()


async def copy(request: Request) -> Response:
    """`/api/copy`: add a name to models.toml."""
    fields, model_cache = await read_json_object(request), request.app.state.dispatcher.model_cache
    require_management(model_cache)
    source = (await asyncio.to_thread(find_model, model_cache, model_name(fields, "source"))).source
    name = new_name(model_name(fields, "destination"), "destination")
    await asyncio.to_thread(user_registry.add_entry, name, source, default_options(source))
    return Response()


async def create(request: Request) -> Response:
    """`/api/create`: add a name with options to models.toml; quantize its file before if the request says so."""
    fields, model_cache = await read_json_object(request), request.app.state.dispatcher.model_cache
    require_management(model_cache)
    name = new_name(model_name(fields, "model", "name"), "model")
    source, options = parse_create(fields)
    served = await asyncio.to_thread(find_model, model_cache, source, "from")
    type = get(fields, "quantize", str, "")
    if type and not QUANTIZATION.fullmatch(type):
        raise field_error("quantize", "must be a quantization type such as Q4_K_M")
    return await respond(fields, create_lines(name, served.source, options, type))


def find_model(model_cache: ModelCache, name: str, field: str = "model") -> ServedModel:
    """Return the model with exactly this name. Raises APIError (404)."""
    if served := model_cache.find(name):
        return served
    raise APIError(404, f"{field}: {printable(name, 100)} not found", field, "model_not_found")


def new_name(name: str, field: str) -> str:
    """Return a name for a new entry. Raises APIError (400) for one that is invalid or taken."""
    short = name.removesuffix(":latest")
    try:
        user_registry.require_new_name(short)
    except UsageError as error:
        raise field_error(field, str(error).partition(";")[0]) from None
    return short


# --- create ---


def parse_create(fields: Fields) -> tuple[str, OptionValues]:
    """Return the model that a request names, and its options. Raises APIError (400) for an invalid field."""
    for field, problem in REFUSED_FIELDS.items():
        if fields.get(field):
            raise field_error(field, problem)
    try:
        text = get(fields, "modelfile", str, "")
        source, options = modelfile.parse_modelfile(text, "modelfile") if text else parse_parts(fields)
    except LocalInferError as error:
        raise APIError(400, str(error), str(error).partition(":")[0].partition(".")[0]) from None
    for option in options.keys() - ALLOWED_OPTIONS:
        raise field_error("modelfile" if text else f"parameters.{option}", f"{option}: not supported over HTTP")
    return source, options


def parse_parts(fields: Fields) -> tuple[str, OptionValues]:
    """Return what the parts of a Modelfile say that are fields of their own. Raises LocalInferError."""
    options = OptionValues()
    for name, value in get(fields, "parameters", dict, {}).items():
        where = f"parameters.{printable(str(name), 40)}"
        for each in value if isinstance(value, list) else [value]:
            if not isinstance(each, str | int | float):
                raise field_error(where, "must be a number or a text")
            modelfile.set_parameter(options, name, parameter_text(each), where)
    if system := get(fields, "system", str, ""):
        options["system_prompt"] = system
    if template := get(fields, "template", str, ""):
        options["chat_template"] = modelfile.jinja_template(template, "template").strip("\n")
    return model_name(fields, "from"), options


def parameter_text(value: str | float) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


async def create_lines(name: str, source: str, own: OptionValues, type: str) -> AsyncGenerator[Line, None]:
    """Create a model, and yield the lines of the response. Without `type`, the file is that of the source."""
    yield {"status": "reading model metadata"}
    options = await asyncio.to_thread(user_registry.options_over, source, own)
    if type:
        yield {"status": f"quantizing model to {type}"}
        source = await quantize(source, name, type)
    yield {"status": "writing manifest"}
    await asyncio.to_thread(user_registry.add_entry, name, source, options)
    yield SUCCESS


async def quantize(source: str, name: str, type: str) -> str:
    """Quantize a model in a process of its own, which ends when the client leaves. Return the path of the new file."""
    out = paths.private_directory(paths.models_dir()) / f"{name}-{type.lower()}.gguf"
    command = [sys.executable, "-m", "localinfer", "quantize", source, str(out), type]
    process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE)
    try:
        _, messages = await process.communicate()
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
    if process.returncode:
        last = ["it ended without a message", *messages.decode("utf-8", "replace").strip().splitlines()][-1]
        raise APIError(400, f"quantize: {without_directory(last.removeprefix('error: '))}", "quantize")
    return str(out)
