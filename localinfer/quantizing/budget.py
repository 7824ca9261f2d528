"""A recipe for a size: the types with which a model's matrices put out the least noise in so many bytes.

    mixture = fit(source, request, Target("700MB", size=700_000_000), effort="normal", threads=2)

No table says which tensor deserves how many bits: of every tensor the noise of every type is measured
(`localinfer.quantizing.noise`), and a byte goes where it takes away the most. Each matrix of the model counts alike,
but for the output matrix, whose noise nothing averages out: it counts `OUTPUT_SHARE` of all of them. Nothing is written
here.
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
from localinfer.files.source import Source, SourceTensor
from localinfer.files.writer import alignment_of, padded
from localinfer.quantizing.assumed import with_assumed
from localinfer.quantizing.mixture import Mixture, Request, changed, mix
from localinfer.quantizing.noise import Progress, measure
from localinfer.quantizing.quantize import compile_for, encoders, outputs_of
from localinfer.quantizing.recipe_rules import NUMBER_OF_TYPE
from localinfer.quantizing.recipes import NEED_IMATRIX, fitting, left_open, recipe_of_base, role_of
from quant import ggml
from quant.jit import loader

PLAIN = "Q8_0"  # a recipe without exceptions: what is not decided here is as it would be there
OUTPUT_SHARE = 0.3  # of those tried with SmolLM2 the one of least KL divergence at the sizes of Q3_K_M and Q4_K_M
TYPES = (
    *("IQ2_XXS", "IQ2_XS", "IQ2_S", "Q2_K", "IQ3_XXS", "IQ3_S", "Q3_K"),
    *("IQ4_XS", "Q4_0", "IQ4_NL", "Q4_K", "Q5_0", "Q5_K", "Q5_1", "Q6_K", "Q8_0", "F16"),
)
MOST_BITS = 16  # of a weight in the largest of these types
UNITS = {"": 1, "B": 1} | {
    letter + ending: base**power
    for ending, base in (("B", 1000), ("iB", 1024))
    for power, letter in enumerate("KMGT", 1)
}


@dataclass(frozen=True, slots=True)
class Target:
    """What may be taken: `size` bytes by the whole file, or `bits` a weight by all tensors. `text` is what was said."""

    text: str
    size: int | None = None
    bits: Fraction | None = None

    @property
    def label(self) -> str:
        """For the name of a file."""
        return self.text if self.bits is None else f"{self.text}bpw"

    def limit(self, source: Source) -> int:
        """Bytes."""
        if self.size is not None:
            return self.size
        assert self.bits is not None
        return floor(self.bits * sum(tensor.n_elements for tensor in source.tensors.values()) / 8)


def parsed_size(text: str) -> Target:
    """700MB, 0.7GB, 650MiB or bytes. Raises ValueError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([A-Za-z]*)", text, re.ASCII)
    units = {unit.lower(): factor for unit, factor in UNITS.items()}
    if not found or found[2].lower() not in units:
        raise ValueError(f"must be a number of bytes, or with a unit such as 700MB, 0.7GB or 650MiB, not {text!r}")
    return Target(text, size=floor(Fraction(found[1]) * units[found[2].lower()]))


def parsed_bits(text: str) -> Target:
    """4.5. Raises ValueError."""
    if not re.fullmatch(r"\d+(\.\d+)?", text, re.ASCII):
        raise ValueError(f"must be a number of bits, such as 4.5, not {text!r}")
    if Fraction(text) > MOST_BITS:
        raise ValueError(f"must be at most {MOST_BITS}, the bits of a weight in {TYPES[-1]}, not {text}")
    return Target(text, bits=Fraction(text))


def fit(
    source: Source,
    request: Request,
    target: Target,
    *,
    effort: str,
    threads: int,
    keep_split: bool = False,
    compiling: loader.Progress | None = None,
    measuring: Progress | None = None,
) -> Mixture:
    """The request's mixture with the least noise within the target; its recipe does not matter.

    What the user wishes of tensors stays as it is. Raises UsageError for a target that cannot be reached.
    """
    mixture = mix(source, replace(request, recipe=PLAIN))
    candidates = {
        name: candidates_for(source.tensors[name], name in mixture.importance)
        for name in left_open(source.tensors.values(), request.wishes)
    }
    room = target.limit(source)
    best = named_after(mixture, request, {name: types[-1] for name, types in candidates.items()})
    if taken_by(best, target, keep_split) <= room:
        return best
    smallest = named_after(mixture, request, {name: types[0] for name, types in candidates.items()})
    if smallest.problem:
        raise smallest.problem
    spare = room - taken_by(smallest, target, keep_split)
    if spare < 0:
        raise UsageError(out_of_reach(target, source, taken_by(smallest, target, keep_split)))
    offers = measured_offers(mixture, candidates, target, effort, threads, compiling, measuring)
    limit = spare + sum(each[0].cost for each in offers.values())
    return named_after(mixture, request, {name: offer.type for name, offer in chosen(offers, limit).items()})


def named_after(mixture: Mixture, request: Request, types: Mapping[str, str]) -> Mixture:
    """The mixture with these types, and called after the one that most of its weights have."""
    weights: Counter[str] = Counter()
    for name, kind in types.items():
        weights[kind] += mixture.source.tensors[name].n_elements
    recipe = recipe_of_base(weights.most_common(1)[0][0]) if weights else PLAIN
    return changed(mixture, replace(request, recipe=recipe), types)


def taken_by(mixture: Mixture, target: Target, keep_split: bool) -> int:
    """The bytes that a target is about."""
    if target.size is None:
        return sum(ggml.nbytes(mixture.types[each.name], each.n_elements) for each in mixture.source.tensors.values())
    outputs = outputs_of(mixture.source, Path("out"), mixture.types, mixture.fields, keep_split)
    return sum(output.layout.size for output in outputs)


def out_of_reach(target: Target, source: Source, smallest: int) -> str:
    if target.size is not None:
        return f"--target-size {target.text}: the smallest file that can be had takes {smallest:,} bytes"
    weights = sum(tensor.n_elements for tensor in source.tensors.values())
    bits = ceil(Fraction(800 * smallest, weights)) / 100
    return f"--target-bpw {target.text}: the smallest file that can be had takes {bits:.2f} bits a weight"


# --- what there is to choose from ---


class Offer(NamedTuple):
    """A type that a tensor could have, by name: what it costs in bytes, and the noise, as much as it counts."""

    type: str
    cost: int
    noise: float


def candidates_for(tensor: SourceTensor, weighted: bool) -> list[str]:
    """The types that a tensor may get, by name, from the smallest on: none takes more than its own, which is the last.

    `weighted`: whether it is known which of its columns matter.
    """
    allowed = [name for name in TYPES if weighted or name not in NEED_IMATRIX]
    there = {fitting(tensor, name) for name in allowed}
    size = {name: ggml.nbytes(NUMBER_OF_TYPE[name], tensor.n_elements) for name in there}
    smaller = [name for name in TYPES if size.get(name, tensor.nbytes) < tensor.nbytes]
    return [*sorted(smaller, key=size.__getitem__), tensor.type_name]


def measured_offers(
    mixture: Mixture,
    candidates: Mapping[str, Sequence[str]],
    target: Target,
    effort: str,
    threads: int,
    compiling: loader.Progress | None,
    measuring: Progress | None,
) -> dict[str, list[Offer]]:
    """The candidates with what they cost and the noise that they bring."""
    tensors = mixture.source.tensors
    tied = "output.weight" not in tensors
    new = {name: [NUMBER_OF_TYPE[kind] for kind in kinds[:-1]] for name, kinds in candidates.items()}
    compile_for(mixture.old_types, {number for numbers in new.values() for number in numbers}, effort, compiling)
    noise = measure(
        mixture.source,
        new,
        encoder_of=encoders(effort, with_assumed(mixture.source, mixture.importance, effort)),
        importance=mixture.importance,
        threads=threads,
        progress=measuring,
    )
    alignment = alignment_of(mixture.fields) if target.size is not None else 1
    offers: dict[str, list[Offer]] = {}
    for name, kinds in candidates.items():
        is_output = role_of(name, tied) == "output"
        tensor, weight = tensors[name], OUTPUT_SHARE * len(candidates) if is_output else 1.0
        for kind in kinds:
            number = NUMBER_OF_TYPE[kind]
            cost = padded(ggml.nbytes(number, tensor.n_elements), alignment)
            offers.setdefault(name, []).append(Offer(kind, cost, weight * noise[name].get(number, 0.0)))
    return offers


# --- the choice ---


def chosen(offers: Mapping[str, Sequence[Offer]], limit: int) -> dict[str, Offer]:
    """Of every tensor's offers one, so that there is little noise and all cost no more than the limit.

    Everybody begins with the cheapest offer; then the step that takes away the most noise for a byte is taken, as long
    as one can be paid. Only offers on the convex hull of noise over cost are steps: so each tensor's steps come in
    their order, and where the next step costs just what is left no other choice is better. What is left in the end is
    filled with any better offer.
    """
    curves = {name: hull(each) for name, each in offers.items()}
    found = {name: curve[0] for name, curve in curves.items()}
    left = limit - sum(offer.cost for offer in found.values())
    steps = [(name, *step) for name, curve in curves.items() for step in pairwise(curve)]
    for name, before, after in sorted(steps, key=lambda step: slope(*step[1:])):
        if found[name] == before and after.cost - before.cost <= left:
            found[name] = after
            left -= after.cost - before.cost
    return filled(offers, found, left)


def hull(offers: Iterable[Offer]) -> list[Offer]:
    """The lower convex hull of noise over cost, from the cheapest offer to the one of least noise."""
    curve: list[Offer] = []
    for offer in sorted(offers, key=lambda offer: (offer.cost, offer.noise)):
        if curve and offer.noise >= curve[-1].noise:
            continue
        while len(curve) > 1 and slope(curve[-2], curve[-1]) >= slope(curve[-1], offer):
            curve.pop()
        curve.append(offer)
    return curve


def slope(before: Offer, after: Offer) -> float:
    """Of noise over cost: the lower, the more a byte does."""
    return (after.noise - before.noise) / (after.cost - before.cost)


def filled(offers: Mapping[str, Sequence[Offer]], found: Mapping[str, Offer], left: int) -> dict[str, Offer]:
    """The same with steps to any better offers that can be paid with what is left, the steepest first."""
    full = dict(found)
    while True:
        steps = [
            (slope(full[name], offer), name, offer)
            for name, each in offers.items()
            for offer in each
            if offer.noise < full[name].noise and 0 < offer.cost - full[name].cost <= left
        ]
        if not steps:
            return full
        _, name, offer = min(steps, key=lambda step: step[0])
        left -= offer.cost - full[name].cost
        full[name] = offer
