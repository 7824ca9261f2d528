"""The command `localinfer generate`: text completion for scripts and pipes. It is never interactive."""

import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.arguments.flags import OptionalModelArgument, OutputOptions, PromptOption, PromptSource, with_options
from cli.arguments.questions import split_model
from cli.files.media_input import MediaInput, media_info
from cli.files.output_files import writable_path
from cli.files.text_input import prompt_texts, unescape_options
from cli.models.loading import default_model, missing_model_first, open_model
from cli.terminal import screen
from cli.terminal.diffusion_screen import while_unmasked
from cli.terminal.token_coloring import create_painter
from localinfer.errors import ContextOverflowError, IncompleteOutputError, LocalInferError, UsageError
from localinfer.generation.result import GenerationResult
from localinfer.options import Layer

if TYPE_CHECKING:
    from localinfer import Model, Piece, Stats
    from localinfer.generation.result import TokenLogprob


class CacheNotSavedError(LocalInferError):
    """The prompt cache cannot be written. The text is complete."""


@dataclass(frozen=True, kw_only=True)
class GenerateOutput(OutputOptions):
    """How `generate` shows its output."""

    display_prompt: Annotated[
        bool, typer.Option("--display-prompt", help="Print the prompt before the generated text.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class PromptCacheOptions:
    """The file with the KV cache of the prompt."""

    prompt_cache: Annotated[
        str | None,
        typer.Option(
            "--prompt-cache", metavar="FILE", help="Save the KV cache of the prompt, and reuse it in later runs."
        ),
    ] = None
    prompt_cache_all: Annotated[
        bool, typer.Option("--prompt-cache-all", help="Save the generated text in the prompt cache, too.")
    ] = False
    prompt_cache_ro: Annotated[
        bool, typer.Option("--prompt-cache-ro", help="Do not modify the file of --prompt-cache.")
    ] = False

    @property
    def path(self) -> Path | None:
        """The file. Raises UsageError if it is not writable."""
        return writable_path("--prompt-cache", self.prompt_cache) if self.prompt_cache is not None else None


@with_options("model", "sampling", "generation", "diffusion", "structured", "speculative", "draft", "media", "adapters")
def generate_command(
    given: Layer,
    *,
    model: OptionalModelArgument = None,
    words: Annotated[list[str] | None, typer.Argument(metavar="[PROMPT]...", help="The prompt.")] = None,
    prompt: PromptOption = None,
    source: PromptSource,
    parse_special: Annotated[
        bool, typer.Option("--parse-special", help="Parse control tokens such as <|im_end|> in the prompt.")
    ] = False,
    output: GenerateOutput,
    cache: PromptCacheOptions,
    media: MediaInput,
) -> None:
    """Generate text from a prompt.

    The model continues the prompt; no chat template is applied. The prompt consists of PROMPT, -p, -f and stdin, in
    this order, joined by newlines. One trailing newline of a file or of stdin is removed. If there is another source of
    the prompt, stdin is read only if it is a file or a pipe with data; `-f -` always reads it. Only the generated text
    is written to stdout. Without MODEL, the default model runs. Images of --image, sounds of --audio
    and videos of --video take the places of the markers <__media__> in the prompt; without markers, they come before
    it.

    \b
    Examples:
      localinfer generate "The capital of France is" -n 8
      localinfer generate smollm2 "The capital of France is" -n 64 --temp 0
      echo "some text" | localinfer generate gemma3-270m -p "Continue:" > out.txt
      localinfer generate vision.gguf --image chart.png "<__media__> This chart shows"
    """
    model, words = split_model(model, words)
    with missing_model_first(model):
        text = source.read_prompt(prompt_texts(words, prompt))
    name = model or default_model()
    cache_path = cache.path
    files = media.read()
    with open_model(name, unescape_options(given, source.escape), screen.Status()) as opened:
        for file in files:
            info = media_info(file, opened)
            if not output.as_json and not output.quiet:
                screen.note_dim(screen.one_line(f"{file.path.name}: {info}"))
        tokens = opened.tokenize(text, parse_special=parse_special, media=[file.source for file in files])
        if cache_path and opened.is_diffusion:
            raise UsageError("--prompt-cache: a diffusion language model has no KV cache of its prompt")
        n_cached = opened.load_cache(cache_path) if cache_path and cache_path.exists() else 0
        painter = create_painter(output.color_by) if not output.as_json else None
        logprobs = max(1, opened.options.logprobs) if painter else opened.options.logprobs
        stream = opened.stream(tokens, logprobs=logprobs)
        run: Iterator[Piece] = stream
        if cache_path and not cache.prompt_cache_ro:
            run = save_cache_during(opened, run, cache_path, len(tokens) > n_cached, whole=cache.prompt_cache_all)
        if output.display_prompt and not output.as_json:
            screen.write(text)
        run = while_unmasked(opened, run, visual=opened.options.diffusion_visual)
        show = None if output.as_json else painter.write if painter else write
        pieces, problem = collect(with_control_tokens(opened, run) if output.special else run, show)
        result = GenerationResult.from_pieces(pieces, stream.stats)
        report(name, result, output, has_logprobs=opened.options.logprobs > 0)
        if problem:
            raise problem


def report(name: str, result: GenerationResult, output: GenerateOutput, *, has_logprobs: bool) -> None:
    """Write the JSON object of a result, or the log probabilities of its tokens, and its statistics."""
    if output.as_json:
        screen.write(as_object(name, result) + "\n")
    elif has_logprobs:
        for token in result.logprobs:
            screen.note_dim(logprobs_line(token))
    if not output.quiet:
        screen.note_dim(statistics_line(result.stats))
    warn_if_closed(result.stats)


def warn_if_closed(stats: "Stats") -> None:
    """Warn that an answer is complete only because it was closed at its limit."""
    if stats.closed_at_limit:
        limit = stats.closed_at_limit
        screen.warn(f"the answer was closed at the limit of {limit} tokens: it is complete, but shortened")


def write(_: "Piece", text: str) -> None:
    screen.write(text)


def collect(
    run: Iterator["Piece"], show: Callable[["Piece", str], None] | None = None
) -> tuple[list["Piece"], LocalInferError | None]:
    """Consume a run and pass each piece to `show`.

    Returns all pieces, and the error if the context was full, the output was incomplete, or its cache was not saved.
    """
    pieces = []
    problem: LocalInferError | None = None
    try:
        for piece in run:
            pieces.append(piece)
            if show:
                show(piece, piece.text)
    except (ContextOverflowError, IncompleteOutputError, CacheNotSavedError) as error:
        problem = error
    finally:
        if show and sys.stdout.isatty():
            screen.write("\n")
    return pieces, problem


def save_cache_during(
    model: "Model", run: Iterator["Piece"], cache: Path, new: bool, *, whole: bool
) -> Iterator["Piece"]:
    """Yield the pieces of `run` and save the KV cache to `cache`.

    The cache is saved after the first piece, if the prompt has `new` tokens, or at the end if `whole` is true; then it
    includes the generated text. Raises CacheNotSavedError at the end if that fails.
    """
    problem: LocalInferError | None = None
    for number, piece in enumerate(run):
        yield piece
        if number == 0 and new and not whole:
            try:
                model.save_cache(cache)
            except LocalInferError as error:
                problem = error
    try:
        if whole:
            model.save_cache(cache)
    except LocalInferError as error:
        problem = error
    if problem:
        raise CacheNotSavedError(f"--prompt-cache: {problem}")


def with_control_tokens(model: "Model", run: Iterator["Piece"]) -> Iterator["Piece"]:
    """Yield the pieces of `run` with the names of control tokens, which otherwise have no text, as their text."""
    for piece in run:
        is_control = not piece.text and not model.detokenize([piece.id])
        yield replace(piece, text=model.detokenize([piece.id], special=True)) if is_control else piece


def as_object(model: str, result: GenerationResult) -> str:
    """Return the result as one JSON object in one line. Times are in seconds."""
    stats, calls = result.stats, [call.as_entry() for call in result.tool_calls]
    return json.dumps({
        "model": model,
        "text": result.text,
        "reasoning": result.reasoning.strip(),
        **({"tool_calls": calls} if calls else {}),
        "tokens": result.tokens,
        **({"logprobs": [logprobs_entry(token) for token in result.logprobs]} if result.logprobs else {}),
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
            "speedup": stats.speedup,
            **({"diffusion_steps": stats.diffusion_steps} if stats.diffusion_steps else {}),
        },
    }, ensure_ascii=False)  # fmt: skip


def logprobs_entry(token: "TokenLogprob") -> dict[str, object]:
    """Return the log probabilities of a token with the field names of OpenAI's API."""
    top = [{"token": each.text, "id": each.id, "logprob": each.logprob} for each in token.top]
    return {"token": token.text, "id": token.id, "logprob": token.logprob, "top_logprobs": top}


def logprobs_line(token: "TokenLogprob") -> str:
    """Return a line with the token, its probability, and the most probable tokens with theirs."""
    pairs = [(token.text, token.logprob), *((each.text, each.logprob) for each in token.top)]
    chosen, *top = [f"{screen.one_line(repr(text))} {math.exp(logprob):.3f}" for text, logprob in pairs]
    return f"{chosen:<24} {'  '.join(top)}"


def statistics_line(stats: "Stats") -> str:
    """Return token counts, speed, finish reason and seed in one line."""
    computed = stats.prompt_tokens - stats.reused_tokens
    reused = f" ({stats.reused_tokens} reused)" if stats.reused_tokens else ""
    return (
        f"[ {stats.generated_tokens} tokens{denoising_steps(stats)}, "
        f"{format_rate(stats.generated_tokens, stats.generate_seconds)}{draft_statistics(stats)} | "
        f"prompt {stats.prompt_tokens} tokens{reused}, {format_rate(computed, stats.prompt_seconds)} | "
        f"{stats.finish_reason}, seed {stats.seed} ]"
    )


def denoising_steps(stats: "Stats") -> str:
    """Return the number of steps of a diffusion language model; "" for others."""
    return f" in {stats.diffusion_steps} steps" if stats.diffusion_steps else ""


def draft_statistics(stats: "Stats") -> str:
    """Return how many draft tokens were accepted, and the speedup; "" without speculative decoding."""
    if not stats.drafted_tokens:
        return ""
    speedup = f", {stats.speedup:.2f}x the speed" if stats.accepted_tokens else ""
    return f" (draft tokens accepted: {stats.accepted_tokens} of {stats.drafted_tokens}{speedup})"


def format_rate(tokens: int, seconds: float) -> str:
    return f"{tokens / seconds:.1f} t/s" if seconds > 0 else "- t/s"
