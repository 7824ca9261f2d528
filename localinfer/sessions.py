"""Sessions: conversations that outlive the program, each a file of lines of JSON.

    session = create("smollm2")                          # or latest(), named("2026-11-22-093015")
    session.append({"role": "user", "content": "Hello"})
    session.messages                                     # a list of these, as `Model.chat` takes it
    session.rewind(0)                                    # forget all but the first none of them
    session.markdown()

The first line tells of the session: {"localinfer": 1, "model": ..., "created": ...}. Each further one is a message as
it was given, written when it is said, or {"keep": n}: of those before only the first n count from here on. So lines are
only ever added: what ends the program in the midst of one costs that line, and no command loses what was said.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from pathlib import Path

from localinfer import paths
from localinfer.errors import LocalInferError, UsageError
from localinfer.text import printable

FORMAT = 1
ENDING = ".jsonl"
NAME = re.compile(r"\w[\w .+-]{0,99}", re.ASCII)
TITLE = 60  # characters
SNAPSHOTS_BYTES = 2 << 30  # of all sessions together: the oldest ones go first
APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)

Message = Mapping[str, object]


@dataclass(slots=True)
class Session:
    """`messages` are those that count, `damaged` lines say nothing. There is no file before the first message."""

    name: str
    model: str = ""
    created: str = ""  # ISO 8601, with the offset from UTC
    messages: list[Message] = field(default_factory=list)
    damaged: int = 0

    @property
    def path(self) -> Path:
        return paths.sessions_dir() / (self.name + ENDING)

    @property
    def snapshot(self) -> Path:
        """Where a snapshot of the model's cache belongs."""
        return paths.snapshots_dir() / self.name

    @property
    def title(self) -> str:
        """How the user began, in one short line."""
        said = next((str(each["content"]) for each in self.messages if each["role"] == "user"), "")
        line = " ".join(said.split())
        return line if len(line) <= TITLE else line[: TITLE - 1] + "…"

    def append(self, message: Message) -> None:
        """Add a message, which is in the file when this returns; LocalInferError when it cannot be."""
        self._write(message)
        self.messages.append(message)

    def rewind(self, keep: int) -> None:
        """Forget all but the first messages."""
        if keep < len(self.messages):
            self._write({"keep": keep})
            del self.messages[keep:]

    def become(self, messages: Sequence[Message]) -> None:
        """Make these the messages: only what is different from where on is written."""
        pairs = enumerate(zip(self.messages, messages, strict=False))
        same = next((n for n, (old, new) in pairs if old != new), min(len(self.messages), len(messages)))
        self.rewind(same)
        for message in messages[same:]:
            self.append(message)

    def markdown(self) -> str:
        """The conversation as a document."""
        head = f"# {self.title or self.name}\n\n{self.model}, {self.created[:16].replace('T', ' ')}\n"
        parts = (f"\n## {str(each['role']).capitalize()}\n\n{said(each)}\n" for each in self.messages)
        return head + "".join(parts)

    def remove(self) -> None:
        """From the disk, with its snapshot."""
        try:
            self.path.unlink(missing_ok=True)
            self.snapshot.unlink(missing_ok=True)
        except OSError as error:
            raise LocalInferError(f"{self.path}: cannot be removed: {error.strerror}") from None

    def _write(self, entry: Message) -> None:
        """Add a line; what was cut off before it stays a line of its own."""
        paths.private_directory(self.path.parent)
        text = json.dumps(dict(entry), ensure_ascii=False) + "\n"
        try:
            descriptor = os.open(self.path, APPEND, 0o600)
            with open(descriptor, "ab") as file:  # noqa: PTH123
                if not file.tell():
                    about = {"localinfer": FORMAT, "model": self.model, "created": self.created}
                    text = json.dumps(about, ensure_ascii=False) + "\n" + text
                elif not ends_a_line(self.path):
                    text = "\n" + text
                file.write(text.encode("utf-8", "surrogatepass"))
        except OSError as error:
            raise LocalInferError(f"{self.path}: cannot be written: {error.strerror}") from None


def create(model: str, name: str = "") -> Session:
    """A new session; without a name, one of the time. UsageError for a name that no file can have, or that is there."""
    now = datetime.now().astimezone()
    name = checked(name) if name else free_name(f"{now:%Y-%m-%d-%H%M%S}")
    session = Session(name, model, now.isoformat("T", "seconds"))
    if session.path.exists():
        raise UsageError(f"{session.name}: there is such a session already")
    return session


def named(name: str) -> Session:
    """The session of this name. UsageError if there is none; LocalInferError if it cannot be read."""
    session = Session(checked(name))
    try:
        lines = session.path.read_bytes().split(b"\n")
    except FileNotFoundError:
        raise UsageError(f"{name}: there is no such session; `localinfer sessions` shows those there are") from None
    except OSError as error:
        raise LocalInferError(f"{session.path}: cannot be read: {error.strerror}") from None
    for line in filter(None, lines):
        take(session, line)
    return session


def take(session: Session, line: bytes) -> None:
    """What one line of the file says."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        entry = None
    match entry:
        case {"role": str(), "content": _}:
            session.messages.append(entry)
        case {"keep": int(keep)}:
            del session.messages[max(keep, 0) :]
        case {"localinfer": int(), "model": str(model), "created": str(created)}:
            session.model, session.created = model, created
        case _:
            session.damaged += 1


def said(message: Message) -> str:
    """What a message says; calls of tools are blocks of code."""
    calls = message.get("tool_calls")
    entries = [json.dumps(call, ensure_ascii=False) for call in calls] if isinstance(calls, list) else []
    return "\n\n".join(filter(None, [str(message["content"] or ""), *(f"```json\n{each}\n```" for each in entries)]))


def names() -> list[str]:
    """Of all sessions, the one that was last written to first."""
    found = [path for path in paths.sessions_dir().glob("*" + ENDING) if NAME.fullmatch(path.stem)]
    return [path.stem for path in sorted(found, key=lambda path: path.stat().st_mtime_ns, reverse=True)]


def latest() -> Session | None:
    """The one that was last written to."""
    return next((named(name) for name in names()), None)


def prune_snapshots(limit: int = SNAPSHOTS_BYTES) -> None:
    """Remove snapshots, the oldest first, until all take so many bytes at most. Messages stay."""
    folder = paths.snapshots_dir()
    found = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns, reverse=True) if folder.is_dir() else []
    total = 0
    for path in found:
        total += path.stat().st_size
        if total > limit:
            path.unlink(missing_ok=True)


def checked(name: str) -> str:
    """A name that a file can have on any system, in this directory and no other."""
    if not NAME.fullmatch(name) or name.endswith((" ", ".")):
        raise UsageError(f"{printable(name)!r}: a session's name has letters, digits and `_ .+-`, 100 at most")
    return name


def free_name(name: str) -> str:
    """The name, with a number if there is such a session: two may begin in one second."""
    taken = names()
    return name if name not in taken else next(f"{name}-{n}" for n in count(2) if f"{name}-{n}" not in taken)


def ends_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
