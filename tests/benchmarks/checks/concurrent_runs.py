"""Runs a function for many inputs, with as many handles of one model as it has slots."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import TypeVar

from localinfer import Model

Input, Output = TypeVar("Input"), TypeVar("Output")


def run_all(model: Model, run: Callable[[Model, Input], Output], inputs: Iterable[Input]) -> Iterator[Output]:
    """Yield the results of `run` in the order of the inputs."""
    handles: SimpleQueue[Model] = SimpleQueue()
    for slot in range(model.parallel):
        handles.put(model.concurrent(slot))

    def run_with_handle(one: Input) -> Output:
        handle = handles.get()
        try:
            return run(handle, one)
        finally:
            handles.put(handle)

    with ThreadPoolExecutor(model.parallel) as threads:
        yield from threads.map(run_with_handle, inputs)
