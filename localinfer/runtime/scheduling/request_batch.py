"""Batches of requests: which requests come next, and the evaluation of their tokens."""

from collections import abc
from itertools import accumulate
from typing import NamedTuple

from localinfer.errors import ContextOverflowError, LocalInferError, NotEnoughMemoryError
from localinfer.graph.ops.compute_graph import ComputeGraph
from localinfer.runtime.batch import Ids, Segment, concatenate
from localinfer.runtime.media.media_table import MissingRowsError
from localinfer.runtime.model_runner import ModelRunner
from localinfer.runtime.scheduling.request import Request

PREFILL_SLICE_TOKENS = 64  # prompt tokens in a batch with decode steps; they take some tenths of a second


class RequestSlice(NamedTuple):
    """The tokens of a request that are in a batch, and the row numbers of those whose logits are needed."""

    request: Request
    ids: Ids
    rows: Ids


def select_batch(queue: abc.Iterable[Request], graph: ComputeGraph, max_tokens: int) -> list[RequestSlice]:
    """Return the next batch: short requests first, then in order of arrival.

    It has at most `max_tokens` tokens, unless a decode step or an image, which cannot be split, has more. The first
    image goes before all others, as the rest of a batch may never be large enough for it.
    """
    requests, batch = list(queue), list[RequestSlice]()
    min_tokens = {request: request.min_tokens for request in requests}
    max_tokens = max(max_tokens, *min_tokens.values(), 0)
    image = next((each for each in requests if min_tokens[each] > 1 and not each.decode_loop), None)
    short = [request for request in requests if request.is_short and request is not image]
    long = [request for request in requests if not request.is_short and request is not image]
    free_tokens, free_rows = max_tokens, graph.outputs
    for request in [*([image] if image else []), *short, *long]:
        if len(batch) == graph.sequences:
            break
        limit = min(free_tokens, PREFILL_SLICE_TOKENS) if short and not request.is_short else free_tokens
        if request is image:
            limit = max(limit, min_tokens[image])
        ids = request.next_ids(limit)
        rows = request.output_rows(len(ids))
        if len(ids) and len(rows) <= free_rows:
            batch.append(RequestSlice(request, ids, rows))
            free_tokens, free_rows = free_tokens - len(ids), free_rows - len(rows)
    return batch


def run_batch(runner: ModelRunner, batch: abc.Sequence[RequestSlice]) -> None:
    """Evaluate a batch. If memory or context runs out, or media rows are missing, evaluate each request alone so that
    only the affected ones fail."""
    try:
        evaluate_slices(runner, batch)
    except (ContextOverflowError, NotEnoughMemoryError, MissingRowsError):
        if len(batch) == 1:
            raise
        for each in batch:
            try:
                evaluate_slices(runner, [each])
            except LocalInferError as error:
                each.request.error = error


def evaluate_slices(runner: ModelRunner, batch: abc.Sequence[RequestSlice]) -> None:
    """Evaluate a batch and hand each request its logits."""
    first_tokens = accumulate((len(each.ids) for each in batch), initial=0)
    rows = concatenate([each.rows + first for each, first in zip(batch, first_tokens, strict=False)])
    with runner.lock:  # the next evaluation overwrites the logits
        logits = runner.evaluate_segments([Segment(each.request.sequence, each.ids) for each in batch], rows)
        first_rows = accumulate((len(each.rows) for each in batch), initial=0)
        for each, first in zip(batch, first_rows, strict=False):
            try:
                if (hooks := each.request.sequence.modifiers.hooks) and (hook_error := hooks.take_error()):
                    raise hook_error
                each.request.advance(len(each.ids), logits[first : first + len(each.rows)])
            except BaseException as error:  # raised by its decode loop: other requests continue
                each.request.error = error
