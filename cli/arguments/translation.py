"""A command line that was written for llama.cpp or Ollama, in the words of the command that it is given to.

    line = translated(["-m", "x.gguf", "-ngl", "99", "--top_k", "40"], Command("generate", options, models=1))
    line.words      ["x.gguf", "--top-k", "40"]
    line.warnings   ["-ngl does nothing: the CPU computes everything"]

Flags that the command has itself go through as they are, and a flag is one word: no letters are cut off it. What the
others stand for is said in `foreign`.
"""

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from cli.arguments import foreign
from cli.arguments.nearest import did_you_mean
from localinfer.errors import UsageError

NUMBER_AT_ONCE = re.compile(r"(-[a-zA-Z])(-?\d.*)")  # -c4096
PERHAPS_ONE = -1  # value: one of foreign.SWITCHES, if that is the next word


class Option(NamedTuple):
    """Of an option of a command: its long name, and how many values follow it."""

    long: str
    values: int


@dataclass(frozen=True)
class Command:
    """A command's options by all of their names, and how many models its first arguments are: none, one, or many."""

    name: str
    options: Mapping[str, Option]
    models: float = 0


class Meaning(NamedTuple):
    """Of a flag that no command has: how many values follow it, and what comes of it, of one flag or of several."""

    values: int
    verdict: tuple[str, str] | None = None  # nothing to say
    why: str = ""


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
        self._notes: list[str] = []
        self._idle: dict[Meaning, list[str]] = {}

    @property
    def warnings(self) -> list[str]:
        """One for each reason, with all of the flags that have it."""
        lines = list(self._notes)
        for (_, verdict, why), flags in self._idle.items():
            if verdict:
                lines.append(f"{', '.join(flags)} {verdict[len(flags) > 1]}: {why}")
        return lines

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
        self.words[:0] = self._models if self.command.models > 1 else self._models[-1:]

    def _flag(self, word: str) -> None:
        """A word that is a flag; a value that is a part of it becomes the next word."""
        at_once = NUMBER_AT_ONCE.fullmatch(word)
        name, equals, value = (at_once[1], "=", at_once[2]) if at_once else word.partition("=")
        name = name.replace("_", "-") if name.startswith("--") else name
        if equals:
            self._rest.appendleft(value)
        if name in self.command.options:
            self._own(name, has_value=bool(equals))
        elif name in foreign.MODEL and self.command.models:
            self._models.append(self._value(name))
        elif name in foreign.SAME and foreign.SAME[name][0] in self.command.options:
            self._rest.extendleft(reversed(foreign.SAME[name]))
        elif name in foreign.QUESTIONS:
            raise Instead(foreign.QUESTIONS[name])
        elif name not in foreign.OTHER_COMMAND:
            self._others(name, has_value=bool(equals))
        elif foreign.OTHER_COMMAND[name] != self.command.name:
            raise Instead([foreign.OTHER_COMMAND[name], *self.typed])

    def _own(self, name: str, *, has_value: bool) -> None:
        """A flag of the command itself."""
        option = self.command.options[name]
        if has_value and not option.values:
            raise UsageError(f"{name}: takes no value")
        self.words.append(name)
        for _ in range(option.values):
            typed = self._value(name)
            value, note = foreign.VALUES.get(option.long, {}).get(typed, (typed, ""))
            self.words.append(value)
            if note:
                self._notes.append(f"{name} {typed}: {note}")

    def _others(self, name: str, *, has_value: bool) -> None:
        """A flag that no command has."""
        known = meanings(self.command.name)
        if name not in known:
            near = did_you_mean(name, [*self.command.options, *foreign.SAME, *known])
            raise UsageError(f"{name}: `localinfer {self.command.name}` has no such option{near}")
        values = known[name].values
        if values == PERHAPS_ONE:
            values = bool(self._rest) and self._rest[0].lower() in foreign.SWITCHES
        for _ in range(max(values, has_value)):
            self._value(name)
        flags = self._idle.setdefault(known[name]._replace(values=0), [])
        if name not in flags:
            flags.append(name)

    def _value(self, name: str) -> str:
        """The next word, whatever it is."""
        if not self._rest:
            raise UsageError(f"{name}: a value is missing")
        return self._rest.popleft()


@cache
def meanings(command: str) -> dict[str, Meaning]:
    """The rows of `foreign` by flag; of a flag in several, the last is about it."""
    verdicts = (
        (foreign.AS_IT_IS, None),
        (foreign.NOTHING, ("does nothing", "do nothing")),
        (foreign.MISSING, ("is not supported", "are not supported")),
        (foreign.BENCH if command == "bench" else (), ("does nothing", "do nothing")),
    )
    return {name: meaning for rows, verdict in verdicts for row in rows for name, meaning in flags_of(row, verdict)}


def flags_of(row: foreign.Row, verdict: tuple[str, str] | None) -> Iterator[tuple[str, Meaning]]:
    for values, names in enumerate((row.alone, row.with_value, row.with_two_values)):
        for name in names.split():
            yield name.rstrip("?"), Meaning(PERHAPS_ONE if name.endswith("?") else values, verdict, row.why)
