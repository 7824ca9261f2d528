"""`localinfer generate`: a prompt in, its continuation out. Never interactive: made for scripts and pipes."""

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from cli import screen
from cli.flags import with_options
from cli.loading import open_model
from cli.texts import joined
from localinfer.errors import ContextOverflow
from localinfer.options import Layer

if TYPE_CHECKING:
    from localinfer import Piece, Stats
    from localinfer.generation.pieces import Kind


@with_options("model", "sampling", "generation")
def generate_command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Path of a GGUF file, or a name.")],
    given: Layer,
    prompt: Annotated[str | None, typer.Option("-p", "--prompt", metavar="TEXT", help="The text to continue.")] = None,
    file: Annotated[
        str | None, typer.Option("-f", "--file", metavar="FILE", help="Read the text from a file.")
    ] = None,
    special: Annotated[
        bool, typer.Option("--special", help="Texts such as <|im_end|> in the prompt are control tokens.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Write one JSON object: text, reasoning, tokens, finish_reason, timings, ...")
    ] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No statistics on stderr.")] = False,
) -> None:
    """Continue a text: no chat template, no questions asked.

    The prompt is what -p gives, then what -f gives, then what is piped into stdin, joined by newlines; one
    newline at the end of a file or of stdin does not count. Exactly the new text goes to stdout.

    \b
      localinfer generate smollm2 -p "The capital of France is" -n 64 --temp 0
      echo "some text" | localinfer generate gemma3-270m -p "Continue:" > out.txt
    """
    text = joined(prompt, file)
    with open_model(model, given, screen.Status()) as opened:
        run = opened.generate(opened.tokenize(text, parse_special=special))
        pieces, problem = taken(run, show=not as_json)
        if as_json:
            screen.write(as_object(model, pieces, opened.stats) + "\n")
        if not quiet:
            screen.aside(statistics(opened.stats))
        if problem:
            raise problem


def taken(run: Iterator["Piece"], show: bool) -> tuple[list["Piece"], ContextOverflow | None]:
    """All pieces, shown while they come; a context that is full in the middle does not take them back."""
    pieces = []
    problem = None
    try:
        for piece in run:
            pieces.append(piece)
            if show:
                screen.write(piece.text)
    except ContextOverflow as overflow:
        problem = overflow
    finally:
        if show and sys.stdout.isatty():
            screen.write("\n")
    return pieces, problem


def as_object(model: str, pieces: list["Piece"], stats: "Stats") -> str:
    """The answer as one JSON object in one line. Times are in seconds."""
    return json.dumps({
        "model": model,
        "text": text_of(pieces, "text"),
        "reasoning": text_of(pieces, "thought").strip(),
        "tokens": [piece.id for piece in pieces],
        "finish_reason": stats.finish_reason,
        "seed": stats.seed,
        "timings": {
            "prompt_tokens": stats.prompt_tokens,
            "reused_tokens": stats.reused_tokens,
            "prompt_seconds": stats.prompt_seconds,
            "generated_tokens": stats.generated_tokens,
            "generate_seconds": stats.generate_seconds,
        },
    }, ensure_ascii=False)  # fmt: skip


def text_of(pieces: list["Piece"], kind: "Kind") -> str:
    return "".join(piece.text for piece in pieces if piece.kind == kind)


def statistics(stats: "Stats") -> str:
    """How much, how fast and why it ended, in one line."""
    computed = stats.prompt_tokens - stats.reused_tokens
    reused = f" ({stats.reused_tokens} reused)" if stats.reused_tokens else ""
    return (
        f"[ {stats.generated_tokens} tokens, {rate(stats.generated_tokens, stats.generate_seconds)} | "
        f"prompt {stats.prompt_tokens} tokens{reused}, {rate(computed, stats.prompt_seconds)} | "
        f"{stats.finish_reason}, seed {stats.seed} ]")


def rate(tokens: int, seconds: float) -> str:
    return f"{tokens / seconds:.1f} t/s" if seconds > 0 else "- t/s"
