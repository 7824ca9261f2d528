"""The command `localinfer lab`: how sensitive a model is to the quantization of each of its tensors.

`localinfer.lab` measures; this module shows the progress and the tables, and writes the files.
"""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.arguments.flags import with_options
from cli.files.output_files import writable_path, write_atomically
from cli.files.text_input import read_text_files
from cli.measure.perplexity import TextOption
from cli.models.loading import find_or_fetch
from cli.quantize.arguments import parse_option
from cli.terminal import screen
from cli.terminal.tables import table
from localinfer.errors import UsageError
from localinfer.lab.run import LabObserver
from localinfer.options import CHUNK_SIZE

if TYPE_CHECKING:
    from localinfer.lab.tensor_sensitivity import TensorSensitivity
    from localinfer.quantization.plan import QuantizationPlan
    from localinfer.tokenizer.chunks import Chunks

MIB = 1 << 20
DEFAULT_CHUNKS = 2
RESOLUTION = 1_000_000  # units of the whole work for `screen.time_left`
EFFORTS = ("fast", "normal")


@dataclass(frozen=True, kw_only=True)
class MeasurementOptions:
    """What is measured."""

    imatrix: Annotated[
        Path | None, typer.Option("--imatrix", metavar="FILE", help="Importance matrix for the quantization.")
    ] = None
    max_chunks: Annotated[
        int, typer.Option("--chunks", metavar="N", min=2, help="Maximum number of chunks of the text.")
    ] = DEFAULT_CHUNKS
    ctx_size: Annotated[
        int, typer.Option("-c", "--ctx-size", metavar="N", min=8, help="Tokens of a chunk.")
    ] = CHUNK_SIZE
    layers_at_once: Annotated[
        int,
        typer.Option(
            "--layers-at-once", metavar="N", min=1, help="Measure tensors of the same kind in N layers together."
        ),
    ] = 1
    effort: Annotated[
        str, typer.Option("--effort", metavar="|".join(EFFORTS), help="Search effort of the quantization.")
    ] = "normal"
    threads: Annotated[
        int, typer.Option("-t", "--threads", metavar="N", min=0, max=512, help="Threads (0: the physical cores).")
    ] = 0


@with_options()
def lab_command(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A GGUF file in F32, F16 or BF16, or a model name.")],
    *,
    files: TextOption,
    measurement: MeasurementOptions,
    target_size: Annotated[
        str | None,
        typer.Option("--target-size", metavar="SIZE", help="File size of the recipe [default: that of Q4_K_M]."),
    ] = None,
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="FILE", help="JSON file; the page has the same name with .html.")
    ] = "lab.json",
) -> None:
    """Measure how sensitive a model is to the quantization of each tensor.

    The model evaluates a text with each tensor quantized alone. The results are the KL divergence from the source for
    each tensor and type, the frontier of divergence against file size with the recipes of llama.cpp beside it, and the
    best types for one size. They are printed as a table, and written as a page and as a JSON file, which `localinfer
    quantize` reads with --recipe, or with --lab for other sizes. On CPUs with instructions for BF16, a SOURCE in BF16
    is measured fastest. The same command resumes an interrupted measurement.

    \b
    Examples:
      localinfer lab model-bf16.gguf -f text.txt --imatrix imatrix.gguf
      localinfer lab model-bf16.gguf -f text.txt --chunks 4 -o lab.json --target-size 700MB
      localinfer quantize model-bf16.gguf model.gguf --imatrix imatrix.gguf --recipe lab.json
      localinfer quantize model-bf16.gguf model.gguf --imatrix imatrix.gguf --target-size 900MB --lab lab.json
    """
    if measurement.effort not in EFFORTS:
        raise UsageError(f"--effort: must be one of {', '.join(EFFORTS)}, not {measurement.effort}")
    path = writable_path("--output", output, (".json",), inputs=files)
    page = writable_path("--output", str(path.with_suffix(".html")), inputs=files)
    size, text, status = parse_target_size(target_size), read_text_files(files), screen.Status()
    plan, chunks = prepare(source, text, measurement, status)
    content = measure(plan, chunks, ", ".join(files), path, size, measurement, status)

    from localinfer.lab.lab_page import render_lab_page
    from localinfer.lab.run import unfinished_path

    write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())
    write_atomically(page, render_lab_page(content).encode("utf-8", "surrogateescape"))
    unfinished_path(path).unlink(missing_ok=True)
    screen.write("\n".join(as_text(content)).lstrip("\n") + "\n")
    screen.note(f"{screen.one_line(str(path))} for `localinfer quantize`; page: {screen.one_line(str(page))}")


def parse_target_size(text: str | None) -> int | None:
    """Return the bytes of --target-size, or None without it."""
    from localinfer.quantization.budget import parse_size

    target = parse_option("--target-size", parse_size, text)
    return target.size if target else None


def prepare(
    name: str, text: str, options: MeasurementOptions, status: screen.Status
) -> "tuple[QuantizationPlan, Chunks]":
    """Open the source. Return a plan with its importance matrix, and the chunks of the text."""
    from cli.models import sigbus_handler
    from localinfer import tokenizer
    from localinfer.gguf.gguf_source import from_gguf
    from localinfer.gguf.reader import open_gguf
    from localinfer.quantization.budget import BASE_RECIPE
    from localinfer.quantization.plan import Request, make_plan
    from localinfer.tokenizer.chunks import split_text

    path = find_or_fetch(name, status)
    sigbus_handler.install(screen.one_line(str(path)))
    plan = make_plan(from_gguf(path), Request(BASE_RECIPE, imatrix=options.imatrix))
    with status.busy("tokenizing the text"):
        words = tokenizer.from_gguf(open_gguf(path))
        return plan, split_text(words, text, options.ctx_size, max_chunks=options.max_chunks, option="--file")


def measure(
    plan: "QuantizationPlan", chunks: "Chunks", text: str, path: Path, size: int | None, options: MeasurementOptions,
    status: screen.Status,
) -> dict[str, Any]:  # fmt: skip
    """Run the lab and return the content of its file."""
    from localinfer.lab.run import make_setting, run_lab
    from localinfer.machine.resources import default_threads

    setting = make_setting(
        plan, chunks, text, options.imatrix, effort=options.effort, layers_at_once=options.layers_at_once
    )
    progress = LabProgress(status)
    threads = options.threads or default_threads()
    try:
        content = run_lab(
            plan, chunks, setting, path, size=size, threads=threads, observer=progress, compiling=status
        )
    except (KeyboardInterrupt, SystemExit):
        status.erase()
        progress.note_resumable()
        raise
    status.erase()
    return content


class LabProgress(LabObserver):
    """Progress callbacks for `run_lab`."""

    def __init__(self, status: screen.Status) -> None:
        self.status, self.start_time, self.n_measured = status, 0.0, 0

    def on_resumed(self, tensors: int) -> None:
        screen.note(f"resuming an interrupted measurement: {tensors} tensors are known")

    def on_estimate(self, tensors: int, seconds: float) -> None:
        self.start_time = time.monotonic()
        self.status.erase()
        if tensors:
            screen.note(f"{tensors} tensors: about {screen.clock(seconds)}")

    def on_progress(self, what: str, fraction: float) -> None:
        left = screen.time_left(int(fraction * RESOLUTION), RESOLUTION, time.monotonic() - self.start_time)
        self.status.show(f"{100 * fraction:3.0f} %  {screen.one_line(what)}{f', {left}' if fraction else ''}")

    def on_tensor(self, found: "TensorSensitivity") -> None:  # noqa: ARG002
        self.n_measured += 1

    def on_check(self, what: str) -> None:
        self.status.show(f"measuring {what}")

    def note_resumable(self) -> None:
        if self.n_measured:
            screen.note(f"{self.n_measured} tensors are measured; run the same command to resume")


# ---- text output -------------------------------------------------------------------------------------------


def as_text(content: Mapping[str, Any]) -> Iterator[str]:
    """Yield the tables of tensors and of recipes."""
    rows = [("", "type", "weights", "outputs", "KL divergence", "chosen")]
    for name, tensor in content["tensors"].items():
        for kind, figures in tensor["types"].items():
            if "standard_error" in figures:
                rows.append((
                    screen.one_line(name), kind, percent(figures["weight_error"]), percent(figures["output_error"]),
                    f"{figures['kl_divergence']:.3g} +/- {figures['standard_error']:.1g}", content["types"][name],
                ))  # fmt: skip
    yield from table("tensors: error of the weights and of the outputs, divergence if quantized alone", "<<>>><", rows)
    lines = [("", "MiB", "predicted", "measured", "best predicted", "best measured")]
    for name, each in content["recipes"].items():
        best = each.get("best")
        lines.append((
            name, f"{each['size'] / MIB:.1f}", f"{each['kl_divergence']:.4f}", measured(each),
            f"{best['kl_divergence']:.4f}" if best else "", measured(best or {}),
        ))  # fmt: skip
    yield from table("recipes of llama.cpp, and the best types of the same size: KL divergence", "<>>>>>", lines)


def percent(power: float) -> str:
    """Return the relative error of a relative power."""
    return f"{100 * power**0.5:.2f} %"


def measured(point: Mapping[str, Any]) -> str:
    """Return the measured divergence of a choice of types, or ""."""
    found = point.get("measured")
    return f"{found['kl_divergence']:.4f} +/- {found['standard_error']:.4f}" if found else ""
