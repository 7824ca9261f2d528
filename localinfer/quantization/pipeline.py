"""Encode a model by a quantization plan: compile the kernels, choose the encoders, write the file."""

from pathlib import Path

from localinfer.quantization.default_importance import with_default_importance
from localinfer.quantization.feedback_encoders import compile_feedback, make_factor_lookup, make_feedback_factory
from localinfer.quantization.plan import QuantizationPlan
from localinfer.quantization.quantize import (
    Progress,
    RowObserver,
    compile_kernels,
    make_encoder_factory,
    quantize,
)
from quant.encoders.feedback import MIN_ROWS
from quant.encoders.low_rank import LANES
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
    replace: bool = False,
    keep_split: bool = False,
    progress: Progress | None = None,
    compiling: loader.Progress | None = None,
    observer: RowObserver | None = None,
) -> list[Path]:
    """Quantize the source of a plan into a GGUF file, and return the files that were written.

    `effort` is one of EFFORTS. `progress` is called for each encoded slice of rows, `compiling` while kernels are
    compiled; `observer` sees the values before and after. Raises the problem of the plan if it has one, and
    LocalInferError if the source has values that are not finite, or the file cannot be written. Then nothing is left.
    """
    if plan.problem:
        raise plan.problem
    search = "normal" if effort == "max" else effort
    compile_kernels(plan.old_types, plan.changed_types, search, compiling, low_rank=bool(plan.components))
    importance = with_default_importance(plan.source, plan.importance, search)
    encoder_factory = make_encoder_factory(search, importance, plan.components)
    min_rows = LANES if plan.components else 1
    if uses_feedback(plan, effort):
        compile_feedback(plan.changed_types, compiling)
        factors = make_factor_lookup(plan.covariances, threads)
        encoder_factory = make_feedback_factory(importance, factors, plan.components)
        min_rows = MIN_ROWS
    return quantize(
        plan.source, out, plan.types, encoder_factory=encoder_factory, fields=plan.fields, least_rows=min_rows,
        threads=threads, replace=replace, keep_split=keep_split, progress=progress, observer=observer,
    )  # fmt: skip
