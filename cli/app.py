"""The command line `localinfer COMMAND`: which commands there are.

A command lives in a module of its own, and that is imported only when the command is asked for: the help
alone loads neither numpy nor numba.
"""

import importlib
from collections.abc import Callable, Collection
from math import inf
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from cli import screen
from cli.arguments import translation
from cli.arguments.commands import SAME, SHELLS
from cli.arguments.translation import Instead, translated
from cli.model_options import options_for
from localinfer.errors import UsageError
from localinfer.version import VERSION

ABOUT = """Run language models on this machine.

MODEL is the path of a GGUF file, a name that `localinfer list` shows, hf:OWNER/REPO[:QUANT] of the Hugging Face hub,
or an https address.
"""
EXAMPLES = """
\b
Examples:
  localinfer chat
  localinfer chat hf:ggml-org/gemma-3-1b-it-GGUF:Q4_K_M
  localinfer generate smollm2 -p "The capital of France is" -n 64 --temp 0
  echo "some text" | localinfer generate gemma3-270m -p "Continue:" > out.txt

Each option has an environment variable: LOCALINFER_CTX_SIZE for --ctx-size.
"""
COMMANDS = {  # name: where its function NAME_command is, and the first line of its help
    "chat": ("cli.chat.command", "Talk with a model, or have one question answered."),
    "generate": ("cli.generate", "Continue a text: no chat template, no questions asked."),
    "batch": ("cli.batch", "Answer the requests of a file, a line each, into another one."),
    "embed": ("cli.embed", "Make a vector of each text, for comparing them."),
    "rerank": ("cli.embed", "Sort documents by how well they answer a query, best first."),
    "serve": ("cli.serve", "Answer other programs, and a page in a browser, over HTTP."),
    "sessions": ("cli.sessions", "Show, export or remove the conversations that were saved."),
    "pull": ("cli.models", "Fetch models by name, so that they are there when they are needed."),
    "list": ("cli.models", "Show the models that have a name, and which are on this machine."),
    "rm": ("cli.models", "Remove models that localinfer has fetched."),
    "inspect": ("cli.inspect", "Show what is in a model file, and the memory that a context takes."),
    "quantize": ("cli.quantizing.quantize", "Write a model in a smaller type."),
    "tokenize": ("cli.tokenize", "Show the tokens of a text."),
    "template": ("cli.template", "Show what a model sees of a conversation."),
    "bench": ("cli.measuring.bench", "Measure prompt processing (pp) and text generation (tg) in tokens a second."),
    "profile": ("cli.measuring.profile", "Show where the time of a run goes, by kind of op and by layer."),
    "imatrix": ("cli.measuring.imatrix", "Measure which columns of weights matter, for `quantize --imatrix`."),
    "perplexity": ("cli.measuring.perplexity", "Measure how much a text surprises a model, as llama-perplexity does."),
    "compare": ("cli.measuring.compare", "Measure how far a model is from another on a text."),
    "warmup": ("cli.warmup", "Compile the kernels that a model needs, so that its first run starts at once."),
    "config": ("cli.config", "Show every setting, its value, and where that comes from."),
    "doctor": ("cli.doctor", "Show what localinfer finds on this machine, and whether it can run here."),
}


OTHER_WAYS = dict.fromkeys(("model", "models"), " Or -m FILE; -hf OWNER/REPO[:QUANT].")  # to name a model


class Command(TyperCommand):
    """Understands the flags of other programs, and shows arguments by their names, which tell what may be left out:
    `SOURCE [OUT] TYPE [THREADS]`.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.params += options_for(self.params)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            line = translated(args, self.described(ctx))
        except (UsageError, Instead):
            if not ctx.resilient_parsing:  # as it is for half a line that a shell wants to complete
                raise
            return super().parse_args(ctx, args)
        for warning in () if ctx.resilient_parsing else line.warnings:
            screen.warn(warning)
        return super().parse_args(ctx, line.words)

    def described(self, ctx: Any) -> translation.Command:
        """What `translation` needs to know of this command."""
        options = {
            name: (each.opts[-1], 0 if each.is_flag else each.nargs)
            for each in self.get_params(ctx)
            if isinstance(each, TyperOption)
            for name in [*each.opts, *each.secondary_opts]
        }
        first = next(iter(self.arguments), ("", ""))[0]
        models = inf if first.endswith("...") else 1
        return translation.Command(str(self.name), options, models if "MODEL" in first else 0)

    def collect_usage_pieces(self, _: Any) -> list[str]:
        return ["[OPTIONS]", *(name for name, _ in self.arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        records = [each.get_help_record(ctx) for each in self.get_params(ctx) if not isinstance(each, TyperArgument)]
        for title, rows in ("Arguments", self.arguments), ("Options", [record for record in records if record]):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    @property
    def arguments(self) -> list[tuple[str, str]]:
        """Names and explanations."""
        arguments = [each for each in self.params if isinstance(each, TyperArgument)]
        return [(str(each.metavar), (each.help or "") + OTHER_WAYS.get(str(each.name), "")) for each in arguments]


class Group(TyperGroup):
    """Knows commands by other names, too."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return super().get_command(ctx, SAME.get(cmd_name, cmd_name))


def command_line(words: Collection[str]) -> Any:
    """The program that understands `words`. Its type is of the library under Typer, and not public."""
    named = COMMANDS.keys() & {SAME.get(word, word) for word in words}
    app = typer.Typer(
        cls=Group, help=ABOUT, epilog=EXAMPLES, add_completion=False, rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )  # fmt: skip
    app.callback()(options_of_all_commands)
    for name in named or COMMANDS:  # without a command, all are there to be listed
        about = COMMANDS[name][1]
        app.command(name, cls=Command, short_help=about)(function_of(name) if named else nothing)
    return typer.main.get_command(app)


def function_of(name: str) -> Callable[..., None]:
    module = importlib.import_module(COMMANDS[name][0])
    command: Callable[..., None] = getattr(module, f"{name}_command")
    return command


def nothing() -> None:
    """In the place of a command that is only listed."""


def show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"localinfer {VERSION}")
        raise typer.Exit


def show_completion(shell: str | None) -> None:
    if shell is not None:
        from cli.arguments import completion

        completion.show(shell)
        raise typer.Exit


def install_completion(shell: str | None) -> None:
    if shell is not None:
        from cli.arguments import completion

        completion.install(shell)
        raise typer.Exit


def options_of_all_commands(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version.")
    ] = False,
    shown: Annotated[
        str | None,
        typer.Option(
            "--show-completion",
            metavar="[SHELL]",
            callback=show_completion,
            is_eager=True,
            help=f"What {', '.join(SHELLS)} must read to complete commands, flags, models and types.",
        ),
    ] = None,
    installed: Annotated[
        str | None,
        typer.Option(
            "--install-completion",
            metavar="[SHELL]",
            callback=install_completion,
            is_eager=True,
            help="Put it where that shell reads it when it starts.",
        ),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback when something unexpected happens.")] = False,
) -> None:
    """`__main__` looks for --debug itself, so as to know of it whatever happens here."""
