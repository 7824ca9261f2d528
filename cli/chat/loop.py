"""The chat loop: read a message or a slash command, show the streamed answer, run tool calls."""

import contextlib
import importlib
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from cli.chat import resumed
from cli.chat.attachments import Attachment, attach
from cli.chat.context_notes import context_full_note, note_dropped, overflow_hint
from cli.chat.conversation import Conversation
from cli.chat.display import answer
from cli.chat.display.status import status_line, used_context
from cli.chat.display.transcript import Transcript
from cli.chat.input.message_input import LineInput, MessageInput
from cli.chat.open_model import OpenModel
from cli.chat.options import ChatOutput
from cli.chat.slash_commands import commands
from cli.chat.tool_calls.tools import Toolbox, format_call
from cli.files.media_input import MediaFile, read_media_file, split_paths
from cli.generation.generate import statistics_line, warn_if_closed, with_control_tokens
from cli.terminal import screen
from cli.terminal.diffusion_screen import while_unmasked
from cli.terminal.interrupts import deferred_interrupts
from cli.terminal.pictures import show_picture
from cli.terminal.token_coloring import create_painter
from localinfer.errors import ContextOverflowError, LocalInferError, UsageError
from localinfer.options import Layer
from localinfer.session_media import content_text

if TYPE_CHECKING:
    from localinfer import Piece
    from localinfer.sessions import Session

EXIT_HINT = "Press Ctrl-C again, Ctrl-D or type /exit to exit."
STOPPED = "Stopped."
STOPPED_EARLY = "Stopped before the answer began. The conversation is as it was; the Up key brings the message back."
REPETITION_WARNING = "The answer repeats itself; Ctrl-C stops it. A higher --temp or --repeat-penalty may help."
FILES_KEPT = "The files of /file are kept for your next message; /clear removes them."
MEDIA_KEPT = "Attached images, sounds and videos are kept for your next message; /image without a path removes them."
UNSAVED = "{}; the conversation continues, and the next message saves it if that is possible; /export FILE copies it"
TOOL_RESULT_HINT = "{} was not run; type its result as the next message. /undo removes the call."
TOOL_CANCELLED = "The tool call was cancelled."
TOOL_RESULT_NOTE = "{} was not run; the message is its result"
MAX_TOOL_ROUNDS, MAX_IDENTICAL_ROUNDS = 20, 4  # rounds of tool calls per question
TOOL_LOOP_NOTE = "The model repeats the same tool call; it is not run again."


class Chat:
    """An interactive chat in a terminal, or one question and its answer."""

    def __init__(
        self,
        opened: OpenModel,
        output: ChatOutput,
        *,
        transcript: Transcript | None = None,
        session: "Session | None" = None,
        tools: Toolbox | None = None,
    ) -> None:
        self.opened = opened
        self.model = model = opened.model
        self.output = output
        self.transcript = transcript
        self.conversation = Conversation(model, session)
        self.conversation.window.on_drop = lambda messages: note_dropped(self.model.n_ctx, messages)
        self.tools = tools  # that the model may call
        self.mcp = tools.mcp if tools else None
        self.painter = create_painter(None if output.as_json else output.color_by)
        if self.painter:
            self.conversation.settings["logprobs"] = max(1, model.options.logprobs)
        self.files: list[str] = []  # content of files to prepend to the next message
        self.attachments: list[Attachment] = []  # images and sounds of the next message
        self.draft = ""  # initial text of the next message
        self.is_over = False
        self.is_interactive = False
        self.used = 0  # tokens in the context

    @property
    def name(self) -> str:
        """The name of the model, as the user gave it."""
        return self.opened.name

    def reopen(self, name: str, changes: Layer) -> None:
        """Continue with another model, or with other options of the same one. An error leaves the model as it is."""
        try:
            self.opened.replace(name, changes)
        finally:
            self.model = self.conversation.model = self.opened.model
            self.conversation.window.n_dropped = self.used = 0
        if self.conversation.session:
            self.conversation.session.set_model(name)
        screen.note_dim(f"{name}: context {self.model.n_ctx:,} tokens")

    def _update_tools(self) -> None:
        """Pass the tools to the model as they are now, and tell what has happened to MCP servers."""
        self.conversation.tools = (self.tools.schemas or None) if self.tools else None
        if self.mcp:
            self.mcp.show_notices()

    def run(self, *, once: bool = False) -> None:
        """Run the chat until the user exits or, if `once`, until the first answer.

        Ctrl-C at the prompt prints how to exit. Pressed again, with no other key in between, it exits.
        """
        self.is_interactive = True
        lines = create_input()
        if not self.output.plain and sys.stdout.isatty():
            threading.Thread(target=importlib.import_module, args=["cli.chat.display.markdown"], daemon=True).start()
        warned = False
        while not self.is_over and not (once and self.conversation.messages):
            self._update_tools()
            draft, self.draft = self.draft, ""
            try:
                typed = lines.read(draft)
            except KeyboardInterrupt:
                if warned and not lines.has_other_keys:
                    raise
                warned = True
                screen.note_dim(EXIT_HINT)
                continue
            warned = False
            try:
                self._handle(typed)
            except KeyboardInterrupt:
                screen.erase_progress()
                screen.note_dim(STOPPED)
            self._warn_if_unsaved()

    def _handle(self, typed: str | None) -> None:
        """Handle a message, a command, or the end of the input (None)."""
        if typed is None:
            self.is_over = True
        elif typed.startswith("/") and commands.try_command(self, typed):
            pass
        elif typed.strip() and (message := self._attach_paths(typed)):
            self.try_send(message)

    def _attach_paths(self, typed: str) -> str:
        """Attach the images, sounds and videos whose paths the message has, as from files that were dropped on the
        terminal. Return the message without them.

        A model that reads text only gets the message as it is.
        """
        message, paths = split_paths(typed) if self.model.media_kinds else (typed, [])
        before = self.attachments.copy()
        try:
            for path in paths:
                self.attach(read_media_file(str(path), "path"), waits=not message)
        except LocalInferError as error:
            screen.error(str(error), error.exit_code)
            self.attachments, self.draft = before, typed
            return ""
        return message

    def attach(self, file: MediaFile, *, waits: bool = False, quiet: bool = False) -> None:
        """Attach an image, a sound or a video to the next message. Raises UnsupportedError, UsageError."""
        attachment, about = attach(file, self.model)
        self.attachments.append(attachment)
        if not quiet:
            if attachment.part["type"] == "image" and self.is_interactive:
                show_picture(attachment.content)
            screen.note_dim(screen.one_line(about) + (", with your next message" if waits else ""))

    def try_send(self, message: str) -> None:
        """Send a message. An error is printed and ends neither the program nor the conversation."""
        try:
            self.send(message)
        except LocalInferError as error:
            hint = f" ({overflow_hint(self.model)})" if isinstance(error, ContextOverflowError) else ""
            screen.error(f"{error}{hint}", error.exit_code)
            if self.files:
                screen.note_dim(FILES_KEPT)
            if self.attachments:
                screen.note_dim(MEDIA_KEPT)

    def send(self, message: str) -> None:
        """Send a message and show the answer. Raises the errors of `Model.chat`."""
        self._update_tools()
        files = self.files.copy()
        attachments = [] if self.conversation.pending_tool_calls else self.attachments.copy()
        text = "\n".join([*files, message])
        self.files.clear()
        n_messages, n_results = len(self.conversation.messages), len(self.conversation.tool_results)
        try:
            self._send_text(text)
        finally:
            has_answer = len(self.conversation.messages) > n_messages
            if not has_answer and len(self.conversation.tool_results) <= n_results:
                self.files[:0] = files
            elif has_answer:
                self.attachments = self.attachments[len(attachments) :]
        if self.transcript and has_answer:
            names = [content_text([each.part]) for each in attachments]
            self.transcript.add("\n".join([*names, text]), self.conversation.answer)

    def _send_text(self, text: str) -> None:
        """Send a message, or the result of a tool call if one is pending, and show the answer."""
        if calls := self.conversation.pending_tool_calls:
            if not self.is_interactive:
                note_tool_result(calls, has_attachments=bool(self.attachments))
            self.conversation.tool_results.append(text)
            if len(self.conversation.tool_results) < len(calls):
                self.request_tool_results()
                return
            if self.attachments:
                screen.note_dim(MEDIA_KEPT)
            results = self.conversation.tool_results
            self.conversation.tool_results = results[:-1]  # if no answer begins, the last one is typed again
            self.show(self.conversation.send_tool_results(results))
        else:
            self.show(self.conversation.ask(text, attachments=self.attachments))

    def show(self, pieces: Iterator["Piece"]) -> None:
        """Show a streamed answer, run its tool calls and show the answers to their results."""
        self._show(pieces)
        seen: list[object] = []
        while (calls := self._show_tool_calls()) and self.tools and self.tools.can_run(calls):
            if len(seen) == MAX_TOOL_ROUNDS:
                break
            seen.append([call["function"] for call in calls])
            if seen[-MAX_IDENTICAL_ROUNDS:] == MAX_IDENTICAL_ROUNDS * seen[-1:]:
                screen.note_dim(TOOL_LOOP_NOTE)
                break
            results = self._tool_results(calls)
            self._update_tools()
            if results is None:
                break
            self._show(self.conversation.send_tool_results(results))
        if self.is_interactive:
            self.request_tool_results()

    def _tool_results(self, calls: list[dict[str, Any]]) -> list[str] | None:
        """Run tool calls and return their results. Ctrl-C in an interactive chat cancels them; then there are none."""
        assert self.tools is not None
        try:
            return [self.tools.result(call) for call in calls]
        except KeyboardInterrupt:
            if not self.is_interactive:
                raise
            screen.note_dim(TOOL_CANCELLED)
            return None

    def show_last_turns(self) -> None:
        """Show the end of the conversation, if answers are shown on a terminal."""
        if sys.stdout.isatty() and self.conversation.messages:
            resumed.show_last_turns(self.conversation.messages, self._create_view)

    def _create_view(self) -> answer.View:
        return answer.create_view(plain=self.output.plain, lines_between=self.is_interactive, painter=self.painter)

    def _show_tool_calls(self) -> list[dict[str, Any]]:
        calls = self.conversation.pending_tool_calls
        for call in calls:
            screen.note_dim(format_call(call))
        return calls

    def request_tool_results(self) -> None:
        """Ask the user for the results of tool calls that are not run automatically, if there are any."""
        if calls := self.conversation.pending_tool_calls:
            screen.note_dim(TOOL_RESULT_HINT.format(calls[len(self.conversation.tool_results)]["function"]["name"]))

    def _show(self, pieces: Iterator["Piece"]) -> None:
        """Show a streamed answer. Ctrl-C stops it; the conversation keeps its text."""
        began = time.monotonic()
        first = 0.0
        try:
            view = self._create_view()
            pieces = with_control_tokens(self.model, pieces) if self.output.special else pieces
            visual = self.conversation.settings.get("diffusion_visual", self.model.options.diffusion_visual)
            pieces = while_unmasked(self.model, pieces, visual=visual)
            with screen.without_echo(), contextlib.closing(with_repetition_warning(pieces, view)) as run:  # type: ignore[type-var]
                try:
                    for piece in run:
                        first = first or time.monotonic() - began
                        with deferred_interrupts():
                            view.add(piece)
                finally:
                    if first:
                        with deferred_interrupts():
                            view.end()
        except KeyboardInterrupt:
            screen.erase_progress()
            if not self.is_interactive:
                raise
            if not first:
                screen.note_dim(STOPPED_EARLY)
                return
        except ContextOverflowError:
            if not self.is_interactive or not first:
                raise
            screen.warn(context_full_note(self.model, self.conversation))
        self._show_statistics(first)

    def _warn_if_unsaved(self) -> None:
        if self.conversation.unsaved:
            screen.warn(UNSAVED.format(self.conversation.unsaved))

    def _show_statistics(self, first: float) -> None:
        """Print the status line or the statistics of the last answer."""
        stats = self.conversation.stats
        self.used = used_context(stats, self.model.n_ctx)
        if self.is_interactive and not self.output.quiet:
            columns = shutil.get_terminal_size().columns
            screen.note_dim(status_line(self.name, stats, self.model.n_ctx, first, columns))
        elif not self.output.quiet:
            screen.note_dim(statistics_line(stats))
        if not self.is_interactive:
            warn_if_closed(stats)


def note_tool_result(calls: list[dict[str, Any]], *, has_attachments: bool) -> None:
    """Tell that a message is the result of a tool call. Raises UsageError if several calls have no results, or if there
    are images or sounds, which no result has.
    """
    if len(calls) > 1:
        raise UsageError(f"the session waits for results of {len(calls)} tool calls; continue it without a question")
    if has_attachments:
        raise UsageError("the session waits for the result of a tool call; give it without images and sounds")
    screen.note_dim(TOOL_RESULT_NOTE.format(calls[0]["function"]["name"]))


def create_input() -> MessageInput:
    if screen.is_redrawable() and sys.stdin.isatty() and shutil.get_terminal_size().columns >= answer.MIN_COLUMNS:
        from cli.chat.input.editor import Editor

        return Editor()
    return LineInput()


def with_repetition_warning(pieces: Iterator["Piece"], view: answer.View) -> Iterator["Piece"]:
    """Yield the same pieces, and warn the user when the text repeats itself."""
    from localinfer.generation.loop_detector import LoopDetector

    watch = LoopDetector()
    with contextlib.closing(pieces):  # type: ignore[type-var]
        for piece in pieces:
            yield piece
            if watch.push(piece.id):
                view.note(REPETITION_WARNING)
