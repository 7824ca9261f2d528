"""Chat templates: messages to the text that a model was trained to see, by the program in the model's file.

    template = ChatTemplate(source, bos="<s>", eos="</s>")
    template.render([{"role": "user", "content": "Hello"}])

The program is jinja2, and hostile until proven otherwise: it runs in a child process (sandbox.py) that has
little memory and two seconds. Knows nothing of tokens: prompt.py makes them of the text.
"""

import contextlib
import json
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from localinfer.errors import LocalInferError, UsageError
from localinfer.text import printable

MAX_SECONDS = 2.0
MAX_START_SECONDS = 30.0  # of the child's start: only a machine that is out of order needs more
MAX_SOURCE = 1 << 20  # characters; the largest real templates have 20,000
MAX_REQUEST = 16 << 20  # bytes

# Templates that the user may name instead of writing them out.
KNOWN = {
    "chatml": "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
              "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
}  # fmt: skip

# A process that sees nothing of the user's settings: it finds its three packages where this one found them.
CHILD = "import sys; sys.path += sys.argv[1:]; from localinfer.prompt.sandbox import main; main()"
PACKAGES = ("localinfer", "jinja2", "markupsafe")


class ChatTemplate:
    """A template's `source` with the texts of the model's `bos` and `eos` tokens; `name` begins every error.

    The child process starts at once, without waiting for it, and lives as long as this object.
    """

    def __init__(self, source: str, bos: str, eos: str, name: str = "tokenizer.chat_template") -> None:
        if len(source) > MAX_SOURCE:
            raise LocalInferError(f"{name}: {len(source)} characters (limit {MAX_SOURCE})")
        self.name = name
        self._source = source
        self._turn = threading.Lock()  # the child answers one thread after the other
        self._tokens = {"bos_token": bos, "eos_token": eos}
        self._start()

    def render(self, messages: Sequence[Mapping[str, object]], *, add_generation_prompt: bool = True,
               **extra: object) -> str:
        """The text of a conversation; LocalInferError with one line on anything that the template does wrong.

        `extra` are further variables of the template. The messages are never changed.
        """
        variables = {
            "messages": list(messages), "tools": None, "documents": None,
            "add_generation_prompt": add_generation_prompt, **self._tokens, **extra,
        }  # fmt: skip
        with self._turn:
            reply = self._ask({"variables": variables})
        if "error" in reply:
            raise self._error(str(reply["error"]))
        return str(reply["text"])

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
            raise self._error(f"cannot start a process to render it: {error.strerror}") from None
        self._has_source = False
        self._end = weakref.finalize(self, end, self._child)

    def _ask(self, request: dict[str, object]) -> dict[str, object]:
        """The child's reply. Whatever goes wrong, no child is left that owes an answer."""
        if self._child.poll() is not None:
            self._start()
        try:
            if not self._has_source:
                self._exchange({"source": self._source}, MAX_START_SECONDS)
                self._has_source = True
            return self._exchange(request, MAX_SECONDS)
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
        finally:
            in_time = timer.is_alive()
            timer.cancel()
        if answer.endswith(b"\n"):
            reply: dict[str, object] = json.loads(answer.decode("utf-8", "surrogatepass"))
            return reply
        raise self._error("needs too much memory or stack" if in_time else f"took longer than {seconds:g} s")

    def _encoded(self, request: dict[str, object]) -> bytes:
        try:
            line = json.dumps(request, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"messages: {printable(str(error), 200)}") from None
        if len(line) > MAX_REQUEST:
            raise self._error(f"the messages have {len(line)} bytes (limit {MAX_REQUEST})")
        return line

    def _error(self, what: str) -> LocalInferError:
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
