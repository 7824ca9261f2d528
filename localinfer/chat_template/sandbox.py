"""The child process that renders a chat template. `template.py` starts it and communicates with it through pipes.

A template is an untrusted program from a model file. Jinja's sandbox prevents access to Python objects, but does not
limit time and memory. The child process can be killed, and the operating system limits its resources.

    stdin    {"source": ...}  then for each rendering {"variables": {...}, "seconds": ...}    one line of JSON each
    stdout   {}               then for each rendering {"text": ...} or {"error": ...}

This module imports little besides jinja2, and starts in 60 ms.
"""

import datetime
import json
import re
import signal
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from types import TracebackType
from typing import Any, NoReturn

import jinja2
import jinja2.debug  # jinja2 imports it at the first error, when memory may have run out
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from localinfer.child_process import limit_resources, limit_time

MAX_OUTPUT = 4 << 20  # characters
MAX_MEMORY = 160 << 20  # bytes of address space, including 25 MiB for Python and jinja2
MAX_SIZE = 4 << 20  # limit of an operator's result: characters, elements or bits
MAX_NUMBER = 10_000  # limit of widths and counts

TEMPLATE = "<chat template>"
WIDE_FORMAT = re.compile(r"%[^%a-zA-Z]*(\*|\d{5})|\{[^{}]*:[^{}]*(\{|\d{5})")
FILTERS_WITH_COUNTS = ("batch", "center", "indent", "slice", "truncate", "wordwrap")
Method = Callable[..., object]
NESTED = re.compile("nested|indentation|recursion")


class TemplateError(Exception):
    """The error that a template raises with `raise_exception`."""


class GenerationTag(Extension):
    """The block {% generation %} ... {% endgeneration %}, which delimits training targets and has no effect here."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class SafeNamespace(Namespace):
    """A namespace without attributes that begin with an underscore, because Python gives them a special meaning."""

    def __init__(*args: Any, **attributes: Any) -> None:  # like jinja2: an attribute may be called `self`
        self, *mappings = args
        Namespace.__init__(self)
        for name, value in dict(*mappings, **attributes).items():
            self[name] = value

    def __setitem__(self, name: str, value: object) -> None:
        if str(name).startswith("_"):
            raise SecurityError("an attribute of a namespace begins with an underscore")
        super().__setitem__(name, value)


class SafeDict:
    """A replacement for the class `dict` that has only the constructor and `fromkeys`."""

    def __call__(self, *args: Any, **items: Any) -> dict[Any, Any]:
        return dict(*args, **items)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class Sandbox(ImmutableSandboxedEnvironment):
    """A Jinja environment with the extensions of Hugging Face's chat templates, and limits on the size of results."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols])
        self.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
        self.globals |= {"namespace": SafeNamespace, "dict": SafeDict()}
        del self.globals["lipsum"]
        self.filters["tojson"] = to_json
        self.filters["format"] = limit_format(self.filters["format"])
        for name in FILTERS_WITH_COUNTS:
            self.filters[name] = limit_arguments(self.filters[name])

    def is_safe_attribute(self, obj: object, attr: str, value: object) -> bool:
        """Allow append and pop of lists, as llama.cpp does: the lists of a rendering are its own."""
        return (isinstance(obj, list) and attr in ("append", "pop")) or super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        if operator == "%" and isinstance(left, str):
            check_format(left)
        elif result_size(operator, left, right) > MAX_SIZE:
            raise SecurityError(f"the result of {operator} is too large")
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Method, /, *args: object, **kwargs: object) -> object:
        if isinstance(getattr(obj, "__self__", None), str):
            check_numbers(*args, *kwargs.values())
        return super().call(context, obj, *args, **kwargs)

    def wrap_str_format(self, value: object) -> Callable[..., str] | None:
        """Check the format string of str.format, which Jinja replaces through this hook."""
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            check_format(getattr(value, "__self__", ""))
        return wrapped


def result_size(operator: str, left: object, right: object) -> int:
    """Return an upper bound of the size of a result: characters, elements or bits."""
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length()
        return {"*": bits + right.bit_length(), "**": bits * abs(right)}.get(operator, 0)
    counts = [value if isinstance(value, int) else size(value) for value in (left, right)]
    return counts[0] * counts[1] if operator == "*" else counts[0] + counts[1]


def size(value: object) -> int:
    return len(value) if isinstance(value, (str, list, tuple)) else 0


def limit_arguments(function: Method) -> Method:
    """Wrap a filter so that it rejects large widths and counts."""

    @wraps(function)  # keeps jinja2's markers of arguments to pass
    def limited(*args: object, **kwargs: object) -> object:
        check_numbers(*args, *kwargs.values())
        return function(*args, **kwargs)

    return limited


def limit_format(function: Method) -> Method:
    def limited(text: object, *args: object, **kwargs: object) -> object:
        check_format(str(text))
        return function(text, *args, **kwargs)

    return limited


def check_numbers(*values: object) -> None:
    if any(isinstance(value, int) and abs(value) > MAX_NUMBER for value in values):
        raise SecurityError(f"a width or count is larger than {MAX_NUMBER}")


def check_format(text: str) -> None:
    if WIDE_FORMAT.search(text):
        raise SecurityError(f"a format requests more than {MAX_NUMBER} characters")


def to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Serialize a value as JSON. Jinja's own filter escapes < and >, which chat templates must not."""
    check_numbers(indent)
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys, default=to_list
    )


def to_list(value: object) -> list[object]:
    """Return the elements of a generator, which is what filters such as map return."""
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def raise_exception(message: object) -> NoReturn:
    raise TemplateError(message)


def strftime_now(date_format: str) -> str:
    return datetime.datetime.now().strftime(date_format)


class Renderer:
    """Renders one template. The first rendering compiles `source`, under the limits of that rendering."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._template: jinja2.Template | None = None

    def render(self, variables: dict[str, object]) -> dict[str, str]:
        """Return {"text": ...}, or {"error": ...} with a one-line message."""
        try:
            return {"text": self._text(variables)}
        except TemplateError as error:
            return {"error": str(error)[:1000] or "the template rejects these messages"}
        except MemoryError:
            return {"error": "needs too much memory"}
        except Exception as error:  # an untrusted program may raise anything
            return {"error": error_message(error)}

    def _text(self, variables: dict[str, object]) -> str:
        if self._template is None:
            sandbox = Sandbox()
            code = sandbox.compile(self._source, filename=TEMPLATE)
            self._template = jinja2.Template.from_code(sandbox, code, sandbox.make_globals(None))
        parts, length = [], 0
        for part in self._template.generate(variables):
            length += len(part)
            if length > MAX_OUTPUT:
                raise SecurityError(f"the output is larger than {MAX_OUTPUT >> 20} MiB")
            parts.append(part)
        return "".join(parts)


def error_message(error: Exception) -> str:
    """Return one line about an error in a template, with the line number in the template if known."""
    if isinstance(error, RecursionError) or (isinstance(error, SyntaxError) and NESTED.search(str(error))):
        return "the template is too deeply nested"
    if isinstance(error, jinja2.TemplateNotFound) or "no loader" in str(error):
        return "a template can neither include, import nor extend another one"
    line = error.lineno if isinstance(error, jinja2.TemplateSyntaxError) else template_line(error.__traceback__)
    text = " ".join(str(error.msg if isinstance(error, SyntaxError) else error)[:1000].split())
    message = text or type(error).__name__
    return f"line {line}: {message}" if line else message


def template_line(traceback: TracebackType | None) -> int | None:
    """Return the line of the template where an error was raised, in the innermost macro or block."""
    line = None
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == TEMPLATE:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line


def main() -> None:
    """Answer requests until the parent closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    renderer = Renderer(str(receive()["source"]))
    send({})
    limit_resources(MAX_MEMORY)
    while request := receive():
        variables, seconds = request["variables"], request["seconds"]
        assert isinstance(variables, dict)
        assert isinstance(seconds, float)
        limit_time(seconds)
        send(renderer.render(variables))


def receive() -> dict[str, object]:
    line = sys.stdin.buffer.readline()
    request: dict[str, object] = json.loads(line.decode("utf-8", "surrogatepass")) if line else {}
    return request


def send(reply: dict[str, str]) -> None:
    line = json.dumps(reply, ensure_ascii=False) + "\n"
    sys.stdout.buffer.write(line.encode("utf-8", "surrogatepass"))
    sys.stdout.buffer.flush()
