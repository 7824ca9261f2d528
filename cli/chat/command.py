"""`localinfer chat`: the command line of a conversation."""

import contextlib
import sys
import threading
from importlib import import_module
from typing import TYPE_CHECKING, Annotated

import typer

from cli import screen
from cli.chat import saved
from cli.chat.tools import toolbox
from cli.chat.transcript import Transcript
from cli.files import promised
from cli.flags import ColorByOption, EscapeOption, FileOption, NoStdinOption, QuietOption, SpecialOption, with_options
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
    plain: Annotated[
        bool, typer.Option("--plain", help="Show answers as they come, not as Markdown; a pipe always does.")
    ] = False,
    go_on: Annotated[bool, typer.Option("--continue", help="Go on with the conversation that was saved last.")] = False,
    session_name: Annotated[
        str | None,
        typer.Option("--session", metavar="NAME", help="Go on with the session of this name, or begin it."),
    ] = None,
    no_save: Annotated[
        bool, typer.Option("--no-save", help="Do not save the conversation: see `localinfer sessions`.")
    ] = False,
    tools: Annotated[
        str | None,
        typer.Option("--tools", metavar="FILE", help="What the model may call: JSON schemas of functions."),
    ] = None,
    tool_exec: Annotated[
        str | None,
        typer.Option("--tool-exec", metavar="COMMAND", help="Runs each call, when you agree to it: see docs/tools.md."),
    ] = None,
    tool_timeout: Annotated[
        float, typer.Option("--tool-timeout", metavar="SECONDS", help="How long a call may take.")
    ] = 60.0,
    color_by: ColorByOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Write one JSON object: text, reasoning, tokens, finish_reason, timings, ...")
    ] = False,
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
    transcript = Transcript(promised("--output", output)) if output is not None else None
    talks = message is None or (conversation and not single_turn and sys.stdin.isatty())
    if as_json and message is None:
        raise UsageError("--json: there is no question")
    if as_json and tool_exec is not None:
        raise UsageError("--json: shows the calls of one answer; it runs none of them")
    if talks and screen.is_live():
        threading.Thread(target=import_module, args=["cli.chat.editor"], daemon=True).start()  # as loading also waits
    with contextlib.ExitStack() as stack:
        with screen.without_echo() if talks else contextlib.nullcontext():
            opened = stack.enter_context(open_model(name, with_escapes(given, escape), screen.Status()))
            opened.require_chat_template()  # a model without one cannot chat: say so at once
        from cli.chat.loop import Chat

        session = session or (saved.new_session(name, session_name) if talks and not no_save else None)
        if session:
            saved.resume(opened, session)
        chat = Chat(
            opened, name, plain=plain, quiet=quiet, special=special, transcript=transcript, session=session,
            tools=box,
            color_by=color_by if not as_json else None,
        )  # fmt: skip
        if message is not None and as_json:
            answer_as_json(chat, message)
        elif message is not None:
            chat.say(message)
        if talks and not as_json:
            if not quiet:
                screen.aside(f"{name}: {about_context(opened)}. /help shows what else you can type.")
            chat.talk(once=single_turn)
        if chat.conversation.session:
            saved.keep(opened, chat.conversation.session)


def about_context(model: "Model") -> str:
    """What was chosen, and what it costs."""
    trained = f" of {model.n_ctx_train:,}" if model.n_ctx < model.n_ctx_train else ""
    return f"context {model.n_ctx:,}{trained} tokens, {screen.mib(model.engine.kv_bytes)}"


def answer_as_json(chat: "Chat", message: str) -> None:
    pieces, problem = taken(chat.conversation.ask(message))
    screen.write(as_object(chat.name, pieces, chat.model.stats) + "\n")
    if problem:
        raise problem
