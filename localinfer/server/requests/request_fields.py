"""Parsing of request fields, and their translation into the options of `localinfer.options`."""

import asyncio
import json
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

from localinfer.errors import UsageError
from localinfer.options import FLAGS, MAX_SCALE, Layer, check_values
from localinfer.server.http.api_errors import APIError, field_error

if TYPE_CHECKING:
    from starlette.requests import Request

MAX_ADAPTERS = 1000
MAX_PING_INTERVAL = 1e6  # seconds
IGNORED_SAMPLERS = ("infill",)  # llama.cpp's, in requests of editors; it only merges tokens that begin alike
TEXT_BIASES = "text_biases"  # in a layer of options: (text, bias) pairs; the model's tokenizer finds their tokens
R = TypeVar("R")
T = TypeVar("T", bound="bool | int | float | str | list[Any] | dict[str, Any]")
Fields = Mapping[str, Any]

LONG = 1000  # elements of a list, such as messages, that is parsed in another thread
LARGE = 1 << 16  # bytes of a request body that is parsed in another thread
JSON_NAME = "JSON"  # ConstraintSource.name of constraints of JSON
TYPE_NAMES = {bool: "true or false", int: "an integer", str: "a string", list: "a list", dict: "an object"}

SAMPLING = {  # field of a request, as OpenAI and llama.cpp name it -> field of Options
    "temperature": "temp",
    "typical_p": "typical_p",
    "dynatemp_range": "dynatemp_range",
    "dynatemp_exponent": "dynatemp_exp",
    "mirostat_tau": "mirostat_ent",
    "mirostat_eta": "mirostat_lr",
    "dry_sequence_breakers": "dry_sequence_breaker",
    "thinking_budget_tokens": "reasoning_budget",
    "speculative.type": "spec_type",
    "speculative.n_max": "spec_draft_n_max",
    "speculative.n_min": "spec_draft_n_min",
} | {
    name: name
    for name in (
        "top_k", "top_p", "min_p", "top_n_sigma", "xtc_probability", "xtc_threshold", "min_keep", "repeat_penalty",
        "repeat_last_n", "presence_penalty", "frequency_penalty", "dry_multiplier", "dry_base", "dry_allowed_length",
        "dry_penalty_last_n", "mirostat", "adaptive_target", "adaptive_decay", "seed", "stop", "ignore_eos",
        "reasoning_budget", "grammar", "regex", "close_at_limit", "cache_prompt", "diffusion_steps",
        "diffusion_algorithm", "diffusion_alg_temp", "diffusion_eps", "diffusion_block_length", "diffusion_cfg_scale",
        "diffusion_add_gumbel_noise",
    )
}  # fmt: skip


async def read_json_object(request: "Request") -> dict[str, Any]:
    """Return the request body as a JSON object. Raises APIError (400) for anything else."""
    content = await request.body() or b"{}"
    fields = await asyncio.to_thread(parse_json, content) if len(content) > LARGE else parse_json(content)
    if not isinstance(fields, dict):
        raise APIError(400, "the request body must be a JSON object")
    return fields


def parse_json(content: bytes) -> Any:
    """Parse JSON. Raises APIError (400) if it is invalid."""
    try:
        value = json.loads(content, **(HOOKS if len(content) > LARGE else {}))
        if b"\\ud" in content.lower():  # possibly a lone surrogate, which UTF-8 cannot encode
            value = without_surrogates(value)
    except (ValueError, RecursionError) as error:
        raise APIError(400, f"invalid JSON: {error}") from None
    return value


async def parse_fields(parse: Callable[[Fields], R], fields: Fields) -> R:
    """Return what `parse` makes of the fields of a request, in another thread if a list is long."""
    is_long = any(isinstance(each, list) and len(each) > LONG for each in fields.values())
    return await asyncio.to_thread(parse, fields) if is_long else parse(fields)


def unchanged(value: dict[str, Any]) -> dict[str, Any]:
    return value


def parse_int(digits: str) -> int:
    return int(digits)


# Functions in Python, so that the decoder lets other threads run after each object and each integer.
HOOKS: dict[str, Any] = {"object_hook": unchanged, "parse_int": parse_int}


def without_surrogates(value: Any) -> Any:
    """Return a JSON value with a question mark in place of each surrogate."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return list(map(without_surrogates, value))
    if isinstance(value, dict):
        return {without_surrogates(name): without_surrogates(each) for name, each in value.items()}
    return value


def get(fields: Fields, name: str, kind: type[T], default: T) -> T:
    """Return a field, or the default if it is absent or null. Raises APIError (400) if it has another type."""
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise field_error(name, f"must be {TYPE_NAMES[kind]}")
    return value


def get_int(fields: Fields, name: str, default: int, low: int, high: int) -> int:
    """Return an integer field. Raises APIError (400) if it is not from `low` to `high`."""
    value = get(fields, name, int, default)
    if not low <= value <= high:
        raise field_error(name, f"must be an integer from {low} to {high}")
    return value


def ping_interval(fields: Fields, default: float) -> float:
    """Return the seconds between comments in a silent stream, which `sse_ping_interval` sets."""
    value = fields.get("sse_ping_interval")
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1 <= value <= MAX_PING_INTERVAL:
        raise field_error("sse_ping_interval", "must be a number of seconds, or -1 for no comments")
    return float(value)


def sampling_options(fields: Fields, names: Mapping[str, str] = SAMPLING) -> dict[str, Any]:
    """Return the sampling options that a request sets, validated."""
    values = {option: fields[name] for name, option in names.items() if fields.get(name) is not None}
    texts: tuple[tuple[str, float], ...] = ()
    if fields.get("logit_bias") is not None:
        values["logit_bias"], texts = parse_logit_bias(fields["logit_bias"])
    if (samplers := fields.get("samplers")) is not None:
        if not isinstance(samplers, (list, str)):
            raise field_error("samplers", "must be a list of names, or a string of names separated by semicolons")
        names_of_samplers = samplers.split(";") if isinstance(samplers, str) else map(str, samplers)
        values["samplers"] = ";".join(name for name in names_of_samplers if name not in IGNORED_SAMPLERS)
    if fields.get("lora") is not None:
        scales = adapter_scales("lora", fields["lora"])
        values["lora_scales"] = [f"{number}={scale}" for number, scale in scales.items()] or ["none"]
    if values.get("stop") == []:
        del values["stop"]
    field_of = {option: name for name, option in names.items()} | {"lora_scales": "lora"}
    return check_options(values, field_of) | ({TEXT_BIASES: texts} if texts else {})


def check_options(values: Mapping[str, object], field_by_option: Mapping[str, str]) -> Layer:
    """Validate options. Raises APIError (400) that names the field of the request, given by `field_of`."""
    layer: Layer = {}
    for option, value in values.items():
        field = field_by_option.get(option, option)
        try:
            layer |= check_values({option: value}, lambda _, field=field: field)  # type: ignore[misc]
        except UsageError as error:
            raise APIError(400, str(error), param=field) from None
    return layer


def length_options(fields: Fields, *names: str) -> Layer:
    """Return the maximum number of tokens to generate, from the first of these fields that is present."""
    for name in names:
        if fields.get(name) is not None:
            return check_options({"n_predict": fields[name]}, {"n_predict": name})
    return {}


def parse_logit_bias(value: object) -> tuple[dict[str, float], tuple[tuple[str, float], ...]]:
    """Return the biases of token ids, and those of texts, whose tokens all have the bias.

    Parses OpenAI's object of ids and biases, whose keys may also be texts, and llama.cpp's list of pairs, in which
    false bans a token.
    """
    pairs = [(int_or_text(key), bias) for key, bias in value.items()] if isinstance(value, dict) else value
    ids, texts = {}, []
    try:
        for key, bias in pairs:  # type: ignore[attr-defined]
            amount = float("-inf") if bias is False else float(bias)
            if isinstance(key, str):
                texts.append((key, amount))
            else:
                ids[str(int(key))] = amount
    except (TypeError, ValueError):
        raise field_error("logit_bias", 'must be an object such as {"15043": -1}') from None
    if any(math.isnan(bias) for _, bias in texts):
        raise field_error("logit_bias", "must have numbers as biases")
    return ids, tuple(texts)


def adapter_scales(field: str, value: object) -> dict[int, float]:
    """Return the scales of LoRA adapters by number, given as llama.cpp's list of objects. Raises APIError (400) for
    anything else."""
    scales: dict[int, float] = {}
    for each in value if isinstance(value, list) else [None]:
        number, scale = (each.get("id"), each.get("scale", 0.0)) if isinstance(each, dict) else (None, None)
        if type(number) is not int or not 0 <= number < MAX_ADAPTERS or not is_finite(scale):
            raise field_error(field, 'must be a list of adapters, such as [{"id": 0, "scale": 0.5}]')
        scales[number] = float(scale)
    return scales


def is_finite(value: object) -> TypeGuard[int | float]:
    """Return whether a JSON value is a number that a float can represent."""
    return not isinstance(value, bool) and isinstance(value, int | float) and abs(value) < MAX_SCALE


def int_or_text(key: str) -> int | str:
    return int(key) if key.isdecimal() else key


def constraint_fields(fields: Fields) -> dict[str, str]:
    """Return the field of the request for each name by which errors call its constraint."""
    response_format = fields.get("response_format")
    kind = response_format.get("type") if isinstance(response_format, dict) else None
    schema = {
        "json_schema": "response_format.json_schema.schema",
        "json_object": "response_format.schema" if isinstance(response_format, dict) and "schema" in response_format
        else "response_format" if fields.get("json_schema") is None else "json_schema",
    }.get(str(kind), "json_schema")  # fmt: skip
    return json_constraint_fields(schema) | {FLAGS[name].long_name: name for name in ("grammar", "regex")}


def json_constraint_fields(field: str) -> dict[str, str]:
    """Return this field for each name by which errors call a constraint of JSON."""
    return {JSON_NAME: field, **{FLAGS[name].long_name: field for name in ("json_schema", "json_mode")}}


def constraint_options(fields: Fields) -> Layer:
    """Return the structured output options of OpenAI's `response_format` and llama.cpp's `json_schema`."""
    response_format = get(fields, "response_format", dict, {})
    schema = fields.get("json_schema")
    match response_format.get("type", "text"):
        case "text":
            pass
        case "json_object":
            schema = response_format.get("schema", schema)
            if schema is None:
                return {"json_mode": True}
        case "json_schema":
            json_schema = response_format.get("json_schema")
            schema = json_schema.get("schema") if isinstance(json_schema, dict) else None
            if schema is None:
                raise field_error("response_format.json_schema.schema", "is missing")
        case _:
            raise field_error("response_format.type", "must be text, json_object or json_schema")
    if schema is None:
        return {}
    return {"json_schema": schema if isinstance(schema, str) and schema else json.dumps(schema)}
