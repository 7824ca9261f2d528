"""Reports of how much of a prompt is evaluated, for clients that ask for them (`return_progress`)."""

from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from localinfer.generation.pieces import Stats


@dataclass(frozen=True, slots=True)
class PrefillReport:
    """The tokens of a prompt, how many of them were cached, and how many are processed after `seconds`, cached ones
    included.
    """

    total: int
    cached: int
    processed: int
    seconds: float

    def as_fields(self) -> dict[str, int]:
        """Return llama.cpp's `prompt_progress`."""
        milliseconds = round(1000 * self.seconds)
        return {"total": self.total, "cache": self.cached, "processed": self.processed, "time_ms": milliseconds}


class PrefillReports:
    """Turns the calls of a model's progress function into reports: one before any token is evaluated, and one after
    each batch, as in llama.cpp's server.
    """

    def __init__(self, stats: "Stats") -> None:
        self._stats = stats
        self._start = perf_counter()
        self._processed = -1  # in the last report

    def __call__(self, done: int, _: int) -> list[PrefillReport]:
        """Return the reports that are due after `done` tokens that were not cached."""
        if not done:  # the prompt may still wait for another one with the same prefix
            return []
        cached = self._stats.reused_tokens
        reports = [self._report(cached, 0.0)] if self._processed < 0 else []
        if cached + done > self._processed:
            reports.append(self._report(cached + done, perf_counter() - self._start))
        return reports

    def _report(self, processed: int, seconds: float) -> PrefillReport:
        self._processed = processed
        return PrefillReport(self._stats.prompt_tokens, self._stats.reused_tokens, processed, seconds)
