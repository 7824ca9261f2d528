"""`localinfer profile --simulate`: the scaling of a model with any number of threads, as a table or as JSON."""

import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, astuple, dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.models.loading import open_engine
from cli.terminal import screen
from cli.terminal.tables import table
from localinfer.errors import UsageError
from localinfer.options import Layer

if TYPE_CHECKING:
    from localinfer.evaluation.simulation.chunk_times import BatchChunks
    from localinfer.evaluation.simulation.scaling import Scaling
    from localinfer.evaluation.simulation.simulated_executor import CoreTime, Machine
    from localinfer.graph.ops.op import Op
    from localinfer.runtime.engine import Engine

MAX_THREADS, MAX_BANDWIDTH = 512, 1_000_000


@dataclass(frozen=True, kw_only=True)
class SimulationOptions:
    """Whether to simulate the executor, and the simulated machine."""

    simulate: Annotated[
        bool,
        typer.Option(
            "--simulate",
            help="Simulate --threads threads from the measured time of each chunk, and show what limits the scaling.",
        ),
    ] = False
    core_speeds: Annotated[
        str | None,
        typer.Option(
            "--core-speeds",
            metavar="X,X,...",
            help="With --simulate: the speed of each thread's core, compared with this machine's. [default: 1 each]",
        ),
    ] = None
    bandwidth: Annotated[
        float | None,
        typer.Option(
            "--bandwidth",
            metavar="GB/S",
            help="With --simulate: memory bandwidth of all cores together, 0 for no limit. [default: measured]",
        ),
    ] = None

    def bytes_per_second(self) -> float | None:
        """Return the bandwidth, infinity for no limit, None if it is to be measured. Raises UsageError."""
        if self.bandwidth is None:
            return None
        if not 0 <= self.bandwidth <= MAX_BANDWIDTH:
            raise UsageError(f"--bandwidth: {self.bandwidth:g} is not a number from 0 to {MAX_BANDWIDTH}")
        return 1e9 * self.bandwidth or math.inf

    def require_simulate(self) -> None:
        """Raise UsageError if options are set that need --simulate."""
        if self.core_speeds is not None or self.bandwidth is not None:
            name = "--core-speeds" if self.core_speeds is not None else "--bandwidth"
            raise UsageError(f"{name}: only with --simulate")

    def speeds(self, given: Layer) -> list[float]:
        """Return the core speeds for the given options. Raises UsageError."""
        threads = given.get("threads")
        if "threads_batch" in given:
            raise UsageError("--threads-batch: not with --simulate")
        if self.core_speeds is None:
            if not isinstance(threads, int) or threads < 1:
                raise UsageError("--simulate: needs --threads or --core-speeds")
            return [1.0] * threads
        speeds = [parse_speed(text) for text in self.core_speeds.split(",")]
        if len(speeds) > MAX_THREADS:
            raise UsageError(f"--core-speeds: at most {MAX_THREADS} cores")
        if isinstance(threads, int) and threads not in (0, len(speeds)):
            raise UsageError(f"--core-speeds: has {len(speeds)} cores for --threads {threads}")
        return speeds


def parse_speed(text: str) -> float:
    """Parse the speed of a core. Raises UsageError."""
    try:
        speed = float(text)
    except ValueError:
        speed = math.nan
    if not 0.001 <= speed <= 1000:
        raise UsageError(f"--core-speeds: {screen.one_line(text)!r} is not a number from 0.001 to 1000")
    return speed


def simulate_command(
    model: str, given: Layer, tokens: tuple[int, int], options: SimulationOptions, *, as_json: bool
) -> None:
    """Print the simulated speed of a model and what limits it, for these numbers of prompt and of generated tokens."""
    speeds, bandwidth = options.speeds(given), options.bytes_per_second()
    status = screen.Status()
    chunks, ops = measure(model, given, tokens, len(speeds), status)

    from localinfer.evaluation import roofline
    from localinfer.evaluation.simulation import scaling
    from localinfer.evaluation.simulation.simulated_executor import Machine
    from localinfer.machine import resources

    if bandwidth is None:
        with status.busy("measuring the peak of this machine"):
            bandwidth = roofline.measure(resources.default_threads()).bandwidth
    simulated = Machine(speeds, bandwidth, thread_interval=scaling.THREAD_INTERVAL)
    found = [scaling.simulate(name, simulated, ops, *each) for name, each in chunks.items()]
    if as_json:
        screen.write(json.dumps(as_object(found, ops), indent=1) + "\n")
    else:
        screen.write("\n".join(line for each in found for line in as_text(each, ops)).lstrip("\n") + "\n")
        screen.note_dim(assumptions(simulated, resources.cpu_name()))


def measure(
    model: str, given: Layer, tokens: tuple[int, int], n_threads: int, status: screen.Status
) -> "tuple[dict[str, tuple[list[BatchChunks], list[BatchChunks]]], Sequence[Op]]":
    """Return the chunks of all batches of each phase, in a graph for one thread and in one for `n_threads`; and the
    ops."""
    with closing(open_with_threads(model, given, tokens, 1, status)) as engine:
        from localinfer.evaluation.simulation.chunk_times import measure_chunks

        ids = [random.randrange(engine.n_vocab) for _ in range(sum(tokens))]
        prompt, decoded = ids[: tokens[0]], ids[tokens[0] :]
        alone = measure_chunks(engine, prompt, decoded, status.show)
        accesses = engine.graph.product_choices.accesses
    # Tuning for threads that do not run would measure something else.
    with closing(open_with_threads(model, {**given, "tune": False}, tokens, n_threads, status)) as engine:
        engine.graph.product_choices.set_accesses(accesses)
        divided = measure_chunks(engine, prompt, decoded, status.show)
    status.erase()
    return {phase: (alone[phase], divided[phase]) for phase in alone}, engine.graph.ops


def open_with_threads(
    model: str, given: Layer, tokens: tuple[int, int], threads: int, status: screen.Status
) -> "Engine":
    given = {**given, "threads": threads, "threads_batch": threads}
    return open_engine(model, given, {"ctx_size": sum(tokens)}, status)


def assumptions(simulated: "Machine", cpu: str) -> str:
    """Return a line with the assumptions of the simulation."""
    bandwidth = f"{simulated.bandwidth / 1e9:.1f} GB/s" if simulated.bandwidth < math.inf else "no limit"
    return (
        f"simulated from the times of all chunks on one core ({screen.one_line(cpu)}); memory bandwidth: {bandwidth}; "
        f"a cache line moves between cores in {1e9 * simulated.latencies.transfer:.0f} ns; workers start "
        f"and end {1e9 * simulated.thread_interval:.0f} ns one after the other"
    )


# --- text output ---


def as_text(scaling: "Scaling", ops: "Sequence[Op]") -> Iterator[str]:
    """Yield the lines of a phase: its speed, and where the time of all cores goes."""
    from localinfer.evaluation.simulation.scaling import group_times
    from localinfer.evaluation.simulation.simulated_executor import CoreTime

    threads = len(scaling.machine.speeds)
    yield ""
    yield (
        f"{scaling.phase} of {scaling.tokens} tokens with {threads} thread{'s' * (threads > 1)}, simulated: "
        f"{scaling.tokens / scaling.seconds:.1f} t/s, {scaling.speedup:.2f} times the speed of one thread "
        f"({scaling.tokens / scaling.one_thread_seconds:.1f} t/s)"
    )
    yield f"of the sum of the core speeds ({scaling.machine.total_speed:g}): {100 * scaling.efficiency:.0f} %"
    kinds = group_times(scaling, ops)
    rows = [
        ["op", "of total", *(each.name.replace("_", " ") for each in fields(CoreTime))],
        *([screen.one_line(name), *shares] for name, spent in kinds.items() if any(shares := cells(spent, scaling))),
        ["before and after", percent(scaling.outside, scaling)],
        ["total", *cells(sum(kinds.values(), CoreTime()), scaling)],
    ]
    width = len(rows[0])
    title = "share of the time of all cores, by op"
    yield from table(title, "<" + ">" * (width - 1), [[*row, *[""] * (width - len(row))] for row in rows])


def cells(spent: "CoreTime", scaling: "Scaling") -> list[str]:
    return [percent(seconds, scaling) for seconds in (spent.total, *astuple(spent))]


def percent(core_seconds: float, scaling: "Scaling") -> str:
    """Return a share of the time of all cores; nothing if it is too small to matter."""
    share = 100 * core_seconds / scaling.core_seconds
    return f"{share:.1f} %" if abs(share) >= 0.05 else ""


# --- JSON output ---


def as_object(found: "Sequence[Scaling]", ops: "Sequence[Op]") -> Mapping[str, Any]:
    """Return the simulation as a JSON object. Times are in seconds, times the speed of a core for `kinds`."""
    from localinfer.evaluation.simulation.scaling import group_times

    simulated = found[0].machine
    return {
        "core_speeds": list(simulated.speeds),
        "bytes_per_second": simulated.bandwidth if simulated.bandwidth < math.inf else None,
        "latencies": simulated.latencies._asdict(),
        "thread_interval_seconds": simulated.thread_interval,
        "phases": [
            {
                "name": each.phase, "tokens": each.tokens, "seconds": each.seconds,
                "one_thread_seconds": each.one_thread_seconds, "speedup": each.speedup,
                "efficiency": each.efficiency, "core_seconds": each.core_seconds, "outside_core_seconds": each.outside,
                "kinds": {name: asdict(spent) for name, spent in group_times(each, ops).items()},
            }
            for each in found
        ],
    }  # fmt: skip
