"""Where the program begins and ends: whatever happens in between becomes one line and an exit code.

    0 ok        2 usage                             4 not enough memory    6 schema or grammar invalid
    1 failure   3 model not found or not supported  5 context is full      130 interrupted
                                                                           141 the reader of stdout is gone

Imported by the shell's `localinfer`, so it stays light: an interrupt during the imports ends quietly too.
"""

import _thread
import gc
import os
import re
import signal
import sys
import threading
from typing import NoReturn

LIBRARIES = {  # what they are told: threads of theirs cost time to start, and have nothing to do
    "TOKENIZERS_PARALLELISM": "false",  # for many texts: here each is alone
    "OPENBLAS_NUM_THREADS": "1",  # for large products: here they are cut into parts for threads of our own
}
INTERRUPTED = 130
READER_GONE = 141
A_MOMENT = 0.02  # seconds


def main() -> NoReturn:
    """Run the command line of this process and leave with its exit code."""
    try:
        gc.set_threshold(250_000)  # a start makes many objects and no garbage; to look for some takes 25 ms
        be_told_to_end()
        sys.unraisablehook = unraisable
        code = run(sys.argv[1:])
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the answer to the first is on its way
    except KeyboardInterrupt:
        code = INTERRUPTED
    gc.freeze()  # memory goes with the process: to look for garbage in it once more takes 50 ms
    raise SystemExit(code)


def run(arguments: list[str]) -> int:
    """The exit code of a command line; what goes wrong is told on stderr in one line."""
    from cli import screen
    from localinfer.errors import LocalInferError, NotEnoughMemory

    screen.prepare()
    for name, value in LIBRARIES.items():
        os.environ.setdefault(name, value)
    try:
        code = dispatch(arguments)
        sys.stdout.flush()
    except LocalInferError as error:
        code = screen.error(str(error), error.exit_code)
    except KeyboardInterrupt:
        screen.erase_progress()
        code = INTERRUPTED
    except BrokenPipeError:
        code = READER_GONE
    except SystemExit:
        raise
    except BaseException as error:  # a panic of Rust is no Exception
        if debugging(arguments):
            raise
        if is_of_memory(error):
            code = screen.error("not enough memory", NotEnoughMemory.exit_code)
        else:
            code = screen.error(unexpected(error), 1)
    screen.let_go_of_stdout()
    return code


def dispatch(arguments: list[str]) -> int:
    """Hand the arguments to the command that they name."""
    import typer

    from cli.app import COMMANDS, command_line
    from cli.arguments.commands import COMPLETING, resolved
    from cli.arguments.translation import Instead
    from cli.screen import error

    if COMPLETING in os.environ:
        from cli.arguments import completion

        return completion.answer(command_line(completion.words_typed()), os.environ[COMPLETING])
    try:
        words = resolved(arguments, COMMANDS)
        program = command_line(words)
        with program.make_context("localinfer", words[:]) as context:
            program.invoke(context)
    except Instead as other:
        return dispatch(other.words)
    except typer.Exit as done:
        return done.exit_code
    except typer.TyperException as mistake:
        return error(mistake.format_message(), mistake.exit_code)
    return 0


NO_MEMORY = re.compile(
    "MemoryError|out of memory|Cannot allocate memory|failed to map segment|can't start new thread|ThreadPoolBuildError"
)


def is_of_memory(error: BaseException | None) -> bool:
    """Whether it came from too little memory: libraries tell of that in all kinds of errors, or hide it behind one."""
    while error is not None:
        if isinstance(error, MemoryError) or NO_MEMORY.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def unexpected(error: BaseException) -> str:
    """What no command has foreseen. Files are always named, so that an unnamed one is a standard stream."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'cannot write the output'}: {error.strerror}"
    return f"unexpected {type(error).__name__}: {error} (--debug shows where)"


def debugging(arguments: list[str]) -> bool:
    return "--debug" in arguments or os.environ.get("LOCALINFER_DEBUG", "0") not in ("", "0")


def be_told_to_end() -> None:
    """By SIGTERM, and when the terminal is closed, unless that is ignored, as nohup has it."""
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, terminate)


def terminate(number: int, _: object) -> NoReturn:
    """Leave through every `finally`, so that nothing half-written stays."""
    raise SystemExit(128 + number)


def unraisable(lost: "sys.UnraisableHookArgs") -> None:
    """Ctrl-C may come where Python can raise nothing, as when an import lets go of its lock: then it comes again."""
    if lost.exc_type is KeyboardInterrupt:
        again = threading.Timer(A_MOMENT, interrupt)
        again.daemon = True
        again.start()
    else:
        sys.__unraisablehook__(lost)


def interrupt() -> None:
    """The main thread, also where it waits for something."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    else:
        _thread.interrupt_main()


if __name__ == "__main__":
    main()
