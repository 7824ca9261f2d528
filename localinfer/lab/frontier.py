"""The frontier of KL divergence against file size, and the recipes of llama.cpp beside it.

    curve = SizeCurve(plan, lab.divergences)
    point = curve.best(700_000_000)          # the choice with the least predicted divergence of at most this size
    recipe = curve.recipe("Q4_K_M")          # None if it has a type whose divergence is not known

The divergence of a choice of types is predicted as the sum of those of its tensors: their errors are independent, so
that the powers of the errors in the logits add up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from localinfer.gguf.writer import align, get_alignment
from localinfer.quantization.budget import TYPES, Divergences, choose_options, type_options
from localinfer.quantization.plan import QuantizationPlan, read_traits
from localinfer.quantization.quantize import plan_outputs
from localinfer.quantization.recipes import FLOATS, RECIPES, choose_types, requires_imatrix
from quant import ggml

N_POINTS = 40
QUANTIZED = tuple(kind for kind in TYPES if kind not in FLOATS)
Costs = Mapping[str, Mapping[str, int]]  # by tensor and name of a type
LARGEST_TYPE = "Q8_0"  # the frontier ends at the size of this recipe


@dataclass(frozen=True, slots=True)
class SizePoint:
    """A choice of types, by name, for the tensors of a lab: the size of the file and the predicted divergence in nats
    per token."""

    types: Mapping[str, str]
    size: int
    divergence: float


class SizeCurve:
    """Sizes and predicted divergences of choices of types for the source of a plan."""

    def __init__(self, plan: QuantizationPlan, divergences: Divergences) -> None:
        self._plan, self._divergences = plan, divergences
        self._tensors = {name: plan.source.tensors[name] for name in divergences}
        self._alignment = get_alignment(plan.fields)
        self._options = {
            name: type_options(tensor, [*divergences[name], tensor.type_name], divergences[name], self._alignment)
            for name, tensor in self._tensors.items()
        }
        unchanged = {name: tensor.type for name, tensor in plan.source.tensors.items()}
        [output] = plan_outputs(replace(plan.source, fields=plan.fields), Path("out"), unchanged, keep_split=False)
        self._rest = output.layout.size - sum(each[-1].cost for each in self._options.values())

    @property
    def kinds(self) -> dict[str, list[str]]:
        """The types that each tensor may get, by name, with the present one."""
        return {name: [option.type for option in each] for name, each in self._options.items()}

    @property
    def n_weights(self) -> dict[str, int]:
        """The number of weights of each tensor."""
        return {name: tensor.n_elements for name, tensor in self._tensors.items()}

    @property
    def smallest_size(self) -> int:
        """The size of the smallest file, in bytes."""
        return self._rest + sum(min(option.cost for option in each) for each in self._options.values())

    def point(self, types: Mapping[str, str]) -> SizePoint:
        """Return the size and divergence of a choice of types. Raises KeyError for an unknown type."""
        divergence = sum(
            0.0 if kind == self._tensors[name].type_name else self._divergences[name][kind]
            for name, kind in types.items()
        )
        return SizePoint(types, self._rest + sum(self._cost(name, kind) for name, kind in types.items()), divergence)

    def best(self, size: int) -> SizePoint | None:
        """Return the choice with the least divergence in a file of at most `size` bytes; None if there is none."""
        if size < self.smallest_size:
            return None
        chosen = choose_options(self._options, size - self._rest)
        return self.point({name: option.type for name, option in chosen.items()})

    def best_within(self, costs: Costs, limit: int) -> SizePoint | None:
        """Return the choice with the least divergence whose costs add up to at most `limit`; None if there is none.

        `costs` are those of each type in each tensor, in any unit that is not negative.
        """
        options = {
            name: [option._replace(cost=costs[name][option.type]) for option in each]
            for name, each in self._options.items()
        }
        if sum(min(option.cost for option in each) for each in options.values()) > limit:
            return None
        return self.point({name: option.type for name, option in choose_options(options, limit).items()})

    def recipe(self, name: str) -> SizePoint | None:
        """Return the choice of a recipe of llama.cpp; None if a type of it is unknown or needs an importance matrix
        that there is not."""
        source, importance = self._plan.source, self._plan.importance
        choices = choose_types(name, read_traits(source, {}, bool(importance)), source.tensors.values())
        types = {tensor: choices[tensor].type for tensor in self._divergences}
        if any(requires_imatrix(name, tensor, kind) and tensor not in importance for tensor, kind in types.items()):
            return None
        known = all(kind in self._divergences[tensor] for tensor, kind in types.items())
        return self.point(types) if known and RECIPES[name].base in QUANTIZED else None

    def recipes(self) -> dict[str, SizePoint]:
        """Return the recipes that are known, smallest first."""
        points = {name: point for name in RECIPES if (point := self.recipe(name))}
        return dict(sorted(points.items(), key=lambda each: each[1].size))

    def frontier(self, sizes: Sequence[int] = ()) -> list[SizePoint]:
        """Return the best choices for sizes up to that of Q8_0, and for these sizes, smallest first."""
        largest = self.recipe(LARGEST_TYPE)
        end = largest.size if largest else self._rest + sum(each[-1].cost for each in self._options.values())
        start = self.smallest_size
        spaced = [round(start * (end / start) ** (number / (N_POINTS - 1))) for number in range(N_POINTS)]
        points = {point.size: point for size in {*spaced, *sizes} if (point := self.best(size))}
        return [points[size] for size in sorted(points)]

    def _cost(self, name: str, kind: str) -> int:
        return align(ggml.nbytes(ggml.TYPE_NUMBERS[kind], self._tensors[name].shape), self._alignment)
