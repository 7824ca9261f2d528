"""What is seen of a quantization: the table of a dry run, a line a tensor, a bar with the time left, a summary."""

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cli import screen
from cli.tables import table
from quant import ggml

if TYPE_CHECKING:
    from localinfer.files.source import SourceTensor
    from localinfer.quantizing.mixture import Mixture

MIB = 1 << 20
BAR = 24  # characters
REDRAW_SECONDS = 0.1


class Drawing:
    """A progress report to hand to `quantize`: llama-quantize's line for each tensor, and on a terminal a bar below."""

    def __init__(self, mixture: "Mixture", status: screen.Status) -> None:
        self.mixture, self.status = mixture, status
        self.begin = time.monotonic()
        self.drawn_at = 0.0
        self.finished = 0  # tensors
        self.done = 0  # weights of finished tensors
        self.total = sum(tensor.n_elements for tensor in mixture.source.tensors.values())

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.begin

    def __call__(self, tensor: "SourceTensor", done: int) -> None:
        if done == tensor.n_elements:
            self.finished += 1
            self.done += done
            self.status.erase()
            screen.note(self.line(tensor))
        if time.monotonic() - self.drawn_at >= REDRAW_SECONDS:
            self.drawn_at = time.monotonic()
            self.status.show(self.bar(self.done + (done if done < tensor.n_elements else 0)))

    def line(self, tensor: "SourceTensor") -> str:
        new = self.mixture.choices[tensor.name].type
        shape = ", ".join(map(str, tensor.shape))
        count = f"[{self.finished:4d}/{len(self.mixture.source.tensors):4d}]"
        start = f"{count} {screen.one_line(tensor.name):36} - [{shape:>16}], type = {tensor.type_name:>7}, "
        before = tensor.nbytes / MIB
        if new == tensor.type_name:
            return f"{start}size = {before:8.3f} MiB"
        after = new_size(tensor, self.mixture) / MIB
        return f"{start}converting to {new} .. size = {before:8.2f} MiB -> {after:8.2f} MiB"

    def bar(self, done: int) -> str:
        filled = BAR * done // max(1, self.total)
        left = screen.time_left(done, self.total, self.seconds)
        return f"{'█' * filled}{'░' * (BAR - filled)} {100 * done // max(1, self.total):3d} %  {left}"


class Measuring:
    """A progress report to hand to `fit`."""

    def __init__(self, status: screen.Status) -> None:
        self.status = status
        self.begin: float | None = None  # when the first sample is done: compiling is not part of it
        self.total = 0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        self.begin, self.total = self.begin or now, total
        left = screen.time_left(done, total, now - self.begin)
        self.status.show(f"measuring what types cost: {100 * done // total:3d} %  {left}")

    def closing_line(self) -> str:
        """Empty if nothing had to be measured."""
        return f"measured {self.total} samples of types in {time.monotonic() - self.begin:.1f} s" if self.begin else ""


def new_size(tensor: "SourceTensor", mixture: "Mixture") -> int:
    return ggml.nbytes(mixture.types[tensor.name], tensor.n_elements)


def dry_table(mixture: "Mixture") -> Iterator[str]:
    """A line for each tensor, what each type takes, and the sizes."""
    tensors = mixture.source.tensors.values()
    yield from table("tensors", "<>><<>>", [row(tensor, mixture) for tensor in tensors])
    weights: dict[str, int] = defaultdict(int)
    sizes: dict[str, int] = defaultdict(int)
    for tensor in tensors:
        name = mixture.choices[tensor.name].type
        weights[name] += tensor.n_elements
        sizes[name] += new_size(tensor, mixture)
    shares = sorted(sizes, key=lambda name: -sizes[name])
    yield from table("types", "<>>", [(name, f"{weights[name]:,} weights", mib(sizes[name])) for name in shares])
    yield ""
    yield from size_lines(mixture)


def row(tensor: "SourceTensor", mixture: "Mixture") -> tuple[str, ...]:
    choice, after = mixture.choices[tensor.name], new_size(tensor, mixture)
    shape = " x ".join(map(str, tensor.shape))
    note = "" if choice.type == choice.wanted else f"instead of {choice.wanted}, whose blocks do not divide its rows"
    bits = f"{8 * after / tensor.n_elements:.2f} bits"
    return screen.one_line(tensor.name), shape, tensor.type_name, f"-> {choice.type}", note, mib(after), bits


def size_lines(mixture: "Mixture") -> Iterator[str]:
    """The sizes of all tensors, before and after, with llama-quantize's words."""
    tensors = mixture.source.tensors.values()
    weights = sum(tensor.n_elements for tensor in tensors)
    before = sum(tensor.nbytes for tensor in tensors)
    after = sum(new_size(tensor, mixture) for tensor in tensors)
    for word, size in (("model", before), ("quant", after)):
        yield f"{word} size  = {size / MIB:8.2f} MiB ({8 * size / max(1, weights):.2f} BPW)"


def closing_lines(mixture: "Mixture", written: Sequence[Path], seconds: float) -> Iterator[str]:
    yield from size_lines(mixture)
    fallbacks = sum(choice.type != choice.wanted for choice in mixture.choices.values())
    if fallbacks:
        yield f"warning: in {fallbacks} of {len(mixture.choices)} tensors the blocks of a type do not divide the rows"
    more = f" and {len(written) - 1} more" if len(written) > 1 else ""
    yield f"{screen.one_line(str(written[0]))}{more}: written in {seconds:.1f} s"


def mib(size: int) -> str:
    return f"{size / MIB:.2f} MiB"
