"""The command `localinfer chat`: an interactive chat, or the answer to one question."""

import contextlib
import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING

from cli import screen
from cli.chat import session_state
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
from cli.chat.tools import create_toolbox
from cli.chat.transcript import Transcript
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
from cli.generate import as_object, collect
from cli.loading import default_model, open_model
from cli.output_files import writable_path
from cli.text_input import read_optional_prompt, read_text_file, unescape_options
from localinfer.errors import UsageError
from localinfer.generation.result import GenerationResult
from localinfer.options import Layer

if TYPE_CHECKING:
    from cli.chat.loop import Chat
    from localinfer import Model


@with_options("model", "sampling", "generation", "structured", "speculative", "draft", "chat")
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
    """Start an interactive chat, or answer one question.

    The question is QUESTION, -p, -f and stdin, in this order and joined by newlines. Its answer is written to stdout,
    and the command exits. Without a question, the command starts an interactive chat in the terminal.

    \b
      localinfer chat
      localinfer chat path/to/model.gguf -c 4096 --temp 0.7 -sys "You answer in one sentence."
      localinfer chat --continue
      localinfer chat qwen.gguf --tools tools.json --tool-exec ./tool.py
      localinfer chat smollm2 "Why is the sky blue?" > answer.txt
      localinfer chat smollm2 "What is this program good for?" < program.py
    """
    session = None if no_save else session_state.select_session(go_on=go_on, name=session_name)
    name = model or (session.model if session else "") or default_model()
    typed = "\n".join(each for each in (" ".join(question or ()), prompt) if each) or None
    message = read_optional_prompt(typed, file, escapes=escape, with_stdin=not no_stdin)
    if message is None and not sys.stdin.isatty():
        raise UsageError("no question, and stdin is neither a terminal nor a pipe")
    if system_file is not None:
        given["system_prompt"] = read_text_file(system_file)
    toolbox = create_toolbox(tools, tool_exec, tool_timeout)
    if as_json:
        require_one_answer(message, tool_exec)
    transcript = Transcript(writable_path("--output", output)) if output is not None else None
    continues = conversation and not single_turn and sys.stdin.isatty()
    interactive = not as_json and (message is None or continues)
    with opened_model(name, unescape_options(given, escape), interactive=interactive) as loaded:
        from cli.chat.loop import Chat

        session = session or (session_state.create_session(name, session_name) if interactive and not no_save else None)
        if session:
            session_state.resume(loaded, session)
        colours = color_by if not as_json else None
        chat = Chat(
            loaded, name, plain=plain, quiet=quiet, special=special, transcript=transcript, session=session,
            tools=toolbox, color_by=colours,
        )  # fmt: skip
        if message is not None and as_json:
            answer_as_json(chat, message)
        elif message is not None:
            chat.say(message)
        if interactive:
            if not quiet:
                screen.note_dim(f"{name}: {context_summary(loaded)}. /help lists the commands.")
            chat.run(once=single_turn)
        if chat.conversation.session:
            session_state.save_snapshot(loaded, chat.conversation.session)


def require_one_answer(message: str | None, tool_exec: str | None) -> None:
    """Raise UsageError if --json is not possible."""
    if message is None:
        raise UsageError("--json: requires a question")
    if tool_exec is not None:
        raise UsageError("--json: cannot be combined with --tool-exec")


@contextlib.contextmanager
def opened_model(name: str, given: Layer, *, interactive: bool) -> Iterator["Model"]:
    """Open a model for chat. For an interactive chat, import the line editor in the background.

    Raises an error if the model has no chat template.
    """
    if interactive and screen.is_redrawable():
        threading.Thread(target=import_module, args=["cli.chat.editor"], daemon=True).start()
    with contextlib.ExitStack() as stack:
        with screen.without_echo() if interactive else contextlib.nullcontext():
            model = stack.enter_context(open_model(name, given, screen.Status()))
            model.require_chat_template()
        yield model


def context_summary(model: "Model") -> str:
    """Return the context length and the memory of the KV cache."""
    trained = f" of {model.n_ctx_train:,}" if model.n_ctx < model.n_ctx_train else ""
    return f"context {model.n_ctx:,}{trained} tokens, {screen.mib(model.engine.compiled_graph.kv_bytes)}"


def answer_as_json(chat: "Chat", message: str) -> None:
    pieces, problem = collect(chat.conversation.ask(message))
    screen.write(as_object(chat.name, GenerationResult.from_pieces(pieces, chat.conversation.stats)) + "\n")
    if problem:
        raise problem
