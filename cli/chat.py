"""`localinfer chat`: a conversation in a terminal."""

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import screen
from cli.files import promised, write_whole
from cli.flags import EscapeOption, FileOption, NoStdinOption, QuietOption, SpecialOption, with_options
from cli.generate import statistics, with_control
from cli.loading import default_model, open_model
from cli.stdin import without_newline
from cli.texts import from_file, given_text, with_escapes
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
    question: Annotated[
        list[str] | None, typer.Argument(metavar="[QUESTION]...", help="Answer this, and leave.")
    ] = None,
    prompt: Annotated[
        str | None, typer.Option("-p", "--prompt", metavar="TEXT", help="Answer this, and leave.")
    ] = None,
    file: FileOption = None,
    escape: EscapeOption = None,
    no_stdin: NoStdinOption = False,
    system_file: Annotated[
        str | None,
        typer.Option("-sysf", "--system-prompt-file", metavar="FILE", help="Read --system-prompt from a file."),
    ] = None,
    conversation: Annotated[
        bool, typer.Option("-cnv", "--conversation", help="Go on talking when the question is answered.")
    ] = False,
    single_turn: Annotated[
        bool, typer.Option("-st", "--single-turn", help="Leave after the first answer, in any case.")
    ] = False,
    special: SpecialOption = False,
    output: Annotated[
        str | None,
        typer.Option("-o", "--output-file", "--output", metavar="FILE", help="Write the conversation there, too."),
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Talk with a model, or have one question answered.

    The question is what is given as such, then what -p gives, then what -f gives, then what is piped into stdin, joined
    by newlines. The answer goes to stdout, and that is that. Without any, and in a terminal, it is a conversation.

    \b
      localinfer chat
      localinfer chat path/to/model.gguf -c 4096 --temp 0.7 -sys "You answer in one sentence."
      localinfer chat smollm2 "Why is the sky blue?" > answer.txt
      localinfer chat smollm2 "What is this program good for?" < program.py
    """
    name = model or default_model()
    asked = "\n".join(each for each in (" ".join(question or ()), prompt) if each) or None
    message = given_text(asked, file, escapes=escape, with_stdin=not no_stdin)
    if message is None and not sys.stdin.isatty():
        raise UsageError("nothing to answer: no question, and stdin is neither a terminal nor a pipe")
    if system_file is not None:
        given["system_prompt"] = from_file(system_file)
    transcript = promised("--output", output) if output is not None else None
    with open_model(name, with_escapes(given, escape), screen.Status()) as opened:
        opened.require_chat_template()  # a model without one cannot chat: say so at once
        chat = Chat(opened, quiet=quiet, special=special, transcript=transcript)
        if message is not None:
            chat.say(message)
        if message is None or (conversation and not single_turn and sys.stdin.isatty()):
            if not quiet:
                screen.aside(f"{name}: context {opened.n_ctx:,} tokens. /help shows what else you can type.")
            chat.talk(once=single_turn)


class Chat:
    """The messages so far, and what happens with each line that is typed."""

    def __init__(self, model: "Model", *, quiet: bool, special: bool, transcript: Path | None) -> None:
        self.model = model
        self.quiet = quiet
        self.special = special
        self.transcript = transcript and Transcript(transcript)
        self.talking = False
        self.messages: list[dict[str, str]] = []
        self.changed: dict[str, Any] = {}  # options that a command has changed

    def talk(self, *, once: bool = False) -> None:
        """Until the user leaves, or has had `once` an answer."""
        self.talking = True
        while not (once and self.messages) and (typed := read_message()) is not None and typed.strip() != "/exit":
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
        if not self.quiet:
            screen.aside(statistics(self.model.stats))
        if self.transcript:
            self.transcript.add(message, answer)
        if answer:
            self.messages = [*asked, {"role": "assistant", "content": answer}]

    def stream(self, messages: list[dict[str, str]]) -> str:
        """Show an answer while it comes. An interrupt ends it; what had come stays said."""
        texts: list[str] = []
        try:
            with screen.without_echo():
                run = self.model.chat(messages, **self.changed)
                for piece in with_control(self.model, run) if self.special else run:
                    texts.append(piece.text)
                    screen.write(piece.text)
        except KeyboardInterrupt:
            if not self.talking:
                raise
        finally:
            if sys.stdout.isatty():
                screen.write("\n")
        return "".join(texts)


class Transcript:
    """A file with all that is said, as llama-cli writes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        write_whole(path, b"")

    def add(self, message: str, answer: str) -> None:
        try:
            with self.path.open("a", encoding="utf-8", errors="replace", newline="\n") as file:
                file.write(f"User:\n{message}\n\nAssistant:\n{answer}\n\n")
        except OSError as error:
            raise LocalInferError(f"{self.path}: {error.strerror}") from None


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
