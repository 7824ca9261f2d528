"""The command `localinfer tokenize`: show the tokens of a text. It does not read the weights."""

import json
from dataclasses import dataclass
from typing import Annotated

import typer

from cli.arguments.flags import ModelArgument, PromptOption, PromptSource, with_options
from cli.models.loading import find_or_fetch, missing_model_first
from cli.terminal import screen
from localinfer.escaping import printable


@dataclass(frozen=True, kw_only=True)
class TokenizerOptions:
    """How the text is tokenized."""

    no_bos: Annotated[bool, typer.Option("--no-bos", help="Do not add the BOS token.")] = False
    no_special: Annotated[
        bool,
        typer.Option("--no-special", "--no-parse-special", help="Do not parse control tokens such as <|im_end|>."),
    ] = False


@with_options()
def tokenize_command(
    model: ModelArgument,
    *,
    prompt: PromptOption = None,
    source: PromptSource,
    tokenizing: TokenizerOptions,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object: ids and pieces, or bytes for invalid UTF-8.")
    ] = False,
    ids: Annotated[bool, typer.Option("--ids", help="Print only the token ids, as one list.")] = False,
    show_count: Annotated[bool, typer.Option("--show-count", help="Also print the number of tokens.")] = False,
) -> None:
    """Tokenize text.

    The text is -p, -f and stdin, joined by newlines, as in `generate`. The output has one line per token: its id and
    its text. Control tokens in the text are parsed unless --no-special is given.

    \b
    Examples:
      localinfer tokenize smollm2 -p "Hello world"
      localinfer tokenize smollm2 --ids < prompt.txt
      localinfer tokenize smollm2 -f prompt.txt --json
    """
    with missing_model_first(model):
        text = source.read_prompt(prompt or ())
    path = find_or_fetch(model, screen.Status())

    from localinfer.gguf.reader import open_gguf
    from localinfer.tokenizer import from_gguf

    tokenizer = from_gguf(open_gguf(path))
    tokens = tokenizer.encode(text, add_special=not tokenizing.no_bos, parse_special=not tokenizing.no_special)
    pieces = [(id, tokenizer.token_bytes(id, special=True)) for id in tokens]
    if as_json:
        screen.write(json.dumps(as_object(pieces), ensure_ascii=False) + "\n")
    elif ids:
        screen.write(json.dumps(tokens) + "\n")
    else:
        screen.write("".join(line(id, piece) for id, piece in pieces))
    if show_count and not as_json:
        screen.write(f"Total number of tokens: {len(tokens)}\n")


def as_object(pieces: list[tuple[int, bytes]]) -> dict[str, list[dict[str, int | str | list[int]]]]:
    """Return the tokens in the format of llama-server: a piece that is not valid UTF-8 is a list of bytes."""
    return {"tokens": [{"id": id, "piece": text_or_bytes(piece)} for id, piece in pieces]}


def text_or_bytes(piece: bytes) -> str | list[int]:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


def line(id: int, piece: bytes) -> str:
    """Format a token as llama-tokenize does, with control characters and invalid UTF-8 escaped."""
    return f"{id:6} -> '{printable(piece)}'\n"
