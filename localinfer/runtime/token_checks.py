"""Checks of token ids before they are evaluated."""

from collections import abc

import numpy as np

from localinfer.errors import UsageError
from localinfer.runtime.batch import Ids, Tokens
from localinfer.runtime.encoder_tokens import check_encoder_tokens
from localinfer.runtime.media.media_table import MAX_ROWS
from localinfer.runtime.model_runner import ModelRunner
from localinfer.runtime.sequence import Sequence


def checked_tokens(tokens: Tokens, runner: ModelRunner, sequence: Sequence) -> Ids:
    """Return the ids that a sequence is to be continued with as an int32 array.

    Raises UsageError unless it has at least one id and all are within the vocabulary, or are those of media rows in
    their order, and ContextOverflowError if they do not fit into the context.
    """
    runner.require_open()
    table, graph = runner.media_table, runner.compiled_graph
    has_encoder, n_vocab = graph.context.encoder_decoder, graph.n_vocab
    ids = token_ids(tokens, n_vocab, lowest=-n_vocab if has_encoder else -MAX_ROWS if table else 0)
    if has_encoder:
        check_encoder_tokens(ids, len(sequence), graph.model_graph)
    if table and (sequence.media or ids.min() < 0):
        sequence.media.check_appended(ids.tolist(), len(sequence), graph.graph.batch)
    runner.require_context_space(sequence, len(ids))
    return ids


def token_ids(tokens: Tokens, n_vocab: int, *, lowest: int = 0) -> Ids:
    """Return token ids as an int32 array.

    Raises UsageError unless there is at least one id and all are within the vocabulary. Ids down to `lowest` may also
    be negative; the caller checks those.
    """
    ids = np.asarray(list(tokens) if isinstance(tokens, abc.Iterator) else tokens)  # numpy rejects iterators
    if ids.ndim != 1 or not len(ids) or ids.dtype.kind not in "iu":
        raise UsageError("tokens: expected a non-empty flat list of token ids")
    numbers = ids.tolist()  # faster than numpy for few ids
    if min(numbers) < lowest or max(numbers) >= n_vocab:
        raise UsageError(f"tokens: a token id is out of range, 0 to {n_vocab - 1}")
    return ids.astype(np.int32)
