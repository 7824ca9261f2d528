"""The command `localinfer lens`: the logit lens of a text."""

import json
import shutil
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from cli.arguments.flags import JsonOption, ModelArgument, PromptOption, PromptSource, with_options
from cli.models.loading import missing_model_first, open_model
from cli.terminal import screen
from cli.terminal.tables import table
from localinfer.escaping import printable
from localinfer.options import Layer

if TYPE_CHECKING:
    from localinfer.evaluation.logit_lens import LogitLens

CELL = 10  # characters of a prediction
GAP = 2  # between columns


@with_options("model", "adapters")
def lens_command(
    model: ModelArgument,
    given: Layer,
    prompt: PromptOption = None,
    *,
    source: PromptSource,
    top: Annotated[int, typer.Option("--top", metavar="N", min=1, help="Predictions in JSON output.")] = 5,
    as_json: JsonOption = False,
) -> None:
    """Show what each layer of a model would predict (logit lens).

    The output layer is applied to the residual stream after each layer, and before the first one. There is a row for
    each layer, the last one first, and a column for each token of the prompt, with the most probable next token.

    \b
    Examples:
      localinfer lens smollm2 -p "The capital of France is"
      localinfer lens model.gguf -f prompt.txt --json
    """
    with missing_model_first(model):
        text = source.read_prompt(prompt or ())
    with open_model(model, given, screen.Status()) as loaded:
        lens = loaded.lens(text, top=top)
    if as_json:
        screen.write(json.dumps(as_object(lens)) + "\n")
    else:
        screen.write("\n".join(list(as_text(lens, shutil.get_terminal_size().columns))[1:]) + "\n")


def as_text(lens: "LogitLens", width: int) -> Iterator[str]:
    """Yield the lines of tables whose columns are as many tokens as fit in `width` characters."""
    label = max(map(len, lens.points)) + 2 * GAP
    n_columns = max(1, (width - label) // (CELL + GAP))
    for first in range(0, len(lens.tokens), n_columns):
        tokens = range(first, min(first + n_columns, len(lens.tokens)))
        rows: list[Sequence[str]] = [
            (lens.points[point], *(cell(lens.text(point, token)) for token in tokens))
            for point in reversed(range(len(lens.points)))
        ]
        header = "token", *(cell(lens.tokens[token]) for token in tokens)
        yield from table(f"tokens {first} to {tokens[-1]}", "<" * len(header), [header, *rows])


def cell(text: str) -> str:
    """Return the text of a token as a cell of a table."""
    shown = printable(text, CELL)
    return shown if len(shown) <= CELL else f"{shown[: CELL - 3]}..."


def as_object(lens: "LogitLens") -> dict[str, object]:
    """Return the lens as a JSON object: for each point and token, the predicted tokens."""
    return {
        "tokens": list(lens.tokens),
        "points": {
            name: [
                {
                    "ids": lens.ids[point, token].tolist(),
                    "texts": [lens.text(point, token, rank) for rank in range(lens.ids.shape[2])],
                    "probabilities": lens.probabilities[point, token].tolist(),
                    "entropy": float(lens.entropies[point, token]),
                    "final_rank": int(lens.final_ranks[point, token]),
                }
                for token in range(len(lens.tokens))
            ]
            for point, name in enumerate(lens.points)
        },
    }
