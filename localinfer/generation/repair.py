"""Repair of answers that violate keywords of their JSON schema which a grammar cannot express.

Such an answer is held back until it is complete and checked. If it is invalid, another attempt continues it from where
the invalid value begins, with another seed.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from localinfer.errors import InvalidOutputError, LocalInferError
from localinfer.generation.pieces import Piece
from localinfer.generation.run import Run
from localinfer.options import Options

MAX_ATTEMPTS = 4
TEMPERATURE = 0.8  # of the second attempt, at least; it grows by half of this


def repaired_pieces(
    run: Run,
    first: Iterator[Piece],
    sample: Callable[[Options, Sequence[int]], Iterator[Piece]],
    checked: Callable[[Iterator[Piece]], Iterator[Piece]],
) -> Iterator[Piece]:
    """Yield the pieces of the first valid answer. `run.progress` is called after each piece; it may raise.

    `first` are the tokens of the first attempt, and `sample` yields those of another one, which begins with given
    tokens; `checked` adds their texts and raises what is wrong with them. If an attempt fails in another way, or
    all are invalid, yields the pieces and raises the error.
    """
    attempt, constraint = first, run.constraint
    assert constraint is not None
    for number in range(1, MAX_ATTEMPTS + 1):
        tokens: list[Piece] = []
        pieces: list[Piece] = []
        try:
            for piece in checked(recorded(attempt, tokens)):
                pieces.append(piece)
                if run.progress:
                    run.progress("constraint", 0, 0)
        except InvalidOutputError:
            if number == MAX_ATTEMPTS:
                yield from pieces
                raise
            kept = tokens[: max(len(tokens) - constraint.n_discarded, len(run.answer_prefix))]
            constraint.restart()
            options = options_of_attempt(run.options, number)
            attempt = continued_pieces(run, kept, sample(options, [piece.id for piece in kept]))
        except LocalInferError:
            yield from pieces
            raise
        else:
            yield from pieces
            return


def continued_pieces(run: Run, kept: list[Piece], sampled: Iterator[Piece]) -> Iterator[Piece]:
    """Yield the tokens of an answer that begins with those that are kept. `sampled` yields them, too, but without the
    log-probabilities with which they were chosen."""
    stats = run.stats
    stats.generated_tokens, stats.finish_reason = len(kept) - len(run.answer_prefix), "interrupted"
    stats.closed_at_limit = 0
    of_prompt = stats.reused_tokens, stats.prompt_seconds
    yield from kept
    for piece in islice(sampled, len(kept), None):
        stats.reused_tokens, stats.prompt_seconds = of_prompt
        yield piece


def recorded(tokens: Iterator[Piece], record: list[Piece]) -> Iterator[Piece]:
    for token in tokens:
        record.append(token)
        yield token


def options_of_attempt(options: Options, number: int) -> Options:
    """Return the options of a further attempt: with another seed, which is not negative, and with more unlikely tokens,
    because likely ones would repeat the same answer.
    """
    temp = max(options.temp, TEMPERATURE * (1 + number) / 2)
    return replace(options, seed=(options.seed + number) % 2**64, temp=temp, top_k=0, top_p=1.0, min_p=0.0)
