"""Requests: their states, the selection of a batch, and the order in which waiting threads are woken."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from localinfer.runtime.activations.hooks import HookGroup, SequenceHooks
from localinfer.runtime.decode_loop import StepInput
from localinfer.runtime.idle_work import IdleWork
from localinfer.runtime.modifiers import Modifiers
from localinfer.runtime.scheduling.hook_turns import HookTurns
from localinfer.runtime.scheduling.request import Request, RequestState
from localinfer.runtime.scheduling.request_batch import select_batch
from localinfer.runtime.scheduling.wake_queue import WakeQueue
from localinfer.runtime.sequence import Sequence

N_VOCAB = 3


class Owner:
    """An engine that counts how often its thread is woken."""

    def __init__(self) -> None:
        self.sequence: Any = Sequence([])
        self.is_idle, self.decode_loop, self.awaited_step, self.may_run_directly = False, None, 0, False
        self.n_woken = 0

    def sleep(self) -> None:
        pass

    def wake(self) -> None:
        self.n_woken += 1


class Loop:
    """A decode loop that always has a next step."""

    def next_tokens(self) -> StepInput:
        return StepInput([5])

    def process_logits(self, logits: Any) -> bool:
        return True


def prompt(n_tokens: int, n_rows: int = 1, **fields: Any) -> Request:
    """Return a request for the logits of the last rows of a prompt."""
    rows = np.arange(n_tokens - n_rows, n_tokens, dtype=np.int32)
    return Request(Owner(), np.zeros(n_tokens, np.int32), rows, **fields)


def logits(count: int) -> Any:
    return np.ones((count, N_VOCAB), np.float32)


def test_prompt_is_finished_after_its_last_tokens() -> None:
    request = prompt(100, logits=np.zeros((1, N_VOCAB), np.float32))
    assert request.state is RequestState.CREATED
    request.advance(60, logits(0))
    request.end_batch()
    assert request.state is RequestState.WAITING
    assert request.output_rows(40).tolist() == [39]
    request.advance(40, logits(1))
    request.end_batch()
    assert request.state is RequestState.FINISHED
    assert request.logits is not None
    assert request.logits.all()


def test_failed_request_is_finished() -> None:
    request = prompt(100)
    request.error = ArithmeticError()
    request.end_batch()
    assert request.state is RequestState.FINISHED


def test_next_step_supersedes_a_finished_one() -> None:
    request = prompt(1, decode_loop=Loop())
    request.state = RequestState.RUNNING
    request.advance(1, logits(1))
    assert request.next_request is not None
    assert (request.next_request.step, request.next_request.state) == (1, RequestState.CREATED)
    request.end_batch()
    assert not request.is_superseded
    request.next_request.state = RequestState.WAITING
    assert request.is_superseded
    assert (request.is_awaited, request.next_request.is_awaited) == (True, False)


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ([prompt(500)], [(0, 256)]),  # as many tokens as fit
        ([prompt(500), prompt(1), prompt(3)], [(1, 1), (2, 3), (0, 64)]),  # short requests first
        ([prompt(1), prompt(100), prompt(100), prompt(100)], [(0, 1), (1, 64), (2, 64)]),  # at most three sequences
        ([prompt(6, 6), prompt(4, 4), prompt(2, 2)], [(0, 6), (2, 2)]),  # at most eight rows
    ],
)
def test_batch_selection(requests: list[Request], expected: list[tuple[int, int]]) -> None:
    graph: Any = SimpleNamespace(sequences=3, outputs=8)
    batch = select_batch(requests, graph, 256)
    assert [(requests.index(each.request), len(each.ids)) for each in batch] == expected


def test_decode_steps_are_not_split() -> None:
    requests = [prompt(6, decode_loop=Loop()), prompt(6, decode_loop=Loop()), prompt(6)]
    batch = select_batch(requests, SimpleNamespace(sequences=3, outputs=8), 10)  # type: ignore[arg-type]
    assert [(requests.index(each.request), len(each.ids)) for each in batch] == [(0, 6), (2, 4)]


def hooked(*names: str) -> Request:
    """Return a request of a sequence with hooks at these points."""
    request = prompt(2)
    group = HookGroup(dict.fromkeys(names, lambda values, info: values))
    request.engine.sequence = Sequence([], modifiers=Modifiers(hooks=SequenceHooks([group])))
    return request


def test_hooks_at_different_points_take_turns() -> None:
    requests, turns = [prompt(2), hooked("a"), prompt(2), hooked("b"), hooked("b", "a"), hooked("a")], HookTurns()
    expected = [[0, 2], [1, 5], [3], [4]]
    for numbers in expected * 2:
        assert turns.next_requests(requests) == [requests[number] for number in numbers]
    assert turns.next_requests(requests[3:]) == [requests[5]]
    assert turns.next_requests([]) == []


def test_a_long_prompt_with_hooks_lets_others_run() -> None:
    """Also those that are not always in the queue."""
    long, others, turns = hooked("a"), (prompt(1), hooked("b")), HookTurns()
    served = [turns.next_requests([long, others[number % 2]])[0] for number in range(20)]
    assert served.count(long) >= 6
    assert all(served.count(each) >= 5 for each in others)


def test_only_some_threads_are_woken_in_each_batch() -> None:
    queue = WakeQueue(SimpleNamespace(idle_work=IdleWork()))  # type: ignore[arg-type]
    ahead, waiting = [Owner() for _ in range(6)], Owner()
    for engine in ahead:
        queue.add(engine, has_next_step=True)
    queue.add(waiting, has_next_step=False)
    queue.schedule(at_once=False)
    assert not any(engine.n_woken for engine in ahead)
    queue.wake_scheduled()
    assert [engine.n_woken for engine in (*ahead, waiting)] == [1, 1, 1, 1, 0, 0, 1]
    assert [queue.mark_returned(engine) for engine in (*ahead[:4], waiting)] == [False] * 4 + [True]
    queue.schedule(at_once=True)
    assert [engine.n_woken for engine in ahead] == [1] * 6
