"""The child process that renders a chat template: `template.py` starts it and talks to it through pipes.

A template comes from a model file, and is a program. jinja2's sandbox keeps it from reaching Python's
objects, but not from using up time and memory. So it runs where the parent can end it and the system limits
it:

    in   {"source": ...}  then for each rendering {"variables": {...}, "seconds": ...}    one line of JSON each
    out  {}               then for each rendering {"text": ...} or {"error": ...}

Knows neither models nor tokens. Imports only the standard library and jinja2: it starts in 60 ms.
"""

import contextlib
import datetime
import json
import re
import signal
import sys
from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import Any, NoReturn

import jinja2
import jinja2.debug  # jinja2 itself would import it at the first error, when memory may have run out
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_OUTPUT = 4 << 20  # characters
MAX_MEMORY = 160 << 20  # bytes of address space, of which Python and jinja2 use 25 MiB
MAX_SIZE = 4 << 20  # of what one operator makes: characters, elements or bits
MAX_NUMBER = 10_000  # widths and counts

TEMPLATE = "<chat template>"
WIDE_FORMAT = re.compile(r"%[^%a-zA-Z]*(\*|\d{5})|\{[^{}]*:[^{}]*(\{|\d{5})")
TAKES_WIDTHS = ("batch", "center", "indent", "slice", "truncate", "wordwrap")
Method = Callable[..., object]
NESTED = re.compile("nested|indentation|recursion")


class TemplateError(Exception):
    """What `raise_exception` in a template says."""


class GenerationTag(Extension):
    """{% generation %} ... {% endgeneration %}: marks what a model is trained to say; no matter here."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class PlainNamespace(Namespace):
    """No attribute begins with an underscore: Python asks objects for those, and believes what they answer."""

    def __init__(*args: Any, **attributes: Any) -> None:  # as jinja2 has it: an attribute may be called `self`
        self, *given = args
        Namespace.__init__(self)
        for name, value in dict(*given, **attributes).items():
            self[name] = value

    def __setitem__(self, name: str, value: object) -> None:
        if str(name).startswith("_"):
            raise SecurityError("an attribute of a namespace begins with an underscore")
        super().__setitem__(name, value)


class PlainDict:
    """`dict`, but for what a class has beside its instances."""

    def __call__(self, *args: Any, **items: Any) -> dict[Any, Any]:
        return dict(*args, **items)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class Sandbox(ImmutableSandboxedEnvironment):
    """An environment with what Hugging Face gives to chat templates, and limits on what can grow."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols])
        self.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
        self.globals |= {"namespace": PlainNamespace, "dict": PlainDict()}
        del self.globals["lipsum"]
        self.filters["tojson"] = to_json
        self.filters["format"] = format_modestly(self.filters["format"])
        for name in TAKES_WIDTHS:
            self.filters[name] = modest(self.filters[name])

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        if operator == "%" and isinstance(left, str):
            check_format(left)
        elif grown(operator, left, right) > MAX_SIZE:
            raise SecurityError(f"the result of {operator} is too large")
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Method, /, *args: object, **kwargs: object) -> object:
        if isinstance(getattr(obj, "__self__", None), str):
            check_numbers(*args, *kwargs.values())
        return super().call(context, obj, *args, **kwargs)

    def wrap_str_format(self, value: object) -> Callable[..., str] | None:
        """str.format is never called itself: this is where jinja2 replaces it."""
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            check_format(getattr(value, "__self__", ""))
        return wrapped


def grown(operator: str, left: object, right: object) -> int:
    """A bound on the size of a result: characters, elements or bits."""
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length()
        return {"*": bits + right.bit_length(), "**": bits * abs(right)}.get(operator, 0)
    counts = [value if isinstance(value, int) else size(value) for value in (left, right)]
    return counts[0] * counts[1] if operator == "*" else counts[0] + counts[1]


def size(value: object) -> int:
    return len(value) if isinstance(value, (str, list, tuple)) else 0


def modest(function: Method) -> Method:
    """The same filter, refusing large widths and counts."""

    @wraps(function)  # with the marks by which jinja2 knows what to pass
    def limited(*args: object, **kwargs: object) -> object:
        check_numbers(*args, *kwargs.values())
        return function(*args, **kwargs)

    return limited


def format_modestly(function: Method) -> Method:
    def limited(text: object, *args: object, **kwargs: object) -> object:
        check_format(str(text))
        return function(text, *args, **kwargs)

    return limited


def check_numbers(*values: object) -> None:
    if any(isinstance(value, int) and abs(value) > MAX_NUMBER for value in values):
        raise SecurityError(f"a width or count is larger than {MAX_NUMBER}")


def check_format(text: str) -> None:
    if WIDE_FORMAT.search(text):
        raise SecurityError(f"a format asks for more than {MAX_NUMBER} characters")


def to_json(value: object, ensure_ascii: bool = False, indent: int | None = None,
            separators: tuple[str, str] | None = None, sort_keys: bool = False) -> str:
    """jinja2's own filter escapes < and >, which no chat template wants."""
    check_numbers(indent)
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message: object) -> NoReturn:
    raise TemplateError(message)


def strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


class Renderer:
    """One template. Its `source` is compiled at the first rendering, under that one's limits."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._template: jinja2.Template | None = None

    def render(self, variables: dict[str, object]) -> dict[str, str]:
        """{"text": ...} or {"error": a line that says what is wrong}."""
        try:
            return {"text": self._text(variables)}
        except TemplateError as error:
            return {"error": str(error)[:1000] or "the template refuses these messages"}
        except MemoryError:
            return {"error": "needs too much memory"}
        except Exception as error:  # a hostile program may raise anything
            return {"error": explained(error)}

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


def explained(error: Exception) -> str:
    """One line about an error in a template, with the template's line where it is known."""
    if isinstance(error, RecursionError) or (isinstance(error, SyntaxError) and NESTED.search(str(error))):
        return "the template is too deeply nested"
    if isinstance(error, jinja2.TemplateNotFound) or "no loader" in str(error):
        return "a template can neither include, import nor extend another one"
    line = error.lineno if isinstance(error, jinja2.TemplateSyntaxError) else line_of(error.__traceback__)
    text = " ".join(str(error.msg if isinstance(error, SyntaxError) else error)[:1000].split())
    what = text or type(error).__name__
    return f"line {line}: {what}" if line else what


def line_of(traceback: TracebackType | None) -> int | None:
    """The line of the template where an error arose, in the innermost of its macros and blocks."""
    line = None
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == TEMPLATE:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line


def limit() -> None:
    """From here on: little memory, no files written. Windows has no such limits, macOS none on memory."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))


def limit_time(seconds: float) -> None:
    """When it has computed so long, SIGPROF ends this process, also in the midst of C code. Windows has no signals."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def main() -> None:
    """Answers requests until the parent closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the parent
    renderer = Renderer(str(receive()["source"]))
    send({})
    limit()
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
