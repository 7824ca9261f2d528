"""The name of a kernel: everything that is needed to compile it or to find it in the cache.

Kernels are named instead of imported. If all kernels are cached, numba is never imported, and importing numba would
otherwise dominate the startup time.
"""

import hashlib
import json
from collections import namedtuple
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

Constants = Mapping[str, int | str]


class Kernel(NamedTuple):
    """A function of a module, the names of its arguments, and the constants that are compiled into it.

    `module:function` is called as `function(**constants)` and returns the Python function to compile, which takes
    (args, chunk_index, n_chunks, scratch). `args` is a named tuple with the fields `parameters`: int64, or float64 for
    names in `float_parameters`. `chunk_index` and `n_chunks` select a chunk of the work, and `scratch` is the address
    of memory private to the thread.
    """

    module: str
    function: str
    parameters: tuple[str, ...] = ()
    float_parameters: frozenset[str] = frozenset()
    constants: tuple[tuple[str, int | str], ...] = ()

    @property
    def symbol(self) -> str:
        """The symbol of the entry point, with a hash of the kernel's name, arguments and constants."""
        return f"{self.function}_{hashlib.sha256(self.to_json().encode()).hexdigest()[:16]}"

    def to_json(self) -> str:
        """Return the kernel as one line of JSON."""
        return json.dumps([self.module, self.function, self.parameters, sorted(self.float_parameters), self.constants])

    @classmethod
    def from_json(cls, line: str) -> "Kernel":
        """Parse the output of `to_json`."""
        module, function, parameters, floats, constants = json.loads(line)
        constant_items = tuple((name, value) for name, value in constants)
        return cls(module, function, tuple(parameters), frozenset(floats), constant_items)


@cache
def arguments_type(parameters: tuple[str, ...]) -> Any:
    """Return the named tuple with these fields. Kernels with the same arguments share it, and with it the compiled code
    of the inlined functions that take it.
    """
    return namedtuple("Arguments", parameters)


def make_kernel(
    name: str, parameters: tuple[str, ...], float_parameters: frozenset[str], constants: Constants
) -> Kernel:
    """Return the kernel `module:function` with these arguments and constants."""
    module, function = name.split(":")
    return Kernel(module, function, parameters, float_parameters, tuple(sorted(constants.items())))
