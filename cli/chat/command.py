"""The command `localinfer chat`: an interactive chat, or the answer to one question."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from cli.arguments.flags import OptionalModelArgument, with_options
from cli.arguments.questions import split_model
from cli.arguments.translation import Redirect
from cli.chat import session_state
from cli.chat.display.transcript import Transcript
from cli.chat.model_choice import select_model
from cli.chat.open_model import EmbeddingModelError, OpenModel
from cli.chat.options import ChatOutput, QuestionOptions, SessionOptions, ToolOptions
from cli.chat.tool_calls.tools import create_toolbox
from cli.chat.tool_calls.tools_of_servers import wait_for_servers, with_servers
from cli.files.media_input import MediaInput
from cli.files.output_files import writable_path
from cli.files.text_input import read_text_file, unescape_options
from cli.generation.generate import as_object, collect, warn_if_closed
from cli.models.loading import missing_model_first
from cli.terminal import screen
from localinfer.errors import UsageError
from localinfer.generation.result import GenerationResult
from localinfer.options import Layer

if TYPE_CHECKING:
    from cli.chat.loop import Chat
    from localinfer import Model


@with_options(
    "model", "sampling", "generation", "diffusion", "structured", "speculative", "draft", "media", "adapters", "chat",
)  # fmt: skip
def chat_command(
    given: Layer,
    *,
    model: OptionalModelArgument = None,
    question: QuestionOptions,
    session: SessionOptions,
    tools: ToolOptions,
    output: ChatOutput,
    media: MediaInput,
    choose: Annotated[bool, typer.Option("--choose", help="Choose the default model again.")] = False,
) -> None:
    """Start an interactive chat, or answer one question.

    The question is QUESTION, -p, -f and stdin, in this order and joined by newlines. Its answer is written to stdout,
    and the command exits. Without a question, the command starts an interactive chat in the terminal.

    If QUESTION or -p names a file, you are asked whether to send its text, too.

    Without MODEL, the first chat in a terminal offers models that suit this machine. Your choice is downloaded, and is
    the default model from then on.

    \b
    Examples:
      localinfer chat
      localinfer "Why is the sky blue?"
      localinfer chat --continue "And at sunset?"
      localinfer chat path/to/model.gguf -c 4096 --temp 0.7 -sys "You answer in one sentence."
      localinfer chat qwen.gguf --tools tools.json --tool-exec ./tool.py
      localinfer chat qwen.gguf --mcp servers.json
      localinfer chat smollm2 "Why is the sky blue?" > answer.txt
      localinfer chat smollm2 "What is this program good for?" < program.py
      localinfer chat vision.gguf --image cat.jpg "What is this?"
    """
    files = media.read()
    resumed = session_state.select_session(session)
    model, words = split_model(model, question.question, has_model=resumed is not None)
    if (message := question.read(words)) is None:
        require_terminal(model)
    options = chat_options(given, question, session)
    toolbox = create_toolbox(tools.tools, tools.tool_exec, tools.tool_timeout)
    require_one_answer(message, tools, output)
    media_paths = [str(file.path) for file in files]
    inputs = [*media_paths, *(question.files or ()), question.system_file, tools.tools, tools.mcp]
    log = None if output.output is None else writable_path("--output", output.output, inputs=inputs)
    continues = question.conversation and not question.single_turn and sys.stdin.isatty()
    interactive = not output.as_json and (message is None or continues)
    name = select_model(model, resumed.model if resumed else "", again=choose)
    with (
        with_servers(toolbox, tools, interactive=interactive) as toolbox,
        open_for_chat(name, options, None if output.as_json else message, interactive=interactive) as opened,
    ):
        from cli.chat.loop import Chat

        resumed = session_state.begin_session(resumed, name, session, interactive=interactive)
        wait_for_servers(toolbox)
        transcript = Transcript(log) if log is not None else None
        chat = Chat(opened, output, transcript=transcript, session=resumed, tools=toolbox)
        if "system_prompt" in options:
            chat.conversation.settings.pop("system_prompt", None)  # it precedes the one of the session
        for file in files:
            chat.attach(file, quiet=output.as_json or output.quiet)
        converse(chat, message, interactive=interactive, once=question.single_turn)


def chat_options(given: Layer, question: QuestionOptions, session: SessionOptions) -> Layer:
    """Return the options of the model and its runs, some of which other arguments of the command set."""
    options = dict(given)
    if session.no_save:
        options["prefix_store"] = False
    if question.system_file is not None:
        options["system_prompt"] = read_text_file(question.system_file)
    return unescape_options(options, question.escape)


def open_for_chat(name: str, given: Layer, message: str | None, *, interactive: bool) -> OpenModel:
    """Open a model. The command becomes `embed` for a message to a model of embeddings, as `ollama run` does it."""
    try:
        return OpenModel(name, given, interactive=interactive)
    except EmbeddingModelError:
        if message is None:
            raise
        raise Redirect(["embed", name, "--no-stdin", "-p", message]) from None


def converse(chat: "Chat", message: str | None, *, interactive: bool, once: bool) -> None:
    """Answer the question of the command line, if there is one, and those that the user types."""
    if interactive:
        introduce(chat)
    if message is not None and chat.output.as_json:
        answer_as_json(chat, message)
    elif message is not None:
        chat.send(message)
    if interactive:
        try:
            chat.run(once=once)
        except KeyboardInterrupt:  # pressed twice at the prompt
            leave(chat)
            raise
    leave(chat)


def leave(chat: "Chat") -> None:
    """Tell how to resume the session after an interactive chat. Raises LocalInferError if it cannot be saved."""
    if chat.conversation.unsaved:
        chat.conversation.messages = chat.conversation.messages  # another attempt
    if chat.conversation.unsaved:
        raise chat.conversation.unsaved
    if chat.conversation.session and chat.is_interactive and not chat.output.quiet:
        session_state.note_how_to_resume(chat.conversation.session)


def require_terminal(model: str | None) -> None:
    """Raise UsageError for a chat without a question and without a terminal, or the error of a missing model."""
    if not sys.stdin.isatty():
        with missing_model_first(model):
            raise UsageError("no question, and stdin is neither a terminal nor a pipe")


def require_one_answer(message: str | None, tools: ToolOptions, output: ChatOutput) -> None:
    """Raise UsageError if --json is given and not possible."""
    if output.as_json and message is None:
        raise UsageError("--json: requires a question")
    if output.as_json and tools.tool_exec is not None:
        raise UsageError("--json: cannot be combined with --tool-exec")
    if output.as_json and tools.mcp is not None:
        raise UsageError("--json: cannot be combined with --mcp")


def introduce(chat: "Chat") -> None:
    """Show what an interactive chat begins with."""
    if not chat.output.quiet:
        screen.note_dim(f"{chat.name}: {context_summary(chat.model)}. /help lists the commands.")
        if chat.mcp and (summary := chat.mcp.summary()):
            screen.note_dim(summary)
    chat.show_last_turns()
    chat.request_tool_results()


def context_summary(model: "Model") -> str:
    """Return the context length and the memory of the KV cache."""
    trained = f" of {model.n_ctx_train:,}" if model.n_ctx < model.n_ctx_train else ""
    return f"context {model.n_ctx:,}{trained} tokens, {screen.mib(model.engine.compiled_graph.model_graph.cache_bytes)}"


def answer_as_json(chat: "Chat", message: str) -> None:
    pieces, problem = collect(chat.conversation.ask(message, attachments=chat.attachments))
    screen.write(as_object(chat.name, GenerationResult.from_pieces(pieces, chat.conversation.stats)) + "\n")
    warn_if_closed(chat.conversation.stats)
    if problem:
        raise problem
