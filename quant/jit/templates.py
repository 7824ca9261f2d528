"""Compiles functions that differ only in the integers and functions that they capture once, as text to fill in.

Most of a kernel's compile time is spent in numba, which infers types and writes LLVM IR. The variants of a kernel, and
its inlined functions, are closures of the same code over other integers, for instance the size of a head. numba
compiles the first of them with a `Placeholder` in the place of each captured integer. The IR of another variant is this
text with its own integers and the names of its own callees.

A placeholder can only be written into the IR. If numba asks for its value, for instance to remove a branch that is
never taken, the template is used only for functions that captured the same value. Of a captured function, the caller's
IR has only the name, so functions with the same parameters and type of result can replace each other.
"""

import copy
import inspect
import itertools
import re
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import llvmlite.binding as llvm
from numba import int64, typeof
from numba.core import dispatcher, errors
from numba.core.typing.typeof import typeof_impl

from quant.jit.linking import PLACEHOLDER_PATTERN, kernel_codegen

SYMBOL_PATTERN = re.compile('@"([^"]+)"')


class Placeholder:
    """Stands for the integer that a function captured in a cell. `is_read` tells whether numba used its value."""

    def __init__(self, cell: int, value: int) -> None:
        self.cell, self.value, self.is_read = cell, value, False

    def __str__(self) -> str:
        return f"<captured {self.cell} = {self.value}>"

    def read(self) -> int:
        """Return the value, after which the template is only for this value."""
        self.is_read = True
        return self.value

    __hash__ = object.__hash__


def reader(name: str) -> Callable[..., Any]:
    """Return the method `name` of integers, for placeholders."""

    def method(self: Placeholder, *others: Any) -> Any:
        values = [other.read() if isinstance(other, Placeholder) else other for other in others]
        return getattr(self.read(), name)(*values)

    return method


COMPARISONS = ["__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"]
OPERATORS = [name for name in vars(int) if callable(getattr(int, name)) and name not in vars(object)]
for operator in (*COMPARISONS, *OPERATORS):
    if operator != "__getnewargs__":
        setattr(Placeholder, operator, reader(operator))


@typeof_impl.register(Placeholder)
def type_of_placeholder(value: Placeholder, context: Any) -> Any:
    """Return the type of any Python integer that fits: see `is_replaceable`."""
    return int64


def is_replaceable(value: Any) -> bool:
    """Return whether a captured value is an integer whose type is int64."""
    return type(value) is int and typeof(value) == int64


class Callee(NamedTuple):
    """A captured function, as a template calls it."""

    cell: int
    arguments: tuple[Any, ...]
    parameters: inspect.Signature
    result_type: Any
    name: str  # in the template's IR
    library: Any

    def can_be(self, function: Any) -> bool:
        """Return whether the caller's IR would differ only in the name if it called this function instead."""
        try:
            return bool(
                function._compiler.pysig == self.parameters
                and compiled(function, self.arguments).signature.return_type == self.result_type
            )
        except (errors.NumbaError, TypeError):  # it does not take arguments of these types
            return False


@dataclass(frozen=True, slots=True)
class Template:
    """The result of compiling a function with placeholders."""

    result: Any  # numba's CompileResult
    read: dict[int, int]  # the values that numba read, by cell
    callees: list[Callee]

    def matches(self, cells: list[Any]) -> bool:
        """Return whether the code for these captured values differs only in what is filled in."""
        return all(cells[cell] == value for cell, value in self.read.items()) and all(
            callee.can_be(cells[callee.cell]) for callee in self.callees
        )

    def fill_in(self, cells: list[Any], context: Any) -> Any:
        """Return the CompileResult of the function with these captured values."""
        result, library = self.result, kernel_codegen().create_library(self.result.library.name)
        own_name = f"{result.fndesc.llvm_func_name}.{next(NUMBERS)}"
        names, libraries = {result.fndesc.llvm_func_name: own_name}, {}
        for callee in self.callees:
            callee_result = compiled(cells[callee.cell], callee.arguments)
            names[callee.name], libraries[callee.library] = callee_result.fndesc.llvm_func_name, callee_result.library
        for linked in result.library._linking_libraries:
            library.add_linking_library(libraries.get(linked, linked))
        text = PLACEHOLDER_PATTERN.sub(lambda found: str(cells[int(found[1])]), result.library.text)
        text = SYMBOL_PATTERN.sub(lambda found: f'@"{names.get(found[1], found[1])}"', text)
        library.add_llvm_module(llvm.parse_assembly(text))
        descriptor = copy.copy(result.fndesc)
        descriptor.mangled_name = own_name
        entry_point = context.get_executable(library, descriptor, result.environment)
        context.insert_user_function(entry_point, descriptor, [library])
        return result._replace(entry_point=entry_point, fndesc=descriptor, library=library, metadata={})


def compiled(function: Any, arguments: tuple[Any, ...]) -> Any:
    """Return numba's CompileResult for arguments of these types."""
    function.compile(arguments)
    return function.overloads[arguments]


TEMPLATES: dict[Any, list[Template]] = {}
NUMBERS = itertools.count()  # make symbols unique


FunctionCompiler: Any = vars(dispatcher)["_FunctionCompiler"]  # mypy does not see it


class TemplateCompiler(FunctionCompiler):
    """Compiles a function by filling in a template if there is one, else with numba, which makes one."""

    py_func: Any

    def _compile_core(self, args: tuple[Any, ...], return_type: Any) -> Any:
        """Return numba's CompileResult for arguments of these types."""
        try:
            cells = [cell.cell_contents for cell in self.py_func.__closure__ or ()]
            templates = TEMPLATES.setdefault(template_key(self.py_func, cells, args), [])
        except (TypeError, ValueError):  # a captured value is not hashable, or its cell is still empty
            return super()._compile_core(args, return_type)
        for template in templates:
            if template.matches(cells):
                return template.fill_in(cells, self.targetdescr.target_context)
        placeholders = {i: Placeholder(i, value) for i, value in enumerate(cells) if is_replaceable(value)}
        function = self.py_func
        self.py_func = with_captured(function, [placeholders.get(i, value) for i, value in enumerate(cells)])
        try:
            result = super()._compile_core(args, return_type)
            read = {i: placeholder.value for i, placeholder in placeholders.items() if placeholder.is_read}
        except errors.NumbaError:  # numba needs a value but does not ask for it, as an index of a tuple
            self.py_func, read = function, {i: placeholder.value for i, placeholder in placeholders.items()}
            result = super()._compile_core(args, return_type)
        finally:
            self.py_func = function
        # A callee with few arguments is the cheapest to compare.
        callees = sorted(used_callees(cells, result.library), key=lambda callee: len(callee.arguments))
        templates.append(Template(result, read, callees))
        return result


def template_key(function: Any, cells: list[Any], arguments: tuple[Any, ...]) -> Any:
    """Return what functions with a common template have in common. Raises TypeError if it is not hashable."""
    names = function.__globals__.get
    globals_used = [names(name) for name in function.__code__.co_names]
    key_items: list[Any] = []
    for value in cells:
        if is_replaceable(value):
            key_items.append(int)
        elif is_function(value) and not any(value is each for each in globals_used):
            key_items.append(next(i for i, each in enumerate(cells) if each is value))
        else:
            key_items.append((type(value), value))
    defaults = [(type(each), each) for each in function.__defaults__ or ()]
    key = function.__code__, id(function.__globals__), arguments, *key_items, *defaults
    hash(key)
    return key


def is_function(value: Any) -> bool:
    """Return whether a captured value is a function that is compiled from templates."""
    return isinstance(getattr(value, "_compiler", None), TemplateCompiler)


def with_captured(function: Any, values: list[Any]) -> Any:
    """Return the Python function with other captured values."""
    cells = tuple(types.CellType(value) for value in values)
    made = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, cells
    )
    made.__qualname__, made.__module__ = function.__qualname__, function.__module__
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def used_callees(cells: list[Any], library: Any) -> Iterator[Callee]:
    """Yield the captured functions that a library calls."""
    for cell, function in enumerate(cells):
        if is_function(function):
            for arguments, result in function.overloads.items():
                if result.library in library._linking_libraries:
                    name, result_type = result.fndesc.llvm_func_name, result.signature.return_type
                    yield Callee(cell, arguments, function._compiler.pysig, result_type, name, result.library)
