"""Progress display of a quantization: a line per tensor, a progress bar, a summary, and the table of a dry run."""

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cli.terminal import screen
from cli.terminal.tables import table
from quant import ggml

if TYPE_CHECKING:
    from localinfer.gguf.source import SourceTensor
    from localinfer.quantization.plan import QuantizationPlan

MIB = 1 << 20
BAR = 24  # characters
REDRAW_SECONDS = 0.1


class QuantizationProgress:
    """Progress callback for `quantize`: a progress bar on a terminal and, unless `prints_tensors` is false,
    llama-quantize's line per tensor."""

    def __init__(self, plan: "QuantizationPlan", status: screen.Status, *, prints_tensors: bool = True) -> None:
        self.plan, self.status, self.prints_tensors = plan, status, prints_tensors
        self.start_time: float | None = None  # time of the first encoded slice, so that compilation does not count
        self.last_drawn = 0.0
        self.n_finished = 0  # tensors
        self.done = 0  # weights of finished tensors
        self.total = sum(tensor.n_elements for tensor in plan.source.tensors.values())

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.start_time if self.start_time else 0.0

    def __call__(self, tensor: "SourceTensor", done: int) -> None:
        self.start_time = self.start_time or time.monotonic()
        if done == tensor.n_elements:
            self.n_finished += 1
            self.done += done
            if self.prints_tensors:
                self.status.erase()
                screen.note(self.line(tensor))
        if time.monotonic() - self.last_drawn >= REDRAW_SECONDS:
            self.last_drawn = time.monotonic()
            self.status.show(self.bar(self.done + (done if done < tensor.n_elements else 0)))

    def line(self, tensor: "SourceTensor") -> str:
        new = self.plan.choices[tensor.name].type
        shape = ", ".join(map(str, tensor.shape))
        count = f"[{self.n_finished:4d}/{len(self.plan.source.tensors):4d}]"
        start = f"{count} {screen.one_line(tensor.name):36} - [{shape:>16}], type = {tensor.type_name:>7}, "
        before = tensor.nbytes / MIB
        if new == tensor.type_name:
            return f"{start}size = {before:8.3f} MiB"
        after = new_size(tensor, self.plan) / MIB
        return f"{start}converting to {new} .. size = {before:8.2f} MiB -> {after:8.2f} MiB"

    def bar(self, done: int) -> str:
        filled = BAR * done // max(1, self.total)
        left = screen.time_left(done, self.total, self.seconds)
        return f"{'█' * filled}{'░' * (BAR - filled)} {100 * done // max(1, self.total):3d} %  {left}"


class MeasurementProgress:
    """Progress callback for `plan_for_target`."""

    def __init__(self, status: screen.Status) -> None:
        self.status = status
        self.start_time: float | None = None  # time of the first sample, so that compilation does not count
        self.total = 0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        self.start_time, self.total = self.start_time or now, total
        left = screen.time_left(done, total, now - self.start_time)
        self.status.show(f"measuring quantization errors: {100 * done // total:3d} %  {left}")

    def summary_line(self) -> str:
        """Return the closing line, or "" if nothing was measured."""
        return f"measured {self.total} samples in {time.monotonic() - self.start_time:.1f} s" if self.start_time else ""


def new_size(tensor: "SourceTensor", plan: "QuantizationPlan") -> int:
    return ggml.nbytes(plan.types[tensor.name], tensor.shape)


def dry_table(plan: "QuantizationPlan") -> Iterator[str]:
    """Yield the tables of tensors and types, and the total sizes."""
    tensors = plan.source.tensors.values()
    yield from table("tensors", "<>><<>>", [row(tensor, plan) for tensor in tensors])
    weights: dict[str, int] = defaultdict(int)
    sizes: dict[str, int] = defaultdict(int)
    for tensor in tensors:
        name = plan.choices[tensor.name].type
        weights[name] += tensor.n_elements
        sizes[name] += new_size(tensor, plan)
    shares = sorted(sizes, key=lambda name: -sizes[name])
    yield from table("types", "<>>", [(name, f"{weights[name]:,} weights", mib(sizes[name])) for name in shares])
    yield ""
    yield from size_lines(plan)


def row(tensor: "SourceTensor", plan: "QuantizationPlan") -> tuple[str, ...]:
    choice, after = plan.choices[tensor.name], new_size(tensor, plan)
    shape = " x ".join(map(str, tensor.shape))
    note = (
        ""
        if choice.type == choice.wanted
        else f"fallback for {choice.wanted}: row length is not a multiple of its block size"
    )
    bits = f"{8 * after / tensor.n_elements:.2f} bits"
    return screen.one_line(tensor.name), shape, tensor.type_name, f"-> {choice.type}", note, mib(after), bits


def size_lines(plan: "QuantizationPlan") -> Iterator[str]:
    """Yield the total sizes before and after, in the format of llama-quantize."""
    tensors = plan.source.tensors.values()
    weights = sum(tensor.n_elements for tensor in tensors)
    before = sum(tensor.nbytes for tensor in tensors)
    after = sum(new_size(tensor, plan) for tensor in tensors)
    for label, size in (("model", before), ("quant", after)):
        yield f"{label} size  = {size / MIB:8.2f} MiB ({8 * size / max(1, weights):.2f} BPW)"


def summary_lines(plan: "QuantizationPlan", written: Sequence[Path], seconds: float) -> Iterator[str]:
    yield from size_lines(plan)
    fallbacks = sum(choice.type != choice.wanted for choice in plan.choices.values())
    if fallbacks:
        yield f"warning: {fallbacks} of {len(plan.choices)} tensors use a fallback type because of their row length"
    more = f" and {len(written) - 1} more" if len(written) > 1 else ""
    yield f"{screen.one_line(str(written[0]))}{more}: written in {seconds:.1f} s"


def mib(size: int) -> str:
    return f"{size / MIB:.2f} MiB"
