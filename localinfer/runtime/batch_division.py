"""The division of token ids into batches. Rows of an image that attend to each other are in one batch, and so are the
tokens of an encoder, without those of the decoder."""

from collections.abc import Sequence

from localinfer.runtime.batch import Ids
from localinfer.runtime.encoder_tokens import encoder_length
from localinfer.runtime.media.media_table import MediaTable


def split_batches(ids: Ids, size: int, media_table: MediaTable | None = None) -> list[Ids]:
    """Split tokens into batches of at most `size`, or of a bidirectional media span that has more rows."""
    batches, first = list[Ids](), 0
    while first < len(ids):
        end = batch_end(ids, first, size, media_table)
        batches.append(ids[first:end])
        first = end
    return batches


def batch_end(ids: Sequence[int] | Ids, first: int, size: int, media_table: MediaTable | None) -> int:
    """Return where the batch ends that begins with token `first`: after `size` tokens, or at the start of a
    bidirectional span that this would divide. If the batch begins with that span, it ends with it."""
    if media_table is None and ids[first] < 0:
        return encoder_length(ids)
    end = min(first + size, len(ids))
    start, end_of_span = bidirectional_span(ids, end, media_table)
    if start == end:
        return end
    return start if start > first else end_of_span


def bidirectional_span(ids: Sequence[int] | Ids, at: int, media_table: MediaTable | None) -> tuple[int, int]:
    """Return the first index and the end of the bidirectional span with the token `at`; (at, at) if there is none."""
    if at == len(ids) or ids[at] >= 0:
        return at, at
    if media_table is None:
        return 0, encoder_length(ids)
    id = int(ids[at])
    span = media_table.span_of(id)
    if span is None or not span.bidirectional:
        return at, at
    start = at - (-1 - id - span.first)
    return start, start + span.count
