"""The command `localinfer tune`: measure which kernels of a model are the fastest on this machine."""

import json
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from cli.arguments.flags import OptionalModelArgument, with_options
from cli.models.loading import default_model, open_engine
from cli.terminal import screen
from cli.terminal.tables import table
from localinfer.options import Layer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from localinfer.runtime.row_access.row_access_timing import Timings
    from quant.matmul.row_access import RowAccess

STATUS = "measuring how this machine reads weights fastest"
BUSY = "another program disturbed the measurement; the next run of the model measures again"


@with_options("model", defaults={"ctx_size": "as needed"})
def tune_command(
    given: Layer,
    model: OptionalModelArgument = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure which kernels of a model are the fastest on this machine.

    Decode steps run with each way of reading, and the fastest is stored: of ways within 2.5 %, the first one in the
    table. The first run of a model does the same. All ways give the same logits. The table has the read bandwidth in
    GB/s for each block format and row length; the chosen one has a star. Lines below it tell which of two ways was
    chosen for prefill, on CPUs whose kernels have two.

    \b
    Examples:
      localinfer tune smollm2
      localinfer tune model.gguf --threads 8 --json
    """
    model = model or default_model()
    status = screen.Status()
    with closing(open_engine(model, {**given, "tune": False}, {"ctx_size": 512}, status)) as engine:
        from localinfer import paths
        from localinfer.runtime.row_access import tuning
        from localinfer.runtime.row_access.tuning_table import TuningTable

        stored = TuningTable(paths.jit_dir())
        if not tuning.tunable_shapes(engine.runner):
            screen.note(f"{screen.one_line(model)}: all matrices are so small that tuning makes no difference")
            return
        with status.busy(STATUS):
            timings = tuning.measure_and_store(engine.runner, stored, status)
            tuning.tune_tiles(engine.runner, stored, may_measure=True, again=True)
        types, measured = engine.graph.product_choices.subtractions, stored.read_subtractions()
        subtractions = {number: subtract for number, subtract in measured.items() if number in types}
        if as_json:
            screen.write(json.dumps(as_object(timings, subtractions, engine.graph.threads), indent=1) + "\n")
        else:
            screen.write("".join(f"{line}\n" for line in (*as_text(timings), *tile_text(subtractions))))
    if not timings.rounds_agree:
        screen.warn(BUSY)
    if stored.path:
        screen.note(f"stored in {screen.one_line(str(stored.path))}")


def as_text(timings: "Timings") -> list[str]:
    """Return a table with a row for each way of reading weights, and a column for each shape."""
    from localinfer.runtime.row_access.row_access_timing import SIMILAR
    from quant.ggml import TYPES
    from quant.matmul.row_access import CANDIDATES

    heading = ["", *(f"{TYPES[shape.type].name} {shape.n_in}" for shape in timings.shapes)]
    rows = [
        [
            str(access),
            *(
                f"{timing.bytes_per_second(access) / 1e9:.1f}{'*' if access == timing.best else ' '}"
                for timing in timings.shapes.values()
            ),
        ]
        for access in CANDIDATES
    ]
    title = "GB/s by block format and columns of a row"
    lines = list(table(title, "<" + ">" * len(timings.shapes), [heading, *rows]))[1:]
    several_threads = any(timing.seconds_alone for timing in timings.shapes.values())
    which = "one that is fastest with one thread alone" if several_threads else "first"
    return [*lines, "", f"* chosen: of the ways within {SIMILAR:.0%} of the fastest, the {which}"]


def tile_text(subtractions: "Mapping[int, bool]") -> list[str]:
    """Return lines with the block formats for which each way of converting sums was chosen for prefill."""
    from quant.ggml import TYPES

    lines = []
    for way, subtract in {"subtraction": True, "stored shift": False}.items():
        names = [TYPES[number].name for number in subtractions if subtractions[number] is subtract]
        lines += [f"prefill, {way}: {', '.join(names)}"] if names else []
    return ["", *lines] if lines else []


def as_object(timings: "Timings", subtractions: "Mapping[int, bool]", threads: int) -> dict[str, object]:
    """Return the timings as a JSON object."""
    from quant.ggml import TYPES

    return {
        "threads": threads,
        "rounds_agree": timings.rounds_agree,
        "shapes": [
            {
                "type": TYPES[shape.type].name,
                "columns": shape.n_in,
                "bytes": timing.nbytes,
                "chosen": access_object(timing.best),
                "prefill_subtracts": subtractions.get(shape.type),
                "bytes_per_second": [
                    {
                        **access_object(access),
                        "bytes_per_second": round(timing.bytes_per_second(access)),
                        "one_thread": round(timing.bytes_per_second_alone(access) or timing.bytes_per_second(access)),
                    }
                    for access in timing.seconds
                ],
            }
            for shape, timing in timings.shapes.items()
        ],
    }


def access_object(access: "RowAccess") -> dict[str, int]:
    """Return a way of reading rows as a JSON object: how many streams or neighbouring rows are read in turns."""
    return {"neighbouring_rows" if access.neighbours else "streams": access.streams, "prefetch": access.prefetch}
