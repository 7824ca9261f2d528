"""Shares numba's work among functions that differ only in the integers and functions that they capture.

Most of a kernel's compile time is spent in numba, which infers types and writes LLVM IR. The variants of a kernel, and
its inlined functions, are closures of the same code over other values, for instance the size of a head. numba compiles
the first of them with a stand-in for each captured integer (`CapturedInteger`) and for each captured function that is
only called (`CapturedFunction`). The resulting IR has holes where these values belong. The IR of every variant, the
first one included, is this text with the holes filled in.

Filling in must give code with the same meaning as what numba would have written for the variant. Therefore a template
is used only for functions

- with the same code, module and defaults, called with arguments of the same types;
- with the same global values, and the same captured values other than the replaced ones;
- with the same value wherever numba read the value of an integer, for instance to remove a branch;
- whose captured functions return the same types in every call that numba's type inference considered.

`tests/benchmarks/checks/kernel_templates.py` compares the machine code with that of numba alone.
"""

import copy
import itertools
import re
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NamedTuple

from numba import int64
from numba.core import compiler, dispatcher, errors, ir
from numba.core import types as numba_types
from numba.core.datamodel import models
from numba.core.extending import register_model
from numba.core.imputils import lower_constant
from numba.core.typing.typeof import typeof_impl

from quant.jit.linking import kernel_codegen

HOLE_PATTERN = re.compile(r"<(integer|call) (\d+)>")
DECLARATION_PATTERN = re.compile("^declare .*", re.MULTILINE)
NUMBERS = itertools.count()  # make names unique

# --- stand-ins for captured values --------------------------------------------------------------------------------


class CapturedInteger:
    """Stands for an integer that a function captured. It becomes a hole in the IR.

    `is_read` records whether numba used the value for anything but writing it into the IR.
    """

    def __init__(self, cell: int, value: int) -> None:
        self.cell, self.value, self.is_read = cell, value, False

    def __str__(self) -> str:
        return f"<integer {self.cell}>"

    def __getattr__(self, name: str) -> Any:
        self.is_read = True
        return getattr(self.value, name)

    __hash__ = object.__hash__


def reader(name: str) -> Callable[..., Any]:
    """Return the method `name` of integers, for `CapturedInteger`."""

    def method(self: CapturedInteger, *others: Any) -> Any:
        self.is_read = True
        return getattr(self.value, name)(*others)

    return method


COMPARISONS = {"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"}
for operator in COMPARISONS | (vars(int).keys() - vars(object).keys() - {"__getnewargs__"}):
    if callable(getattr(int, operator)):
        setattr(CapturedInteger, operator, reader(operator))


@typeof_impl.register(CapturedInteger)
def type_of_integer(value: CapturedInteger, context: Any) -> Any:
    """Return the type of every replaceable integer: see `is_replaceable_integer`."""
    return int64


class Call(NamedTuple):
    """A call of a captured function. It stands for the function's library among those that a library is linked with."""

    cell: int
    arguments: tuple[Any, ...]
    result_type: Any  # None if numba cannot compile the function for these arguments

    def _ensure_finalized(self) -> None:
        """Do nothing: `add_linking_library` expects this method."""


class CapturedFunction(numba_types.Callable, numba_types.Dummy):
    """Stands for a function that another function captured, and is its own numba type. Its symbol is a hole in the IR.

    It appends each call that type inference considers to `calls`, which all captured functions of a template share.
    """

    def __init__(self, cell: int, function: Any, calls: list[Call]) -> None:
        self.cell, self.function, self.calls = cell, function, calls
        self.results: dict[tuple[Any, ...], Any] = {}
        super().__init__(name=f"captured function {next(NUMBERS)}")

    def get_call_type(self, context: Any, args: Any, kws: Any) -> Any:  # noqa: ARG002
        """Return the signature for arguments of these types."""
        args = self.function._compiler.fold_argument_types(args, kws)[1]
        if args not in self.results:
            self.results[args] = self.record_call(args)
        if self.results[args] is None:
            raise errors.TypingError(f"{self.function} does not take these arguments")
        return self.function.overloads[args].signature.replace(pysig=self.function._compiler.pysig)

    def record_call(self, arguments: tuple[Any, ...]) -> Any:
        """Append a call to `calls`, and tell numba how to compile it. Return the type of its result."""
        call = Call(self.cell, arguments, result_type(self.function, arguments))
        if call.result_type is not None:
            descriptor = copy.copy(self.function.overloads[arguments].fndesc)
            descriptor.mangled_name = f"<call {len(self.calls)}>"
            self.function.targetctx.insert_user_function((self, arguments), descriptor, [call])
        self.calls.append(call)
        return call.result_type

    def get_call_signatures(self) -> tuple[list[Any], bool]:
        """Return the signatures known so far, for error messages."""
        return self.function.nopython_signatures, True

    def get_impl_key(self, signature: Any) -> Any:
        """Return the key under which numba finds the code of a call."""
        return self, signature.args


register_model(CapturedFunction)(models.OpaqueModel)
typeof_impl.register(CapturedFunction)(lambda value, _: value)
lower_constant(CapturedFunction)(lambda context, *_: context.get_dummy_value())


def result_type(function: Any, arguments: tuple[Any, ...]) -> Any:
    """Return the type of a function's result for arguments of these types, or None if numba cannot compile it."""
    try:
        function.compile(arguments)
    except errors.NumbaError:
        return None
    return function.overloads[arguments].signature.return_type


# --- what may be replaced -----------------------------------------------------------------------------------------


def exact_key(value: Any) -> Any:
    """Return a key that is equal only for values that no code can distinguish: unlike 1, True and 1.0, or 0.0 and -0.0.

    It is not hashable for values that can change, such as lists and arrays.
    """
    if isinstance(value, float):
        return type(value), value.hex()
    if isinstance(value, tuple):
        return type(value), *map(exact_key, value)
    if is_dataclass(value) and not isinstance(value, type):
        return type(value), *(exact_key(getattr(value, each.name)) for each in fields(value))
    return type(value), value


def is_replaceable_integer(value: Any) -> bool:
    """Return whether a value is an integer of numba's type int64."""
    return type(value) is int and -(1 << 63) <= value < 1 << 63


def is_replaceable_function(value: Any) -> bool:
    """Return whether a value is a function compiled by `TemplateCompiler` that has only plain parameters, and does not
    call itself.
    """
    own = getattr(value, "_compiler", None)
    if not isinstance(own, TemplateCompiler) or value.is_compiling:
        return False
    parameters = own.pysig.parameters.values()
    return all(each.kind is each.POSITIONAL_OR_KEYWORD and each.default is each.empty for each in parameters)


@dataclass(frozen=True)
class Uses:
    """How a function's code uses what it captured: the cells that it only calls, and those that it returns."""

    called_only: frozenset[int]
    returned: frozenset[int]


USES: dict[Any, Uses] = {}


def uses_of(function: Any) -> Uses:
    """Return how a function uses its cells, from numba's IR of its bytecode."""
    if function.__code__ not in USES:
        names = function.__code__.co_freevars
        statements = [each for block in compiler.run_frontend(function).blocks.values() for each in block.body]
        loaded = {each.target.name: each.value.name for each in statements if is_load(each)}
        otherwise = {loaded[name] for each in statements for name in variables_used(each) if name in loaded}
        returned = {loaded[name] for name in returned_variables(statements) if name in loaded}
        USES[function.__code__] = Uses(
            frozenset(cell for cell, name in enumerate(names) if name not in otherwise),
            frozenset(cell for cell, name in enumerate(names) if name in returned),
        )
    return USES[function.__code__]


def is_load(statement: Any) -> bool:
    """Return whether a statement of numba's IR loads a captured value into a variable."""
    return isinstance(statement, ir.Assign) and isinstance(statement.value, ir.FreeVar)


def variables_used(statement: Any) -> Iterator[str]:
    """Yield the variables that a statement uses in any way, except the function that it calls."""
    if is_load(statement):
        return
    used = [each.name for each in statement.list_vars()]
    if isinstance(statement, ir.Assign) and isinstance(statement.value, ir.Expr) and statement.value.op == "call":
        used.remove(statement.value.func.name)
    yield from used


def returned_variables(statements: Sequence[Any]) -> set[str]:
    """Return the variables whose unchanged values a function may return."""
    found = {each.value.name for each in statements if isinstance(each, ir.Return)}
    copies = [each for each in statements if isinstance(each, ir.Assign) and is_copy(each.value)]
    for _ in copies:
        found |= {source.name for each in copies if each.target.name in found for source in each.list_vars()}
    return found


def is_copy(value: Any) -> bool:
    """Return whether a value of numba's IR is that of other variables."""
    return isinstance(value, ir.Var) or (isinstance(value, ir.Expr) and value.op in ("cast", "phi"))


# --- templates ----------------------------------------------------------------------------------------------------


@dataclass
class Template:
    """The IR of a function with holes, and the captured values that it is valid for."""

    result: Any  # numba's CompileResult, whose library is not used
    read: dict[int, int]  # the integers that numba read, by cell
    calls: list[Call]

    def matches(self, cells: Sequence[Any]) -> bool:
        """Return whether numba would write the same IR with these captured values, except in the holes.

        The types of results are compared in the order of type inference, up to the first difference: each call is one
        that numba would also consider for these captured values.
        """
        return all(cells[cell] == value for cell, value in self.read.items()) and all(
            result_type(cells[call.cell], call.arguments) == call.result_type for call in self.calls
        )

    def fill_in(self, cells: Sequence[Any], context: Any) -> Any:
        """Return numba's CompileResult for the function with these captured values."""
        source, descriptor = self.result.library, copy.copy(self.result.fndesc)
        descriptor.mangled_name += f".{next(NUMBERS)}"
        library = kernel_codegen().create_library(source.name)

        def value_of(hole: re.Match[str]) -> str:
            if hole[1] == "integer":
                return str(cells[int(hole[2])])
            return str(called(self.calls[int(hole[2])], cells).fndesc.llvm_func_name)

        text = source.text.replace(f'@"{self.result.fndesc.mangled_name}"', f'@"{descriptor.mangled_name}"')
        library.text = without_repeated_declarations(HOLE_PATTERN.sub(value_of, text))
        for linked in source._linking_libraries:
            library.add_linking_library(called(linked, cells).library if isinstance(linked, Call) else linked)
        entry_point = context.get_executable(library, descriptor, self.result.environment)
        context.insert_user_function(entry_point, descriptor, [library])
        return self.result._replace(entry_point=entry_point, fndesc=descriptor, library=library, metadata={})


def called(call: Call, cells: Sequence[Any]) -> Any:
    """Return numba's CompileResult of the captured function that a call refers to."""
    return cells[call.cell].overloads[call.arguments]


def without_repeated_declarations(text: str) -> str:
    """Return LLVM IR without repeated declarations, which LLVM rejects. They come from holes for the same function."""
    seen: set[str] = set()

    def once(declaration: re.Match[str]) -> str:
        is_new = declaration[0] not in seen
        seen.add(declaration[0])
        return declaration[0] if is_new else ""

    return DECLARATION_PATTERN.sub(once, text)


TEMPLATES: dict[Any, list[Template]] = {}
READ_CELLS: dict[Any, set[int]] = {}  # by code: the integers that numba has read in any of its templates
FunctionCompiler: Any = vars(dispatcher)["_FunctionCompiler"]  # mypy does not see it


class TemplateCompiler(FunctionCompiler):
    """Compiles a function by filling in a template. If there is none for it yet, numba makes one."""

    py_func: Any

    def _compile_core(self, args: tuple[Any, ...], return_type: Any) -> Any:
        """Return numba's CompileResult for arguments of these types."""
        try:
            cells = [cell.cell_contents for cell in self.py_func.__closure__ or ()]
            templates = TEMPLATES.setdefault((template_key(self.py_func, cells), args, return_type), [])
        except (TypeError, ValueError):  # a value is not hashable, or its cell is still empty
            return super()._compile_core(args, return_type)
        template = next((each for each in templates if each.matches(cells)), None)
        if template is None:
            template = self.make_template(cells, args, return_type)
            if template is None:
                return super()._compile_core(args, return_type)
            templates.append(template)
        return template.fill_in(cells, self.targetdescr.target_context)

    def make_template(self, cells: Sequence[Any], args: tuple[Any, ...], return_type: Any) -> Template | None:
        """Compile the function with stand-ins for captured values. Integers that numba reads are then compiled as they
        are, at once in further templates of the same code. Return None if numba cannot compile it with stand-ins, for
        instance if an integer indexes a tuple.
        """
        function, known = self.py_func, READ_CELLS.setdefault(self.py_func.__code__, set())
        holes = dict(replaced(function, cells))
        read = {cell: value for cell, value in holes.items() if cell in known and type(value) is int}
        while True:
            calls: list[Call] = []
            replacing = {cell: value for cell, value in holes.items() if cell not in read}
            stand_ins = {cell: stand_in(cell, value, calls) for cell, value in replacing.items()}
            self.py_func = with_captured(function, [stand_ins.get(cell, value) for cell, value in enumerate(cells)])
            try:
                result = super()._compile_core(args, return_type)
            except errors.NumbaError:
                return None
            finally:
                self.py_func = function
            newly_read = [
                cell for cell, each in stand_ins.items() if isinstance(each, CapturedInteger) and each.is_read
            ]
            if not newly_read:
                return Template(result, read, calls)
            read |= {cell: cells[cell] for cell in newly_read}
            known.update(newly_read)


def with_captured(function: Any, values: Sequence[Any]) -> Any:
    """Return a Python function with other captured values."""
    cells = tuple(types.CellType(value) for value in values)
    made = types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, cells)
    made.__qualname__, made.__module__ = function.__qualname__, function.__module__
    return made


def replaced(function: Any, cells: Sequence[Any]) -> Iterator[tuple[int, Any]]:
    """Yield the captured values that templates replace, with their cells."""
    for cell, value in enumerate(cells):
        if is_replaceable_integer(value):
            if cell not in uses_of(function).returned:  # numba's type of a returned constant includes the value
                yield cell, value
        elif is_replaceable_function(value) and cell in uses_of(function).called_only:
            yield cell, value


def stand_in(cell: int, value: Any, calls: list[Call]) -> Any:
    """Return the stand-in for a captured integer or function."""
    return CapturedInteger(cell, value) if type(value) is int else CapturedFunction(cell, value, calls)


def template_key(function: Any, cells: Sequence[Any]) -> Any:
    """Return what functions with common templates have in common. It is not hashable if a value can change."""
    holes, scope = dict(replaced(function, cells)), function.__globals__
    captured = [hole_key(value) if cell in holes else exact_key(value) for cell, value in enumerate(cells)]
    used = [exact_key(scope[name]) for name in function.__code__.co_names if name in scope]
    return function.__code__, id(scope), exact_key(function.__defaults__), *captured, *used


def hole_key(value: Any) -> Any:
    """Return what the values that may fill in the same hole have in common."""
    return int if type(value) is int else tuple(value._compiler.pysig.parameters)
