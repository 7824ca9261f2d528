"""The command `localinfer control-vector`: a control vector made from pairs of prompts."""

from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from cli.arguments.flags import ModelArgument, with_options
from cli.files.output_files import writable_path
from cli.files.text_input import read_text_file, unescape
from cli.models.loading import open_engine
from cli.terminal import screen
from localinfer.errors import UsageError
from localinfer.options import Layer

if TYPE_CHECKING:
    from localinfer.adapters.control_vector_making import Method

UNUSED_OPTIONS = ("ctx_policy", "keep", "parallel", "prefix_store", "prefix_store_size", "tune")
DEFAULTS: Layer = {"ctx_size": 512}


@with_options("model", without=UNUSED_OPTIONS, defaults=DEFAULTS)
def control_vector_command(
    model: ModelArgument,
    given: Layer,
    *,
    positive: Annotated[
        str,
        typer.Option("--positive", "--positive-file", metavar="FILE", help="Prompts with the property, one per line."),
    ],
    negative: Annotated[
        str, typer.Option("--negative", "--negative-file", metavar="FILE", help="The same prompts with the opposite.")
    ],
    out: Annotated[str, typer.Option("-o", "--output", metavar="FILE", help="Output file.")] = "control_vector.gguf",
    method: Annotated[
        str, typer.Option("--method", metavar="mean|pca", help="How the differences of pairs make a vector.")
    ] = "mean",
) -> None:
    """Make a control vector from pairs of prompts.

    Line N of both files is a pair: a prompt with a property, and the same prompt with the opposite one. Escape
    sequences such as \\n are replaced, and the texts of control tokens become these tokens; no chat template is
    applied. The vector of a layer is the mean of the differences of the residual streams after the last tokens, or
    their first principal component. `--control-vector FILE` of the other commands adds it.

    \b
    Examples:
      localinfer control-vector smollm2 --positive happy.txt --negative sad.txt -o happy.gguf
      localinfer generate smollm2 -p "I went to the park" --control-vector-scaled happy.gguf:1.5
    """
    texts = [[unescape(line) for line in read_text_file(name).split("\n") if line] for name in (positive, negative)]
    if len(texts[0]) != len(texts[1]) or not texts[0]:
        counts = f"{len(texts[0])} and {len(texts[1])}"
        raise UsageError(f"--positive and --negative: have {counts} prompts; pairs are needed")
    if method not in ("mean", "pca"):
        raise UsageError(f"--method: must be mean or pca, not {method}")
    path, status = writable_path("--output", out, inputs=[positive, negative]), screen.Status()
    kind: Method = "pca" if method == "pca" else "mean"
    with closing(open_engine(model, given, DEFAULTS, status)) as engine:
        from localinfer import file_operations

        n_layers = file_operations.write_control_vector(
            engine, texts[0], texts[1], path, kind, lambda done, all: status.show(f"pair {done + 1} of {all}")
        )
    status.erase()
    screen.note(f"{screen.one_line(out)}: vectors of {n_layers} layers from {len(texts[0])} pairs")
