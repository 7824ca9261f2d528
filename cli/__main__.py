"""Entry point of the command line. It turns every error into one line on stderr and an exit code:

    0 success   2 usage error                       4 not enough memory    6 invalid schema or grammar
    1 failure   3 model not found or not supported  5 context is full      130 interrupted
                                                                           141 broken pipe on stdout

The script `localinfer` imports this module, so its imports stay light: Ctrl-C during startup must also exit quietly.
"""

import errno
import gc
import math
import os
import re
import signal
import sys
import time
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from typer import TyperException

LIBRARY_ENVIRONMENT = {  # keeps libraries from starting threads that are never used
    "TOKENIZERS_PARALLELISM": "false",  # texts are tokenized one at a time
    "OPENBLAS_NUM_THREADS": "1",  # matrix products run on the thread pool of localinfer
}
INTERRUPTED = 130
BROKEN_PIPE = 141
RETRY_SECONDS, DEBOUNCE_SECONDS = 0.02, 0.1  # nobody presses Ctrl-C twice within 0.1 s


def main() -> NoReturn:
    """Run the command line of this process and exit with its exit code."""
    code = INTERRUPTED
    try:
        gc.set_threshold(250_000)  # startup creates many objects and no garbage; saves 25 ms
        install_signal_handlers()
        try:
            code = run(sys.argv[1:])
        finally:
            ignore_interrupts()  # the first one is already handled
    except KeyboardInterrupt:  # raised just before that call
        ignore_interrupts()
    gc.freeze()  # the process exits: skips a final collection of 50 ms
    raise SystemExit(code)


def run(arguments: list[str]) -> int:
    """Run a command line and return its exit code. Errors are reported on stderr in one line."""
    from cli.terminal import screen
    from localinfer.errors import LocalInferError, NotEnoughMemoryError

    screen.configure_streams()
    for name, value in LIBRARY_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        code = dispatch(arguments)
        sys.stdout.flush()
    except LocalInferError as error:
        code = screen.error(str(error), error.exit_code)
    except KeyboardInterrupt:
        screen.erase_progress()
        code = INTERRUPTED
    except SystemExit:
        raise
    except BaseException as error:  # a Rust panic is not an Exception
        if is_interrupt(error):
            screen.erase_progress()
            code = INTERRUPTED
        elif is_broken_pipe(error):
            code = BROKEN_PIPE
        elif is_debugging(arguments):
            raise
        elif is_memory_error(error):
            code = screen.error("not enough memory", NotEnoughMemoryError.exit_code)
        else:
            code = screen.error(unexpected_error_message(error), 1)
    screen.release_stdout()
    return code


def dispatch(arguments: list[str]) -> int:
    """Run the command that the arguments name and return its exit code."""
    import typer

    from cli.app import COMMANDS, build_program
    from cli.arguments.commands import COMPLETION_VARIABLE, resolve_command
    from cli.arguments.translation import Redirect
    from cli.terminal.screen import error

    if COMPLETION_VARIABLE in os.environ:
        from cli.arguments import completion

        return completion.write_completions(build_program(completion.typed_words()), os.environ[COMPLETION_VARIABLE])
    words = arguments
    try:
        words = resolve_command(arguments, COMMANDS)
        program = build_program(words)
        with program.make_context("localinfer", words[:]) as context:
            program.invoke(context)
    except Redirect as other:
        return dispatch(other.words)
    except typer.Exit as done:
        return done.exit_code
    except typer.TyperException as mistake:
        return error(with_hint(mistake, words), mistake.exit_code)
    return 0


def with_hint(mistake: "TyperException", words: list[str]) -> str:
    """Return the message of a mistake, and a hint after it: the arguments of the command if one is missing, or the flag
    that may have been forgotten if there is one too many."""
    message, context = mistake.format_message(), getattr(mistake, "ctx", None)
    if context is not None and message.startswith(("Missing argument", "Missing option")):
        usage = " ".join([context.command_path, *context.command.collect_usage_pieces(context)])
        return f"{message.rstrip('.')}: {usage}; --help describes them"
    if context is None or "unexpected extra argument" not in message:
        return message
    flags = {flag for parameter in context.command.params for flag in parameter.opts}
    hints = ((flag, hint) for flag, hint in (("-p", "-p TEXT takes a text"), ("-o", "-o FILE takes an output file")))
    return "; ".join([message, *[hint for flag, hint in hints if flag in flags - {*words}][:1]])


def is_interrupt(error: BaseException) -> bool:
    """Return whether an interrupt caused the error, as where Python 3.11 creates a class: it raises a RuntimeError."""
    return isinstance(error, RuntimeError) and isinstance(error.__cause__, KeyboardInterrupt)


def is_broken_pipe(error: BaseException) -> bool:
    """Return whether the error says that the reader of stdout is gone. Windows reports an invalid argument, then and
    when what remains to be written is flushed.
    """
    if sys.platform == "win32" and isinstance(error, OSError) and error.errno == errno.EINVAL:
        try:
            sys.stdout.flush()
        except OSError:
            return True
    return isinstance(error, BrokenPipeError)


MEMORY_ERROR = (
    "MemoryError|out of memory|Cannot allocate memory|failed to map segment|can't start new thread|ThreadPoolBuildError"
)


def is_memory_error(error: BaseException | None) -> bool:
    """Return whether the error, or an error that caused it, reports a lack of memory."""
    while error is not None:
        if isinstance(error, MemoryError) or re.search(MEMORY_ERROR, str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def unexpected_error_message(error: BaseException) -> str:
    """Return the message for an error that no command handles.

    Commands name every file that they open, so an OSError without a file name is from a standard stream.
    """
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'cannot write the output'}: {error.strerror}"
    if is_features_error(error):
        return str(error)
    return f"unexpected {type(error).__name__}: {error} (--debug shows where)"


def is_features_error(error: BaseException) -> bool:
    """Return whether the error is that of an environment variable that selects the CPU."""
    from quant.jit.cpu import FeaturesError

    return isinstance(error, FeaturesError)


def is_debugging(arguments: list[str]) -> bool:
    return "--debug" in arguments or os.environ.get("LOCALINFER_DEBUG", "0") not in ("", "0")


def install_signal_handlers() -> None:
    """Handle SIGINT, SIGTERM, SIGHUP, and SIGBREAK of Windows, which Ctrl-Break and a closed window send.

    A signal that is ignored, as SIGHUP is under nohup, stays ignored.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, InterruptHandler())
        sys.unraisablehook = handle_unraisable
    for name in ("SIGTERM", "SIGHUP", "SIGBREAK"):
        number = getattr(signal, name, None)
        if number and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, terminate)


class InterruptHandler:
    """SIGINT handler that raises KeyboardInterrupt, but only once for a rapid series of signals."""

    def __init__(self) -> None:
        self._last = -math.inf

    def __call__(self, *_: object) -> None:
        before, self._last = self._last, time.monotonic()
        if self._last - before > DEBOUNCE_SECONDS:
            raise KeyboardInterrupt


def handle_unraisable(lost: "sys.UnraisableHookArgs") -> None:
    """Repeat an interrupt that arrived where Python cannot raise it, such as in a weakref callback."""
    if lost.exc_type is KeyboardInterrupt and hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, RETRY_SECONDS)
    else:
        sys.__unraisablehook__(lost)


def ignore_interrupts() -> None:
    """Ignore all further interrupts."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, 0)


def terminate(number: int, _: object) -> NoReturn:
    """Exit through all `finally` blocks, so that no partial file remains."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    main()
