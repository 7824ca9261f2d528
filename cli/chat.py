"""`localinfer chat`: a conversation in a terminal."""

import contextlib
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import screen
from cli.flags import with_options
from cli.generate import statistics
from cli.loading import default_model, open_model
from cli.texts import from_stdin, without_newline
from localinfer.errors import ContextOverflow, LocalInferError, UsageError
from localinfer.options import Layer

if TYPE_CHECKING:
    from localinfer import Model

HELP = """\
/clear          forget the conversation
/regen          answer the last message once more
/system TEXT    begin anew, with TEXT as what the model is told before the conversation
/help           this list
/exit           leave; so does Ctrl-D

A line that ends in \\ goes on in the next one. Ctrl-C stops an answer."""


@with_options("model", "sampling", "generation", "form", "chat")
def chat_command(
    given: Layer,
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="A GGUF file or a name; none: the default.")
    ] = None,
) -> None:
    """Talk with a model.

    When stdin is not a terminal, all of it is one message: the answer goes to stdout, and that is that.

    \b
      localinfer chat
      localinfer chat path/to/model.gguf -c 4096 --temp 0.7 -sys "You answer in one sentence."
      echo "Why is the sky blue?" | localinfer chat > answer.txt
    """
    name = model or default_model()
    message = None if sys.stdin.isatty() else from_stdin()
    if message is None and not sys.stdin.isatty():
        raise UsageError("nothing to answer: stdin is neither a terminal nor a pipe")
    with open_model(name, given, screen.Status()) as opened:
        opened.require_chat_template()  # a model without one cannot chat: say so at once
        chat = Chat(opened)
        if message is not None:
            chat.say(message)
        else:
            screen.aside(f"{name}: context {opened.n_ctx:,} tokens. /help shows what else you can type.")
            chat.talk()


class Chat:
    """The messages so far, and what happens with each line that is typed."""

    def __init__(self, model: "Model") -> None:
        self.model = model
        self.messages: list[dict[str, str]] = []
        self.changed: dict[str, Any] = {}  # options that a command has changed

    def talk(self) -> None:
        """Until the user leaves."""
        while (typed := read_message()) is not None and typed.strip() != "/exit":
            if typed.startswith("/"):
                self.obey(*typed.partition(" ")[::2])
            elif typed.strip():
                self.try_to_say(typed)

    def obey(self, command: str, argument: str) -> None:
        if command == "/clear":
            self.messages.clear()
            screen.aside("the conversation is forgotten")
        elif command == "/system":
            self.messages.clear()
            self.changed["system_prompt"] = argument.strip()
            screen.aside("a new conversation")
        elif command == "/regen" and self.messages:
            self.messages.pop()  # the answer
            self.try_to_say(self.messages.pop()["content"])
        elif command == "/regen":
            screen.note("there is no answer yet")
        elif command == "/help":
            screen.note(HELP)
        else:
            screen.note(f"{screen.one_line(command)} is no command. These are:\n{HELP}")

    def try_to_say(self, message: str) -> None:
        """What cannot be answered ends neither the program nor the conversation so far."""
        try:
            self.say(message)
        except LocalInferError as error:
            hint = " (/clear begins anew)" if isinstance(error, ContextOverflow) else ""
            screen.error(f"{error}{hint}", error.exit_code)

    def say(self, message: str) -> None:
        """Show the answer, and remember both when there was one."""
        asked = [*self.messages, {"role": "user", "content": message}]
        answer = self.stream(asked)
        screen.aside(statistics(self.model.stats))
        if answer:
            self.messages = [*asked, {"role": "assistant", "content": answer}]

    def stream(self, messages: list[dict[str, str]]) -> str:
        """Show an answer while it comes. An interrupt ends it; what had come stays said."""
        texts: list[str] = []
        try:
            with screen.without_echo():
                for piece in self.model.chat(messages, **self.changed):
                    texts.append(piece.text)
                    screen.write(piece.text)
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
        finally:
            if sys.stdout.isatty():
                screen.write("\n")
        return "".join(texts)


def read_message() -> str | None:
    """What is typed, over as many lines as end in a backslash; None when the user leaves with Ctrl-D.

    KeyboardInterrupt when Ctrl-C finds nothing typed; otherwise that is forgotten.
    """
    lines: list[str] = []
    while True:
        try:
            line = read_line("> " if not lines else ". ")
        except EOFError:
            screen.note("")
            return None
        except KeyboardInterrupt:
            screen.note("")
            if not lines and not half_typed():
                raise
            lines.clear()
            continue
        lines.append(line.removesuffix("\\"))
        if not line.endswith("\\"):
            return "\n".join(lines)


def half_typed() -> str:
    """What stands in the line that Ctrl-C has ended."""
    readline = sys.modules.get("readline")
    return readline.get_line_buffer() if readline else ""


def read_line(prompt: str) -> str:
    """With line editing and this session's history where Python has them; a text of several lines that is pasted stays
    one message. A file as stdout stays clean.
    """
    with contextlib.suppress(ImportError):
        import readline  # importing it is what gives `input` its line editing

        readline.parse_and_bind("set enable-bracketed-paste on")
    if sys.stdout.isatty():
        return without_newline(input(prompt))
    screen.note(prompt)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return without_newline(line)
