"""The selective scan (Gu and Dao, 2023: Mamba): each column has a few state numbers S with their own decay rates.

    S[n] = exp(a[n] * dt) * S[n] + b[n] * dt * x,   y = sum of c[n] * S[n] + skip * x,   dt = softplus(step)

b and c are the same for all columns of a token. Columns are independent: threads divide them into strips and process
all tokens of a batch strip by strip. Prefill therefore computes the same bits as decoding token by token.
"""

from collections.abc import Callable
from typing import Any

from numba import int64

from localinfer.kernels.exponentials import exp, softplus
from localinfer.kernels.layout import SCAN_STRIP
from localinfer.kernels.recurrent.state_matrix import broadcast_load
from localinfer.kernels.segments import SEGMENT_BYTES, segments_end
from quant.jit.vectors import f32x16, fma, gather, load, store

Body = Callable[..., None]
STRIP_BYTES = 4 * SCAN_STRIP  # bytes of a row of a strip


def selective_scan(size: int) -> Body:
    """Make the selective scan kernel. x, step and y are [token][n], b and c [token][size], a is [n][size], the state is
    [slot][strip][size][column]. A segment's two words are the slot to write and the slot to read."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        n = args.n
        strips = n // SCAN_STRIP
        for strip in range(strips * chunk_index // n_chunks, strips * (chunk_index + 1) // n_chunks):
            strip_state, before, d = (
                args.state + STRIP_BYTES * size * strip,
                0,
                load(f32x16, args.skip + STRIP_BYTES * strip),
            )
            for i in range(size):
                store(scratch + STRIP_BYTES * i, gather(f32x16, args.a + STRIP_BYTES * size * strip + 4 * i, 4 * size))
            for segment in range(args.segments + 8, segments_end(args.segments), SEGMENT_BYTES):
                count, s = load(int64, segment), strip_state + 4 * size * n * load(int64, segment + 8)
                past = strip_state + 4 * size * n * load(int64, segment + 16)
                for token in range(before, before + count):
                    at, of_token = 4 * n * token + STRIP_BYTES * strip, 4 * size * token
                    v, dt = load(f32x16, args.x + at), softplus(load(f32x16, args.step + at))
                    dt_x, sums = dt * v, d * v
                    for i in range(size):
                        updated = exp(load(f32x16, scratch + STRIP_BYTES * i) * dt) * load(
                            f32x16, past + STRIP_BYTES * i
                        )
                        updated = fma(broadcast_load(args.b + of_token + 4 * i), dt_x, updated)
                        store(s + STRIP_BYTES * i, updated)
                        sums = fma(broadcast_load(args.c + of_token + 4 * i), updated, sums)
                    store(args.y + at, sums)
                    past = s
                before += count

    return body
