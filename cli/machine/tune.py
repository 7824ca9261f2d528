"""The command `localinfer tune`: measure how this machine reads a model's weights fastest."""

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
    """Measure how this machine reads the weights of a model fastest.

    Decode steps run with each way of reading, and the fastest is stored: of ways within 2.5 %, the first one in the
    table. The first run of a model does the same. All ways give the same logits. The table has the read bandwidth in
    GB/s for each block format and row length; the chosen one has a star.

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
        if as_json:
            screen.write(json.dumps(as_object(timings, engine.graph.threads), indent=1) + "\n")
        else:
            screen.write("".join(f"{line}\n" for line in as_text(timings)))
    if not timings.rounds_agree:
        screen.warn(BUSY)
    if stored.path:
        screen.note(f"stored in {screen.one_line(str(stored.path))}")


def as_text(timings: "Timings") -> list[str]:
    """Return a table with a row for each way of reading weights, and a column for each shape."""
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
    return list(table(title, "<" + ">" * len(timings.shapes), [heading, *rows]))[1:]


def as_object(timings: "Timings", threads: int) -> dict[str, object]:
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
                "bytes_per_second": [
                    {**access_object(access), "bytes_per_second": round(timing.bytes_per_second(access))}
                    for access in timing.seconds
                ],
            }
            for shape, timing in timings.shapes.items()
        ],
    }


def access_object(access: "RowAccess") -> dict[str, int]:
    """Return a way of reading rows as a JSON object: how many streams or neighbouring rows are read in turns."""
    return {"neighbouring_rows" if access.neighbours else "streams": access.streams, "prefetch": access.prefetch}
