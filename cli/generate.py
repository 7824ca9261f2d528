"""`localinfer generate`: a prompt in, its continuation out. Never interactive: made for scripts and pipes."""

import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli import screen
from cli.files import promised
from cli.flags import (
    ColorByOption,
    EscapeOption,
    FileOption,
    ModelArgument,
    NoStdinOption,
    QuietOption,
    SpecialOption,
    with_options,
)
from cli.loading import open_model
from cli.surprise import painter
from cli.texts import joined, with_escapes
from localinfer.errors import ContextOverflow, Incomplete, LocalInferError
from localinfer.options import Layer

if TYPE_CHECKING:
    from localinfer import Model, Piece, Stats
    from localinfer.generation.pieces import Kind


@with_options("model", "sampling", "generation", "form", "speculation", "draft")
def generate_command(
    model: ModelArgument,
    given: Layer,
    prompt: Annotated[str | None, typer.Option("-p", "--prompt", metavar="TEXT", help="The text to continue.")] = None,
    file: FileOption = None,
    escape: EscapeOption = None,
    no_stdin: NoStdinOption = False,
    parse_special: Annotated[
        bool, typer.Option("--parse-special", help="Texts such as <|im_end|> in the prompt are control tokens.")
    ] = False,
    special: SpecialOption = False,
    display_prompt: Annotated[
        bool, typer.Option("--display-prompt", help="Write the prompt, too, before what comes.")
    ] = False,
    color_by: ColorByOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Write one JSON object: text, reasoning, tokens, finish_reason, timings, ...")
    ] = False,
    prompt_cache: Annotated[
        str | None,
        typer.Option(
            "--prompt-cache", metavar="FILE", help="Keep what the model has read there, and go on from it next time."
        ),
    ] = None,
    prompt_cache_all: Annotated[bool, typer.Option("--prompt-cache-all", help="Keep the answer there, too.")] = False,
    prompt_cache_ro: Annotated[
        bool, typer.Option("--prompt-cache-ro", help="Leave the file of --prompt-cache as it is.")
    ] = False,
    quiet: QuietOption = False,
) -> None:
    """Continue a text: no chat template, no questions asked.

    The prompt is what -p gives, then what -f gives, then what is piped into stdin, joined by newlines; one
    newline at the end of a file or of stdin does not count. Exactly the new text goes to stdout. With -p or -f, stdin
    is read if it was made for this command and holds something; `-f -` reads it in any case.

    \b
      localinfer generate smollm2 -p "The capital of France is" -n 64 --temp 0
      echo "some text" | localinfer generate gemma3-270m -p "Continue:" > out.txt
    """
    text = joined(prompt, file, escapes=escape, with_stdin=not no_stdin)
    cache = promised("--prompt-cache", prompt_cache) if prompt_cache is not None else None
    with open_model(model, with_escapes(given, escape), screen.Status()) as opened:
        tokens = opened.tokenize(text, parse_special=parse_special)
        held = opened.load_cache(cache) if cache and cache.exists() else 0
        colours = painter(color_by) if not as_json else None
        run = opened.generate(tokens, logprobs=max(1, opened.options.logprobs)) if colours else opened.generate(tokens)
        if cache and not prompt_cache_ro:
            run = kept(opened, run, cache, len(tokens) > held, whole=prompt_cache_all)
        if display_prompt and not as_json:
            screen.write(text)
        show = None if as_json else colours.write if colours else write
        pieces, problem = taken(with_control(opened, run) if special else run, show)
        if as_json:
            screen.write(as_object(model, pieces, opened.stats) + "\n")
        elif opened.options.logprobs:
            for piece in pieces:
                if piece.logprob is not None:
                    screen.aside(logprobs_line(piece))
        if not quiet:
            screen.aside(statistics(opened.stats))
        if problem:
            raise problem


def write(_: "Piece", text: str) -> None:
    screen.write(text)


def taken(
    run: Iterator["Piece"], show: Callable[["Piece", str], None] | None = None
) -> tuple[list["Piece"], LocalInferError | None]:
    """All pieces, shown while they come; a text that ends where it should not is not taken back."""
    pieces = []
    problem: LocalInferError | None = None
    try:
        for piece in run:
            pieces.append(piece)
            if show:
                show(piece, piece.text)
    except (ContextOverflow, Incomplete) as error:
        problem = error
    finally:
        if show and sys.stdout.isatty():
            screen.write("\n")
    return pieces, problem


def kept(model: "Model", run: Iterator["Piece"], cache: Path, new: bool, *, whole: bool) -> Iterator["Piece"]:
    """The same pieces. What the model has read goes into the file once the first of them is out, unless nothing of the
    prompt is `new`; at the end instead if the `whole` text shall be there.
    """
    for number, piece in enumerate(run):
        yield piece
        if number == 0 and new and not whole:
            model.save_cache(cache)
    if whole:
        model.save_cache(cache)


def with_control(model: "Model", run: Iterator["Piece"]) -> Iterator["Piece"]:
    """The same pieces, with the names of control tokens, which stand for no text, as their texts."""
    for piece in run:
        is_control = not piece.text and not model.detokenize([piece.id])
        yield replace(piece, text=model.detokenize([piece.id], special=True)) if is_control else piece


def as_object(model: str, pieces: list["Piece"], stats: "Stats") -> str:
    """The answer as one JSON object in one line. Times are in seconds."""
    told = [piece for piece in pieces if piece.logprob is not None]
    calls = [call.as_entry() for piece in pieces for call in piece.calls]
    return json.dumps({
        "model": model,
        "text": text_of(pieces, "text"),
        "reasoning": text_of(pieces, "thought").strip(),
        **({"tool_calls": calls} if calls else {}),
        "tokens": [piece.id for piece in pieces],
        **({"logprobs": [probabilities(piece) for piece in told]} if told else {}),
        "finish_reason": stats.finish_reason,
        "seed": stats.seed,
        "timings": {
            "prompt_tokens": stats.prompt_tokens,
            "reused_tokens": stats.reused_tokens,
            "prompt_seconds": stats.prompt_seconds,
            "generated_tokens": stats.generated_tokens,
            "generate_seconds": stats.generate_seconds,
            "drafted_tokens": stats.drafted_tokens,
            "accepted_tokens": stats.accepted_tokens,
            "gain": stats.gain,
        },
    }, ensure_ascii=False)  # fmt: skip


def text_of(pieces: list["Piece"], kind: "Kind") -> str:
    return "".join(piece.text for piece in pieces if piece.kind == kind)


def probabilities(piece: "Piece") -> dict[str, object]:
    """Of --logprobs, with OpenAI's names."""
    top = [{"token": each.text, "id": each.id, "logprob": each.logprob} for each in piece.top]
    return {"token": piece.text, "id": piece.id, "logprob": piece.logprob, "top_logprobs": top}


def logprobs_line(piece: "Piece") -> str:
    """The piece with its probability, and the most probable tokens with theirs."""
    pairs = [(piece.text, piece.logprob or 0.0), *((each.text, each.logprob) for each in piece.top)]
    chosen, *top = [f"{screen.one_line(repr(text))} {math.exp(logprob):.3f}" for text, logprob in pairs]
    return f"{chosen:<24} {'  '.join(top)}"


def statistics(stats: "Stats") -> str:
    """How much, how fast and why it ended, in one line."""
    computed = stats.prompt_tokens - stats.reused_tokens
    reused = f" ({stats.reused_tokens} reused)" if stats.reused_tokens else ""
    return (
        f"[ {stats.generated_tokens} tokens, {rate(stats.generated_tokens, stats.generate_seconds)}{guessed(stats)} | "
        f"prompt {stats.prompt_tokens} tokens{reused}, {rate(computed, stats.prompt_seconds)} | "
        f"{stats.finish_reason}, seed {stats.seed} ]"
    )


def guessed(stats: "Stats") -> str:
    """How many tokens were guessed, how many of them came true, and how much faster that was."""
    if not stats.drafted_tokens:
        return ""
    faster = f": {stats.gain:.2f}x" if stats.accepted_tokens else ""
    return f" ({stats.accepted_tokens} of {stats.drafted_tokens} guesses true{faster})"


def rate(tokens: int, seconds: float) -> str:
    return f"{tokens / seconds:.1f} t/s" if seconds > 0 else "- t/s"
