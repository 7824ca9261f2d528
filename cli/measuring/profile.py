"""`localinfer profile`: where the time of a forward pass goes, by kind of op and by layer."""

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import screen
from cli.files import promised, write_whole
from cli.flags import ModelArgument, with_options
from cli.loading import open_engine
from cli.measuring.results import machine_line
from cli.tables import table
from localinfer.errors import UsageError
from localinfer.options import Layer

if TYPE_CHECKING:
    from localinfer.judging.profile import Phase, Profile, Spent
    from localinfer.judging.roofline import Roofline
    from localinfer.plan.plan import Op

MOST_TOKENS = 1 << 20


@with_options("model", defaults={"ctx_size": "what is needed"})
def profile_command(
    model: ModelArgument,
    given: Layer,
    n_prompt: Annotated[
        int, typer.Option("-p", "--n-prompt", metavar="N", min=0, max=MOST_TOKENS, help="Tokens of the prompt.")
    ] = 512,
    n_gen: Annotated[
        int, typer.Option("-n", "--n-gen", metavar="N", min=0, max=MOST_TOKENS, help="Tokens of the answer.")
    ] = 32,
    as_json: Annotated[bool, typer.Option("--json", help="Write one JSON object.")] = False,
    trace: Annotated[
        str | None,
        typer.Option("--trace", metavar="FILE", help="Write all time stamps there, for chrome://tracing or Perfetto."),
    ] = None,
) -> None:
    """Show where the time of a run goes, by kind of op and by layer.

    Random tokens, once to warm up, then three times, of which the quickest counts. A moment belongs to the ops that
    run in it, so that the times add up; "waiting" is how much of the threads' time was idle meanwhile, and "of peak"
    the share of the least time that this machine needs for the bytes or the multiply-accumulates, which is measured,
    too.

    \b
      localinfer profile smollm2 -p 512 -n 32
      localinfer profile smollm2 -t 1 --json
      localinfer profile smollm2 -p 0 -n 8 --trace trace.json
    """
    if n_prompt + n_gen == 0:
        raise UsageError("--n-prompt, --n-gen: nothing to run")
    file = promised("--trace", trace) if trace is not None else None
    found, rooflines = measured(model, given, n_prompt, n_gen)
    if as_json:
        screen.write(json.dumps(as_object(found, rooflines), indent=1) + "\n")
    else:
        screen.write("\n".join(as_text(found, rooflines)).lstrip("\n") + "\n")
        for roofline in dict.fromkeys(rooflines):
            screen.aside(machine_line(roofline))
    if file:
        write_trace(file, found)


def measured(model: str, given: Layer, n_prompt: int, n_gen: int) -> "tuple[Profile, list[Roofline]]":
    """Load the model, and run it; what the threads of each phase can do at best."""
    status = screen.Status()
    engine = open_engine(model, given, {"ctx_size": n_prompt + n_gen}, status)

    from localinfer.judging import roofline
    from localinfer.judging.profile import profile

    try:
        tokens = [random.randrange(engine.n_vocab) for _ in range(n_prompt + n_gen)]
        found = profile(engine, tokens[:n_prompt], tokens[n_prompt:], status.show)
        status.erase()
        with status.busy("measuring what this machine can do"):
            return found, [roofline.measured(phase.threads) for phase in found.phases]
    finally:
        engine.close()


def write_trace(file: Path, found: "Profile") -> None:
    from cli.measuring.trace import chrome_trace

    write_whole(file, chrome_trace(found))
    screen.note(f"time stamps: {file}")


# ---- for readers -------------------------------------------------------------------------------------------


def as_text(found: "Profile", rooflines: "Sequence[Roofline]") -> Iterator[str]:
    from localinfer.judging.profile import grouped, kind, layer

    for phase, roofline in zip(found.phases, rooflines, strict=True):
        rate = phase.tokens / phase.seconds
        yield from ("", f"{phase.name} of {phase.tokens} tokens: {1e3 * phase.seconds:.1f} ms, {rate:.1f} t/s")
        by_kind = sorted(grouped(found, phase, kind).items(), key=lambda item: -item[1].seconds)
        yield from table("by op", "<>>>>>>", [heading(phase, "op"), *rows(phase, by_kind, roofline), *rest(phase)])
        by_layer = list(grouped(found, phase, layer).items())
        yield from table("by layer", "<>>>>>>", [heading(phase, "layer"), *rows(phase, by_layer, roofline)])


def heading(phase: "Phase", what: str) -> Sequence[str]:
    return what, "runs", "ms", "share", "waiting", "GMAC/s" if phase.name == "prompt" else "GB/s", "of peak"


def rows(phase: "Phase", groups: "Sequence[tuple[str, Spent]]", roofline: "Roofline") -> Iterator[Sequence[str]]:
    for name, spent in groups:
        amount = spent.amount.macs if phase.name == "prompt" else spent.amount.nbytes
        rate = f"{amount / spent.seconds / 1e9:.1f}" if amount else ""
        share = f"{100 * roofline.least(spent.amount) / spent.seconds:.0f} %" if amount else ""
        waiting = f"{100 * spent.waiting / spent.seconds:.0f} %"
        yield screen.one_line(name), str(spent.calls), *time_cells(phase, spent.seconds), waiting, rate, share


def rest(phase: "Phase") -> Iterator[Sequence[str]]:
    """The time in which no op ran."""
    yield "between ops", "", *time_cells(phase, phase.between), "", "", ""
    yield "before and after", "", *time_cells(phase, phase.outside), "", "", ""


def time_cells(phase: "Phase", seconds: float) -> tuple[str, str]:
    return f"{1e3 * seconds:.2f}", f"{100 * seconds / phase.seconds:.1f} %"


# ---- for machines ------------------------------------------------------------------------------------------


def as_object(found: "Profile", rooflines: "Sequence[Roofline]") -> Mapping[str, Any]:
    """Times are in seconds, amounts in bytes and multiply-accumulates."""
    from localinfer.judging.profile import grouped, kind, layer

    def spent_by(phase: "Phase", roofline: "Roofline", name_of: "Callable[[Op], str]") -> Mapping[str, Any]:
        return {name: spent_object(spent, roofline) for name, spent in grouped(found, phase, name_of).items()}

    phases = [
        {
            "name": phase.name, "tokens": phase.tokens, "threads": phase.threads, "seconds": phase.seconds,
            "between_seconds": phase.between, "outside_seconds": phase.outside,
            "machine": {
                "bytes_per_second": roofline.bandwidth, "int_macs_per_second": roofline.dots,
                "float_macs_per_second": roofline.fmas, "bfloat16_macs_per_second": roofline.pairs,
            },
            "kinds": spent_by(phase, roofline, kind), "layers": spent_by(phase, roofline, layer),
            "ops": spent_by(phase, roofline, lambda op: op.name),
        }
        for phase, roofline in zip(found.phases, rooflines, strict=True)
    ]  # fmt: skip
    return {"phases": phases}


def spent_object(spent: "Spent", roofline: "Roofline") -> Mapping[str, Any]:
    return {
        "runs": spent.calls, "seconds": spent.seconds, "waiting_seconds": spent.waiting,
        "bytes": spent.amount.nbytes, "macs": spent.amount.macs,
        "least_seconds": roofline.least(spent.amount),
    }  # fmt: skip
