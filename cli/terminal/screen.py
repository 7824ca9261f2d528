"""Terminal output: generated text on stdout; errors, warnings, statistics and progress on stderr.

stdout gets the generated text and nothing else. An error on stderr is one line. Progress is a status line that is
redrawn on a terminal, and a plain line per stage elsewhere. This module does not depend on models.

Whatever reaches a terminal passes `terminal_text`, because names, texts and errors come from files, models and servers.
Styles and cursor movements are added behind it, here and in the modules that draw (`DRAWING_MODULES` of the tests).
"""

import contextlib
import io
import os
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar

from cli.terminal import windows_console
from localinfer.escaping import printable, terminal_text

DELAY_SECONDS = 0.4  # the status line of a stage appears after this time
COMPILED = {"compile": "this CPU", "compile_rest": "long prompts"}  # what the kernels of a stage are for
OF_VIDEOS = {"frames": "reading", "video": "encoding"}
IMMEDIATE_STAGES = ("download", *COMPILED)  # stages whose status line appears at once
REDRAW_SECONDS = 0.1
BAR_WIDTH = 20  # characters
COMPILE_SECONDS = 1.4  # of a core for a typical kernel ...
COMPILE_WEIGHT = 2  # ... which counts as much as two measured ones


def configure_streams() -> None:
    """Configure the standard streams: open, and UTF-8 in every locale.

    Without a stdout, as after `>&-`, writing to it is an error. Its file descriptor is taken, so that no other file
    gets it.
    """
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115, PTH123  # open until the process exits
    sys.stdout = sys.stdout or open(os.open(os.devnull, os.O_RDONLY), "w")  # noqa: SIM115, PTH123
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115, PTH123
    configure_stream(sys.stdin, errors="replace")
    configure_stream(sys.stdout, errors="replace")
    configure_stream(sys.stderr, errors="backslashreplace")
    warnings.showwarning = show_warning


def configure_stream(stream: object, errors: str) -> None:
    """Set UTF-8 and untranslated newlines, so that the output is the same on every system."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(encoding="utf-8", errors=errors, newline="\n")


# ---- stdout ------------------------------------------------------------------------------------------------


def write(text: str) -> None:
    """Write generated text to stdout and flush. On a terminal, it is escaped."""
    sys.stdout.write(terminal_text(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


@contextmanager
def without_echo() -> Iterator[None]:
    """Disable the echo of the terminal, so that typed keys do not mix with the output but wait for the next prompt.

    After the process was suspended by Ctrl-Z, SIGCONT disables the echo again, because the shell has enabled it.
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

    def disable_echo(*_: object) -> None:
        with contextlib.suppress(termios.error):  # the terminal may be gone
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, silent)

    handler = signal.signal(signal.SIGCONT, disable_echo)
    disable_echo()
    try:
        yield
    finally:
        signal.signal(signal.SIGCONT, handler)
        with contextlib.suppress(termios.error):
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def release_stdout() -> None:
    """Flush stdout; if that fails, redirect it to /dev/null, so that Python does not report the error again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# ---- stderr ------------------------------------------------------------------------------------------------


MODEL_NAMES: dict[str, str] = {}  # the name that the user gave, by the path of the model file


def error(message: str, code: int) -> int:
    """Print an error in one line and return the exit code `code`."""
    note_wrapped(f"error: {with_model_names(one_line(message))}")
    return code


def warn(message: str) -> None:
    note_wrapped(f"warning: {with_model_names(one_line(message))}")


def name_model_file(path: str, name: str) -> None:
    """Let errors and warnings show a model file by the name that the user gave, which says more than a path in a cache.
    """
    if path != name:
        MODEL_NAMES[one_line(path)] = one_line(name)


def with_model_names(message: str) -> str:
    for path, name in MODEL_NAMES.items():
        message = message.replace(path, name)
    return message


def show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Replacement of `warnings.showwarning` that prints no source line."""
    warn(str(message))


def note(line: str) -> None:
    """Print a line on stderr. Write errors are ignored."""
    write_stderr(terminal_text(line) + "\n")


def write_stderr(text: str) -> None:
    """Write text, which may contain styles, to stderr."""
    with contextlib.suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()


def write_question(text: str) -> None:
    """Write a question to stderr, without a newline behind it."""
    write_stderr(terminal_text(text))


def note_wrapped(line: str, hanging: int = 0) -> None:
    """Print a line on stderr, wrapped at words to the width of the terminal; `hanging` indents continuation lines."""
    note("\n".join(wrapped_lines(line, hanging)))


def note_dim(line: str) -> None:
    """Print a less important line, such as statistics, dim if the terminal has colours, and wrapped at words."""
    lines = wrapped_lines(terminal_text(line))
    write_stderr("\n".join(dim(each) if has_color() else each for each in lines) + "\n")


def wrapped_lines(line: str, hanging: int = 0, width: int = 0) -> list[str]:
    """Wrap a line to `width` columns, by default those of the terminal; without a terminal, it stays one line."""
    width = max((width or columns()) - 1, 1)
    indent = " " * hanging if hanging < width // 2 else "  "
    whole = not sys.stderr.isatty()
    if whole:
        return [line]
    return textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def dim(line: str) -> str:
    return f"\x1b[2m{line}\x1b[0m"


def one_line(text: str) -> str:
    return printable(" ".join(text.split("\n")))


def has_color() -> bool:
    return is_redrawable() and not os.environ.get("NO_COLOR")


def is_redrawable() -> bool:
    """Return whether stderr is a terminal on which lines can be redrawn."""
    return sys.stderr.isatty() and interprets_escape_sequences()


def interprets_escape_sequences() -> bool:
    """Return whether the terminal, if there is one, interprets escape sequences. TERM tells, or the Windows console."""
    terminal, is_windows_console = os.environ.get("TERM", ""), windows_console.has_escape_sequences()
    return terminal != "dumb" and (bool(terminal) or is_windows_console)


def columns() -> int:
    """Return the width of the terminal in columns, 80 if unknown."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def output_columns() -> int:
    """Return the width of the terminal that shows stdout, or 0 if stdout is no terminal."""
    return columns() if sys.stdout.isatty() else 0


class Status:
    """A status line on stderr that shows progress. It is a `Progress` callback:

        status = Status()
        with status.busy("loading smollm2"):
            model = load(..., progress=status)

    On a terminal, the line is redrawn and erased at the end of a stage. On other streams, each of PLAIN_STAGES gets one
    line when it begins.
    """

    PLAIN_STAGES = ("compile",)

    latest: ClassVar["Status | None"] = None

    def __init__(self) -> None:
        Status.latest = self
        self.is_redrawable = is_redrawable()
        self.lock = threading.Lock()  # the timer of `busy` also draws
        self.stage = ""
        self.start_time = self.last_drawn = 0.0
        self.initial_done = 0

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Report that `done` of `total` units of a stage are finished."""
        now = time.monotonic()
        if stage != self.stage:
            self.stage, self.start_time, self.initial_done = stage, now, done
            if not self.is_redrawable and stage in self.PLAIN_STAGES and done < total:
                note(self.line(done, total, now))
        if done >= total:
            self.stage = ""  # the next stage of the same name starts anew
            self.erase()
        elif not self.is_redrawable or (stage not in IMMEDIATE_STAGES and now - self.start_time < DELAY_SECONDS):
            return
        elif now - self.last_drawn >= REDRAW_SECONDS:
            self.draw(self.line(done, total, now))

    @contextmanager
    def busy(self, label: str) -> Iterator[None]:
        """Show `label` if the block takes long and reports no progress."""
        timer = threading.Timer(DELAY_SECONDS, self.draw_if_idle, [f"{label} ..."])
        timer.daemon = True
        if self.is_redrawable:
            timer.start()
        try:
            yield
        finally:
            timer.cancel()
            self.erase()
            self.stage = ""

    def line(self, done: int, total: int, now: float) -> str:
        if self.stage == "download":
            return download_line(done, total, (done - self.initial_done) / max(now - self.start_time, 1e-3))
        if self.stage in COMPILED:
            left = compile_seconds(done - self.initial_done, total - done, now - self.start_time)
            return f"compiling kernels for {COMPILED[self.stage]} (once): {done} of {total}, about {clock(left)} left"
        if self.stage == "tune":
            return f"measuring this machine (once) {100 * done // total} %"
        if self.stage == "read":
            return f"loading the model: {mib(done)} of {mib(total)}"
        if self.stage == "prefill":
            return f"processing the prompt: {done:,} of {total:,} tokens"
        if self.stage in OF_VIDEOS:
            return f"{OF_VIDEOS[self.stage]} the video: {done} of {total} frames"
        return f"{self.stage} {done}/{total}"

    def show(self, line: str) -> None:
        """Show a line if the status line can be redrawn."""
        if self.is_redrawable:
            self.draw(line)

    def percentage(self, label: str) -> Callable[[int, int], None]:
        """Return a progress callback that shows how many percent are done."""
        return lambda done, total: self.show(f"{label} {100 * done // max(total, 1)} %")

    def draw_if_idle(self, line: str) -> None:
        if not self.last_drawn:
            self.draw(line)

    def draw(self, line: str) -> None:
        with self.lock, contextlib.suppress(OSError):
            sys.stderr.write(f"\r{terminal_text(line)[: columns() - 1]}\x1b[K")
            sys.stderr.flush()
            self.last_drawn = time.monotonic()

    def erase(self) -> None:
        with self.lock, contextlib.suppress(OSError):
            if self.last_drawn:
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()
            self.last_drawn = 0.0


def erase_progress() -> None:
    """Erase the status line of an interrupted stage."""
    if Status.latest:
        Status.latest.erase()


def time_left(done: int, total: int, seconds: float) -> str:
    """Estimate the remaining time from the elapsed `seconds`, as 0:05, 12:30 or 1:02:03."""
    return f"{clock(seconds * (total - done) / max(done, 1))} left"


def clock(seconds: float) -> str:
    """Return a duration as 0:05, 12:30 or 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}:{minutes:02d}" if hours else f"{minutes}") + f":{rest:02d}"


def compile_seconds(done: int, remaining: int, seconds: float) -> float:
    """Estimate the time for the remaining kernels, after `done` of them took `seconds`."""
    from quant.jit.compiler_pool import usable_cores

    typical = COMPILE_SECONDS / usable_cores()
    return remaining * (seconds + COMPILE_WEIGHT * typical) / (done + COMPILE_WEIGHT)


def download_line(done: int, total: int, rate: float) -> str:
    """Return the status line of a download; `rate` is in bytes per second."""
    left = f"  {clock((total - done) / rate)} left" if rate else ""
    return f"{progress_bar(done, total)}  {mib(done)} of {mib(total)}  {mib(int(rate))}/s{left}"


def progress_bar(done: int, total: int) -> str:
    """Return a progress bar with a percentage."""
    filled = BAR_WIDTH * done // max(total, 1)
    return f"{'█' * filled}{'░' * (BAR_WIDTH - filled)} {100 * done // max(total, 1):3d} %"


def mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


def gib(size: int) -> str:
    """Return a size in MiB, or in GiB from 1,000 MiB on."""
    return f"{size / 2**30:.1f} GiB" if size >= 1000 << 20 else mib(size)
