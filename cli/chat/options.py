"""The options of `localinfer chat`, in addition to the shared model and sampling options."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from cli.arguments.flags import OutputOptions, PromptSource
from cli.arguments.questions import named_files
from cli.files.text_input import is_text_file, prompt_texts, read_optional_prompt
from cli.mcp.options import McpOptions
from cli.models.store import confirm
from cli.terminal import screen


@dataclass(frozen=True, kw_only=True)
class QuestionOptions(PromptSource):
    """The first question, and what happens after its answer."""

    question: Annotated[
        list[str] | None, typer.Argument(metavar="[QUESTION]...", help="Answer this question and exit.")
    ] = None
    prompt: Annotated[
        list[str] | None,
        typer.Option("-p", "--prompt", metavar="TEXT", help="Answer this question and exit; may be repeated."),
    ] = None
    system_file: Annotated[
        str | None,
        typer.Option("-sysf", "--system-prompt-file", metavar="FILE", help="Read the system prompt from a file."),
    ] = None
    conversation: Annotated[
        bool, typer.Option("-cnv", "--conversation", help="Continue interactively after the question.")
    ] = False
    single_turn: Annotated[bool, typer.Option("-st", "--single-turn", help="Exit after the first answer.")] = False

    def read(self, words: list[str]) -> str | None:
        """Return the question, which begins with `words`, or None if there is none."""
        texts = [*filter(None, prompt_texts(words, self.prompt))]
        files = [*(self.files or ()), *files_to_send(" ".join(texts), self.files or ())]
        return read_optional_prompt(texts, files, escapes=self.escape, with_stdin=not self.no_stdin)


def files_to_send(question: str, given: Sequence[str]) -> list[str]:
    """Return the files that a question names and whose text the user wants to send; without a terminal, none."""
    chosen = []
    for name in named_files(question):
        if name in given:
            continue
        shown = shlex.quote(screen.one_line(name))
        if not is_text_file(name):
            screen.note_dim(f"the question names the file {shown}, which is not sent: it is not a text in UTF-8")
        elif not (sys.stdin.isatty() and sys.stderr.isatty()):
            screen.note_dim(f"the question names the file {shown}; -f {shown} sends its text, too")
        elif confirm(f"The question names the file {shown}. Send its text, too?"):
            chosen.append(name)
    return chosen


@dataclass(frozen=True, kw_only=True)
class ChatOutput(OutputOptions):
    """How the chat shows its answers."""

    output: Annotated[
        str | None,
        typer.Option("-o", "--output-file", "--output", metavar="FILE", help="Also write the conversation to FILE."),
    ] = None
    plain: Annotated[bool, typer.Option("--plain", help="Do not render Markdown on a terminal.")] = False


@dataclass(frozen=True, kw_only=True)
class SessionOptions:
    """The session that the chat resumes, creates or does not save."""

    resume_latest: Annotated[bool, typer.Option("--continue", help="Resume the latest session.")] = False
    session_name: Annotated[
        str | None, typer.Option("--session", metavar="NAME", help="Resume session NAME, or create it.")
    ] = None
    no_save: Annotated[
        bool, typer.Option("--no-save", help="Do not save the session; see `localinfer sessions`.")
    ] = False

    def creates_session(self, *, interactive: bool) -> bool:
        """Return whether a new session is saved: that of an interactive chat, or one that the user has named."""
        return not self.no_save and (interactive or self.session_name is not None)


@dataclass(frozen=True, kw_only=True)
class ToolOptions(McpOptions):
    """The tools that the model may call, those of MCP servers among them, and the program that runs them."""

    tools: Annotated[
        str | None, typer.Option("--tools", metavar="FILE", help="JSON file with tool definitions (function schemas).")
    ] = None
    tool_exec: Annotated[
        str | None,
        typer.Option(
            "--tool-exec", metavar="COMMAND",
            help="Program that runs tool calls, after confirmation; see docs/tool-calling.md.",
        ),
    ] = None
    tool_timeout: Annotated[
        float, typer.Option("--tool-timeout", metavar="SECONDS", help="Time limit for a tool call.")
    ] = 60.0  # fmt: skip
