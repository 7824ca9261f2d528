"""Repair of answers that violate keywords of their JSON schema which a grammar cannot express.

Such an answer is held back until it is complete and checked. If it is invalid, another attempt continues it from where
the invalid value begins, with another seed.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from localinfer.errors import InvalidOutputError, LocalInferError
from localinfer.generation.pieces import Piece
from localinfer.options import Options

if TYPE_CHECKING:
    from localinfer.generation.structured.constraint import Constraint

MAX_ATTEMPTS = 4
TEMPERATURE = 0.8  # of the second attempt, at least; it grows by half of this


def repaired(
    attempt: Callable[[int, list[Piece]], Iterator[Piece]],
    checked: Callable[[Iterator[Piece]], Iterator[Piece]],
    constraint: "Constraint",
    n_prefix: int,
    on_piece: Callable[[], None],
) -> Iterator[Piece]:
    """Yield the pieces of the first valid answer.

    `attempt` yields the tokens of an attempt, from its number and the first tokens of the answer, at least `n_prefix`;
    `checked` adds their texts and raises what is wrong with them. `on_piece` is called after each piece; it may raise.
    If an attempt fails in another way, or all are invalid, yields the pieces and raises the error.
    """
    kept: list[Piece] = []
    for number in range(MAX_ATTEMPTS):
        tokens: list[Piece] = []
        pieces: list[Piece] = []
        try:
            for piece in checked(recorded(attempt(number, kept), tokens)):
                pieces.append(piece)
                on_piece()
        except InvalidOutputError:
            if number == MAX_ATTEMPTS - 1:
                yield from pieces
                raise
            kept = tokens[: max(len(tokens) - constraint.n_discarded, n_prefix)]
            constraint.restart()
        except LocalInferError:
            yield from pieces
            raise
        else:
            yield from pieces
            return


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
