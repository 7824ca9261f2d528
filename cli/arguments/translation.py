"""Translation of llama.cpp and Ollama command lines to the options of a command.

    line = translate(["-m", "x.gguf", "-ngl", "99", "--top_k", "40"], CommandSpec("generate", options, models=1))
    line.words      ["x.gguf", "--top-k", "40"]
    line.warnings   ["-ngl has no effect: all computation runs on the CPU"]

Flags of the command itself are passed through. Short flags are never split into letters. `compatibility` lists the
flags of other programs. Every start imports these two modules, so their imports stay light.
"""

from collections import deque
from collections.abc import Mapping, Sequence

from cli.arguments import compatibility
from cli.arguments.compatibility import OTHER_COMMAND
from cli.arguments.questions import is_question
from localinfer.errors import ModelNotFoundError, UnsupportedError, UsageError

NO_MESSAGE = ("", "")
OPTIONAL_VALUE = -1  # one value if the next word is in compatibility.SWITCHES, otherwise none
VALUE_COUNTS = {"?": OPTIONAL_VALUE, "2": 2}  # by the suffix after the colon in compatibility
NO_EFFECT_MESSAGE = ("has no effect", "have no effect")  # for one flag, for several
UNSUPPORTED_MESSAGE = ("is not supported", "are not supported")
NEVER_REFUSING = ("serve",)  # commands that start whatever llama.cpp's flags ask for
REFUSED_MESSAGE = ("is not supported", "")  # an error, so there is one flag
TABLES = (
    (compatibility.ALWAYS_ON, NO_MESSAGE),
    (compatibility.NO_EFFECT, NO_EFFECT_MESSAGE),
    (compatibility.UNSUPPORTED, UNSUPPORTED_MESSAGE),
    (compatibility.REFUSED, REFUSED_MESSAGE),
)

Option = tuple[str, int]  # long name, number of values


class CommandSpec:
    """The options of a command by all of their names, and the number of models among its arguments (0, 1 or inf)."""

    def __init__(self, name: str, options: Mapping[str, Option], models: float = 0) -> None:
        self.name = name
        self.options = options
        self.models = models


class Redirect(Exception):
    """Raised if the flags ask for another command; `words` is the command line to run instead."""

    def __init__(self, words: Sequence[str]) -> None:
        super().__init__(*words)
        self.words = list(words)


def translate(typed: Sequence[str], command: CommandSpec) -> "TranslatedLine":
    """Translate the arguments of a command.

    Raises UsageError for an unknown flag, UnsupportedError for one that would change the answer, Redirect for another
    command.
    """
    line = TranslatedLine(typed, command)
    line.parse()
    return line


class TranslatedLine:
    """A translated command line: the `words` for the command to parse, and `warnings` about flags without effect."""

    def __init__(self, typed: Sequence[str], command: CommandSpec) -> None:
        self.typed = typed
        self.command = command
        self.words: list[str] = []
        self._rest = deque(typed)
        self._models: list[str] = []
        self._hub_file = ""
        self._notes: list[str] = []
        self._ignored: dict[tuple[tuple[str, str], str], list[str]] = {}  # flags by message and reason

    @property
    def warnings(self) -> list[str]:
        """The warnings: one per reason, with all flags that share it."""
        ignored = [(messages[len(flags) > 1], why, flags) for (messages, why), flags in self._ignored.items()]
        return [*self._notes, *(f"{', '.join(flags)} {message}: {why}" for message, why, flags in ignored if message)]

    def parse(self) -> None:
        while self._rest:
            word = self._rest.popleft()
            if word == "--":
                self.words += [word, *self._rest]
                break
            if word.startswith("-") and word != "-":
                self._flag(word)
            else:
                self.words.append(word)
        models = self._models if self.command.models > 1 else self._models[-1:]
        self.words[:0] = [with_hub_file(model, self._hub_file) for model in models]

    def _flag(self, word: str) -> None:
        """Translate a flag. A value after `=` becomes the next word."""
        name, equals, value = split_flag(word)
        if equals:
            self._rest.appendleft(value)
        by_value = compatibility.BY_VALUE.get(name, {}).get(self._rest[0], ()) if self._rest else ()
        if by_value and by_value[0] in self.command.options:
            self._rest.popleft()
            self._rest.extendleft(reversed(by_value))
        elif name in self.command.options:
            self._known_option(name, has_value=bool(equals))
        elif name in compatibility.MODEL_FLAGS and self.command.models:
            self._models.append(self._model(name))
        elif name in compatibility.MODEL_SHORTCUTS and self.command.models:
            self._shortcut(*compatibility.MODEL_SHORTCUTS[name])
        elif name in compatibility.HUB_FILE_FLAGS and self.command.models:
            self._hub_file = self._value(name)
        elif name in compatibility.EQUIVALENTS and compatibility.EQUIVALENTS[name][0] in self.command.options:
            self._rest.extendleft(reversed(compatibility.EQUIVALENTS[name]))
        elif name in compatibility.PREFIXED and compatibility.PREFIXED[name][0] in self.command.options:
            flag, prefix = compatibility.PREFIXED[name]
            self.words += [flag, prefix + self._value(name).removeprefix(prefix)]
        elif name in compatibility.ACTION_FLAGS:
            raise Redirect(compatibility.ACTION_FLAGS[name])
        elif not (other := other_command(name, self.command.name)):
            self._ignored_flag(name, has_value=bool(equals))
        elif other != self.command.name:
            raise Redirect([other, *(word for word in self.typed if OTHER_COMMAND.get(word, other) == other)])

    def _known_option(self, name: str, *, has_value: bool) -> None:
        """Pass through a flag of the command itself, and translate its values."""
        long, values = self.command.options[name]
        if has_value and not values:
            raise UsageError(f"{name}: takes no value")
        self.words.append(name)
        implied, known = compatibility.OPTIONAL_VALUES.get(name, ("", ()))
        if implied and not has_value and not (self._rest and self._rest[0] in known):
            self.words.append(implied)
            return
        for _ in range(values):
            typed = self._joined_value(name, compatibility.JOINED.get(long, ""))
            value, note = compatibility.VALUE_EQUIVALENTS.get(long, {}).get(typed, (typed, ""))
            self.words.append(value)
            if note:
                self._notes.append(f"{name} {typed}: {note}")

    def _joined_value(self, name: str, separator: str) -> str:
        """Take the next word, and after it a number that belongs to it, joined by the separator if there is one."""
        value = self._value(name)
        if separator and not is_number(value.rpartition(separator)[2] if separator in value else ""):
            value += f"{separator}{self._rest.popleft()}" if self._rest and is_number(self._rest[0]) else ""
        return value

    def _shortcut(self, model: str, *options: str) -> None:
        """Take the model and the options of a shortcut. Options that are typed come later, and win."""
        self._models.append(model)
        for name, value in zip(options[::2], options[1::2], strict=True):
            if name in self.command.options:
                self.words[:0] = [name, value]

    def _ignored_flag(self, name: str, *, has_value: bool) -> None:
        """Skip a flag of another program that has no effect here, with its values, and note the reason.

        Raises UnsupportedError if the answer would be another one without the flag.
        """
        known = ignored_flags(self.command.name)
        if name not in known:
            from cli.arguments.suggestions import did_you_mean
            from localinfer.options import FLAGS

            same = [flag for flag, words in compatibility.EQUIVALENTS.items() if words[0] in self.command.options]
            meant = [each for each in compatibility.MEANT.get(name, ()) if each.split()[0] in self.command.options]
            if meant:
                near = f"; did you mean {' or '.join(meant)}?"
            elif any(name in flag.names for flag in FLAGS.values()):  # not misspelt
                near = "; other commands have it"
            else:
                near = did_you_mean(name, [*self.command.options, *same, *compatibility.MODEL_FLAGS, *known])
            raise UsageError(f"{name}: no such option of `localinfer {self.command.name}`{near}")
        values, messages, why = known[name]
        if values == OPTIONAL_VALUE:
            values = bool(self._rest) and self._rest[0].lower() in compatibility.SWITCHES
        typed = [self._value(name) for _ in range(max(values, has_value))]
        if messages is REFUSED_MESSAGE:
            messages = UNSUPPORTED_MESSAGE
            if set(typed) & set(compatibility.NEUTRAL_VALUES.get(name, ())):
                messages = NO_MESSAGE
            elif self.command.name not in NEVER_REFUSING:
                raise UnsupportedError(f"{name} {messages[0]}: {why}")
        flags = self._ignored.setdefault((messages, why), [])
        if name not in flags:
            flags.append(name)

    def _model(self, name: str) -> str:
        """Take the model that a flag names. Raises ModelNotFoundError for what would pass for a question."""
        prefix = compatibility.MODEL_FLAGS[name]
        model = prefix + self._value(name).removeprefix(prefix)
        if is_question(model):
            raise ModelNotFoundError(f"{model}: No such file or directory")
        return model

    def _value(self, name: str) -> str:
        """Take the next word. Raises UsageError if there is none."""
        if not self._rest:
            raise UsageError(f"{name}: missing value")
        return self._rest.popleft()


def is_number(text: str) -> bool:
    """Return whether a word is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def with_hub_file(model: str, file: str) -> str:
    """Return the hub name of `file` in the repository that `model` names, or `model` itself without a file."""
    scheme, _, repository = model.partition(":")
    return f"hf:{repository.partition(':')[0]}/{file}" if file and scheme == "hf" else model


def split_flag(word: str) -> tuple[str, str, str]:
    """Split a word into flag, "=" and value, with dashes for underscores in the flag: -c4096 is -c, =, 4096."""
    if not word.startswith("--") and word[2:].lstrip("-")[:1].isdigit():  # -c4096, -n-1
        return word[:2], "=", word[2:]
    name, equals, value = word.partition("=")
    return name.replace("_", "-") if name.startswith("--") else name, equals, value


def other_command(flag: str, command: str) -> str:
    """Return the command to run if `command` gets this flag; "" for most flags."""
    return compatibility.OTHER_COMMAND_OF.get(command, {}).get(flag) or OTHER_COMMAND.get(flag, "")


def ignored_flags(command: str) -> dict[str, tuple[int, tuple[str, str], str]]:
    """Return the flags without effect: number of values, message and reason. The last row for a flag wins."""
    found = {}
    tables = (
        *TABLES,
        (compatibility.NO_EFFECT_BY_COMMAND.get(command, ()), NO_EFFECT_MESSAGE),
        (compatibility.REFUSED_BY_COMMAND.get(command, ()), REFUSED_MESSAGE),
    )
    for rows, messages in tables:
        for why, with_value, without_value in rows:
            for names, values in (without_value, 0), (with_value, 1):
                for name in names.split():
                    bare, _, suffix = name.partition(":")
                    found[bare] = (VALUE_COUNTS.get(suffix, values), messages, why)
    return found
