"""Calls between marks, told apart from the text around them while it comes.

    outside     text goes out, but for its end, as long as an opening mark could begin there
    inside      all is held until the closing mark, or the end of the answer
    behind      space and marks that are left over are dropped

What stands between marks and cannot be read goes out as text, with the marks. A closing mark within a string of JSON
closes nothing.
"""

from collections.abc import Sequence

from localinfer.generation.calls import bare
from localinfer.generation.calls.call import Parsed, Tools
from localinfer.generation.calls.families import Frame
from localinfer.generation.calls.json_calls import in_string
from localinfer.generation.pieces import Call


class Framed:
    """Follows one answer."""

    def __init__(self, frames: Sequence[Frame], tools: Tools) -> None:
        self._frames = frames
        self._tools = tools
        self._closings = tuple(filter(None, [*(frame.closing for frame in frames), *bare.CLOSINGS]))
        self._held = ""
        self._space = ""  # that stood before the opening mark
        self._frame: Frame | None = None  # that is open
        self._searched = 0  # so far there is no closing mark in what is held
        self._behind = False
        self._begun = False  # has there been any text?

    @property
    def holds(self) -> bool:
        return bool(self._held or self._frame)

    def push(self, text: str) -> Parsed:
        self._held += text
        return self._steps(is_all=False)

    def finish(self) -> Parsed:
        return self._steps(is_all=True)

    def _steps(self, *, is_all: bool) -> Parsed:
        parsed = Parsed()
        while self._held or (is_all and self._frame):
            if self._frame:
                step = self._inside(self._frame, is_all)
            else:
                step = self._skip(is_all) if self._behind else self._outside(is_all)
            if step is None:
                break
            parsed = parsed.then(step)
        return parsed

    # --- each of these takes something off what is held; None: not before there is more ---

    def _outside(self, is_all: bool) -> Parsed | None:
        if not self._begun and len(self._tools):
            try:
                found = bare.find(self._held, self._tools)
            except ValueError:
                found = bare.Found([], 0)
            if found and found.calls:
                return self._calls(found.calls, found.end)
            if not found and not is_all:
                return None
        places = [(at, frame) for frame in self._frames if (at := self._held.find(frame.opening)) >= 0]
        if places:
            at, self._frame = min(places, key=lambda each: each[0])
            text = self._held[:at].rstrip()
            self._space = self._held[len(text) : at]
            self._held = self._held[at + len(self._frame.opening) :]
            return self._text(text)
        certain = self._held if is_all else self._certain()
        self._held = self._held[len(certain) :]
        return self._text(certain) if certain else None

    def _certain(self) -> str:
        """What is held, without the space and the beginning of a mark at its end."""
        longest = min(max(len(frame.opening) for frame in self._frames) - 1, len(self._held))
        ends = (self._held[-size:] for size in range(longest, 0, -1))
        mark = next((end for end in ends if any(frame.opening.startswith(end) for frame in self._frames)), "")
        return self._held.removesuffix(mark).rstrip()

    def _inside(self, frame: Frame, is_all: bool) -> Parsed | None:
        at = self._held.find(frame.closing, self._searched) if frame.closing else -1
        if at < 0 and not is_all:
            return None
        body = self._held[:at] if at >= 0 else self._held
        try:
            if at < 0 and frame.must_close:
                raise ValueError("it is cut off")
            calls = frame.read(body, self._tools)
        except ValueError as problem:
            if at >= 0 and in_string(body):
                self._searched = at + len(frame.closing)
                return Parsed()
            return self._given_back(frame, problem)
        return self._calls(calls, len(body) + (len(frame.closing) if at >= 0 else 0))

    def _given_back(self, frame: Frame, problem: ValueError) -> Parsed:
        """As far as the first closing mark: behind it may be another call, which can be read."""
        body, mark, self._held = self._held.partition(frame.closing) if frame.closing else (self._held, "", "")
        self._frame, self._searched = None, 0
        return self._text(f"{self._space}{frame.opening}{body}{mark}")._replace(problem=str(problem))

    def _skip(self, is_all: bool) -> Parsed | None:
        self._held = self._held.lstrip(" \t\r\n;")
        for closing in self._closings:
            if self._held.startswith(closing):
                self._held = self._held.removeprefix(closing)
                return Parsed()
        if not is_all and any(closing.startswith(self._held) for closing in self._closings):
            return None
        self._behind = False
        return Parsed()

    # --- what goes out ---

    def _calls(self, calls: list[Call], end: int) -> Parsed:
        self._held = self._held[end:]
        self._frame, self._searched, self._behind = None, 0, True
        return Parsed(calls=tuple(calls))

    def _text(self, text: str) -> Parsed:
        self._begun = self._begun or bool(text.strip())
        return Parsed(text)
