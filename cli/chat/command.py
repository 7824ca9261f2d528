"""`localinfer chat`: the command line of a conversation."""

import contextlib
import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING

from cli import screen
from cli.chat import saved
from cli.chat.options import (
    ContinueOption,
    ConversationOption,
    NoSaveOption,
    OptionalModelArgument,
    OutputOption,
    PlainOption,
    PromptOption,
    QuestionArgument,
    SessionOption,
    SingleTurnOption,
    SystemFileOption,
    ToolExecOption,
    ToolsOption,
    ToolTimeoutOption,
)
from cli.chat.tools import toolbox
from cli.chat.transcript import Transcript
from cli.files import promised
from cli.flags import (
    ColorByOption,
    EscapeOption,
    FileOption,
    JsonOption,
    NoStdinOption,
    QuietOption,
    SpecialOption,
    with_options,
)
from cli.generate import as_object, taken
from cli.loading import default_model, open_model
from cli.texts import from_file, given_text, with_escapes
from localinfer.errors import UsageError
from localinfer.options import Layer

if TYPE_CHECKING:
    from cli.chat.loop import Chat
    from localinfer import Model


@with_options("model", "sampling", "generation", "form", "speculation", "draft", "chat")
def chat_command(
    given: Layer,
    model: OptionalModelArgument = None,
    question: QuestionArgument = None,
    prompt: PromptOption = None,
    file: FileOption = None,
    escape: EscapeOption = None,
    no_stdin: NoStdinOption = False,
    system_file: SystemFileOption = None,
    conversation: ConversationOption = False,
    single_turn: SingleTurnOption = False,
    special: SpecialOption = False,
    output: OutputOption = None,
    quiet: QuietOption = False,
    plain: PlainOption = False,
    go_on: ContinueOption = False,
    session_name: SessionOption = None,
    no_save: NoSaveOption = False,
    tools: ToolsOption = None,
    tool_exec: ToolExecOption = None,
    tool_timeout: ToolTimeoutOption = 60.0,
    color_by: ColorByOption = None,
    as_json: JsonOption = False,
) -> None:
    """Talk with a model, or have one question answered.

    The question is what is given as such, then what -p gives, then what -f gives, then what is piped into stdin, joined
    by newlines. The answer goes to stdout, and that is that. Without any, and in a terminal, it is a conversation.

    \b
      localinfer chat
      localinfer chat path/to/model.gguf -c 4096 --temp 0.7 -sys "You answer in one sentence."
      localinfer chat --continue
      localinfer chat qwen.gguf --tools tools.json --tool-exec ./tool.py
      localinfer chat smollm2 "Why is the sky blue?" > answer.txt
      localinfer chat smollm2 "What is this program good for?" < program.py
    """
    session = None if no_save else saved.session_for(go_on=go_on, name=session_name)
    name = model or (session.model if session else "") or default_model()
    asked = "\n".join(each for each in (" ".join(question or ()), prompt) if each) or None
    message = given_text(asked, file, escapes=escape, with_stdin=not no_stdin)
    if message is None and not sys.stdin.isatty():
        raise UsageError("nothing to answer: no question, and stdin is neither a terminal nor a pipe")
    if system_file is not None:
        given["system_prompt"] = from_file(system_file)
    box = toolbox(tools, tool_exec, tool_timeout)
    if as_json:
        require_one_answer(message, tool_exec)
    transcript = Transcript(promised("--output", output)) if output is not None else None
    goes_on = conversation and not single_turn and sys.stdin.isatty()
    talks = not as_json and (message is None or goes_on)
    with opened(name, with_escapes(given, escape), talks=talks) as ready:
        from cli.chat.loop import Chat

        session = session or (saved.new_session(name, session_name) if talks and not no_save else None)
        if session:
            saved.resume(ready, session)
        colours = color_by if not as_json else None
        chat = Chat(
            ready, name, plain=plain, quiet=quiet, special=special, transcript=transcript, session=session, tools=box,
            color_by=colours,
        )  # fmt: skip
        if message is not None and as_json:
            answer_as_json(chat, message)
        elif message is not None:
            chat.say(message)
        if talks:
            if not quiet:
                screen.aside(f"{name}: {about_context(ready)}. /help shows what else you can type.")
            chat.talk(once=single_turn)
        if chat.conversation.session:
            saved.keep(ready, chat.conversation.session)


def require_one_answer(message: str | None, tool_exec: str | None) -> None:
    """UsageError where --json cannot be."""
    if message is None:
        raise UsageError("--json: there is no question")
    if tool_exec is not None:
        raise UsageError("--json: shows the calls of one answer; it runs none of them")


@contextlib.contextmanager
def opened(name: str, given: Layer, *, talks: bool) -> Iterator["Model"]:
    """The model, ready to answer; what a talk needs is imported while it loads. One without a template cannot chat."""
    if talks and screen.is_live():
        threading.Thread(target=import_module, args=["cli.chat.editor"], daemon=True).start()
    with contextlib.ExitStack() as stack:
        with screen.without_echo() if talks else contextlib.nullcontext():
            model = stack.enter_context(open_model(name, given, screen.Status()))
            model.require_chat_template()
        yield model


def about_context(model: "Model") -> str:
    """What was chosen, and what it costs."""
    trained = f" of {model.n_ctx_train:,}" if model.n_ctx < model.n_ctx_train else ""
    return f"context {model.n_ctx:,}{trained} tokens, {screen.mib(model.engine.kv_bytes)}"


def answer_as_json(chat: "Chat", message: str) -> None:
    pieces, problem = taken(chat.conversation.ask(message))
    screen.write(as_object(chat.name, pieces, chat.model.stats) + "\n")
    if problem:
        raise problem
