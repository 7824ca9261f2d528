"""The specification of one option: its flags, its help text, its default, and the check of its values."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Literal, NamedTuple, TypedDict, TypeVar, Unpack

Value = int | float | bool | str | tuple[str, ...]
Section = Literal[
    "model", "sampling", "generation", "diffusion", "structured", "speculative", "draft", "media", "adapters", "chat",
]  # fmt: skip
T = TypeVar("T", bound=Value)


class Flag(NamedTuple):
    """Names, help text, default and valid values of one option.

    A number is valid if it is in `minimum` ... `maximum` and is not `excluded`.
    """

    names: tuple[str, ...]  # as on the command line; the last one is the long name
    help: str
    section: Section
    default: Value
    minimum: float = -math.inf
    maximum: float = math.inf
    excluded: float = math.nan
    choices: tuple[str, ...] = ()
    validate: Callable[[str], object] | None = None  # parses a string, and raises ValueError if it is invalid
    separator: str = ""  # the regular expression that splits the text of a tuple into its items
    negative: str = ""  # the flag that turns a boolean option off, if it is not made of the long name
    metavar: str = ""  # what stands for a value in the help, if its type says too little

    @property
    def long_name(self) -> str:
        return self.names[-1]

    @property
    def negative_name(self) -> str:
        """The `--no-...` flag of a boolean option that is on by default; "" for other options."""
        return (self.negative or f"--no-{self.long_name.lstrip('-')}") if self.default is True else ""

    @property
    def environment_variable(self) -> str:
        """The name of the environment variable: `LOCALINFER_CTX_SIZE` for `--ctx-size`."""
        return "LOCALINFER_" + self.long_name.lstrip("-").replace("-", "_").upper()

    @property
    def value_type(self) -> type:
        """int, float, bool, str, or tuple for a list of strings (the flag may be repeated)."""
        return type(self.default)

    def parse(self, text: str) -> Value:
        """Convert the text of a command line or environment variable. Raises ValueError if it has another type."""
        if self.value_type is tuple:
            return tuple(re.split(self.separator, text)) if self.separator else (text,)
        if self.value_type is bool:
            return parse_bool(text)
        try:
            return int(text) if self.value_type is int else float(text) if self.value_type is float else text
        except ValueError:
            raise ValueError(f"must be {self.expected_text}, not {format_value(text)}") from None

    def check(self, value: object) -> Value:
        """Return the value in the type of the option. Raises ValueError if the value is invalid."""
        converted = convert(value, self.value_type)
        if converted is None or not self.allows(converted):
            raise ValueError(f"must be {self.expected_text}, not {format_value(value)}")
        if self.validate:
            for text in converted if isinstance(converted, tuple) else (converted,):
                self.validate(str(text))
        return converted

    def allows(self, value: Value) -> bool:
        """Return whether a value of the right type is one of `choices`, or in the valid range."""
        if isinstance(value, tuple):
            return all(value)  # an empty stop string would match everywhere
        if isinstance(value, str):
            return not self.choices or value in self.choices
        return self.minimum <= value <= self.maximum and value != self.excluded  # false for NaN

    @property
    def expected_text(self) -> str:
        """A description of the valid values, for error messages."""
        if self.choices:
            return " or ".join(self.choices)
        if self.value_type in (int, float):
            return ("an integer" if self.value_type is int else "a number") + self.range_text
        return {bool: "true or false", str: "a string", tuple: "non-empty strings"}[self.value_type]

    @property
    def range_text(self) -> str:
        """The valid range of a number, for error messages."""
        low = "above 0" if 0 < self.minimum < 1 else f"from {self.minimum:.0f}"
        excluded = "" if math.isnan(self.excluded) else f" except {self.excluded:.0f}"
        high = self.maximum if isinstance(self.maximum, int) else f"{self.maximum:.0f}"  # 2**64 - 1 fits no float
        return f" {low} to {high}{excluded}"


class ValueRules(TypedDict, total=False):
    """The fields of `Flag` that describe the valid values."""

    minimum: float
    maximum: float
    excluded: float
    choices: tuple[str, ...]
    validate: Callable[[str], object] | None
    separator: str
    negative: str
    metavar: str


def option(default: T, *names: str, section: Section, help: str, **rules: Unpack[ValueRules]) -> T:
    """Return a dataclass field whose metadata contains its `Flag`."""
    return field(default=default, metadata={"flag": Flag(names, help, section, default, **rules)})


def convert(value: object, value_type: type) -> Value | None:
    """Return the value as a `value_type` if that loses no information, otherwise None."""
    if value_type is tuple:
        if isinstance(value, Mapping):
            value = [pair_text(key, each) for key, each in value.items()]
        texts = [value] if isinstance(value, str) else value if isinstance(value, (list, tuple)) else [None]
        strings = tuple(text for text in texts if isinstance(text, str))
        return strings if len(strings) == len(texts) else None
    if isinstance(value, (bool, str)):  # Python's bool is a subclass of int
        return value if value_type is type(value) else None
    if isinstance(value, int) and value_type is int:
        return value
    if isinstance(value, (int, float)) and value_type is float:
        return float(value) if abs(value) < 1e300 else math.inf  # 10**400 has no float
    return None


def pair_text(key: object, value: object) -> str | None:
    """Return the text of a pair of a mapping: of a token id and the bias of its logit, of the number of an adapter and
    its scale, or of a key of the metadata and its value; None if it is none of them. In JSON and TOML, numbers are
    texts when they are keys."""
    if isinstance(key, str) and not key.isdecimal():
        return f"{key}={type(value).__name__}:{value}"
    return f"{key}{value:+}" if isinstance(value, (int, float)) else None


def parse_bool(text: str) -> bool:
    try:
        return {"1": True, "true": True, "yes": True, "on": True,
                "0": False, "false": False, "no": False, "off": False}[text.strip().lower()]
    except KeyError:
        raise ValueError(f"must be true or false, not {format_value(text)}") from None


def format_value(value: object) -> str:
    """Return a value as one short printable line."""
    plain = isinstance(value, str) and value.isprintable() and value.strip() == value != ""
    text = str(value) if plain else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
