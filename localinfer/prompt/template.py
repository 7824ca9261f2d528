"""Chat templates: messages to the text that a model was trained to see, by the program in the model's file.

    template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    template.render([{"role": "user", "content": "Hello"}])

The program is jinja2, and hostile until proven otherwise: it runs in a child process (sandbox.py) that has
little memory and two seconds. Knows nothing of tokens: prompt.py makes them of the text.
"""

import contextlib
import json
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from localinfer.errors import LocalInferError, UsageError
from localinfer.text import printable

MAX_SECONDS = 2.0  # of computing for a rendering
COUNTS_COMPUTING = hasattr(signal, "setitimer")  # elsewhere the clock decides
PATIENCE = 30.0  # seconds by the clock, in which a busy machine does what takes it two, or starts the child
MAX_SOURCE = 1 << 20  # characters; the largest real templates have 20,000
MAX_REQUEST = 16 << 20  # bytes

# A process that sees nothing of the user's settings: it finds its three packages where this one found them.
CHILD = "import sys; sys.path += sys.argv[1:]; from localinfer.prompt.sandbox import main; main()"
PACKAGES = ("localinfer", "jinja2", "markupsafe")


class Rendering(NamedTuple):
    """A text, or what the template finds wrong."""

    text: str
    problem: str


class ChatTemplate:
    """A template's `source` with the texts of the model's special `tokens`, by variable; `name` begins every error.

    The child process starts at once, without waiting for it, and lives as long as this object.
    """

    def __init__(self, source: str, tokens: Mapping[str, str], name: str = "tokenizer.chat_template") -> None:
        if len(source) > MAX_SOURCE:
            raise LocalInferError(f"{name}: {len(source)} characters (limit {MAX_SOURCE})")
        self.name = name
        self.source = source
        self._turn = threading.Lock()  # the child answers one thread after the other
        self._tokens = tokens
        self._start()

    def render(self, messages: Sequence[Mapping[str, object]], *, add_generation_prompt: bool = True,
               **extra: object) -> str:
        """The text of a conversation; LocalInferError with one line on anything that the template does wrong.

        `extra` are further variables of the template. The messages are never changed.
        """
        variables = {"messages": messages, "tools": None, "documents": None, **extra}
        return self.text_of(self.attempt({"add_generation_prompt": add_generation_prompt, **variables}))

    def attempt(self, variables: Mapping[str, object]) -> Rendering:
        """What becomes of all that the template sees; LocalInferError where not even an answer does."""
        with self._turn:
            reply = self._ask({"variables": {**self._tokens, **variables}, "seconds": MAX_SECONDS})
        return Rendering(str(reply.get("text", "")), str(reply.get("error", "")))

    def text_of(self, rendering: Rendering) -> str:
        """LocalInferError names the problem."""
        if rendering.problem:
            raise self.error(rendering.problem)
        return rendering.text

    def close(self) -> None:
        """Ends the child process; a later rendering starts another one."""
        self._end()

    def _start(self) -> None:
        command = [sys.executable, "-I", "-S", "-B", "-c", CHILD, *package_directories()]
        pipe = subprocess.PIPE
        try:
            # In a session of its own: Ctrl-C in the terminal reaches this process only.
            self._child = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, start_new_session=True)
        except OSError as error:
            raise self.error(f"cannot start a process to render it: {error.strerror}") from None
        self._has_source = False
        self._end = weakref.finalize(self, end, self._child)

    def _ask(self, request: dict[str, object]) -> dict[str, object]:
        """The child's reply. Whatever goes wrong, no child is left that owes an answer."""
        if self._child.poll() is not None:
            self._start()
        try:
            if not self._has_source:
                self._exchange({"source": self.source}, PATIENCE)
                self._has_source = True
            return self._exchange(request, PATIENCE if COUNTS_COMPUTING else MAX_SECONDS)
        except BaseException:
            self._end()
            raise

    def _exchange(self, request: dict[str, object], seconds: float) -> dict[str, object]:
        """Sends one line and returns the answer to it; after so many seconds the child is killed."""
        line = self._encoded(request)
        timer = threading.Timer(seconds, self._child.kill)
        timer.start()
        try:
            answer = write_and_read(self._child, line)
            code = None if answer.endswith(b"\n") else self._child.wait()
        finally:
            in_time = timer.is_alive()
            timer.cancel()
        if code is None:
            reply: dict[str, object] = json.loads(answer.decode("utf-8", "surrogatepass"))
            return reply
        if in_time and code != -getattr(signal, "SIGPROF", 0):
            raise self.error("needs too much memory or stack")
        raise self.error(f"took longer than {MAX_SECONDS:g} s")

    def _encoded(self, request: dict[str, object]) -> bytes:
        try:
            line = json.dumps(request, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"messages: {printable(str(error), 200)}") from None
        if len(line) > MAX_REQUEST:
            raise self.error(f"the messages have {len(line)} bytes (limit {MAX_REQUEST})")
        return line

    def error(self, what: str) -> LocalInferError:
        """One line that begins with the template's name."""
        return LocalInferError(f"{self.name}: {printable(what, 300)}")


def package_directories() -> list[str]:
    specs = [find_spec(name) for name in PACKAGES]
    return [str(Path(spec.origin).parents[1]) for spec in specs if spec and spec.origin]


def write_and_read(child: "subprocess.Popen[bytes]", line: bytes) -> bytes:
    """The child's next line, or what there was of it when the child ended."""
    assert child.stdin is not None
    assert child.stdout is not None
    with contextlib.suppress(BrokenPipeError):  # then nothing can be read either
        child.stdin.write(line)
        child.stdin.flush()
    return child.stdout.readline()


def end(child: "subprocess.Popen[bytes]") -> None:
    child.kill()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
    child.wait()
