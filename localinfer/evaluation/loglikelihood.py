"""Log-likelihoods of texts, batched continuously: what tasks with given answers are scored by.

The texts of a group, such as a question with each of its answers, have their common prefix evaluated once. A long
prefix that a group shares with the one before it, such as the examples of a few-shot prompt, is not evaluated again.
Batches are filled with the tokens of as many groups as fit, and each text gets the same bits as alone.
"""

from collections import abc
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import ContextOverflowError
from localinfer.evaluation.perplexity import log_sum_exp, require_finite
from localinfer.runtime.batch import Ids, Logits, Segment, output_row_batches
from localinfer.runtime.sequence import Sequence, common_prefix_length
from localinfer.runtime.sequence_engine import SequenceEngine

MIN_SHARED_TOKENS = 32  # a shorter prefix of the previous group is evaluated again
MIN_SEQUENCES = 3  # the prefix of the previous group, a prefix, and a text that continues it


class ScoredText(NamedTuple):
    """Token ids of which those from `first` on are scored; `first` is at least 1."""

    ids: abc.Sequence[int]
    first: int


class TextScore(NamedTuple):
    """The natural logarithms of the probabilities of the scored tokens, float64 (len(ids) - first,), and whether each
    of these tokens is the most probable one."""

    logprobs: NDArray[np.float64]
    is_greedy: bool


def score_groups(
    engine: SequenceEngine, groups: Iterable[abc.Sequence[ScoredText]]
) -> Generator[tuple[int, list[TextScore]], None, None]:
    """Yield the number of each group and the scores of its texts, as soon as they are known.

    The engine must have been loaded for at least MIN_SEQUENCES parallel sequences; its own one is emptied, as all pages
    may be needed. Raises ContextOverflowError for a
    text that does not fit into the context, and LocalInferError if logits are not finite.
    """
    engine.runner.require_open()
    engine.compiled_graph.require_next_tokens()
    engine.compiled_graph.wait_for_kernels()
    engine.reset()
    batcher = _Batcher(engine, groups)
    try:
        while batcher.run_batch():
            yield from batcher.take_finished()
    finally:
        batcher.close()


class _Group:
    """A group that is being evaluated: its texts, and their scores so far."""

    def __init__(self, number: int, texts: abc.Sequence[ScoredText]) -> None:
        self.number, self.texts = number, texts
        inputs = [text.ids[:-1] for text in texts]  # the last token is only predicted
        self.n_prefix = min(common_prefix_length(inputs[0], each) for each in inputs)
        self.scores = [TextScore(np.zeros(len(text.ids) - text.first), True) for text in texts]
        self.n_unfinished = 0  # branches

    def record(self, text: int, at: int, logits: Logits, total: float, best: int) -> None:
        """Record the logits after token `at` of a text, ln(sum(exp(logits))), and the most probable token."""
        (ids, first), (logprobs, is_greedy) = self.texts[text], self.scores[text]
        logprobs[at + 1 - first] = float(logits[ids[at + 1]]) - total
        self.scores[text] = TextScore(logprobs, is_greedy and best == ids[at + 1])


@dataclass(eq=False)
class _Branch:
    """Tokens that are evaluated in one sequence: the prefix of a group, or what follows it in one of the texts."""

    group: _Group
    ids: Ids  # all tokens of the sequence
    texts: abc.Sequence[int]  # numbers of the texts that they belong to
    start: int = 0  # the tokens before it are those of the prefix
    prefix: "_Branch | None" = None  # whose sequence is forked when the branch begins
    sequence: Sequence | None = None  # None before that
    n_waiting: int = 0  # branches that have yet to fork the sequence

    @property
    def n_done(self) -> int:
        return len(self.sequence) if self.sequence is not None else 0

    @property
    def is_finished(self) -> bool:
        return self.n_done == len(self.ids)

    def texts_at(self, at: int) -> list[int]:
        """Return the texts that need the logits after token `at`."""
        texts = [(number, self.group.texts[number]) for number in self.texts]
        return [number for number, text in texts if max(self.start, text.first - 1) <= at < len(text.ids) - 1]

    def record(self, at: int, logits: Logits) -> None:
        """Record the logits after token `at`."""
        total, best = log_sum_exp(logits), int(logits.argmax())
        for text in self.texts_at(at):
            self.group.record(text, at, logits, total, best)


class _Batcher:
    """Fills batches with branches of groups, and collects the scores.

    At most `graph.sequences` sequences exist at a time, for which the pages of the KV cache are always enough. A prefix
    never takes the last one, so that the texts that continue it can be evaluated.
    """

    def __init__(self, engine: SequenceEngine, groups: Iterable[abc.Sequence[ScoredText]]) -> None:
        self._engine, self._runner, self._max_live = engine, engine.runner, engine.graph.sequences
        assert self._max_live >= MIN_SEQUENCES
        self._groups = (_Group(number, texts) for number, texts in enumerate(groups))
        self._next_group = next(self._groups, None)
        self._prefixes: list[_Branch] = []  # begun and unfinished
        self._rests: list[_Branch] = []  # of texts; not begun, or unfinished
        self._previous: _Branch | None = None  # the prefix that was begun last
        self._live = set[Sequence]()
        self._finished: list[_Group] = []

    def take_finished(self) -> Iterator[tuple[int, list[TextScore]]]:
        """Yield the number and the scores of each group that has been finished."""
        finished, self._finished = self._finished, []
        for group in finished:
            require_finite(self._engine, np.concatenate([score.logprobs for score in group.scores]))
            yield group.number, group.scores

    def run_batch(self) -> bool:
        """Evaluate a batch. Return False if there is nothing left to evaluate."""
        batch = list(self._select())
        rows = list[tuple[int, _Branch, int]]()  # row of the batch, branch, token of its sequence
        first = 0
        for branch, segment in batch:
            tokens = range(branch.n_done, branch.n_done + len(segment.ids))
            rows += [(first + at - tokens.start, branch, at) for at in tokens if branch.texts_at(at)]
            first += len(tokens)
        if batch:
            with self._runner.lock:  # the next evaluation overwrites the logits
                self._runner.evaluate_segments([segment for _, segment in batch])
                self._record(rows)
        for branch, _ in batch:
            if branch.is_finished:
                self._finish(branch)
        return bool(self._rests or self._prefixes or self._next_group or self._finished)

    def _record(self, rows: abc.Sequence[tuple[int, _Branch, int]]) -> None:
        """Record the logits of these rows of the last batch."""
        for places in output_row_batches(len(rows), self._engine.graph.outputs):
            chosen = [rows[place] for place in places]
            logits = self._runner.evaluate_output_layer(np.array([row for row, _, _ in chosen], np.int32))
            for (_, branch, at), each in zip(chosen, logits, strict=True):
                branch.record(at, each)

    def close(self) -> None:
        """Discard all sequences."""
        for sequence in list(self._live):
            self._release(sequence)

    # --- the next batch ---

    def _select(self) -> Iterator[tuple[_Branch, Segment]]:
        """Yield the branches of the next batch, and their tokens in it."""
        n_tokens, n_sequences = self._engine.max_batch, self._max_live
        for branch in self._candidates():
            assert branch.sequence is not None
            ids = branch.ids[branch.n_done : branch.n_done + n_tokens]
            yield branch, Segment(branch.sequence, ids)
            n_tokens, n_sequences = n_tokens - len(ids), n_sequences - 1
            if not n_tokens or not n_sequences:
                break

    def _candidates(self) -> Iterator[_Branch]:
        """Yield the branches that can be in the next batch, after beginning them: texts, then prefixes."""
        for rest in list(self._rests):
            if rest.sequence is not None or self._begin_rest(rest):
                yield rest
        yield from list(self._prefixes)
        while (group := self._next_group) and (prefix := self._begin_prefix(group)):
            self._next_group = next(self._groups, None)
            if prefix.is_finished:  # it is empty, or the same as the previous one
                self._finish(prefix)
            else:
                yield prefix

    def _begin_rest(self, rest: _Branch) -> bool:
        """Begin to evaluate what follows a prefix in a text. Return False if there is no sequence for it."""
        prefix = rest.prefix
        assert prefix is not None
        if len(self._live) == self._max_live:
            return False
        rest.sequence = self._fork(prefix)
        prefix.n_waiting -= 1
        self._release_unused(prefix)
        return True

    def _begin_prefix(self, group: _Group) -> _Branch | None:
        """Begin to evaluate the prefix of a group. Return None if there is no sequence for it, or if the previous
        prefix, of which it shares a part, must be evaluated first."""
        self._require_context_space(group)
        ids = group.texts[0].ids[: group.n_prefix]
        previous, first_row = self._previous, min(text.first for text in group.texts) - 1
        n_shared = min(common_prefix_length(previous.ids.tolist(), ids), first_row) if previous else 0
        if previous and n_shared >= MIN_SHARED_TOKENS and previous.n_done < n_shared:
            return None
        if len(self._live) + 1 >= self._max_live:  # one is for texts
            self._forget_previous()
        if len(self._live) + 1 >= self._max_live:
            return None
        if self._previous and n_shared >= MIN_SHARED_TOKENS:
            sequence = self._fork(self._previous)
            with self._runner.page_table_lock:
                sequence.rewind(n_shared)
        else:
            sequence = self._runner.new_sequence()
            self._live.add(sequence)
        self._forget_previous()
        prefix = _Branch(group, np.array(ids, np.int32), range(len(group.texts)), sequence=sequence)
        self._previous, group.n_unfinished = prefix, 1
        self._prefixes.append(prefix)
        return prefix

    def _require_context_space(self, group: _Group) -> None:
        longest = max(len(text.ids) for text in group.texts) - 1
        if longest > self._engine.n_ctx:
            raise ContextOverflowError(
                f"item {group.number + 1}: {longest} tokens do not fit into the context of {self._engine.n_ctx}; "
                "ctx_size (--ctx-size) sets a larger one"
            )

    # --- finished branches ---

    def _finish(self, branch: _Branch) -> None:
        """Remove a finished branch. After a prefix, its texts can begin."""
        group = branch.group
        group.n_unfinished -= 1
        if branch.prefix is None:
            self._prefixes.remove(branch)
            for number, text in enumerate(group.texts):
                if len(text.ids) - 1 > len(branch.ids):
                    ids = np.array(text.ids[:-1], np.int32)
                    self._rests.append(_Branch(group, ids, [number], len(branch.ids), branch))
                    branch.n_waiting += 1
                    group.n_unfinished += 1
            self._release_unused(branch)
        else:
            self._rests.remove(branch)
            assert branch.sequence is not None
            self._release(branch.sequence)
        if not group.n_unfinished:
            self._finished.append(group)

    def _forget_previous(self) -> None:
        """Keep the previous prefix only for its own texts."""
        previous, self._previous = self._previous, None
        if previous:
            self._release_unused(previous)

    def _release_unused(self, prefix: _Branch) -> None:
        """Discard the sequence of a prefix, unless it is evaluated, or will be forked."""
        sequence = prefix.sequence
        if prefix is not self._previous and prefix.is_finished and not prefix.n_waiting and sequence in self._live:
            self._release(sequence)

    def _fork(self, branch: _Branch) -> Sequence:
        assert branch.sequence is not None
        with self._runner.page_table_lock:
            sequence = branch.sequence.fork()
        self._live.add(sequence)
        return sequence

    def _release(self, sequence: Sequence) -> None:
        self._live.discard(sequence)
        with self._runner.page_table_lock:
            sequence.reset()
