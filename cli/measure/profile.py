"""The command `localinfer profile`: the time of a forward pass by operation and by layer."""

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.arguments.flags import ModelArgument, with_options
from cli.files.output_files import writable_path, write_atomically
from cli.measure.bench_results import peak_line
from cli.measure.simulation import SimulationOptions, simulate_command
from cli.models.loading import open_engine
from cli.terminal import screen
from cli.terminal.tables import table
from localinfer.errors import UsageError
from localinfer.options import Layer

if TYPE_CHECKING:
    from localinfer.evaluation.profile import OpTime, Phase, Profile
    from localinfer.evaluation.roofline import Roofline
    from localinfer.graph.ops.op import Op

MAX_TOKENS = 1 << 20


@with_options("model", defaults={"ctx_size": "as needed"})
def profile_command(
    model: ModelArgument,
    given: Layer,
    n_prompt: Annotated[
        int, typer.Option("-p", "--n-prompt", metavar="N", min=0, max=MAX_TOKENS, help="Prompt tokens.")
    ] = 512,
    n_gen: Annotated[
        int, typer.Option("-n", "--n-gen", metavar="N", min=0, max=MAX_TOKENS, help="Generated tokens.")
    ] = 32,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    trace: Annotated[
        str | None,
        typer.Option("--trace", metavar="FILE", help="Write a trace for chrome://tracing or Perfetto."),
    ] = None,
    *,
    simulation: SimulationOptions,
) -> None:
    """Profile a model by operation and by layer.

    The model evaluates random tokens once for warmup, then three times; the fastest run is reported. Time is divided
    among the operations that run at the same moment, so the times add up. "waiting" is the idle fraction of the
    threads. "of peak" is the time that the bytes or multiply-accumulates would take at the measured peak of this
    machine, divided by the time of the operation.

    With --simulate, one thread measures each chunk of work, and a simulation of the executor shows the speed with any
    number of threads, also more than this machine has, and what limits it.

    \b
    Examples:
      localinfer profile smollm2 -p 512 -n 32
      localinfer profile smollm2 -t 1 --json
      localinfer profile smollm2 -p 0 -n 8 --trace trace.json
      localinfer profile smollm2 -t 16 --simulate --bandwidth 80
      localinfer profile smollm2 --simulate --core-speeds 1,1,1,1,0.35,0.35,0.35,0.35
    """
    if n_prompt + n_gen == 0:
        raise UsageError("--n-prompt, --n-gen: nothing to run")
    if simulation.simulate:
        if trace is not None:
            raise UsageError("--trace: not with --simulate")
        simulate_command(model, given, (n_prompt, n_gen), simulation, as_json=as_json)
        return
    simulation.require_simulate()
    file = writable_path("--trace", trace) if trace is not None else None
    found, rooflines = measure(model, given, n_prompt, n_gen)
    if as_json:
        screen.write(json.dumps(as_object(found, rooflines), indent=1) + "\n")
    else:
        screen.write("\n".join(as_text(found, rooflines)).lstrip("\n") + "\n")
        for roofline in dict.fromkeys(rooflines):
            screen.note_dim(peak_line(roofline))
    if file:
        write_trace(file, found)


def measure(model: str, given: Layer, n_prompt: int, n_gen: int) -> "tuple[Profile, list[Roofline]]":
    """Load and profile a model. Returns the profile, and the roofline of each phase's number of threads."""
    status = screen.Status()
    engine = open_engine(model, given, {"ctx_size": n_prompt + n_gen}, status)

    from localinfer.evaluation import roofline
    from localinfer.evaluation.profile import profile

    try:
        tokens = [random.randrange(engine.n_vocab) for _ in range(n_prompt + n_gen)]
        found = profile(engine, tokens[:n_prompt], tokens[n_prompt:], status.show)
        status.erase()
        with status.busy("measuring the peak of this machine"):
            return found, [roofline.measure(phase.threads) for phase in found.phases]
    finally:
        engine.close()


def write_trace(file: Path, found: "Profile") -> None:
    from cli.measure.chrome_trace import chrome_trace

    write_atomically(file, chrome_trace(found))
    screen.note(f"trace: {file}")


# ---- text output -------------------------------------------------------------------------------------------


def as_text(found: "Profile", rooflines: "Sequence[Roofline]") -> Iterator[str]:
    from localinfer.evaluation.profile import group_ops, op_kind, op_layer

    for phase, roofline in zip(found.phases, rooflines, strict=True):
        rate = phase.tokens / phase.seconds
        yield from ("", f"{phase.name} of {phase.tokens} tokens: {1e3 * phase.seconds:.1f} ms, {rate:.1f} t/s")
        by_kind = sorted(group_ops(found, phase, op_kind).items(), key=lambda item: -item[1].seconds)
        yield from table("by op", "<>>>>>>", [heading(phase, "op"), *rows(phase, by_kind, roofline), *idle_rows(phase)])
        by_layer = list(group_ops(found, phase, op_layer).items())
        yield from table("by layer", "<>>>>>>", [heading(phase, "layer"), *rows(phase, by_layer, roofline)])


def heading(phase: "Phase", what: str) -> Sequence[str]:
    return what, "runs", "ms", "of total", "waiting", "GMAC/s" if phase.name == "prefill" else "GB/s", "of peak"


def rows(phase: "Phase", groups: "Sequence[tuple[str, OpTime]]", roofline: "Roofline") -> Iterator[Sequence[str]]:
    for name, spent in groups:
        amount = spent.cost.macs if phase.name == "prefill" else spent.cost.nbytes
        rate = f"{amount / spent.seconds / 1e9:.1f}" if amount else ""
        share = f"{100 * roofline.lower_bound(spent.cost) / spent.seconds:.0f} %" if amount else ""
        waiting = f"{100 * spent.waiting / spent.seconds:.0f} %"
        yield screen.one_line(name), str(spent.calls), *time_cells(phase, spent.seconds), waiting, rate, share


def idle_rows(phase: "Phase") -> Iterator[Sequence[str]]:
    """Yield rows for the time in which no operation ran."""
    yield "between ops", "", *time_cells(phase, phase.between), "", "", ""
    yield "before and after", "", *time_cells(phase, phase.outside), "", "", ""


def time_cells(phase: "Phase", seconds: float) -> tuple[str, str]:
    return f"{1e3 * seconds:.2f}", f"{100 * seconds / phase.seconds:.1f} %"


# ---- JSON output -------------------------------------------------------------------------------------------


def as_object(found: "Profile", rooflines: "Sequence[Roofline]") -> Mapping[str, Any]:
    """Return the profile as a JSON object. Times are in seconds, amounts in bytes and multiply-accumulates."""
    from localinfer.evaluation.profile import group_ops, op_kind, op_layer

    def spent_by(phase: "Phase", roofline: "Roofline", name_of: "Callable[[Op], str]") -> Mapping[str, Any]:
        return {name: spent_object(spent, roofline) for name, spent in group_ops(found, phase, name_of).items()}

    phases = [
        {
            "name": phase.name, "tokens": phase.tokens, "threads": phase.threads, "seconds": phase.seconds,
            "between_seconds": phase.between, "outside_seconds": phase.outside,
            "machine": {
                "bytes_per_second": roofline.bandwidth, "int_macs_per_second": roofline.dots,
                "float_macs_per_second": roofline.fmas, "bfloat16_macs_per_second": roofline.pairs,
            },
            "kinds": spent_by(phase, roofline, op_kind), "layers": spent_by(phase, roofline, op_layer),
            "ops": spent_by(phase, roofline, lambda op: op.name),
        }
        for phase, roofline in zip(found.phases, rooflines, strict=True)
    ]  # fmt: skip
    return {"phases": phases}


def spent_object(spent: "OpTime", roofline: "Roofline") -> Mapping[str, Any]:
    return {
        "runs": spent.calls, "seconds": spent.seconds, "waiting_seconds": spent.waiting,
        "bytes": spent.cost.nbytes, "macs": spent.cost.macs,
        "least_seconds": roofline.lower_bound(spent.cost),
    }  # fmt: skip
