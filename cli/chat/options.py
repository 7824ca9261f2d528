"""The options of `localinfer chat`, in addition to the shared model and sampling options."""

from typing import Annotated

import typer

OptionalModelArgument = Annotated[
    str | None,
    typer.Argument(metavar="[MODEL]", help="Path of a GGUF file, or a model name. [default: the default model]"),
]
QuestionArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[QUESTION]...", help="Answer this question and exit.")
]
PromptOption = Annotated[
    str | None, typer.Option("-p", "--prompt", metavar="TEXT", help="Answer this question and exit.")
]
SystemFileOption = Annotated[
    str | None,
    typer.Option("-sysf", "--system-prompt-file", metavar="FILE", help="Read the system prompt from a file."),
]
ConversationOption = Annotated[
    bool, typer.Option("-cnv", "--conversation", help="Continue interactively after the question.")
]
SingleTurnOption = Annotated[bool, typer.Option("-st", "--single-turn", help="Exit after the first answer.")]
OutputOption = Annotated[
    str | None,
    typer.Option("-o", "--output-file", "--output", metavar="FILE", help="Also write the conversation to FILE."),
]
PlainOption = Annotated[bool, typer.Option("--plain", help="Do not render Markdown on a terminal.")]
ContinueOption = Annotated[bool, typer.Option("--continue", help="Resume the latest session.")]
SessionOption = Annotated[
    str | None,
    typer.Option("--session", metavar="NAME", help="Resume session NAME, or create it."),
]
NoSaveOption = Annotated[bool, typer.Option("--no-save", help="Do not save the session; see `localinfer sessions`.")]
ToolsOption = Annotated[
    str | None,
    typer.Option("--tools", metavar="FILE", help="JSON file with tool definitions (function schemas)."),
]
ToolExecOption = Annotated[
    str | None,
    typer.Option(
        "--tool-exec",
        metavar="COMMAND",
        help="Program that runs tool calls, after confirmation; see docs/tool-calling.md.",
    ),
]
ToolTimeoutOption = Annotated[
    float, typer.Option("--tool-timeout", metavar="SECONDS", help="Time limit for a tool call.")
]
