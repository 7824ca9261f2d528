"""A command line that was written for llama.cpp or Ollama, in the words of the command that it is given to.

    line = translated(["-m", "x.gguf", "-ngl", "99", "--top_k", "40"], Command("generate", options, models=1))
    line.words      ["x.gguf", "--top-k", "40"]
    line.warnings   ["-ngl does nothing: the CPU computes everything"]

Flags that the command has itself go through as they are, and a flag is one word: no letters are cut off it. What the
others stand for is said in `foreign`. Every start comes through here: both files stay quick to import.
"""

from collections import deque
from collections.abc import Mapping, Sequence

from cli.arguments import foreign
from localinfer.errors import UsageError

NOTHING_TO_SAY = ("", "")
PERHAPS_ONE = -1  # value: one of foreign.SWITCHES, if that is the next word
MARKS = {"?": PERHAPS_ONE, "2": 2}  # behind a name in foreign
DOES_NOTHING = ("does nothing", "do nothing")  # is said of one flag, and of several
TABLES = (
    (foreign.AS_IT_IS, NOTHING_TO_SAY),
    (foreign.NOTHING, DOES_NOTHING),
    (foreign.MISSING, ("is not supported", "are not supported")),
)

Option = tuple[str, int]  # its long name, and how many values follow it


class Command:
    """A command's options by all of their names, and how many models its first arguments are: none, one, or many."""

    def __init__(self, name: str, options: Mapping[str, Option], models: float = 0) -> None:
        self.name = name
        self.options = options
        self.models = models


class Instead(Exception):
    """The words ask for something else than the command that they were given to."""

    def __init__(self, words: Sequence[str]) -> None:
        super().__init__(*words)
        self.words = list(words)


def translated(typed: Sequence[str], command: Command) -> "Line":
    """Raises UsageError for a flag that nobody knows, naming the nearest; Instead, for another command."""
    line = Line(typed, command)
    line.read()
    return line


class Line:
    """`words` for the command to parse, and the flags that something has to be said about."""

    def __init__(self, typed: Sequence[str], command: Command) -> None:
        self.typed = typed
        self.command = command
        self.words: list[str] = []
        self._rest = deque(typed)
        self._models: list[str] = []
        self._hub_file = ""
        self._notes: list[str] = []
        self._idle: dict[tuple[tuple[str, str], str], list[str]] = {}  # flags by what there is to say, and why

    @property
    def warnings(self) -> list[str]:
        """One for each reason, with all of the flags that have it."""
        idle = [(said[len(flags) > 1], why, flags) for (said, why), flags in self._idle.items()]
        return [*self._notes, *(f"{', '.join(flags)} {said}: {why}" for said, why, flags in idle if said)]

    def read(self) -> None:
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
        self.words[:0] = [file_of(model, self._hub_file) for model in models]

    def _flag(self, word: str) -> None:
        """A word that is a flag; a value that is a part of it becomes the next word."""
        name, equals, value = parted(word)
        if equals:
            self._rest.appendleft(value)
        by_value = foreign.BY_VALUE.get(name, {}).get(self._rest[0], ()) if self._rest else ()
        if by_value and by_value[0] in self.command.options:
            self._rest.popleft()
            self._rest.extendleft(reversed(by_value))
        elif name in self.command.options:
            self._own(name, has_value=bool(equals))
        elif name in foreign.MODEL and self.command.models:
            self._models.append(foreign.MODEL[name] + self._value(name).removeprefix(foreign.MODEL[name]))
        elif name in foreign.MODELS and self.command.models:
            self._models.append(foreign.MODELS[name])
        elif name in foreign.HUB_FILE and self.command.models:
            self._hub_file = self._value(name)
        elif name in foreign.SAME and foreign.SAME[name][0] in self.command.options:
            self._rest.extendleft(reversed(foreign.SAME[name]))
        elif name in foreign.PREFIXED and foreign.PREFIXED[name][0] in self.command.options:
            flag, prefix = foreign.PREFIXED[name]
            self.words += [flag, prefix + self._value(name).removeprefix(prefix)]
        elif name in foreign.QUESTIONS:
            raise Instead(foreign.QUESTIONS[name])
        elif name not in foreign.OTHER_COMMAND:
            self._others(name, has_value=bool(equals))
        elif foreign.OTHER_COMMAND[name] != self.command.name:
            raise Instead([foreign.OTHER_COMMAND[name], *self.typed])

    def _own(self, name: str, *, has_value: bool) -> None:
        """A flag of the command itself."""
        long, values = self.command.options[name]
        if has_value and not values:
            raise UsageError(f"{name}: takes no value")
        self.words.append(name)
        for _ in range(values):
            typed = self._value(name)
            value, note = foreign.VALUES.get(long, {}).get(typed, (typed, ""))
            self.words.append(value)
            if note:
                self._notes.append(f"{name} {typed}: {note}")

    def _others(self, name: str, *, has_value: bool) -> None:
        """A flag that no command has."""
        known = meanings(self.command.name)
        if name not in known:
            from cli.arguments.nearest import did_you_mean

            same = [flag for flag, words in foreign.SAME.items() if words[0] in self.command.options]
            near = did_you_mean(name, [*self.command.options, *same, *foreign.MODEL, *known])
            raise UsageError(f"{name}: `localinfer {self.command.name}` has no such option{near}")
        values, said, why = known[name]
        if values == PERHAPS_ONE:
            values = bool(self._rest) and self._rest[0].lower() in foreign.SWITCHES
        for _ in range(max(values, has_value)):
            self._value(name)
        flags = self._idle.setdefault((said, why), [])
        if name not in flags:
            flags.append(name)

    def _value(self, name: str) -> str:
        """The next word, whatever it is."""
        if not self._rest:
            raise UsageError(f"{name}: a value is missing")
        return self._rest.popleft()


def file_of(model: str, file: str) -> str:
    """The name of this file of a repository of the hub, if there is one, in the place of the repository's."""
    scheme, _, repository = model.partition(":")
    return f"hf:{repository.partition(':')[0]}/{file}" if file and scheme == "hf" else model


def parted(word: str) -> tuple[str, str, str]:
    """The flag in a word, with dashes for underscores; if a value is in it, too, "="; and that value."""
    if not word.startswith("--") and word[2:].lstrip("-")[:1].isdigit():  # -c4096, -n-1
        return word[:2], "=", word[2:]
    name, equals, value = word.partition("=")
    return name.replace("_", "-") if name.startswith("--") else name, equals, value


def meanings(command: str) -> dict[str, tuple[int, tuple[str, str], str]]:
    """The rows of `foreign` by flag: how many values follow it, what is said of it, and why. The last row counts."""
    found = {}
    for rows, said in (*TABLES, (foreign.IN_ONE_COMMAND.get(command, ()), DOES_NOTHING)):
        for why, with_value, alone in rows:
            for names, values in (alone, 0), (with_value, 1):
                for name in names.split():
                    bare, _, mark = name.partition(":")
                    found[bare] = (MARKS.get(mark, values), said, why)
    return found
