"""A run that samples its tokens one after another, with or without speculative decoding."""

from collections.abc import Iterator, Sequence

from localinfer.generation.piece_chooser import PieceChooser, RunLimits
from localinfer.generation.pieces import Piece
from localinfer.generation.prefill import Prefill
from localinfer.generation.reasoning import ReasoningTracker
from localinfer.generation.run import Run, add_generate_seconds
from localinfer.generation.sampling_loop import SamplingLoop
from localinfer.generation.speculative.speculation import Speculation
from localinfer.generation.token_selection import TokenSelector


def sampled_pieces(
    run: Run, selector: TokenSelector, prefix: Sequence[int], prefill: Prefill, speculation: Speculation
) -> Iterator[Piece]:
    """Yield the pieces of a text that begins with the tokens `prefix`, without their texts. At the end, set
    `run.stats.finish_reason`."""
    engine, options, stats, eog = run.engine, run.options, run.stats, run.tokenizer.eog
    n_before = stats.generated_tokens  # by an earlier attempt
    limits = RunLimits.of(engine, options, stats.prompt_tokens)
    reasoning = ReasoningTracker(run.tokenizer, run.prompt, options.reasoning_budget)
    chooser = PieceChooser(selector, reasoning, eog, limits, n_before, closes_at_limit=options.close_at_limit)
    prefix_pieces = chooser.accept(prefix)
    loop = SamplingLoop(
        engine, chooser.choose, chooser.is_last, lambda count: limits.remaining(n_before + count),
        is_synchronous=not selector.runs_in_scheduler_thread,
    )  # fmt: skip
    with engine.lock:
        logits = prefill.evaluate(run, [*run.prompt, *prefix])
        with add_generate_seconds(stats):
            loop.speculation = speculative_run = speculation.new_run(options, stats)
            pieces = [loop.first(logits)]
    yield from prefix_pieces  # after prefill, as its progress is shown before the text
    while True:
        piece = pieces.pop(0)
        if speculative_run is not None:
            speculative_run.count_piece(is_draft=bool(pieces))
        if piece.id in eog:
            break
        stats.generated_tokens += 1
        yield piece
        with engine.lock:
            run.require_current()
            if pieces:
                continue
            if selector.is_complete:
                break
            if stats.generated_tokens == options.n_predict:
                stats.finish_reason = "length"
                return
            if not limits.remaining(stats.generated_tokens):
                stats.finish_reason = "context"
                return
            with add_generate_seconds(stats):
                pieces = loop.next_pieces()
    stats.finish_reason = "length" if selector.is_closing else "stop"
    stats.closed_at_limit = limits.maximum or 0 if selector.is_closing else 0
