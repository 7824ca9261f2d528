"""A stand-in for a function of a system library, which callers give types as they do with ctypes."""

from collections.abc import Callable
from typing import Any


class Function:
    """A function of a library, implemented by `body`."""

    argtypes: tuple[Any, ...] = ()
    restype: Any = None

    def __init__(self, body: Callable[..., Any]) -> None:
        self.body = body

    def __call__(self, *arguments: Any) -> Any:
        return self.body(*arguments)
