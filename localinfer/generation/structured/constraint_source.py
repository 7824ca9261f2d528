"""Constraint sources: which constraint the options select, as text that has not been parsed."""

from dataclasses import dataclass
from pathlib import Path

from localinfer.errors import UsageError
from localinfer.escaping import printable
from localinfer.options import CONSTRAINT_OPTIONS, FLAGS, Options, Value

CALLS = "calls"  # the option of the constraint of tool calls, which tools and tool_choice determine
REGEX_SPECIAL = frozenset(r"\.+*?()|[]{}^$#&-~/")  # special characters of regular expressions


@dataclass(frozen=True, slots=True)
class ConstraintSource:
    """The text of a constraint, the option that it belongs to, and the flag that stands for it in errors.

    With `is_optional`, the answer need not reach the part that is constrained, nor its end.
    """

    option: str
    text: str
    flag: str
    is_optional: bool = False

    @property
    def is_json(self) -> bool:
        return self.option.startswith("json")

    @property
    def name(self) -> str:
        """What stands for the constraint in errors about an answer."""
        return "JSON" if self.is_json else self.flag


def constraint_source(options: Options) -> ConstraintSource:
    """Return the constraint that the options select, one of CONSTRAINT_OPTIONS.

    Raises UsageError for a file that cannot be read and for mutually exclusive options.
    """
    names = [name for name in CONSTRAINT_OPTIONS if getattr(options, name)]
    if len(names) > 1:
        raise UsageError(f"{' and '.join(FLAGS[name].long_name for name in names)}: mutually exclusive")
    [name] = names
    value: Value = getattr(options, name)
    flag = FLAGS[name].long_name
    text = read_text_file(flag, str(value)) if name.endswith("_file") else str(value)
    if name == "choice":
        assert isinstance(value, tuple)
        text = "|".join(map(escape_regex, value))
    return ConstraintSource(name, text, flag)


def read_text_file(flag: str, path: str) -> str:
    try:
        return Path(path).expanduser().read_text("utf-8-sig")
    except (OSError, ValueError) as error:  # not UTF-8, or a NUL in the name
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{flag}: {printable(path)}: {reason}") from None


def escape_regex(text: str) -> str:
    """Return a regular expression that matches just this text."""
    return "".join("\\" + char if char in REGEX_SPECIAL else char for char in text)
