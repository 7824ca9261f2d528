"""The ring buffer of layers with the same attention."""

from localinfer.graph.cache.ring_buffer import MIN_PACKED_ENTRIES, RingBuffer, VisiblePositions
from localinfer.graph.ops.compute_graph import ComputeGraph
from localinfer.graph.properties.attention import AttentionSpec
from localinfer.graph.recording.context import Context
from localinfer.kernels.layout import PAGE_SIZE, UNLIMITED_WINDOW


def create_ring(
    graph: ComputeGraph, context: Context, spec: AttentionSpec, n_masked: int, *, anchored: bool
) -> RingBuffer:
    """Return a ring buffer for the window of `spec`, or for the whole context. No token attends to the first `n_masked`
    positions. Pages of keys may be `anchored`."""
    window, n_ctx = spec.window, context.n_ctx
    extra = graph.batch + (PAGE_SIZE if anchored else 0)  # entries besides those that a token attends to
    visible = VisiblePositions(
        window or UNLIMITED_WINDOW, chunk=window if spec.chunked else 0, n_masked=n_masked,
        causal_media=spec.causal_media, compression=spec.compression,
    )  # fmt: skip
    if spec.compression:
        span, count = min(window + extra, n_ctx) if window else n_ctx, max(1, n_ctx // spec.compression)
        span = 0 if spec.only_runs else span
        return RingBuffer.create(graph, visible, span=span, n_ctx=n_ctx, n_compressed=count)
    if window and window + (0 if context.context_shift else graph.batch) < n_ctx:
        return RingBuffer.create(graph, visible, span=window + extra, n_ctx=n_ctx, anchored=anchored)
    if context.context_shift:
        span = n_ctx - context.sinks
        visible = visible._replace(window=span, sinks=context.sinks)
        return RingBuffer.create(graph, visible, span=span + extra, n_ctx=n_ctx, anchored=anchored)
    visible = visible._replace(causal=context.causal)
    span = max(n_ctx, 0 if context.causal else MIN_PACKED_ENTRIES)
    return RingBuffer.create(graph, visible, span=span, anchored=anchored, keeps_all=context.causal)
