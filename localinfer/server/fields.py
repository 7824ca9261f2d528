"""The fields of requests: read in their types, and translated into the names of `localinfer.options`."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from localinfer.errors import UsageError
from localinfer.options import Layer, checked
from localinfer.server.problems import Problem, bad

if TYPE_CHECKING:
    from starlette.requests import Request

T = TypeVar("T", bound="bool | int | float | str | list[Any] | dict[str, Any]")
Fields = Mapping[str, Any]

WORDS = {bool: "true or false", int: "a whole number", str: "a text", list: "a list", dict: "an object"}

SAMPLING = {  # of a request, in OpenAI's and llama.cpp's words -> of Options
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
        "reasoning_budget", "grammar", "regex",
    )
}  # fmt: skip


async def body_of(request: "Request") -> dict[str, Any]:
    """The JSON object that a request carries. Problem for anything else."""
    fields = value_of(await request.body() or b"{}")
    if not isinstance(fields, dict):
        raise Problem(400, "the request must be a JSON object")
    return fields


def value_of(content: bytes) -> Any:
    """What this JSON says. Problem for what is none."""
    try:
        value = json.loads(content)
        if b"\\ud" in content.lower():  # half of a character, perhaps, which no text in UTF-8 has
            value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise Problem(400, f"the request is no JSON: {error}") from None
    return value


def get(fields: Fields, name: str, kind: type[T], default: T) -> T:
    """A field of this type; the default where it is absent or null."""
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise bad(name, f"must be {WORDS[kind]}")
    return value


def count(fields: Fields, name: str, default: int, low: int, high: int) -> int:
    """A whole number from `low` to `high`."""
    value = get(fields, name, int, default)
    if not low <= value <= high:
        raise bad(name, f"must be a whole number from {low} to {high}")
    return value


def options_of(fields: Fields, names: Mapping[str, str] = SAMPLING) -> Layer:
    """What a request says of sampling, and how long the answer may be."""
    given = {option: fields[name] for name, option in names.items() if fields.get(name) is not None}
    if fields.get("logit_bias") is not None:
        given["logit_bias"] = bias_of(fields["logit_bias"])
    if (samplers := fields.get("samplers")) is not None:
        if not isinstance(samplers, (list, str)):
            raise bad("samplers", "must be a list of names, or a text of them with semicolons between")
        given["samplers"] = samplers if isinstance(samplers, str) else ";".join(map(str, samplers))
    if given.get("stop") == []:
        del given["stop"]
    field_of = {option: name for name, option in names.items()}
    return in_types(given, field_of)


def in_types(given: Mapping[str, object], field_of: Mapping[str, str]) -> Layer:
    """Options by their names, checked; a Problem calls them by the request's."""
    layer: Layer = {}
    for option, value in given.items():
        field = field_of.get(option, option)
        try:
            layer |= checked({option: value}, lambda _, field=field: field)  # type: ignore[misc]
        except UsageError as error:
            raise Problem(400, str(error), param=field) from None
    return layer


def length_of(fields: Fields, *names: str) -> Layer:
    """The most tokens of the answer, under the first of these names that there is."""
    for name in names:
        if fields.get(name) is not None:
            return in_types({"n_predict": fields[name]}, {"n_predict": name})
    return {}


def bias_of(value: object) -> dict[str, float]:
    """OpenAI's object of tokens and biases, or llama.cpp's list of pairs, in which false forbids a token."""
    pairs = list(value.items()) if isinstance(value, dict) else value
    try:
        return {str(int(id)): float("-inf") if bias is False else float(bias) for id, bias in pairs}  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        raise bad("logit_bias", 'must be an object such as {"15043": -1}') from None


def form_of(fields: Fields) -> Layer:
    """OpenAI's `response_format`, with llama.cpp's `json_schema` beside it."""
    form = get(fields, "response_format", dict, {})
    schema = fields.get("json_schema")
    match form.get("type", "text"):
        case "text":
            pass
        case "json_object":
            schema = form.get("schema", schema)
            if schema is None:
                return {"json_mode": True}
        case "json_schema":
            described = form.get("json_schema")
            schema = described.get("schema") if isinstance(described, dict) else None
            if schema is None:
                raise bad("response_format.json_schema.schema", "is missing")
        case _:
            raise bad("response_format.type", "must be text, json_object or json_schema")
    return {} if schema is None else {"json_schema": schema if isinstance(schema, str) else json.dumps(schema)}
