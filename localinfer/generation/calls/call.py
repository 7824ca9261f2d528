"""How a call is made of what a model writes, what a parser gives out, and what tools say of their arguments."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from localinfer.generation.pieces import Call

Tool = Mapping[str, object]


class Parsed(NamedTuple):
    """What has become certain: more of the answer, more of the thoughts, calls. `problem` tells of one that is none."""

    text: str = ""
    calls: tuple[Call, ...] = ()
    thought: str = ""
    problem: str = ""

    def then(self, other: "Parsed") -> "Parsed":
        return Parsed(
            self.text + other.text, self.calls + other.calls, self.thought + other.thought,
            self.problem or other.problem)  # fmt: skip


class Tools:
    """The functions that a model was shown: JSON schemas, as OpenAI writes them or without the frame."""

    def __init__(self, schemas: Sequence[Tool] = ()) -> None:
        functions = [schema.get("function", schema) for schema in schemas]
        named = [each for each in functions if isinstance(each, Mapping) and isinstance(each.get("name"), str)]
        self._parameters = {str(each["name"]): each.get("parameters") for each in named}

    def __contains__(self, name: object) -> bool:
        return name in self._parameters

    def __len__(self) -> int:
        return len(self._parameters)

    def value(self, function: str, parameter: str, text: str) -> Any:
        """What a text stands for in a form that shows texts without quotes: what else it may be, the schema says."""
        kinds = self._kinds(function, parameter)
        if "string" in kinds and not ("null" in kinds and text == "null"):
            return text
        try:
            return from_json(text)
        except ValueError:
            return text

    def _kinds(self, function: str, parameter: str) -> Sequence[str]:
        match self._parameters.get(function):
            case {"properties": {**properties}} if isinstance(schema := properties.get(parameter), Mapping):
                kinds = schema.get("type", ())
                return [kinds] if isinstance(kinds, str) else list(kinds)
        return ()


Reader = Callable[[str, Tools], list[Call]]  # of what stands between the marks; ValueError for what is no call


def from_json(text: str) -> Any:
    """The value; ValueError for anything else, also for what only Python takes for JSON."""
    try:
        return json.loads(text, strict=False, parse_constant=refused)  # models write line breaks in strings as they are
    except RecursionError:
        raise ValueError("nested too deeply") from None


def refused(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def call(name: object, arguments: object, id: object = "") -> Call:
    """ValueError says what is missing. Arguments may be JSON in a text; no arguments are none."""
    if not isinstance(name, str) or not name.strip():
        raise ValueError("it names no tool")
    if isinstance(arguments, str):
        arguments = from_json(arguments) if arguments.strip() else {}
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise ValueError("the arguments are no JSON object")
    return Call(name.strip(), arguments, id if isinstance(id, str) else "")
