"""Progress of an evaluation, chunk by chunk, on the status line."""

import time
from typing import TYPE_CHECKING

from cli.terminal import screen

if TYPE_CHECKING:
    from localinfer.evaluation.perplexity import Mean


class ChunkProgress:
    """Progress callback that shows the result so far, with `digits` decimals, behind the `label`."""

    def __init__(self, status: screen.Status, label: str = "", digits: int = 4) -> None:
        self.status, self.label, self.digits = status, label, digits
        self.start_time = time.monotonic()
        self.n_chunks = 0

    def __call__(self, done: int, total: int, estimate: "Mean | None") -> None:
        self.n_chunks = total
        left = screen.time_left(done, total, time.monotonic() - self.start_time)
        line = f"{done} of {total} chunks, {left}"
        if estimate is not None:
            line = f"{self.label} = {estimate.value:.{self.digits}f} +/- {estimate.error:.{self.digits}f} after {line}"
        self.status.show(line)
        if done == total:
            self.status.erase()
