"""Progress display of a calibrated quantization: a line per tensor, the remaining time, and how to resume."""

import time
from typing import TYPE_CHECKING

from cli.quantize.progress import QuantizationProgress
from cli.terminal import screen
from localinfer.quantization.calibrate import CalibrationObserver

if TYPE_CHECKING:
    from localinfer.gguf.source import SourceTensor
    from localinfer.quantization.plan import QuantizationPlan

ESTIMATE_SECONDS = 5.0  # time until the total duration is estimated
RESOLUTION = 1_000_000  # units of the whole work for `screen.time_left`


class CalibrationProgress(CalibrationObserver):
    """Progress callbacks for `calibrate`."""

    def __init__(self, plan: "QuantizationPlan", status: screen.Status) -> None:
        self.progress, self.status = QuantizationProgress(plan, status), status
        self.fraction, self.done, self.blocks = 0.0, 0, 0
        self.first_fraction, self.start_time = 0.0, 0.0
        self.is_estimated = False

    @property
    def seconds(self) -> float:
        return self.progress.seconds

    def on_start(self, done: int, blocks: int, discarded: str) -> None:
        self.done, self.blocks = done, blocks
        if discarded:
            screen.note(f"discarding the state of another run: {discarded}")
        if done:
            screen.note(f"resuming after layer {done} of {blocks}")

    def on_step(self, what: str, fraction: float) -> None:
        if not self.start_time:
            self.first_fraction, self.start_time = fraction, time.monotonic()
        self.fraction = fraction
        if (
            not self.is_estimated
            and fraction > self.first_fraction
            and time.monotonic() - self.start_time >= ESTIMATE_SECONDS
        ):
            self.is_estimated = True
            screen.note(f"{self.blocks - self.done} of {self.blocks} layers to go: about {self.time_left()}")
        self.status.show(f"{100 * fraction:3.0f} %  {what}, {self.time_left()}")

    def time_left(self) -> str:
        done, total = (round(RESOLUTION * (share - self.first_fraction)) for share in (self.fraction, 1.0))
        return screen.time_left(done, total, time.monotonic() - self.start_time) if done else "unknown time left"

    def on_tensor(self, tensor: "SourceTensor", done: int) -> None:
        if done == tensor.n_elements:
            self.progress.n_finished += 1
            self.status.erase()
            screen.note(self.progress.line(tensor))

    def on_block_saved(self, done: int) -> None:
        self.done = done

    def note_resumable(self) -> None:
        """Report after an interruption how much of the run is finished, and how to resume."""
        if self.done:
            screen.note(f"interrupted after layer {self.done} of {self.blocks}; run the same command to resume")
