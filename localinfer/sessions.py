"""Saved chat sessions: conversations in JSON Lines files.

    session = create("smollm2")                          # or latest(), open_session("2026-11-22-093015")
    session.append({"role": "user", "content": "Hello"})
    session.messages                                     # the list of messages for `Model.chat`
    session.rewind(0)                                    # keep only the first 0 messages
    next(session.versions())                             # the messages before that
    session.markdown()

The first line describes the session: {"localinfer": 1, "model": ..., "created": ..., "system": ...}; the system prompt
is optional, and a later line of this kind replaces it. Each further line is a message, written immediately, or
{"keep": n}, which discards all but the first n messages before it. The file is append-only: a crash loses at most one
incomplete line, and discarded messages remain in the file.
"""

import contextlib
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from io import FileIO
from itertools import count
from pathlib import Path

from localinfer import paths
from localinfer.errors import LocalInferError, UsageError
from localinfer.escaping import printable, terminal_text
from localinfer.session_media import content_text, digests, remove_unused

FORMAT = 1
SUFFIX = ".jsonl"
TIME_NAME = re.compile(r"\d{4}-\d\d-\d\d-\d{6}(-\d+)?")  # the name of a session that the user has not named
NAME = re.compile(r"\w[\w .+-]{0,99}", re.ASCII)
DEVICE = re.compile(r"(con|prn|aux|nul|(com|lpt)\d)( *\..*)?", re.ASCII | re.IGNORECASE)  # device names of Windows
MAX_LINE_LENGTH = 60  # characters of a title, or of a line that `search` found
APPEND_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)

Message = Mapping[str, object]


@dataclass(slots=True, kw_only=True)
class History:
    """The messages of a conversation, and those that were discarded: pairs of `keep` and the messages behind it."""

    messages: list[Message] = field(default_factory=list)
    discarded: list[tuple[int, list[Message]]] = field(default_factory=list)

    def append(self, message: Message) -> None:
        """Append a message."""
        self.messages.append(message)

    def rewind(self, keep: int) -> None:
        """Discard all but the first `keep` messages."""
        if keep < len(self.messages):
            self.discarded.append((keep, self.messages[keep:]))
            del self.messages[keep:]

    def replace_messages(self, messages: Sequence[Message]) -> None:
        """Replace the messages; only those from the first difference on are discarded and appended."""
        pairs = enumerate(zip(self.messages, messages, strict=False))
        same = next((n for n, (old, new) in pairs if old != new), min(len(self.messages), len(messages)))
        self.rewind(same)
        for message in messages[same:]:
            self.append(message)

    def versions(self) -> Iterator[list[Message]]:
        """Yield the messages before each discard, the latest first."""
        messages = self.messages
        for keep, tail in reversed(self.discarded):
            messages = [*messages[:keep], *tail]
            yield messages

    def removed_versions(self) -> Iterator[list[Message]]:
        """Yield the versions that the messages do not contain, each once, the latest first."""
        seen: list[list[Message]] = []
        for version in self.versions():
            if version != self.messages[: len(version)] and version not in seen:
                seen.append(version)
                yield version


@dataclass(slots=True)
class Session(History):
    """A chat session. `messages` are the valid messages, `n_damaged` counts unreadable lines. The file is created with
    the first message.
    """

    name: str
    model: str = ""
    created: str = ""  # ISO 8601, with the offset from UTC
    system: str = ""  # the system prompt
    n_damaged: int = 0

    @property
    def path(self) -> Path:
        return paths.sessions_dir() / (self.name + SUFFIX)

    @property
    def has_own_name(self) -> bool:
        """Whether the user has named the session. Otherwise its name is the time when it began."""
        return not TIME_NAME.fullmatch(self.name)

    @property
    def title(self) -> str:
        """The beginning of the first user message, in one short line."""
        questions = (content_text(each["content"]) for each in self.messages if each["role"] == "user")
        return shortened(next(questions, ""))

    def append(self, message: Message) -> None:
        """Append a message to the list and the file. Raises LocalInferError if the file cannot be written."""
        self._write(message)
        History.append(self, message)

    def rewind(self, keep: int) -> None:
        """Discard all but the first `keep` messages."""
        if keep < len(self.messages):
            self._write({"keep": keep})
            History.rewind(self, keep)

    def markdown(self) -> str:
        """Return the conversation as a Markdown document, without characters that a terminal would interpret."""
        head = f"# {self.title or self.name}\n\n{self.model}, {self.created[:16].replace('T', ' ')}\n"
        sections = (f"\n## {str(each['role']).capitalize()}\n\n{message_text(each)}\n" for each in self.messages)
        return terminal_text((head + "".join(sections)).replace("\r\n", "\n"))

    def remove(self) -> None:
        """Delete the file of the session, and the images and sounds that no other session has."""
        all_messages = [*self.messages, *(each for _, tail in self.discarded for each in tail)]
        try:
            self.path.unlink(missing_ok=True)
            if own := set(digests(all_messages)):
                others = (paths.sessions_dir() / (name + SUFFIX) for name in list_names())
                used = {digest for path in others for digest in own if digest.encode() in path.read_bytes()}
                remove_unused(own, used)
        except OSError as error:
            raise LocalInferError(f"{self.path}: cannot be removed: {error.strerror}") from None

    def set_model(self, model: str) -> None:
        """Record that another model continues the session."""
        self.model = model
        if self.path.exists():
            self._write(self._description())

    def _description(self) -> dict[str, object]:
        about = {"localinfer": FORMAT, "model": self.model, "created": self.created}
        return about | ({"system": self.system} if self.system else {})

    def _write(self, entry: Message) -> None:
        """Append a line to the file, or nothing; an incomplete line before it is terminated first."""
        paths.private_directory(self.path.parent)
        text = json.dumps(dict(entry), ensure_ascii=False) + "\n"
        try:
            descriptor = os.open(self.path, APPEND_FLAGS, 0o600)
            with open(descriptor, "ab", buffering=0) as file:  # noqa: PTH123
                if not (size := file.tell()):
                    text = json.dumps(self._description(), ensure_ascii=False) + "\n" + text
                elif not ends_with_newline(self.path):
                    text = "\n" + text
                append_whole(file, text.encode("utf-8", "surrogatepass"), size)
        except OSError as error:
            self._remove_empty_file()
            raise LocalInferError(f"{self.path}: cannot be written: {error.strerror}") from None

    def _remove_empty_file(self) -> None:
        """Remove the file if the disk was full when it was created, so that its name is free."""
        with contextlib.suppress(OSError):
            if not self.path.stat().st_size:
                self.path.unlink()


def create(model: str, name: str = "") -> Session:
    """Return a new session, named after the current time by default.

    Raises UsageError if the name is not a valid file name, or if the session exists.
    """
    now = datetime.now().astimezone()
    if DEVICE.fullmatch(name):
        raise UsageError(f"{name}: Windows reserves this name for a device")
    name = validate_name(name) if name else unused_name(f"{now:%Y-%m-%d-%H%M%S}")
    session = Session(name, model, now.isoformat("T", "seconds"))
    if session.path.exists():
        raise UsageError(f"{session.name}: this session already exists")
    return session


def open_session(name: str) -> Session:
    """Return the session with this name. Raises UsageError if it does not exist, LocalInferError if it cannot be read.
    """
    session = Session(validate_name(name))
    try:
        if not stat.S_ISREG(session.path.stat().st_mode):  # reading a pipe would block
            raise LocalInferError(f"{session.path}: cannot be read: not a regular file")
        lines = session.path.read_bytes().split(b"\n")
    except FileNotFoundError:
        raise UsageError(f"{name}: no such session; `localinfer sessions` lists them") from None
    except OSError as error:
        raise LocalInferError(f"{session.path}: cannot be read: {error.strerror}") from None
    for line in filter(None, lines):
        apply_line(session, line)
    return session


def apply_line(session: Session, line: bytes) -> None:
    """Apply one line of the file to the session."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        entry = None
    match entry:
        case {"role": str(), "content": _}:
            session.messages.append(entry)
        case {"keep": int(keep)}:
            History.rewind(session, max(keep, 0))
        case {"localinfer": int(), "model": str(model), "created": str(created)}:
            session.model, session.created = model, created
            session.system = entry["system"] if isinstance(entry.get("system"), str) else ""
        case _:
            session.n_damaged += 1


def message_text(message: Message) -> str:
    """Return the text of a message as Markdown; tool calls become code blocks."""
    calls = message.get("tool_calls")
    entries = [json.dumps(call, ensure_ascii=False) for call in calls] if isinstance(calls, list) else []
    return "\n\n".join(filter(None, [content_text(message["content"]), *(f"```json\n{each}\n```" for each in entries)]))


def shortened(text: str) -> str:
    """Return the beginning of a text in one line that ends with a whole word, or with a part of a very long one."""
    line = " ".join(text.split())
    if len(line) <= MAX_LINE_LENGTH:
        return line
    return (line[:MAX_LINE_LENGTH].rpartition(" ")[0] or line[: MAX_LINE_LENGTH - 1]) + "…"


def list_names() -> list[str]:
    """Return the names of all sessions, the most recently written first. Other files, such as pipes, are skipped."""
    found = [path for path in paths.sessions_dir().glob("*" + SUFFIX) if NAME.fullmatch(path.stem)]
    return [path.stem for path, _ in latest_first(found)]


def search(text: str) -> Iterator[tuple[Session, str]]:
    """Yield the sessions that contain all words of `text`, the most recently written first, each with the first line
    that contains one of them.
    """
    words = text.casefold().split()
    for session in map(open_session, list_names()):
        lines = [session.name, *(line for each in session.messages for line in message_text(each).splitlines())]
        found = [line for line in lines if any(word in line.casefold() for word in words)]
        if all(any(word in line.casefold() for line in found) for word in words):
            yield session, next(iter(found), session.title)


def latest() -> Session | None:
    """Return the most recently written session that has messages: /undo may have left none."""
    return next((session for session in map(open_session, list_names()) if session.messages), None)


def latest_first(found: Iterable[Path]) -> list[tuple[Path, int]]:
    """Return the regular files among the paths with their sizes, the most recently written first."""
    files = []
    for path in found:
        with contextlib.suppress(OSError):  # removed by another process, or a link to itself
            status = path.stat()
            if stat.S_ISREG(status.st_mode):
                files.append((status.st_mtime_ns, path, status.st_size))
    return [(path, size) for _, path, size in sorted(files, reverse=True)]


def validate_name(name: str) -> str:
    """Return the name. Raises UsageError if it is not a valid file name on every platform."""
    if not NAME.fullmatch(name) or name.endswith((" ", ".")):
        raise UsageError(f"{printable(name)!r}: a session name consists of at most 100 letters, digits and `_ .+-`")
    return name


def unused_name(name: str) -> str:
    """Return the name, with a number if a session with this name exists."""
    taken = list_names()
    return name if name not in taken else next(f"{name}-{n}" for n in count(2) if f"{name}-{n}" not in taken)


def append_whole(file: FileIO, data: bytes, size: int) -> None:
    """Append data to a file that has this size. If that fails, remove what was written of it, and raise OSError."""
    written = 0
    try:
        while written < len(data):
            written += file.write(data[written:])
    except OSError:
        with contextlib.suppress(OSError):
            if os.fstat(file.fileno()).st_size == size + written:  # no other process has written since
                file.truncate(size)
        raise


def ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
