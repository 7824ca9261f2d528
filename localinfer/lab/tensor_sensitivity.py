"""The sensitivity to the quantization of one tensor: measured in some types, and derived for the others.

The KL divergence is quadratic in a small change of the logits (its Hessian is the Fisher information), and the logits
are linear in a small error of a tensor. So the divergence is proportional to the power of the error in the outputs of
the tensor, which is cheap to measure for every type.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median

TINY = 1e-30  # in place of an error of 0


@dataclass(frozen=True, slots=True)
class TensorSensitivity:
    """What quantizing one tensor costs, by the names of types: relative powers of errors, and nats per token.

    `measured` has the types whose divergence was measured, with its standard error. The type of the source has no error
    and no divergence.
    """

    name: str
    weight_errors: Mapping[str, float]
    output_errors: Mapping[str, float]
    divergences: Mapping[str, float]
    measured: Mapping[str, float]


def derive_divergences(measured: Mapping[str, float], errors: Mapping[str, float]) -> dict[str, float]:
    """Return the divergence of every type in `errors`: as measured, or that of the measured type with the most similar
    error, times the ratio of the errors."""
    derived = dict[str, float]()
    for kind, error in errors.items():
        if kind in measured:
            derived[kind] = measured[kind]
        else:
            known = min(measured, key=lambda each: abs(math.log((errors[each] or TINY) / (error or TINY))))
            derived[kind] = measured[known] * error / (errors[known] or TINY)
    return derived


def divergence_of_error(found: TensorSensitivity) -> float:
    """Return the largest ratio of a measured divergence to the error in the outputs; 0 if none was measured."""
    ratios = [found.divergences[kind] / error for kind in found.measured if (error := found.output_errors[kind])]
    return max(ratios, default=0.0)


def with_unused_tensors(found: Mapping[str, TensorSensitivity]) -> dict[str, TensorSensitivity]:
    """Return the same with other divergences for tensors that predictions do not depend on, such as a draft head: they
    are as sensitive as the median tensor."""
    ratios = {name: divergence_of_error(each) for name, each in found.items()}
    typical = median([ratio for ratio in ratios.values() if ratio > 0] or [0.0])
    return {
        name: each if ratios[name] > 0 else replace(
            each, divergences={kind: typical * error for kind, error in each.output_errors.items()}, measured={}
        )
        for name, each in found.items()
    }  # fmt: skip
