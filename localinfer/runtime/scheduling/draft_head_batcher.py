"""Batched evaluation of a model's draft head, for threads that draft tokens of different sequences."""

import contextlib
from collections import deque
from dataclasses import dataclass

from localinfer.runtime.batch import Logits
from localinfer.runtime.compiled_graph import Floats
from localinfer.runtime.draft_head_runner import DraftHeadInput, DraftHeadRunner
from localinfer.runtime.model_runner import ModelRunner


@dataclass(eq=False)
class DraftHeadRequest:
    """A pending evaluation of the draft head. `result` is its logits and hidden state, or the error."""

    input: DraftHeadInput
    result: tuple[Logits, Floats] | Exception | None = None


class DraftHeadBatcher(DraftHeadRunner):
    """Evaluates the draft head for calls from several threads. Concurrent calls share a batch."""

    def __init__(self, runner: ModelRunner) -> None:
        super().__init__(runner)
        self._pending: deque[DraftHeadRequest] = deque()

    def __len__(self) -> int:
        """Return the number of pending calls."""
        return len(self._pending)

    def evaluate_one(self, input: DraftHeadInput) -> tuple[Logits, Floats]:
        request = DraftHeadRequest(input)
        self._pending.append(request)
        try:
            with self._runner.lock:  # between two batches
                while request.result is None:
                    self._run_batch(request)
        except BaseException:  # the sequence may change: no other thread may evaluate it
            with contextlib.suppress(ValueError):
                self._pending.remove(request)
            raise
        if isinstance(request.result, Exception):
            raise request.result
        return request.result

    def _run_batch(self, caller_request: DraftHeadRequest) -> None:
        """Evaluate a batch of pending requests. After an interrupt, the requests of other
        threads are queued again."""
        batch = [self._pending.popleft() for _ in range(min(len(self._pending), self._runner.graph.sequences))]
        try:
            logits, states = self.evaluate([each.input for each in batch])
            for number, each in enumerate(batch):
                each.result = logits[number].copy(), states[number]
        except Exception as error:
            for each in batch:
                each.result = error
        finally:
            self._pending.extend(each for each in batch if each.result is None and each is not caller_request)
