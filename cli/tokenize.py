"""`localinfer tokenize`: the tokens that a model's vocabulary makes of a text. The weights are not read."""

import json
from typing import Annotated

import typer

from cli import screen
from cli.flags import EscapeOption, FileOption, ModelArgument, NoStdinOption
from cli.loading import fetched
from cli.texts import joined
from localinfer.text import printable


def tokenize_command(
    model: ModelArgument,
    prompt: Annotated[str | None, typer.Option("-p", "--prompt", metavar="TEXT", help="The text.")] = None,
    file: FileOption = None,
    escape: EscapeOption = None,
    no_stdin: NoStdinOption = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Write one JSON object: ids with their texts, or bytes that are no text.")
    ] = False,
    ids: Annotated[bool, typer.Option("--ids", help="Print the numbers only, as one list.")] = False,
    no_bos: Annotated[bool, typer.Option("--no-bos", help="Without the first token that the model asks for.")] = False,
    no_special: Annotated[
        bool,
        typer.Option(
            "--no-special", "--no-parse-special", help="Texts such as <|im_end|> are text, as in a user's message."
        ),
    ] = False,
    show_count: Annotated[bool, typer.Option("--show-count", help="Print how many there are, too.")] = False,
) -> None:
    """Show the tokens of a text.

    The text is what -p gives, then what -f gives, then what is piped into stdin, as in `generate`. A line a
    token: its number, and what it stands for. Texts of control tokens are tokens, unless --no-special.

    \b
      localinfer tokenize smollm2 -p "Hello world"
      localinfer tokenize smollm2 --ids < prompt.txt
      localinfer tokenize smollm2 -f prompt.txt --json
    """
    text = joined(prompt, file, escapes=escape, with_stdin=not no_stdin)
    path = fetched(model, screen.Status())

    from localinfer.files.gguf import open_gguf
    from localinfer.tokenizer import from_gguf

    tokenizer = from_gguf(open_gguf(path))
    tokens = tokenizer.encode(text, add_special=not no_bos, parse_special=not no_special)
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
    """As llama-server has it: a piece that is a part of a character is a list of its bytes."""
    return {"tokens": [{"id": id, "piece": text_or_bytes(piece)} for id, piece in pieces]}


def text_or_bytes(piece: bytes) -> str | list[int]:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


def line(id: int, piece: bytes) -> str:
    """As llama-tokenize writes it; what a terminal could obey, and bytes that are half a character, escaped."""
    return f"{id:6} -> '{printable(piece)}'\n"
