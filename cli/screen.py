"""Everything that is drawn: generated text on stdout, and on stderr what is said about it.

Knows streams and terminals; nothing of models. stdout gets the generated text and nothing else. stderr gets
one line an error, and progress: a line that redraws itself on a terminal, a plain line a stage elsewhere.
"""

import contextlib
import io
import os
import re
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from localinfer.text import printable

UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all controls but tab and newline
QUIET_SECONDS = 0.4  # what takes less is not worth a line ...
AT_ONCE = ("download", "compile")  # ... but these never do
REDRAW_SECONDS = 0.1
BAR = 30  # characters


def prepare() -> None:
    """Make the standard streams what the rest relies on: there, and UTF-8 whatever the locale says."""
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115, PTH123  # open as long as the process
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115, PTH123
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115, PTH123
    reconfigure(sys.stdin, errors="replace")
    reconfigure(sys.stdout, errors="replace")
    reconfigure(sys.stderr, errors="backslashreplace")
    warnings.showwarning = show_warning


def reconfigure(stream: object, errors: str) -> None:
    """A newline stays one byte, so that the output is the same on every system."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(encoding="utf-8", errors=errors, newline="\n")


# ---- stdout ------------------------------------------------------------------------------------------------


def write(text: str) -> None:
    """Generated text, at once. A terminal is not given the control sequences that a model may produce."""
    sys.stdout.write(harmless(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def harmless(text: str) -> str:
    """Text of any lines without control sequences: they are shown."""
    return UNSAFE.sub(lambda found: printable(found[0]), text)


@contextmanager
def without_echo() -> Iterator[None]:
    """Keys that are pressed meanwhile wait for the next prompt, as they are, and do not show in the midst of what is
    written. So it stays when the process is stopped by Ctrl-Z and goes on, although the shell has changed it.
    """
    if os.name != "posix":
        yield
        return
    import signal
    import termios

    try:
        before = termios.tcgetattr(sys.stdin)
    except (OSError, ValueError, termios.error):  # no terminal
        yield
        return
    silent = [*before[:3], before[3] & ~(termios.ECHO | termios.ICANON), *before[4:]]

    def be_silent(*_: object) -> None:
        with contextlib.suppress(termios.error):  # the terminal may be gone
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, silent)

    handler = signal.signal(signal.SIGCONT, be_silent)
    be_silent()
    try:
        yield
    finally:
        signal.signal(signal.SIGCONT, handler)
        with contextlib.suppress(termios.error):
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def let_go_of_stdout() -> None:
    """What stdout could not take is lost: Python shall not try again, and complain, when it exits."""
    try:
        sys.stdout.flush()
    except OSError:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# ---- stderr ------------------------------------------------------------------------------------------------


def error(message: str, code: int) -> int:
    """The one line that tells what went wrong. Returns the exit code, for the caller to return."""
    tell(f"error: {one_line(message)}")
    return code


def warn(message: str) -> None:
    tell(f"warning: {one_line(message)}")


def show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """In the place of `warnings.showwarning`, whose second line shows source code."""
    warn(str(message))


def note(line: str) -> None:
    """A line on stderr. Where nobody can read it, nothing is lost."""
    with contextlib.suppress(OSError):
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


def tell(line: str, hanging: int = 0) -> None:
    """A line in words, broken between them; what is broken off goes on behind so many spaces."""
    note("\n".join(broken(line, hanging)))


def aside(line: str) -> None:
    """A line of less importance, such as statistics: dim where the terminal can, and broken between words."""
    note("\n".join(dim(each) if colourful() else each for each in broken(line)))


def broken(line: str, hanging: int = 0) -> list[str]:
    """As many lines as it takes on a terminal."""
    width = max(columns() - 1, 1)
    indent = " " * hanging if hanging < width // 2 else "  "
    whole = not sys.stderr.isatty()
    if whole:
        return [line]
    return textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def dim(line: str) -> str:
    return f"\x1b[2m{line}\x1b[0m"


def one_line(text: str) -> str:
    return printable(" ".join(text.split("\n")))


def colourful() -> bool:
    return is_live() and not os.environ.get("NO_COLOR")


def is_live() -> bool:
    """Can lines on stderr be redrawn?"""
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def columns() -> int:
    """Of the terminal; a terminal that does not know gets the usual 80."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


class Status:
    """One line on stderr that tells what takes so long: a `Progress` to hand to whatever reports.

        status = Status()
        with status.busy("loading smollm2"):
            model = load(..., progress=status)

    On a terminal the line is redrawn, and gone when the stage is over. Elsewhere each of PLAIN_STAGES gets
    one line, when it begins.
    """

    PLAIN_STAGES = ("compile",)

    latest: ClassVar["Status | None"] = None

    def __init__(self) -> None:
        Status.latest = self
        self.live = is_live()
        self.lock = threading.Lock()  # the timer of `busy` draws too
        self.stage = ""
        self.began = self.drawn_at = 0.0
        self.begun_with = 0

    def __call__(self, stage: str, done: int, total: int) -> None:
        """A Progress: `done` of `total` of what the stage counts."""
        now = time.monotonic()
        if stage != self.stage:
            self.stage, self.began, self.begun_with = stage, now, done
            if not self.live and stage in self.PLAIN_STAGES and done < total:
                note(self.line(done, total, now))
        if done >= total:
            self.stage = ""  # what is called so next has a beginning of its own
            self.erase()
        elif not self.live or (stage not in AT_ONCE and now - self.began < QUIET_SECONDS):
            return
        elif now - self.drawn_at >= REDRAW_SECONDS:
            self.draw(self.line(done, total, now))

    @contextmanager
    def busy(self, label: str) -> Iterator[None]:
        """Show the label if this takes long and nothing more precise is reported."""
        timer = threading.Timer(QUIET_SECONDS, self.draw_if_idle, [f"{label} ..."])
        timer.daemon = True
        if self.live:
            timer.start()
        try:
            yield
        finally:
            timer.cancel()
            self.erase()
            self.stage = ""

    def line(self, done: int, total: int, now: float) -> str:
        if self.stage == "download":
            return download_line(done, total, (done - self.begun_with) / max(now - self.began, 1e-3))
        if self.stage == "compile":
            return f"compiling kernels (once) {done}/{total}"
        if self.stage == "read":
            return f"reading the model: {mib(done)} of {mib(total)}"
        if self.stage == "prefill":
            return f"reading the prompt: {done:,} of {total:,} tokens"
        return f"{self.stage} {done}/{total}"

    def show(self, line: str) -> None:
        """Any other line, where lines can be redrawn."""
        if self.live:
            self.draw(line)

    def draw_if_idle(self, line: str) -> None:
        if not self.drawn_at:
            self.draw(line)

    def draw(self, line: str) -> None:
        with self.lock, contextlib.suppress(OSError):
            sys.stderr.write(f"\r{line[: columns() - 1]}\x1b[K")
            sys.stderr.flush()
            self.drawn_at = time.monotonic()

    def erase(self) -> None:
        with self.lock, contextlib.suppress(OSError):
            if self.drawn_at:
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()
            self.drawn_at = 0.0


def erase_progress() -> None:
    """What was going on was interrupted: its line goes, so that nothing else is written behind it."""
    if Status.latest:
        Status.latest.erase()


def time_left(done: int, total: int, seconds: float) -> str:
    """What the rest takes, when so much of it has taken so long: 0:05, 12:30, 1:02:03."""
    minutes, rest = divmod(round(seconds * (total - done) / max(done, 1)), 60)
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}:{minutes:02d}" if hours else f"{minutes}") + f":{rest:02d} left"


def download_line(done: int, total: int, rate: float) -> str:
    """`rate` in bytes a second."""
    return f"{bar(done, total)}  {mib(done)} of {mib(total)}  {mib(int(rate))}/s"


def bar(done: int, total: int) -> str:
    """How much of the whole, drawn and in hundredths."""
    filled = BAR * done // max(total, 1)
    return f"{'█' * filled}{'░' * (BAR - filled)} {100 * done // max(total, 1):3d} %"


def mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
