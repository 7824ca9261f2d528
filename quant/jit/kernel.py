"""A kernel's name: what it takes to compile it, and to find it compiled.

A kernel is named, not imported: a program whose kernels are all in the cache never imports numba, which is most of
what starting would otherwise cost.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

Constants = Mapping[str, int | str]


@dataclass(frozen=True, slots=True)
class Kernel:
    """A function of a module, the names of its arguments, and constants that are compiled into it.

    `module:function` makes the kernel's Python function from the constants: `function(**constants)`.
    Its arguments are `parameters` in order (int64, or float64 where the name is in `floats`), then `part` and
    `parts`, which say what share of the work is asked for, and `scratch`, memory that nobody else uses meanwhile.
    """

    module: str
    function: str
    parameters: tuple[str, ...] = ()
    floats: frozenset[str] = frozenset()
    constants: tuple[tuple[str, int | str], ...] = ()

    @property
    def symbol(self) -> str:
        """The name of its entry point, unique to its contents."""
        return f"{self.function}_{hashlib.sha256(self.to_json().encode()).hexdigest()[:16]}"

    def to_json(self) -> str:
        """The kernel on one line."""
        return json.dumps([self.module, self.function, self.parameters, sorted(self.floats), self.constants])

    @classmethod
    def from_json(cls, line: str) -> "Kernel":
        """The kernel that `to_json` wrote."""
        module, function, parameters, floats, constants = json.loads(line)
        inside = tuple((name, value) for name, value in constants)
        return cls(module, function, tuple(parameters), frozenset(floats), inside)


def kernel_of(path: str, parameters: tuple[str, ...], floats: frozenset[str], inside: Constants) -> Kernel:
    """The kernel named `module:function` with these arguments and constants."""
    module, function = path.split(":")
    return Kernel(module, function, parameters, floats, tuple(sorted(inside.items())))
