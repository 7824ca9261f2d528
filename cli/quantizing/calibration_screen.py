"""What is seen of a calibrated quantization: a line a tensor, what is done and the time that is left, what was kept."""

import time
from typing import TYPE_CHECKING

from cli import screen
from cli.quantizing.quantize_screen import Drawing
from localinfer.quantizing.calibrate import Spectator

if TYPE_CHECKING:
    from localinfer.files.source import SourceTensor
    from localinfer.quantizing.mixture import Mixture

PROMISE_SECONDS = 5.0  # after so many, the whole is estimated in a line that stays
PARTS = 1_000_000  # of the work


class Walking(Spectator):
    """To hand to `calibrate`."""

    def __init__(self, mixture: "Mixture", status: screen.Status) -> None:
        self.drawing, self.status = Drawing(mixture, status), status
        self.share, self.done, self.blocks = 0.0, 0, 0
        self.first_share, self.began = 0.0, 0.0
        self.promised = False

    @property
    def seconds(self) -> float:
        return self.drawing.seconds

    def begun(self, done: int, blocks: int, discarded: str) -> None:
        self.done, self.blocks = done, blocks
        if discarded:
            screen.note(f"what is left of another run is of no use: {discarded}")
        if done:
            screen.note(f"going on behind layer {done} of {blocks}, where it was interrupted")

    def step(self, what: str, share: float) -> None:
        if not self.began:
            self.first_share, self.began = share, time.monotonic()
        self.share = share
        if not self.promised and share > self.first_share and time.monotonic() - self.began >= PROMISE_SECONDS:
            self.promised = True
            screen.note(f"{self.blocks - self.done} of {self.blocks} layers to go: about {self.time_left()}")
        self.status.show(f"{100 * share:3.0f} %  {what}, {self.time_left()}")

    def time_left(self) -> str:
        done, total = (round(PARTS * (share - self.first_share)) for share in (self.share, 1.0))
        return screen.time_left(done, total, time.monotonic() - self.began) if done else "a while left"

    def tensor(self, tensor: "SourceTensor", done: int) -> None:
        if done == tensor.n_elements:
            self.drawing.finished += 1
            self.status.erase()
            screen.note(self.drawing.line(tensor))

    def kept(self, done: int) -> None:
        self.done = done

    def say_what_is_kept(self) -> None:
        """After an interruption."""
        if self.done:
            screen.note(f"interrupted behind layer {self.done} of {self.blocks}: the same command goes on from there")
