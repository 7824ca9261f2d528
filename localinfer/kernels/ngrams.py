"""Rows of a table for the n-grams that end at each token: hashes of the last tokens
(`localinfer.graph.properties.ngrams`)."""

from collections.abc import Callable
from typing import Any

from numba import int32, int64

from localinfer.kernels.segments import SEGMENT_BYTES, segments_end
from quant.jit.vectors import inline, load, store

Body = Callable[..., None]


@inline
def token_before(ids: int, tail: int, before: int, token: int) -> int:
    """Return the id of a token of a segment, or of one of the `before` tokens before it: -1 if there is none. The tail
    has ids plus 1."""
    return int64(load(int32, ids + 4 * token)) if token >= 0 else int64(load(int32, tail + 4 * (token + before))) - 1


def hash_ngrams() -> Body:
    """Make the kernel that stores the rows of each token, int32 [token][order][head], for the orders from 2 to
    `longest`, which have `heads` rows each:

        row = offset[head] + (id[0] * multiplier[0] ^ ... ^ id[n - 1] * multiplier[n - 1]) % size[head]

    Here id[i] is the id of the i-th token before. From the token `end` on, which ends a text, or from the begin of the
    sequence on, earlier ones count as `end`. The tail has the ids of the last `longest` - 1 tokens, plus 1, int32
    [slot][token]. A segment's two words are the slot to write and the slot to read.
    """

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        before, heads, first = args.longest - 1, args.heads, 0
        for segment in range(args.segments + 8, segments_end(args.segments), SEGMENT_BYTES):
            count, ids = load(int64, segment), args.ids + 4 * first
            new_tail = args.tail + 4 * before * load(int64, segment + 8)
            old_tail = args.tail + 4 * before * load(int64, segment + 16)
            for token in range(count):
                out, is_cut = args.y + 4 * before * heads * (first + token), False
                mixed = token_before(ids, old_tail, before, token) * load(int64, args.multipliers)
                for back in range(1, args.longest):
                    id = int64(args.end)
                    if not is_cut:
                        found = token_before(ids, old_tail, before, token - back)
                        is_cut = found < 0 or found == args.end
                        id = args.end if is_cut else found
                    mixed = mixed ^ (id * load(int64, args.multipliers + 8 * back))
                    for head in range(heads * (back - 1), heads * back):
                        within = mixed % load(int64, args.sizes + 8 * head)
                        store(out + 4 * head, int32(load(int64, args.offsets + 8 * head) + within))
            for i in range(before):
                id = token_before(ids, old_tail, before, count - before + i)
                store(new_tail + 4 * i, int32(id + 1))
            first += count

    return body
