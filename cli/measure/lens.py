"""The command `localinfer lens`: logit lens, token probabilities and attention weights of a text."""

import json
import shutil
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from cli.arguments.flags import JsonOption, ModelArgument, PromptOption, PromptSource, with_options
from cli.models.loading import missing_model_first, open_model
from cli.terminal import screen
from cli.terminal.tables import table
from localinfer.errors import UsageError
from localinfer.escaping import printable
from localinfer.options import Layer

if TYPE_CHECKING:
    from localinfer import AttentionMap, LogitLens, Model, TokenProbabilities

CELL = 10  # characters of a token
GAP = 2  # between columns
SHOWN_PREDICTIONS = 3  # for each token

LabelledRow = tuple[str, Sequence[str]]


@with_options("model", "adapters")
def lens_command(
    model: ModelArgument,
    given: Layer,
    prompt: PromptOption = None,
    *,
    source: PromptSource,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Show the probability of each token of the prompt.")
    ] = False,
    attention: Annotated[
        str, typer.Option("--attention", metavar="LAYER:HEAD", help="Show the attention weights of a head.")
    ] = "",
    top: Annotated[int, typer.Option("--top", metavar="N", min=1, help="Predictions in JSON output.")] = 5,
    as_json: JsonOption = False,
) -> None:
    """Show what each layer of a model would predict (logit lens).

    The output layer is applied to the residual stream after each layer, and before the first one. There is a row for
    each layer, the last one first, and a column for each token of the prompt, with the most probable next token.

    With --probabilities, there is a row for each token of the prompt: its probability after those before it, its rank,
    the entropy of the prediction in bits, and the most probable tokens in its place.

    With --attention, there is a row for each token of the prompt: how much it attends to each token, in percent. Layers
    and heads are counted from 0.

    \b
    Examples:
      localinfer lens smollm2 -p "The capital of France is"
      localinfer lens smollm2 -p "The capital of France is Paris" --probabilities
      localinfer lens smollm2 -p "The capital of France is" --attention 1:0
      localinfer lens model.gguf -f prompt.txt --json
    """
    if probabilities and attention:
        raise UsageError("--probabilities and --attention: give one of them")
    head = layer_and_head(attention) if attention else None
    with missing_model_first(model):
        text = source.read_prompt(prompt or ())
    with open_model(model, given, screen.Status()) as loaded:
        if not loaded.tokenize(text):
            raise UsageError("the prompt has no tokens")
        found, lines = view(loaded, text, top, head, probabilities=probabilities)
    screen.write(json.dumps(found) + "\n" if as_json else "\n".join(list(lines)[1:]) + "\n")


def layer_and_head(text: str) -> tuple[int, int]:
    """Return the numbers of a text such as "3:0". Raises UsageError for another one."""
    layer, colon, head = text.partition(":")
    if not (colon and layer.isdecimal() and head.isdecimal()):
        raise UsageError(f"--attention: must be LAYER:HEAD, such as 3:0, not {printable(text, 40)!r}")
    return int(layer), int(head)


def view(
    model: "Model", text: str, top: int, head: tuple[int, int] | None, *, probabilities: bool
) -> tuple[dict[str, object], Iterator[str]]:
    """Return a view of a text as an object for JSON, and the lines of its tables."""
    width = shutil.get_terminal_size().columns
    if head:
        attention = model.attention(text, layers=[head[0]])[head]
        return attention_object(attention), token_columns(attention_rows(attention), attention.tokens, width)
    if probabilities:
        found = model.token_probabilities(text, top=top)
        return probabilities_object(found), table(
            f"perplexity {found.perplexity:.4g}", "<>>><", probability_rows(found)
        )
    lens = model.lens(text, top=top)
    return lens_object(lens), token_columns(lens_rows(lens), lens.tokens, width)


def token_columns(rows: Sequence[LabelledRow], tokens: Sequence[str], width: int) -> Iterator[str]:
    """Yield the lines of tables with a column for each token, as many of them as fit in `width` characters."""
    label = max(len(label) for label, _ in rows) + 2 * GAP
    n_columns = max(1, (width - label) // (CELL + GAP))
    for first in range(0, len(tokens), n_columns):
        end = min(first + n_columns, len(tokens))
        header = "token", *map(cell, tokens[first:end])
        shown = [header, *((label, *cells[first:end]) for label, cells in rows)]
        yield from table(f"tokens {first} to {end - 1}", "<" * len(header), shown)


def cell(text: str) -> str:
    """Return the text of a token as a cell of a table."""
    shown = printable(text, CELL)
    return shown if len(shown) <= CELL else f"{shown[: CELL - 3]}..."


def lens_rows(lens: "LogitLens") -> list[LabelledRow]:
    """Return a row for each point of a lens, the last one first."""
    tokens = range(len(lens.tokens))
    return [
        (lens.points[point], [cell(lens.text(point, token)) for token in tokens])
        for point in reversed(range(len(lens.points)))
    ]


def attention_rows(attention: "AttentionMap") -> list[LabelledRow]:
    """Return a row for each token that attends."""
    return [
        (cell(token), [f"{100 * weight:.0f}" if weight >= 0.005 else "" for weight in row])
        for token, row in zip(attention.tokens, attention.weights.tolist(), strict=True)
    ]


def probability_rows(found: "TokenProbabilities") -> Iterator[Sequence[str]]:
    """Yield a header, and a row for each token."""
    yield "token", "probability", "rank", "entropy", "predictions"
    for number, token in enumerate(found.tokens):
        if number == 0:
            yield cell(token), "", "", "", ""
            continue
        predictions = [
            f"'{cell(found.text(number, rank))}' {p:.1%}"
            for rank, p in enumerate(found.predicted_probabilities[number, :SHOWN_PREDICTIONS].tolist())
        ]
        numbers = f"{found.probabilities[number]:.2%}", f"{found.ranks[number]}", f"{found.entropies[number]:.2f}"
        yield cell(token), *numbers, ", ".join(predictions)


def lens_object(lens: "LogitLens") -> dict[str, object]:
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


def attention_object(attention: "AttentionMap") -> dict[str, object]:
    """Return the attention weights of a head as a JSON object."""
    return {"tokens": list(attention.tokens), "weights": attention.weights.tolist()}


def probabilities_object(found: "TokenProbabilities") -> dict[str, object]:
    """Return token probabilities as a JSON object. The first token has only its id and its text."""
    tokens: list[dict[str, object]] = [{"id": int(found.ids[0]), "text": found.tokens[0]}]
    tokens += [
        {
            "id": int(found.ids[number]),
            "text": found.tokens[number],
            "probability": float(found.probabilities[number]),
            "rank": int(found.ranks[number]),
            "entropy": float(found.entropies[number]),
            "ids": found.predicted_ids[number].tolist(),
            "texts": [found.text(number, rank) for rank in range(found.predicted_ids.shape[1])],
            "probabilities": found.predicted_probabilities[number].tolist(),
        }
        for number in range(1, len(found.tokens))
    ]
    return {"perplexity": found.perplexity, "tokens": tokens}
