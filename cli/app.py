"""The commands of the command line `localinfer COMMAND`.

Each command has its own module, which is imported only when that command runs. `localinfer --help` imports neither
numpy nor numba.
"""

import importlib
from collections.abc import Callable, Collection
from math import inf
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from cli.arguments import translation
from cli.arguments.commands import ALIASES, SHELLS
from cli.arguments.model_options import debug_option, options_for
from cli.arguments.translation import Redirect, translate
from cli.terminal import screen
from localinfer.errors import LocalInferError, UsageError
from localinfer.version import VERSION

ABOUT = """Run language models locally.

MODEL is the path of a GGUF file, a model name from `localinfer list`, hf:OWNER/REPO[:QUANT] on the Hugging Face Hub,
or an https URL.
"""
EXAMPLES = """
\b
Examples:
  localinfer chat
  localinfer chat hf:ggml-org/gemma-3-1b-it-GGUF:Q4_K_M
  localinfer generate smollm2 -p "The capital of France is" -n 64 --temp 0
  echo "some text" | localinfer generate gemma3-270m -p "Continue:" > out.txt

Options can also be set by environment variables, such as LOCALINFER_CTX_SIZE for --ctx-size.
"""
COMMANDS = {  # name: (module with the function NAME_command, with _ for -, first line of its help)
    "chat": ("cli.chat.command", "Start an interactive chat, or answer one question."),
    "generate": ("cli.generation.generate", "Generate text from a prompt."),
    "batch": ("cli.generation.batch", "Run a file of requests and write the responses to a file."),
    "transcribe": ("cli.generation.transcribe", "Transcribe speech: audio to text."),
    "embed": ("cli.generation.embed", "Compute text embeddings."),
    "rerank": ("cli.generation.embed", "Rank documents by relevance to a query."),
    "retrieve": ("cli.generation.retrieve", "Find the passages of files that are most similar to a query."),
    "serve": ("cli.server.serve", "Run an OpenAI-compatible HTTP server."),
    "mcp": ("cli.mcp.serve", "Offer models as an MCP server, to programs such as Claude Desktop and VS Code."),
    "mcp-tools": ("cli.mcp.tools", "Start the MCP servers of a file, and list their tools."),
    "sessions": ("cli.chat.sessions", "List, search, show, export or remove saved chat sessions."),
    "cache": ("cli.machine.cache", "Show or remove the evaluated prompts on disk."),
    "pull": ("cli.models.store", "Download models."),
    "list": ("cli.models.store", "List known and downloaded models."),
    "rm": ("cli.models.store", "Remove downloaded models."),
    "cp": ("cli.models.registry", "Give a model another name in models.toml."),
    "create": ("cli.models.registry", "Create a model from a Modelfile."),
    "ps": ("cli.server.running", "List the models that a running server has loaded."),
    "stop": ("cli.server.running", "Unload a model of a running server."),
    "inspect": ("cli.models.inspect", "Show the metadata, tensors and memory use of a model file."),
    "diff": ("cli.models.diff", "Show what differs between two models: metadata, types, and weights by their error."),
    "edit": ("cli.models.edit", "Change the metadata of a model file: set, add or remove keys."),
    "hash": ("cli.models.hash", "Print digests of the tensors of a model, which do not change with its metadata."),
    "quantize": ("cli.quantize.command", "Quantize or convert a model."),
    "new-architecture": ("cli.models.new_architecture", "Draft an architecture that is not supported yet."),
    "lab": ("cli.quantize.lab", "Measure how sensitive a model is to the quantization of each tensor."),
    "fit": ("cli.quantize.fit", "Make the model file for this machine and your text."),
    "merge": ("cli.models.merge", "Write LoRA adapters into the weights of a model."),
    "control-vector": ("cli.models.control_vector", "Make a control vector from pairs of prompts."),
    "gguf-split": ("cli.models.gguf_split", "Split a model file, or join the files of a split model."),
    "tokenize": ("cli.models.tokenize", "Tokenize text."),
    "template": ("cli.models.template", "Render the chat template of a model."),
    "bench": ("cli.measure.bench", "Benchmark prompt processing (pp) and text generation (tg)."),
    "batched-bench": ("cli.measure.batched_bench", "Benchmark decoding of several sequences in one batch."),
    "profile": ("cli.measure.profile", "Profile a model by operation and by layer."),
    "imatrix": ("cli.measure.imatrix", "Compute an importance matrix for `quantize --imatrix`."),
    "perplexity": ("cli.measure.perplexity", "Measure the perplexity of a model on a text."),
    "eval": ("cli.measure.evaluate", "Evaluate a model on a task: HellaSwag, MMLU, GSM8K and others."),
    "lens": ("cli.measure.lens", "Show what each layer of a model would predict (logit lens)."),
    "verify": ("cli.models.verify", "Check that this machine computes a model correctly, operation by operation."),
    "compare": ("cli.measure.compare", "Compare two models by KL divergence on a text."),
    "warmup": ("cli.machine.warmup", "Compile the kernels of a model ahead of its first run."),
    "tune": ("cli.machine.tune", "Measure which kernels of a model are the fastest on this machine."),
    "config": ("cli.machine.config", "Show all settings, their values and sources."),
    "doctor": ("cli.machine.doctor", "Check this machine and the installation."),
}


MODEL_FLAGS_HELP = dict.fromkeys(("model", "models"), " Also -m FILE or -hf OWNER/REPO[:QUANT].")


class Command(TyperCommand):
    """A command that also accepts the flags of llama.cpp and Ollama.

    Its help shows arguments by their metavar, which marks optional ones: `SOURCE [OUT] TYPE [THREADS]`.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.params += options_for(self.params)
        self.params.append(debug_option())

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            line = translate(args, self.spec(ctx))
        except (LocalInferError, Redirect):
            if not ctx.resilient_parsing:  # a partial line, for shell completion
                raise
            return super().parse_args(ctx, args)
        for warning in () if ctx.resilient_parsing else line.warnings:
            screen.warn(warning)
        rest = super().parse_args(ctx, line.words)
        for each in self.params:
            if (value := ctx.params.get(str(each.name))) is not None and value != value:  # passes all limits
                raise UsageError(f"{each.opts[-1]}: must be a finite number, not nan")
        return rest

    def spec(self, ctx: Any) -> translation.CommandSpec:
        """Return the options and arguments of this command for `translation`."""
        options = {
            name: (each.opts[-1], 0 if each.is_flag else each.nargs)
            for each in self.get_params(ctx)
            if isinstance(each, TyperOption)
            for name in [*each.opts, *each.secondary_opts]
        }
        first = next(iter(self.arguments), ("", ""))[0]
        models = inf if first.endswith("...") else 1
        return translation.CommandSpec(str(self.name), options, models if "MODEL" in first else 0)

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
        """Return the metavar and help text of each argument."""
        arguments = [each for each in self.params if isinstance(each, TyperArgument)]
        return [(str(each.metavar), (each.help or "") + MODEL_FLAGS_HELP.get(str(each.name), "")) for each in arguments]


class Group(TyperGroup):
    """A command group that resolves aliases of commands."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return super().get_command(ctx, ALIASES.get(cmd_name, cmd_name))


def build_program(words: Collection[str]) -> Any:
    """Return the click program with the commands that `words` name, or with all if they name none."""
    named = COMMANDS.keys() & {ALIASES.get(word, word) for word in words}
    app = typer.Typer(
        cls=Group, help=ABOUT, epilog=EXAMPLES, add_completion=False, rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )  # fmt: skip
    app.callback()(global_options)
    for name in named or COMMANDS:  # without a command, help lists all of them
        about = COMMANDS[name][1]
        app.command(name, cls=Command, short_help=about)(load_command(name) if named else placeholder)
    return typer.main.get_command(app)


def load_command(name: str) -> Callable[..., None]:
    module = importlib.import_module(COMMANDS[name][0])
    command: Callable[..., None] = getattr(module, f"{name.replace('-', '_')}_command")
    return command


def placeholder() -> None:
    """Placeholder for a command that is only listed in the help."""


def show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"localinfer {VERSION}")
        raise typer.Exit


def show_completion(shell: str | None) -> None:
    if shell is not None:
        from cli.arguments import completion

        completion.print_script(shell)
        raise typer.Exit


def install_completion(shell: str | None) -> None:
    if shell is not None:
        from cli.arguments import completion

        completion.install_script(shell)
        raise typer.Exit


def global_options(
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
            help=f"Print the completion script for {', '.join(SHELLS)}.",
        ),
    ] = None,
    installed: Annotated[
        str | None,
        typer.Option(
            "--install-completion",
            metavar="[SHELL]",
            callback=install_completion,
            is_eager=True,
            help="Install the completion script for a shell.",
        ),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback on unexpected errors.")] = False,
) -> None:
    """Global options. `__main__` looks for --debug itself, so that it also applies to parsing errors."""
