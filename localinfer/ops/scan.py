"""The selective scan (Gu and Dao, 2023: Mamba): each column has a few numbers, S, and forgets each at its own rate.

    S[n] = exp(a[n] * dt) * S[n] + b[n] * dt * x,   y = sum of c[n] * S[n] + skip * x,   dt = softplus(step)

b and c are the same for all columns of a token. Columns do not know of each other: threads share strips of them, and
each takes its strip through all tokens of a batch. So a prompt's sums are those of an answer, token by token.
"""

from collections.abc import Callable

from numba import int64

from localinfer.ops.gate import exp
from localinfer.ops.layout import LANES_OF_SCAN
from localinfer.ops.recur import every, softplus
from localinfer.ops.segments import SEGMENT_BYTES, segments_end
from quant.jit.vectors import f32x16, fma, gather, load, store

Body = Callable[..., None]
STEP = 4 * LANES_OF_SCAN  # bytes of a strip


def scan(size: int) -> Body:
    """The kernel; x, step and y are [token][n], b and c [token][size], a is [n][size], and the state
    [slot][strip][size][column]. A segment's words are the slot in which it ends, and the one from which it begins."""

    def body(tokens, x, step, b, c, a, skip, n, segments, state, y, part, parts, scratch):
        strips = n // LANES_OF_SCAN
        for strip in range(strips * part // parts, strips * (part + 1) // parts):
            own, before, d = state + STEP * size * strip, 0, load(f32x16, skip + STEP * strip)
            for i in range(size):
                store(scratch + STEP * i, gather(f32x16, a + STEP * size * strip + 4 * i, 4 * size))
            for segment in range(segments + 8, segments_end(segments), SEGMENT_BYTES):
                count, s = load(int64, segment), own + 4 * size * n * load(int64, segment + 8)
                past = own + 4 * size * n * load(int64, segment + 16)
                for token in range(before, before + count):
                    at, of_token = 4 * n * token + STEP * strip, 4 * size * token
                    v, dt = load(f32x16, x + at), softplus(load(f32x16, step + at))
                    learnt, sums = dt * v, d * v
                    for i in range(size):
                        kept = exp(load(f32x16, scratch + STEP * i) * dt) * load(f32x16, past + STEP * i)
                        kept = fma(every(b + of_token + 4 * i), learnt, kept)
                        store(s + STEP * i, kept)
                        sums = fma(every(c + of_token + 4 * i), kept, sums)
                    store(y + at, sums)
                    past = s
                before += count

    return body
