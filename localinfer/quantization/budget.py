"""Quantization to a target size: choose the tensor types with the least total noise within a byte budget.

    plan = plan_for_target(source, request, Target("700MB", size=700_000_000), effort="normal", threads=2)

For every tensor, the noise of every type is measured (`localinfer.quantization.noise`), and each byte is spent where it
removes the most noise. All matrices have the same weight, except the output matrix, whose noise is not averaged out by
later layers: its weight is `OUTPUT_WEIGHT` of the number of matrices. If the KL divergence of the model with each
tensor quantized is known (`localinfer.lab`), it takes the place of the weighted noise. This module
does not write files.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from math import ceil, floor
from pathlib import Path
from typing import NamedTuple

from localinfer.errors import UsageError
from localinfer.escaping import printable
from localinfer.gguf.source import Source, SourceTensor
from localinfer.gguf.writer import align, get_alignment
from localinfer.options import parse_bytes
from localinfer.quantization.noise import Progress, measure_noise
from localinfer.quantization.plan import QuantizationPlan, Request, make_plan, with_types
from localinfer.quantization.quantize import compile_kernels, make_encoder_factory, plan_outputs
from localinfer.quantization.recipes import (
    NEED_IMATRIX,
    compatible_type,
    recipe_for_base,
    role_of,
    tensors_without_override,
)
from localinfer.quantization.tied_output_importance import with_tied_output_importance
from quant import ggml
from quant.jit import loader

BASE_RECIPE = "Q8_0"  # a recipe without exceptions, for the tensors that are not chosen here
OUTPUT_WEIGHT = 0.3  # had the least KL divergence with SmolLM2 at the sizes of Q3_K_M and Q4_K_M
TYPES = (
    *("IQ2_XXS", "IQ2_XS", "IQ2_S", "Q2_K", "IQ3_XXS", "IQ3_S", "Q3_K"),
    *("IQ4_XS", "Q4_0", "IQ4_NL", "Q4_K", "Q5_0", "Q5_K", "Q5_1", "Q6_K", "Q8_0", "F16"),
)
MAX_BITS = 16  # per weight of the largest of these types
Divergences = Mapping[str, Mapping[str, float]]  # by tensor and name of a type; the present type has none


@dataclass(frozen=True, slots=True)
class Target:
    """A size limit: `size` bytes for the whole file, or `bits` per weight over all tensors. `text` is the input."""

    text: str
    size: int | None = None
    bits: Fraction | None = None

    @property
    def label(self) -> str:
        """The suffix of a file name that describes the target."""
        return self.text if self.bits is None else f"{self.text}bpw"

    def limit(self, source: Source) -> int:
        """Return the limit in bytes."""
        if self.size is not None:
            return self.size
        assert self.bits is not None
        return floor(self.bits * sum(tensor.n_elements for tensor in source.tensors.values()) / 8)


def parse_size(text: str) -> Target:
    """Parse 700MB, 0.7G, 650MiB or a number of bytes. Raises ValueError."""
    return Target(text, size=parse_bytes(text))


def parse_bits(text: str) -> Target:
    """Parse bits per weight such as 4.5. Raises ValueError."""
    if not re.fullmatch(r"\d+(\.\d+)?", text, re.ASCII):
        raise ValueError(f"must be a number of bits, such as 4.5, not {text!r}")
    if Fraction(text) > MAX_BITS:
        raise ValueError(f"must be at most {MAX_BITS}, the bits of a weight in {TYPES[-1]}, not {text}")
    return Target(text, bits=Fraction(text))


def plan_for_target(
    source: Source,
    request: Request,
    target: Target,
    *,
    effort: str,
    threads: int,
    keep_split: bool = False,
    divergences: Divergences | None = None,
    compiling: loader.Progress | None = None,
    measuring: Progress | None = None,
) -> QuantizationPlan:
    """Return the plan with the least noise, or KL divergence, within the target; the recipe of the request is ignored.

    The user's type overrides take precedence. Raises UsageError if the target cannot be reached, or if `divergences`
    lack a tensor.
    """
    plan = make_plan(source, replace(request, recipe=BASE_RECIPE))
    candidates = {
        name: candidates_for(source.tensors[name], name in plan.importance)
        for name in tensors_without_override(source.tensors.values(), request.overrides)
    }
    if divergences is not None:
        candidates = {name: known_candidates(source, name, kinds, divergences) for name, kinds in candidates.items()}
    limit_bytes = target.limit(source)
    best = with_named_recipe(plan, request, {name: types[-1] for name, types in candidates.items()})
    if bytes_used(best, target, keep_split) <= limit_bytes:
        return best
    smallest = with_named_recipe(plan, request, {name: types[0] for name, types in candidates.items()})
    if smallest.problem:
        raise smallest.problem
    remaining = limit_bytes - bytes_used(smallest, target, keep_split)
    if remaining < 0:
        raise UsageError(unreachable_message(target, source, bytes_used(smallest, target, keep_split)))
    alignment = get_alignment(plan.fields) if target.size is not None else 1
    noise = divergences or measure_weighted_noise(plan, candidates, effort, threads, compiling, measuring)
    options = {
        name: type_options(source.tensors[name], kinds, noise[name], alignment) for name, kinds in candidates.items()
    }
    limit = remaining + sum(each[0].cost for each in options.values())
    return with_named_recipe(
        plan, request, {name: option.type for name, option in choose_options(options, limit).items()}
    )


def with_named_recipe(plan: QuantizationPlan, request: Request, types: Mapping[str, str]) -> QuantizationPlan:
    """Return the plan with these types and the recipe whose base is the type of most weights."""
    weights: Counter[str] = Counter()
    for name, kind in types.items():
        weights[kind] += plan.source.tensors[name].n_elements
    recipe = recipe_for_base(weights.most_common(1)[0][0]) if weights else BASE_RECIPE
    return with_types(plan, replace(request, recipe=recipe), types)


def bytes_used(plan: QuantizationPlan, target: Target, keep_split: bool) -> int:
    """Return the number of bytes that count towards the target."""
    if target.size is None:
        return sum(ggml.nbytes(plan.types[each.name], each.shape) for each in plan.source.tensors.values())
    outputs = plan_outputs(replace(plan.source, fields=plan.fields), Path("out"), plan.types, keep_split)
    return sum(output.layout.size for output in outputs)


def unreachable_message(target: Target, source: Source, smallest: int) -> str:
    """Return the error message for a target below the smallest possible size."""
    if target.size is not None:
        return f"--target-size {target.text}: the smallest possible file has {smallest:,} bytes"
    weights = sum(tensor.n_elements for tensor in source.tensors.values())
    bits = ceil(Fraction(800 * smallest, weights)) / 100
    return f"--target-bpw {target.text}: the smallest possible file has {bits:.2f} bits per weight"


# --- options ---


class TypeOption(NamedTuple):
    """A type for a tensor, by name, with its cost in bytes and its weighted noise."""

    type: str
    cost: int
    noise: float


def candidates_for(tensor: SourceTensor, weighted: bool) -> list[str]:
    """Return the names of the types that a tensor may get, smallest first.

    None is larger than the tensor's present type, which is the last. `weighted`: the tensor's importance is known.
    """
    allowed = [name for name in TYPES if weighted or name not in NEED_IMATRIX]
    compatible = {compatible_type(tensor, name) for name in allowed}
    size = {name: ggml.nbytes(ggml.TYPE_NUMBERS[name], tensor.shape) for name in compatible}
    smaller = [name for name in TYPES if size.get(name, tensor.nbytes) < tensor.nbytes]
    return [*sorted(smaller, key=size.__getitem__), tensor.type_name]


def known_candidates(source: Source, name: str, kinds: Sequence[str], divergences: Divergences) -> list[str]:
    """Return the candidates whose divergence is known. Raises UsageError if the tensor's is not."""
    if len(kinds) > 1 and name not in divergences:
        raise UsageError(f"{printable(str(source.path))}: {printable(name, 80)}: was not measured in this lab file")
    return [kind for kind in kinds if kind == kinds[-1] or kind in divergences[name]]


def measure_weighted_noise(
    plan: QuantizationPlan,
    candidates: Mapping[str, Sequence[str]],
    effort: str,
    threads: int,
    compiling: loader.Progress | None,
    measuring: Progress | None,
) -> dict[str, dict[str, float]]:
    """Return the noise of every candidate type in every tensor, by name, times the weight of the tensor."""
    tied = "output.weight" not in plan.source.tensors
    new = {name: [ggml.TYPE_NUMBERS[kind] for kind in kinds[:-1]] for name, kinds in candidates.items()}
    compile_kernels(plan.old_types, {number for numbers in new.values() for number in numbers}, effort, compiling)
    noise = measure_noise(
        plan.source,
        new,
        encoder_factory=make_encoder_factory(effort, with_tied_output_importance(plan.source, plan.importance, effort)),
        importance=plan.importance,
        threads=threads,
        progress=measuring,
    )
    weights = {
        name: OUTPUT_WEIGHT * len(candidates) if role_of(name, tied) == "output" else 1.0 for name in candidates
    }
    return {
        name: {ggml.TYPES[number].name: weights[name] * value for number, value in by_type.items()}
        for name, by_type in noise.items()
    }


def type_options(
    tensor: SourceTensor, kinds: Iterable[str], noise: Mapping[str, float], alignment: int
) -> list[TypeOption]:
    """Return the options of a tensor. A type without noise is the present one."""
    costs = {kind: align(ggml.nbytes(ggml.TYPE_NUMBERS[kind], tensor.shape), alignment) for kind in kinds}
    return [TypeOption(kind, cost, noise.get(kind, 0.0)) for kind, cost in costs.items()]


# --- choice ---


def choose_options(options: Mapping[str, Sequence[TypeOption]], limit: int) -> dict[str, TypeOption]:
    """Return one option per tensor, such that the total noise is small and the total cost is within the limit.

    Steps of the largest tensor, such as the token embeddings of a small model, can be too large for what remains of the
    budget at their turn. So the others are chosen for each of its options.
    """
    if not options:
        return {}
    largest = max(options, key=lambda name: max(option.cost for option in options[name]))
    cheapest = sum(min(option.cost for option in each) for name, each in options.items() if name != largest)
    choices = [
        choose_greedily({**options, largest: [option]}, limit)
        for option in convex_hull(options[largest])
        if option.cost + cheapest <= limit
    ]
    return min([choose_greedily(options, limit), *choices], key=total_noise)


def total_noise(choice: Mapping[str, TypeOption]) -> float:
    """Return the noise of a choice."""
    return sum(option.noise for option in choice.values())


def choose_greedily(options: Mapping[str, Sequence[TypeOption]], limit: int) -> dict[str, TypeOption]:
    """Return one option per tensor by a greedy algorithm.

    It starts with the cheapest options and takes the step that removes the most noise per byte as long as one is
    affordable. Only options on the convex hull of noise over cost are steps, so the steps of each tensor are taken in
    order; if a step uses exactly the remaining budget, the result is optimal. Any other better options then use up the
    rest of the budget.
    """
    curves = {name: convex_hull(each) for name, each in options.items()}
    chosen = {name: curve[0] for name, curve in curves.items()}
    remaining = limit - sum(option.cost for option in chosen.values())
    steps = [(name, *step) for name, curve in curves.items() for step in pairwise(curve)]
    for name, before, after in sorted(steps, key=lambda step: slope(*step[1:])):
        if chosen[name] == before and after.cost - before.cost <= remaining:
            chosen[name] = after
            remaining -= after.cost - before.cost
    return spend_remaining(options, chosen, remaining)


def convex_hull(options: Iterable[TypeOption]) -> list[TypeOption]:
    """Return the lower convex hull of noise over cost, from the cheapest option to the one with the least noise."""
    curve: list[TypeOption] = []
    for option in sorted(options, key=lambda option: (option.cost, option.noise)):
        if curve and option.noise >= curve[-1].noise:
            continue
        while len(curve) > 1 and slope(curve[-2], curve[-1]) >= slope(curve[-1], option):
            curve.pop()
        curve.append(option)
    return curve


def slope(before: TypeOption, after: TypeOption) -> float:
    """Return the slope of noise over cost: the lower, the more noise a byte removes."""
    return (after.noise - before.noise) / (after.cost - before.cost)


def spend_remaining(
    options: Mapping[str, Sequence[TypeOption]], chosen: Mapping[str, TypeOption], remaining: int
) -> dict[str, TypeOption]:
    """Return the choice after taking any better options that the remaining bytes allow, steepest first."""
    full = dict(chosen)
    while True:
        steps = [
            (slope(full[name], option), name, option)
            for name, each in options.items()
            for option in each
            if option.noise < full[name].noise and 0 < option.cost - full[name].cost <= remaining
        ]
        if not steps:
            return full
        _, name, option = min(steps, key=lambda step: step[0])
        remaining -= option.cost - full[name].cost
        full[name] = option
