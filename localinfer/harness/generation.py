"""Generation of outputs for many prompts, batched continuously."""

import threading
from collections.abc import Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from itertools import islice
from queue import SimpleQueue
from typing import NamedTuple

from localinfer.model import Model
from localinfer.options.keywords import RunKeywords


class Prompt(NamedTuple):
    """The tokens of a prompt, and the options of its run."""

    ids: Sequence[int]
    options: RunKeywords


def generate_outputs(model: Model, prompts: Sequence[Prompt]) -> Generator[tuple[int, str], None, None]:
    """Yield the number of each prompt and its output, as soon as it is complete.

    As many prompts run at a time as the model has slots. Closing the iterator stops them. Raises what `Model.stream`
    raises, also after its last piece.
    """
    stopped, slots = threading.Event(), SimpleQueue[int]()
    for slot in range(model.parallel):
        slots.put(slot)

    def run(number: int) -> tuple[int, str]:
        slot, texts = slots.get(), list[str]()
        try:
            with model.concurrent(slot).stream(prompts[number].ids, **prompts[number].options) as pieces:
                for piece in pieces:
                    texts.append(piece.text)
                    if stopped.is_set():
                        break
            return number, "".join(texts)
        finally:
            slots.put(slot)

    waiting = iter(range(len(prompts)))
    with ThreadPoolExecutor(model.parallel) as threads:
        try:
            running = {threads.submit(run, number) for number in islice(waiting, model.parallel)}
            while running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for each in done:
                    if (number := next(waiting, None)) is not None:
                        running.add(threads.submit(run, number))
                    yield each.result()
        finally:
            stopped.set()
