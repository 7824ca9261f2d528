"""The measurements behind a fitted file: importance matrix, sensitivities, divergence and speed of the result."""

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from localinfer.evaluation.benchmark import BenchmarkTest, benchmark
from localinfer.evaluation.compare import compare
from localinfer.evaluation.imatrix import Collector
from localinfer.evaluation.perplexity import Mean
from localinfer.evaluation.roofline import Roofline
from localinfer.fit.passages import Passages
from localinfer.gguf.gguf_source import from_gguf
from localinfer.gguf.imatrix_file import write_imatrix
from localinfer.gguf.reader import open_gguf
from localinfer.gguf.source import Source
from localinfer.lab.frontier import SizeCurve
from localinfer.lab.lab_file import Lab, read_lab
from localinfer.lab.measurement import LARGE_TENSOR_TYPES
from localinfer.lab.run import LabObserver, make_setting, run_lab
from localinfer.options import Options
from localinfer.quantization.budget import BASE_RECIPE, candidates_for
from localinfer.quantization.plan import QuantizationPlan, Request, make_plan
from localinfer.quantization.recipes import is_quantizable, layer_of
from localinfer.runtime.engine import Engine
from quant.jit.files import replace_file
from quant.jit.loader import Progress

OnStep = Callable[[int, int], None]  # finished steps, all steps
DECODED, REPETITIONS = 48, 3  # tokens of a test of speed, and tests
EFFICIENCY = 0.4  # of the peak of the machine, in evaluations
ENCODING = 6e-9  # seconds per weight, of one core


@dataclass(frozen=True, slots=True)
class Workspace:
    """A model in F32, F16 or BF16, the text, and a folder for what is measured, from which an interrupted run goes on.
    """

    path: Path
    folder: Path
    passages: Passages
    threads: int
    layers_at_once: int = 1

    @property
    def options(self) -> Options:
        """The options of an engine that evaluates a chunk as one batch."""
        n_ctx = self.passages.n_ctx
        return Options(
            ctx_size=n_ctx, batch_size=n_ctx, ubatch_size=n_ctx, threads=self.threads, threads_batch=self.threads,
            tune=False,
        )  # fmt: skip


def estimated_seconds(source: Source, workspace: Workspace, roofline: Roofline) -> dict[str, float]:
    """Return roughly how long each step takes, from the multiplications that it needs and the peak of the machine."""
    weights = sum(tensor.n_elements for tensor in source.tensors.values() if is_quantizable(tensor))
    n_layers = 1 + max(layer_of(name, 0) for name in source.tensors)
    per_layer = sum(is_quantizable(tensor) for name, tensor in source.tensors.items() if layer_of(name, -1) == 0)
    kinds = {tensor.type_name for tensor in source.tensors.values()}
    peak = roofline.pairs if "BF16" in kinds else roofline.fmas
    token = weights / (EFFICIENCY * peak)
    passages, encoding = workspace.passages, ENCODING * weights / workspace.threads
    evaluations = len(LARGE_TENSOR_TYPES) + 0.5 * per_layer * -(-n_layers // workspace.layers_at_once)
    return {
        "importance matrix": 2 * passages.calibration.size * token,  # the principal components take as long again
        "sensitivity of each tensor": evaluations * passages.lab.size * token + 2 * encoding,
        "quantization": encoding,
        "check": 2 * passages.held_out.size * token,
    }


def collect_imatrix(workspace: Workspace, dataset: str, on_step: OnStep, progress: Progress | None = None) -> Path:
    """Return the file of the importance matrix, which is measured unless it is there."""
    path = workspace.folder / "imatrix.gguf"
    if not path.exists():
        with closing(Engine.load(open_gguf(workspace.path), workspace.options, progress)) as engine:
            collector, chunks = Collector(engine), workspace.passages.calibration
            for done in collector.collect(chunks):
                on_step(done, len(chunks))
        write_imatrix(path, collector.to_imatrix(dataset))
    return path


def make_base_plan(source: Source, imatrix: Path) -> QuantizationPlan:
    """Return a plan with an importance matrix, whose types are chosen later."""
    return make_plan(source, Request(BASE_RECIPE, imatrix=imatrix))


def smallest_size(source: Source) -> int:
    """Return the bytes of a file whose tensors have the smallest types that an importance matrix allows."""
    types = {name: candidates_for(each, True) for name, each in source.tensors.items() if is_quantizable(each)}
    nothing = {name: dict.fromkeys(kinds[:-1], 0.0) for name, kinds in types.items() if len(kinds) > 1}
    return SizeCurve(make_plan(source, Request(BASE_RECIPE, allow_requantize=True)), nothing).smallest_size


def measure_lab(
    workspace: Workspace, imatrix: Path, dataset: str, observer: LabObserver, compiling: Progress | None = None
) -> Lab:
    """Return the sensitivities of the model, which are measured unless they are known."""
    path = workspace.folder / "lab.json"
    plan = make_base_plan(from_gguf(workspace.path), imatrix)
    setting = make_setting(
        plan, workspace.passages.lab, dataset, imatrix, layers_at_once=workspace.layers_at_once
    )  # fmt: skip
    if not path.exists() or read_lab(path).setting != json.loads(json.dumps(setting)):
        content = run_lab(
            plan, workspace.passages.lab, setting, path, measured=(), threads=workspace.threads, observer=observer,
            compiling=compiling,
        )  # fmt: skip
        replace_file(path, json.dumps(content).encode())
    return read_lab(path)


def measure_divergence(
    workspace: Workspace, out: Path, on_step: OnStep, progress: Progress | None = None
) -> Mean:
    """Return the KL divergence of a file from the model, in nats per token, on the chunks that were held out."""
    chunks, options = workspace.passages.held_out, workspace.options
    with (
        closing(Engine.load(open_gguf(workspace.path), options, progress)) as base,
        closing(Engine.load(open_gguf(out), options, progress)) as other,
    ):
        scores = compare(base, other, chunks)
        for done in range(len(chunks)):
            on_step(done, len(chunks))
            found = next(scores)
    return Mean.of(found.divergence)


def measure_decode_speed(
    out: Path, threads: int, on_activity: Callable[[str], None], progress: Progress | None = None
) -> float:
    """Return the tokens per second of the fastest of three tests: other programs disturb some, and the first tunes."""
    options = replace(Options(), threads=threads)
    [result] = benchmark(out, [BenchmarkTest(0, DECODED, 0, threads)], options, REPETITIONS, on_activity, progress)
    return max(result.rates)
