"""Chat templates: render messages to the text format that a model was trained on.

    template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    template.render([{"role": "user", "content": "Hello"}])

The template of a model file is an untrusted Jinja program. It runs in a child process (sandbox.py) with little memory
and two seconds of CPU time. This module does not depend on tokens; prompt.py tokenizes the text.
"""

import contextlib
import json
import signal
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from localinfer.child_process import HAS_CPU_TIMER, Child, limited_memory, start_child, terminate
from localinfer.errors import LocalInferError, UsageError
from localinfer.escaping import printable

MAX_SECONDS = 2.0  # limit of CPU time for a rendering
MAX_WALL_SECONDS = 30.0  # limit of wall time, for a busy machine or a slow start of the child
MAX_SOURCE = 1 << 20  # characters; the largest known templates have 20,000
MAX_REQUEST = 6 << 20  # bytes; the rendered text may have MAX_OUTPUT of sandbox.py
MAX_RESIDENT = 160 << 20  # bytes of memory that are then allowed, as MAX_MEMORY of sandbox.py

CHILD_CODE = "from localinfer.chat_template.sandbox import main; main()"
PACKAGES = ("localinfer", "jinja2", "markupsafe")


class Rendering(NamedTuple):
    """The rendered text, or the error of the template."""

    text: str
    problem: str


class ChatTemplate:
    """A template with the texts of the model's special `tokens` by variable name. Error messages begin with `name`.

    The child process starts immediately, in the background, and lives as long as this object.
    """

    def __init__(self, source: str, tokens: Mapping[str, str], name: str = "tokenizer.chat_template") -> None:
        if len(source) > MAX_SOURCE:
            raise LocalInferError(f"{name}: {len(source)} characters (limit {MAX_SOURCE})")
        self.name = name
        self.source = source
        self._lock = threading.Lock()  # the child handles one request at a time
        self.tokens = tokens
        self._start()

    def render(
        self, messages: Sequence[Mapping[str, object]], *, add_generation_prompt: bool = True, **extra: object
    ) -> str:
        """Return the text of a conversation. `extra` are further template variables.

        Raises LocalInferError with one line for any error of the template. The messages are never modified.
        """
        variables = {"messages": messages, "tools": None, "documents": None, **extra}
        return self.require_text(self.try_render({"add_generation_prompt": add_generation_prompt, **variables}))

    def try_render(self, variables: Mapping[str, object]) -> Rendering:
        """Render with exactly these variables. Raises LocalInferError if the child process fails or times out."""
        with self._lock:
            reply = self._request({"variables": {**self.tokens, **variables}, "seconds": MAX_SECONDS})
        return Rendering(str(reply.get("text", "")), str(reply.get("error", "")))

    def require_text(self, rendering: Rendering) -> str:
        """Return the text of a rendering. Raises LocalInferError if the template failed."""
        if rendering.problem:
            raise self.error(rendering.problem)
        return rendering.text

    def close(self) -> None:
        """Stop the child process; a later rendering starts a new one."""
        self._terminate()

    def _start(self) -> None:
        try:
            self._child = start_child(CHILD_CODE, PACKAGES)
        except OSError as error:
            raise self.error(f"cannot start a process to render it: {error.strerror}") from None
        self._has_source = False
        self._terminate = weakref.finalize(self, terminate, self._child)

    def _request(self, request: dict[str, object]) -> dict[str, object]:
        """Return the reply of the child process. If anything fails, the child is terminated, so that no late reply
        remains.
        """
        if self._child.poll() is not None:
            self._start()
        try:
            if not self._has_source:
                self._exchange({"source": self.source}, MAX_WALL_SECONDS)
                self._has_source = True
            return self._exchange(request, MAX_WALL_SECONDS if HAS_CPU_TIMER else MAX_SECONDS)
        except BaseException:
            self._terminate()
            raise

    def _exchange(self, request: dict[str, object], seconds: float) -> dict[str, object]:
        """Send one line and return the reply to it; the child is killed after `seconds`."""
        line = self._encode(request)
        timer = threading.Timer(seconds, self._child.kill)
        timer.start()
        try:
            with limited_memory(self._child, MAX_RESIDENT):
                answer = exchange_line(self._child, line)
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

    def _encode(self, request: dict[str, object]) -> bytes:
        try:
            line = json.dumps(request, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"messages: {printable(str(error), 200)}") from None
        if len(line) > MAX_REQUEST:
            raise UsageError(f"messages: {len(line)} bytes (limit {MAX_REQUEST})")
        return line

    def error(self, problem: str) -> LocalInferError:
        """Return a one-line error that begins with the template's name."""
        return LocalInferError(f"{self.name}: {printable(problem, 300)}")


def exchange_line(child: Child, line: bytes) -> bytes:
    """Write a line to the child, and return its next line, or an incomplete one if the child ended."""
    assert child.stdin is not None
    assert child.stdout is not None
    with contextlib.suppress(BrokenPipeError):  # the read below then returns b""
        child.stdin.write(line)
        child.stdin.flush()
    return child.stdout.readline()
