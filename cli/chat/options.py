"""The options that only `localinfer chat` has, beside those of the models, sampling, and so on."""

from typing import Annotated

import typer

OptionalModelArgument = Annotated[
    str | None, typer.Argument(metavar="[MODEL]", help="A GGUF file or a name; none: the default.")
]
QuestionArgument = Annotated[list[str] | None, typer.Argument(metavar="[QUESTION]...", help="Answer this, and leave.")]
PromptOption = Annotated[str | None, typer.Option("-p", "--prompt", metavar="TEXT", help="Answer this, and leave.")]
SystemFileOption = Annotated[
    str | None,
    typer.Option("-sysf", "--system-prompt-file", metavar="FILE", help="Read --system-prompt from a file."),
]
ConversationOption = Annotated[
    bool, typer.Option("-cnv", "--conversation", help="Go on talking when the question is answered.")
]
SingleTurnOption = Annotated[
    bool, typer.Option("-st", "--single-turn", help="Leave after the first answer, in any case.")
]
OutputOption = Annotated[
    str | None,
    typer.Option("-o", "--output-file", "--output", metavar="FILE", help="Write the conversation there, too."),
]
PlainOption = Annotated[
    bool, typer.Option("--plain", help="Show answers as they come, not as Markdown; a pipe always does.")
]
ContinueOption = Annotated[bool, typer.Option("--continue", help="Go on with the conversation that was saved last.")]
SessionOption = Annotated[
    str | None,
    typer.Option("--session", metavar="NAME", help="Go on with the session of this name, or begin it."),
]
NoSaveOption = Annotated[
    bool, typer.Option("--no-save", help="Do not save the conversation: see `localinfer sessions`.")
]
ToolsOption = Annotated[
    str | None,
    typer.Option("--tools", metavar="FILE", help="What the model may call: JSON schemas of functions."),
]
ToolExecOption = Annotated[
    str | None,
    typer.Option("--tool-exec", metavar="COMMAND", help="Runs each call, when you agree to it: see docs/tools.md."),
]
ToolTimeoutOption = Annotated[
    float, typer.Option("--tool-timeout", metavar="SECONDS", help="How long a call may take.")
]
