"""Encode a model by a quantization plan: compile the kernels, choose the encoders, write the file."""

from dataclasses import replace
from pathlib import Path

from localinfer import architectures
from localinfer.quantization.feedback_encoders import compile_feedback, make_factor_lookup, make_feedback_factory
from localinfer.quantization.plan import QuantizationPlan
from localinfer.quantization.quantize import (
    NEW_FILE,
    OutputOptions,
    Progress,
    RowObserver,
    compile_kernels,
    make_encoder_factory,
    quantize,
)
from localinfer.quantization.tied_output_importance import with_tied_output_importance
from quant.jit import loader

EFFORTS = ("fast", "normal", "max")


def uses_feedback(plan: QuantizationPlan, effort: str) -> bool:
    """Return whether error feedback (GPTQ) is applied: at effort "max", if the plan has covariances."""
    return effort == "max" and bool(plan.covariances)


def write_plan(
    plan: QuantizationPlan,
    out: Path,
    *,
    effort: str = "normal",
    threads: int = 1,
    options: OutputOptions = NEW_FILE,
    progress: Progress | None = None,
    compiling: loader.Progress | None = None,
    observer: RowObserver | None = None,
) -> list[Path]:
    """Quantize the source of a plan into a GGUF file, and return the files that were written.

    `effort` is one of EFFORTS. `progress` is called for each encoded slice of rows, `compiling` while kernels are
    compiled; `observer` sees the values before and after. Raises the problem of the plan if it has one, and
    LocalInferError if the source has values that are not finite, or the file cannot be written, and UsageError for
    an architecture file without a graph. Then nothing is left.
    """
    if plan.problem:
        raise plan.problem
    check_architecture_file(plan, options.architecture_file)
    search = "normal" if effort == "max" else effort
    compile_kernels(plan.old_types, plan.changed_types, search, compiling, low_rank=bool(plan.components))
    importance = with_tied_output_importance(plan.source, plan.importance, search)
    encoder_factory = make_encoder_factory(search, importance, plan.components)
    if uses_feedback(plan, effort):
        compile_feedback(plan.changed_types, compiling)
        factors = make_factor_lookup(plan.covariances, threads, plan.scales)
        encoder_factory = make_feedback_factory(importance, factors, plan.components)
    return quantize(
        replace(plan.source, fields=plan.fields), out, plan.types, encoder_factory=encoder_factory,
        scales=plan.scales, threads=threads, options=options, progress=progress, observer=observer,
    )  # fmt: skip


def check_architecture_file(plan: QuantizationPlan, name: str) -> None:
    """Raise UsageError if the Python file that describes the compute graph of a checkpoint has no graph.

    The graph is needed when all tensors are written, which takes long.
    """
    if name and plan.source.path.is_dir():
        architectures.from_file(Path(name))
