"""The fields of a request to `/v1/messages`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from localinfer.options import Layer
from localinfer.server.anthropic.conversation import continues_last, has_cache_control, parse_messages
from localinfer.server.anthropic.tools import parse_tool_fields
from localinfer.server.http.api_errors import field_error
from localinfer.server.requests.prompts import ChatPrompt
from localinfer.server.requests.request_fields import (
    SAMPLING,
    Fields,
    check_options,
    constraint_options,
    get,
    get_int,
    sampling_options,
)

if TYPE_CHECKING:
    from localinfer.model import Model

MAX_TOKENS = 2**31 - 1
OPTION_BY_FIELD = {name: option for name, option in SAMPLING.items() if name != "stop"} | {"stop_sequences": "stop"}
EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}  # of chat templates


@dataclass(frozen=True, slots=True)
class MessageRequest:
    """A parsed request. `thinking` is the type of the field of that name, or "" without one."""

    model_name: str | None
    prompt: ChatPrompt
    options: Layer
    thinking: str
    stream: bool
    has_cache_control: bool

    def options_for(self, model: "Model") -> Layer:
        """Return the options for a model. Without the field `thinking`, it does not reason unless the server's option
        `think` says so, because clients of this API expect the text to come first.
        """
        is_off = self.thinking == "disabled" or (not self.thinking and model.options.think == "auto")
        return self.options | ({"think": "off"} if is_off else {})


def parse_message_request(fields: Fields) -> MessageRequest:
    """Parse a request. Raises APIError (400) that names the first invalid field."""
    get(fields, "stop_sequences", list, [])
    messages = parse_messages(fields)
    output = get(fields, "output_config", dict, {})
    effort = get(output, "effort", str, "")
    if effort and effort not in EFFORTS:
        raise field_error("output_config.effort", f"must be one of {', '.join(EFFORTS)}")
    thinking, thinking_options = parse_thinking(get(fields, "thinking", dict, {}))
    kwargs = ({"reasoning_effort": EFFORTS[effort]} if effort else {}) | get(fields, "chat_template_kwargs", dict, {})
    options = sampling_options(fields, OPTION_BY_FIELD) | output_format(output) | thinking_options
    if fields.get("max_tokens") is not None:
        options |= check_options({"n_predict": get_int(fields, "max_tokens", 1, 1, MAX_TOKENS)}, {})
    return MessageRequest(
        model_name=get(fields, "model", str, "") or None,
        prompt=ChatPrompt(messages, parse_tool_fields(fields), kwargs, continue_final_message=continues_last(fields)),
        options=options,
        thinking=thinking,
        stream=get(fields, "stream", bool, False),
        has_cache_control=has_cache_control(fields),
    )


def parse_thinking(thinking: Mapping[str, Any]) -> tuple[str, Layer]:
    """Return the type of the field `thinking`, and its options."""
    match thinking.get("type"):
        case None if not thinking:
            return "", {}
        case "enabled":
            if (budget := thinking.get("budget_tokens")) is None:
                return "enabled", {"think": "on"}
            field_by_option = {"reasoning_budget": "thinking.budget_tokens"}
            return "enabled", {"think": "on"} | check_options({"reasoning_budget": budget}, field_by_option)
        case "disabled" | "adaptive" | "between_tools" as kind:
            return str(kind), {}
    raise field_error("thinking.type", "must be enabled, disabled, adaptive or between_tools")


def output_format(output: Mapping[str, Any]) -> Layer:
    """Return the structured output options of `output_config.format`."""
    format = get(output, "format", dict, {})
    if not format:
        return {}
    if format.get("type") != "json_schema" or not isinstance(format.get("schema"), dict):
        raise field_error("output_config.format", "must be of type json_schema, with a schema")
    return constraint_options({"json_schema": format["schema"]})
