"""The command line `localinfer COMMAND`: which commands there are.

A command lives in a module of its own, and that is imported only when the command is asked for: the help
alone loads neither numpy nor numba.
"""

import importlib
from collections.abc import Callable, Collection
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperArgument, TyperCommand

from localinfer.version import VERSION

ABOUT = """Run language models on this machine.

MODEL is the path of a GGUF file, or a name that `localinfer list` shows.
"""
EXAMPLES = """
\b
Examples:
  localinfer chat
  localinfer generate smollm2 -p "The capital of France is" -n 64 --temp 0
  echo "some text" | localinfer generate gemma3-270m -p "Continue:" > out.txt

Each option has an environment variable: LOCALINFER_CTX_SIZE for --ctx-size.
"""
COMMANDS = {  # name: where its function NAME_command is, and the first line of its help
    "chat": ("cli.chat.command", "Talk with a model."),
    "generate": ("cli.generate", "Continue a text: no chat template, no questions asked."),
    "pull": ("cli.models", "Fetch models by name, so that they are there when they are needed."),
    "list": ("cli.models", "Show the models that have a name, and which are on this machine."),
    "inspect": ("cli.inspect", "Show what is in a model file, and the memory that a context takes."),
    "quantize": ("cli.quantize", "Write a model in a smaller type."),
    "tokenize": ("cli.tokenize", "Show the tokens of a text."),
    "template": ("cli.template", "Show what a model sees of a conversation."),
    "bench": ("cli.bench", "Measure prompt processing (pp) and text generation (tg) in tokens a second."),
    "profile": ("cli.profile", "Show where the time of a prompt and of an answer goes, by kind of op and by layer."),
    "imatrix": ("cli.imatrix", "Measure which columns of a model's weights matter, for `quantize --imatrix`."),
    "perplexity": ("cli.perplexity", "Measure how much a text surprises a model, as llama-perplexity does."),
    "compare": ("cli.compare", "Measure how far a model is from another on a text."),
    "warmup": ("cli.warmup", "Compile the kernels that a model needs, so that its first run starts at once."),
    "doctor": ("cli.doctor", "Show what localinfer finds on this machine, and whether it can run here."),
}


class Command(TyperCommand):
    """Shows arguments by their names, which tell what may be left out: `SOURCE [OUT] TYPE [THREADS]`."""

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
        return [(str(each.metavar), each.help or "") for each in self.params if isinstance(each, TyperArgument)]


def command_line(words: Collection[str]) -> Any:
    """The program that understands `words`. Its type is of the library under Typer, and not public."""
    app = typer.Typer(
        help=ABOUT, epilog=EXAMPLES, add_completion=False, rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )  # fmt: skip
    app.callback()(options_of_all_commands)
    for name, (_, about) in COMMANDS.items():
        app.command(name, cls=Command, short_help=about)(function_of(name) if name in words else nothing)
    return typer.main.get_command(app)


def function_of(name: str) -> Callable[..., None]:
    module = importlib.import_module(COMMANDS[name][0])
    command: Callable[..., None] = getattr(module, f"{name}_command")
    return command


def nothing() -> None:
    """In the place of a command that was not asked for."""


def show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"localinfer {VERSION}")
        raise typer.Exit


def options_of_all_commands(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show a traceback when something unexpected happens.")
    ] = False,
) -> None:
    """`__main__` looks for --debug itself, so as to know of it whatever happens here."""
