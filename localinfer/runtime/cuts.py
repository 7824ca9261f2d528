"""Running a graph in parts: other code reads or writes activations in between."""

from collections.abc import Callable, Iterable, Iterator


def run_in_parts(run: Callable[[int, int], None], cuts: Iterable[int], first: int, end: int) -> Iterator[int]:
    """Run the ops `first` to `end - 1` with `run`. Yield each of the `cuts`, in ascending order, when the ops before it
    have run. Each cut is the first op of a stage. The caller may stop early."""
    for cut in cuts:
        if first < cut:
            run(first, cut)
            first = cut
        yield cut
    if first < end:
        run(first, end)
