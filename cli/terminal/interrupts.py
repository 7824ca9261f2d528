"""Deferral of Ctrl-C while something is written that must not be left half-written."""

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def deferred_interrupts() -> Iterator[None]:
    """Deliver an interrupt (SIGINT) that arrives within the block after it. Outside of the main thread, do nothing.

    Redrawing lines of the terminal and storing messages take milliseconds. An interrupt in the middle would leave what
    is on the screen, or in the file, different from what the program believes to be there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received = False

    def receive(*_: object) -> None:
        nonlocal received
        received = True

    handler = signal.signal(signal.SIGINT, receive)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if received:
            signal.raise_signal(signal.SIGINT)
