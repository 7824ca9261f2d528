"""Recipes: which tensor of a model gets which type, by the names that llama-quantize uses.

A recipe is a base type and exceptions from it, which are in the table of `localinfer.quantizing.recipe_rules`; here are
the user's wishes, and what is true of all recipes. Knows tensors by name, shape and type; no file and no values.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from localinfer.quantizing.recipe_rules import (
    BASE,
    EMBEDDINGS,
    EXPERTS_ONLY,
    LOW,
    RAISED,
    RECIPES,
    ROLES,
    RULES,
    Case,
    Tensor,
    Traits,
    fits,
    seventy_billion,
)
from quant.ggml import TYPES

__all__ = ["COPY", "RECIPES", "Choice", "Tensor", "Traits", "Wishes", "choose", "fitting", "recipe_named"]

FLOATS = ("F32", "F16", "BF16")
COPY = "COPY"  # no recipe: every tensor stays as it is
ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}


def recipe_named(text: str) -> str | None:
    """The recipe that a user means: a name, an alias in any case, or the number of a file type."""
    name = text.upper()
    by_number = {str(recipe.number): known for known, recipe in RECIPES.items()}
    name = by_number.get(name, ALIASES.get(name, name))
    return name if name in RECIPES or name == COPY else None


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a user wants otherwise. Types are names; the first pattern that is found in a name decides."""

    pure: bool = False
    leave_output: bool = False
    output: str | None = None
    token_embedding: str | None = None
    patterns: tuple[tuple[re.Pattern[str], str], ...] = ()

    def of(self, name: str) -> str | None:
        return next((kind for pattern, kind in self.patterns if pattern.search(name)), None)


class Choice(NamedTuple):
    """The type of a tensor by name, and the one that it would have if its rows were of another length."""

    type: str
    wanted: str


SMALLER_BLOCKS = {  # where its blocks do not divide the rows; where those of 32 do not either, F16
    **dict.fromkeys(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS"), "IQ4_NL"),
    **dict.fromkeys(("Q2_K", "Q3_K", "TQ1_0", "TQ2_0", "Q1_0", "Q2_0"), "Q4_0"),
    "NVFP4": "MXFP4",
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
}

KEPT = (  # tensors with one of these in their names stay as they are: small, or too sensitive
    *("_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight", "altup", "laurel", "per_layer_model_proj"),
    *("ssm_conv1d", "shortconv.conv.weight", "indexer.k_proj.weight", "indexer.q_proj.weight", "attn_rel_b.weight"),
    *(f"time_mix_{name}.weight" for name in ("first", "decay_w1", "decay_w2", "lerp_fused", "g1", "g2")),
    *(f"time_mix_{letter}{number}.weight" for letter in "wva" for number in range(3)),
    *(".position_embd", "sam.pos_embd", "sam.neck.", "sam.net_", ".rel_pos"),
    *(".patch_embd", ".patch_merger", "a.rvq.codebook", "mm.a.code_embd"),
)
KEPT_WHOLE = ("position_embd.weight", "token_types.weight")

NEED_IMATRIX = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS")


def choose(recipe: str, model: Traits, tensors: Iterable[Tensor], wishes: Wishes = Wishes()) -> dict[str, Choice]:
    """The type of every tensor, in the order in which they are given."""
    given = list(tensors)
    types = {tensor.name: kept(tensor) for tensor in given}
    if recipe != COPY:
        quantizable = [tensor for tensor in given if may_change(tensor, wishes)]
        types |= _chosen(recipe, model, given, quantizable, wishes)
    return types


def kept(tensor: Tensor) -> Choice:
    name = TYPES[tensor.type].name
    return Choice(name, name)


def may_change(tensor: Tensor, wishes: Wishes = Wishes()) -> bool:
    """Whether a recipe is about this tensor at all: a matrix of weights, or one for each expert."""
    name = tensor.name
    if not name.endswith("weight") or name in KEPT_WHOLE or (wishes.leave_output and name == "output.weight"):
        return False
    return is_matrix(tensor) and not any(text in name for text in KEPT)


def left_open(tensors: Iterable[Tensor], wishes: Wishes) -> list[str]:
    """The tensors whose types are for a recipe to choose: those that may change, and that no wish is about."""
    given = list(tensors)
    tied = all(tensor.name != "output.weight" for tensor in given)
    changing = [tensor.name for tensor in given if may_change(tensor, wishes)]
    return [name for name in changing if _wish(name, role_of(name, tied), wishes) is None]


def recipe_of_base(type_name: str) -> str:
    """A recipe whose base is this type: the one that is named after it, if that does."""
    having = [name for name, recipe in RECIPES.items() if recipe.base == type_name]
    named = recipe_named(type_name)
    return named if named in having else having[0]


def requires_imatrix(recipe: str, name: str, type_name: str) -> bool:
    """Whether a tensor of this type is worth nothing unless it is known which of its columns matter."""
    if name == "output.weight" or name in EMBEDDINGS:
        return False
    return type_name in NEED_IMATRIX or (type_name == "Q2_K" and recipe == "Q2_K_S")


def is_matrix(tensor: Tensor) -> bool:
    """Leading dimensions of 1 do not count."""
    return any(size > 1 for size in tensor.shape[:-1])


def fitting(tensor: Tensor, type_name: str) -> str:
    """The type itself, or the one that takes its place where its blocks do not divide the rows."""
    if fits(tensor, type_name):
        return type_name
    smaller = SMALLER_BLOCKS.get(type_name, type_name)
    return smaller if fits(tensor, smaller) else "F16"


def by_layer(tensor: Tensor) -> tuple[int, str]:
    """The order in which tensors are counted: what belongs to no layer first, then by layer and name."""
    return layer_of(tensor.name, -1), tensor.name


def layer_of(name: str, default: int) -> int:
    found = re.match(r"blk\.(\d+)\.", name)
    return int(found[1]) if found else default


def role_of(name: str, tied: bool) -> str:
    """Where a model has no output matrix of its own, its token embeddings are that."""
    if name == "output.weight" or (tied and name in EMBEDDINGS):
        return "output"
    if name in EMBEDDINGS:
        return "token_embd"
    return next((role for text, role in ROLES.items() if text in name), "")


def _chosen(
    recipe: str, model: Traits, tensors: Sequence[Tensor], quantizable: Sequence[Tensor], wishes: Wishes
) -> dict[str, Choice]:
    tied = all(tensor.name != "output.weight" for tensor in tensors)
    n_values = sum(role_of(tensor.name, tied) == "attn_v" for tensor in tensors)
    base = RECIPES[recipe].base
    uniform = wishes.pure or base in FLOATS
    seen: Counter[str] = Counter()
    types = {}
    for tensor in sorted(quantizable, key=by_layer):
        role = role_of(tensor.name, tied)
        wanted = _wish(tensor.name, role, wishes) or (base if uniform else None)
        if wanted is None:
            index = seen[role]
            if model.n_expert > 1 and role.startswith("ffn_") and recipe not in LOW.split():
                index = layer_of(tensor.name, index)
            count = n_values if role == "attn_v" else model.n_layer
            wanted = _by_rules(recipe, role, Case(model, tensor, base, index, count))
            seen[role] += 1
        types[tensor.name] = Choice(fitting(tensor, wanted), wanted)
    return types


def _wish(name: str, role: str, wishes: Wishes) -> str | None:
    """What the user said about this tensor."""
    named = wishes.of(name)
    is_embedding = name in EMBEDDINGS and not (name == EMBEDDINGS[1] and named)
    if wishes.token_embedding and is_embedding:
        return wishes.token_embedding
    if wishes.output and (name == "output.weight" or (role == "output" and not named and not wishes.pure)):
        return wishes.output
    return named


def _by_rules(recipe: str, role: str, case: Case) -> str:
    rules = RULES.get(role, ()) if role == "output" else EXPERTS_ONLY + RULES.get(role, ())
    found = (each.type for each in rules if recipe in each.recipes and all(holds(case) for holds in each.conditions))
    chosen = next(found, BASE) or case.base
    if role == "attn_v" and recipe not in LOW.split() and seventy_billion(case):
        return RAISED.get(chosen, chosen)
    return chosen
