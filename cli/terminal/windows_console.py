"""Standard streams on Windows: the console, which interprets escape sequences only if a program asks for it, and pipes,
which `select` cannot poll.
"""

import sys
import time
from functools import cache
from typing import Any

STANDARD_HANDLES = (-11, -12)  # STD_OUTPUT_HANDLE, STD_ERROR_HANDLE
ENABLE_VIRTUAL_TERMINAL_PROCESSING = 0x4
POLL_SECONDS = 0.02


@cache
def has_escape_sequences() -> bool:
    """Return whether the console of this process interprets escape sequences, after asking for it.

    False on other systems, and if neither stdout nor stderr is a console. The shell restores its own mode.
    """
    if sys.platform == "win32":
        import ctypes  # imported late: other systems do not need it

        kernel32 = ctypes.WinDLL("kernel32")
        return True in [enable_sequences(kernel32, number) for number in STANDARD_HANDLES]
    return False


def enable_sequences(kernel32: Any, number: int) -> bool:
    """Ask for escape sequences on a standard handle. Return False if it is no console, or too old a one."""
    import ctypes

    kernel32.GetStdHandle.restype = ctypes.c_void_p
    kernel32.GetConsoleMode.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    kernel32.SetConsoleMode.argtypes = (ctypes.c_void_p, ctypes.c_uint32)
    handle, mode = kernel32.GetStdHandle(number), ctypes.c_uint32(0)
    if not kernel32.GetConsoleMode(handle, ctypes.byref(mode)):
        return False
    return bool(kernel32.SetConsoleMode(handle, mode.value | ENABLE_VIRTUAL_TERMINAL_PROCESSING))


def has_input(descriptor: int, seconds: float) -> bool:
    """Return whether a pipe has data or ends within `seconds`. True for other files, and on other systems."""
    if sys.platform == "win32":
        import ctypes
        import msvcrt

        return pipe_has_input(ctypes.WinDLL("kernel32"), msvcrt.get_osfhandle(descriptor), seconds)
    return True


def pipe_has_input(kernel32: Any, handle: int, seconds: float) -> bool:
    """Poll a handle until it has data, or its pipe has ended, or `seconds` are over."""
    import ctypes

    peek, available, end = kernel32.PeekNamedPipe, ctypes.c_uint32(0), time.monotonic() + seconds
    peek.argtypes = (*[ctypes.c_void_p] * 2, ctypes.c_uint32, *[ctypes.c_void_p] * 3)
    while peek(handle, None, 0, None, ctypes.byref(available), None) and not available.value:
        if time.monotonic() >= end:
            return False
        time.sleep(POLL_SECONDS)
    return True  # peeking fails if the pipe has ended, or if it is no pipe
