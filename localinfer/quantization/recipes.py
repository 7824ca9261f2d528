"""Quantization recipes: the type of each tensor of a model, by the recipe names of llama-quantize.

A recipe is a base type with exceptions from the table in `localinfer.quantization.recipe_rules`. This module adds the
user's overrides and the rules that hold for all recipes. It uses the names, shapes and types of tensors only.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from localinfer.quantization.recipe_rules import (
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

__all__ = [
    "COPY",
    "RECIPES",
    "Choice",
    "Tensor",
    "Traits",
    "TypeOverrides",
    "choose_types",
    "compatible_type",
    "find_recipe",
]

FLOATS = ("F32", "F16", "BF16")
COPY = "COPY"  # no recipe: no tensor changes its type
ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}


def find_recipe(text: str) -> str | None:
    """Return the recipe for a name, an alias in any case, or the number of a file type; None if there is none."""
    name = text.upper()
    by_number = {str(recipe.number): known for known, recipe in RECIPES.items()}
    name = by_number.get(name, ALIASES.get(name, name))
    return name if name in RECIPES or name == COPY else None


@dataclass(frozen=True, slots=True)
class TypeOverrides:
    """The user's exceptions from a recipe. Types are names; the first pattern that matches a tensor name decides."""

    pure: bool = False
    leave_output: bool = False
    output: str | None = None
    token_embedding: str | None = None
    patterns: tuple[tuple[re.Pattern[str], str], ...] = ()

    def type_for(self, name: str) -> str | None:
        """Return the type of the first matching pattern, or None."""
        return next((kind for pattern, kind in self.patterns if pattern.search(name)), None)


class Choice(NamedTuple):
    """The type of a tensor by name, and the type that it would have if its rows were divisible into blocks."""

    type: str
    wanted: str


SMALLER_BLOCKS = {  # if superblocks do not divide the rows; if blocks of 32 do not either, F16
    **dict.fromkeys(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS"), "IQ4_NL"),
    **dict.fromkeys(("Q2_K", "Q3_K", "TQ1_0", "TQ2_0", "Q1_0", "Q2_0"), "Q4_0"),
    **dict.fromkeys(("IQ2_K", "IQ3_K", "IQ4_K", "IQ2_KS", "IQ3_KS", "IQ4_KS", "IQ4_KSS", "IQ2_KL"), "IQ4_NL"),
    **dict.fromkeys(("IQ1_KT", "IQ2_KT", "IQ3_KT", "IQ4_KT"), "IQ4_NL"),
    "IQ5_KS": "Q5_0",
    "IQ5_K": "Q5_1",
    "IQ6_K": "Q8_0",
    "NVFP4": "MXFP4",
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
}

UNQUANTIZED = (  # tensors with one of these in their names keep their type: small, or too sensitive
    *("_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight", "altup", "laurel", "per_layer_model_proj"),
    *("ssm_conv1d", "ple_conv1d", "shortconv.conv.weight", "attn_rel_b.weight"),
    *("indexer.k_proj.weight", "indexer.q_proj.weight"),
    *(f"time_mix_{name}.weight" for name in ("first", "decay_w1", "decay_w2", "lerp_fused", "g1", "g2")),
    *(f"time_mix_{letter}{number}.weight" for letter in "wva" for number in range(3)),
    *(".position_embd", "sam.pos_embd", "sam.neck.", "sam.net_", ".rel_pos"),
    *(".patch_embd", ".patch_merger", "a.rvq.codebook", "mm.a.code_embd", "mm.input_projection.weight"),
    *("pre_encode.conv.", "depthwise_conv.weight", "hc_fn", "hc_attn_fn", "hc_ffn_fn", "compressor_ape"),
)
UNQUANTIZED_OF = {  # likewise, in files of an architecture
    "glm5-next": (
        *("indexer.attn_q_b", "indexer.attn_k", "indexer.proj", "indexer_compressor_gate"),
        *("ssm_beta", "ssm_f_", "ssm_g_", "attn_kv_a_mqa", "attn_k_b", "attn_v_b"),
    ),
}
EIGHT_BITS_OF = {"glm5-next": ("attn_q_a", "attn_q_b", "nextn.eh_proj")}  # tensors that get Q8_0, whatever the recipe
UNQUANTIZED_NAMES = ("position_embd.weight", "token_types.weight")

NEED_IMATRIX = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS")


def choose_types(
    recipe: str, model: Traits, tensors: Iterable[Tensor], overrides: TypeOverrides = TypeOverrides()
) -> dict[str, Choice]:
    """Return the type of every tensor, in the given order."""
    given = list(tensors)
    types = {tensor.name: keep_type(tensor) for tensor in given}
    if recipe != COPY:
        kept = UNQUANTIZED_OF.get(model.architecture, ())
        quantizable = [
            each for each in given if is_quantizable(each, overrides) and not any(text in each.name for text in kept)
        ]
        types |= _choose_types(recipe, model, given, quantizable, overrides)
    return types


def keep_type(tensor: Tensor) -> Choice:
    """Return the tensor's present type as its choice."""
    name = TYPES[tensor.type].name
    return Choice(name, name)


def is_quantizable(tensor: Tensor, overrides: TypeOverrides = TypeOverrides()) -> bool:
    """Return whether recipes apply to this tensor: a matrix of weights, or one for each expert."""
    name = tensor.name
    if not name.endswith("weight") or name in UNQUANTIZED_NAMES or (overrides.leave_output and name == "output.weight"):
        return False
    return is_matrix(tensor) and not any(text in name for text in UNQUANTIZED)


def tensors_without_override(tensors: Iterable[Tensor], overrides: TypeOverrides) -> list[str]:
    """Return the names of the quantizable tensors for which no override decides the type."""
    given = list(tensors)
    tied = all(tensor.name != "output.weight" for tensor in given)
    changing = [tensor.name for tensor in given if is_quantizable(tensor, overrides)]
    return [name for name in changing if _override(name, role_of(name, tied), overrides) is None]


def recipe_for_base(type_name: str) -> str:
    """Return a recipe with this base type: the one named after the type if possible."""
    having = [name for name, recipe in RECIPES.items() if recipe.base == type_name]
    named = find_recipe(type_name)
    return named if named in having else having[0]


def requires_imatrix(recipe: str, name: str, type_name: str) -> bool:
    """Return whether a tensor of this type is useless without importance."""
    if name == "output.weight" or name in EMBEDDINGS:
        return False
    return type_name in NEED_IMATRIX or (type_name == "Q2_K" and recipe == "Q2_K_S")


def is_matrix(tensor: Tensor) -> bool:
    """Return whether a tensor is a matrix. Leading dimensions of 1 do not count."""
    return any(size > 1 for size in tensor.shape[:-1])


def compatible_type(tensor: Tensor, type_name: str) -> str:
    """Return the type itself, or its replacement if its blocks do not divide the rows."""
    if fits(tensor, type_name):
        return type_name
    smaller = SMALLER_BLOCKS.get(type_name, type_name)
    return smaller if fits(tensor, smaller) else "F16"


def by_layer(tensor: Tensor) -> tuple[int, str]:
    """Return a sort key for the order of the rules: tensors outside of layers first, then by layer and name."""
    return layer_of(tensor.name, -1), tensor.name


def layer_of(name: str, default: int) -> int:
    """Return the layer number in a tensor name, or the default."""
    match = re.match(r"blk\.(\d+)\.", name)
    return int(match[1]) if match else default


def role_of(name: str, tied: bool) -> str:
    """Return the role of a tensor. Without an output matrix, the token embeddings have the role "output"."""
    if name == "output.weight" or (tied and name in EMBEDDINGS):
        return "output"
    if name in EMBEDDINGS:
        return "token_embd"
    return next((role for text, role in ROLES.items() if text in name), "")


def _choose_types(
    recipe: str, model: Traits, tensors: Sequence[Tensor], quantizable: Sequence[Tensor], overrides: TypeOverrides
) -> dict[str, Choice]:
    tied = all(tensor.name != "output.weight" for tensor in tensors)
    n_values = sum(role_of(tensor.name, tied) == "attn_v" for tensor in tensors)
    base = RECIPES[recipe].base
    uniform = overrides.pure or base in FLOATS
    seen: Counter[str] = Counter()
    types = {}
    for tensor in sorted(quantizable, key=by_layer):
        role = role_of(tensor.name, tied)
        in_eight_bits = any(text in tensor.name for text in EIGHT_BITS_OF.get(model.architecture, ()))
        wanted = _override(tensor.name, role, overrides) or (base if uniform else "Q8_0" if in_eight_bits else None)
        if wanted is None:
            index = seen[role]
            if model.n_expert > 1 and role.startswith("ffn_") and recipe not in LOW.split():
                index = layer_of(tensor.name, index)
            count = n_values if role == "attn_v" else model.n_layer
            wanted = _apply_rules(recipe, role, Case(model, tensor, base, index, count))
            seen[role] += 1
        types[tensor.name] = Choice(compatible_type(tensor, wanted), wanted)
    return types


def _override(name: str, role: str, overrides: TypeOverrides) -> str | None:
    """Return the type that the user chose for this tensor, or None."""
    named = overrides.type_for(name)
    is_embedding = name in EMBEDDINGS and not (name == EMBEDDINGS[1] and named)
    if overrides.token_embedding and is_embedding:
        return overrides.token_embedding
    if overrides.output and (name == "output.weight" or (role == "output" and not named and not overrides.pure)):
        return overrides.output
    return named


def _apply_rules(recipe: str, role: str, case: Case) -> str:
    rules = RULES.get(role, ()) if role == "output" else EXPERTS_ONLY + RULES.get(role, ())
    types = (each.type for each in rules if recipe in each.recipes and all(holds(case) for holds in each.conditions))
    chosen = next(types, BASE) or case.base
    if role == "attn_v" and recipe not in LOW.split() and seventy_billion(case):
        return RAISED.get(chosen, chosen)
    return chosen
