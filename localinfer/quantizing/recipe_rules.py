"""The table behind recipes: which exceptions from its base type a recipe makes, by the role of the tensor.

A rule names the recipes that it belongs to, when it holds and the type that it gives; the first one that holds decides.
All of it is what llama.cpp does. The choosing is in `localinfer.quantizing.recipes`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from quant.ggml import TYPES

NUMBER_OF_TYPE = {block.name: number for number, block in TYPES.items()}


class Recipe(NamedTuple):
    """`number` is `general.file_type` of the file that comes out; `base` the type of what no rule is about."""

    number: int
    base: str


RECIPES = {
    "F32": Recipe(0, "F32"),
    "F16": Recipe(1, "F16"),
    "BF16": Recipe(32, "BF16"),
    "Q8_0": Recipe(7, "Q8_0"),
    "Q6_K": Recipe(18, "Q6_K"),
    "Q5_K_M": Recipe(17, "Q5_K"),
    "Q5_K_S": Recipe(16, "Q5_K"),
    "Q5_1": Recipe(9, "Q5_1"),
    "Q5_0": Recipe(8, "Q5_0"),
    "Q4_K_M": Recipe(15, "Q4_K"),
    "Q4_K_S": Recipe(14, "Q4_K"),
    "Q4_1": Recipe(3, "Q4_1"),
    "Q4_0": Recipe(2, "Q4_0"),
    "IQ4_NL": Recipe(25, "IQ4_NL"),
    "IQ4_XS": Recipe(30, "IQ4_XS"),
    "MXFP4_MOE": Recipe(38, "MXFP4"),
    "NVFP4": Recipe(39, "NVFP4"),
    "Q3_K_L": Recipe(13, "Q3_K"),
    "Q3_K_M": Recipe(12, "Q3_K"),
    "Q3_K_S": Recipe(11, "Q3_K"),
    "IQ3_M": Recipe(27, "IQ3_S"),
    "IQ3_S": Recipe(26, "IQ3_S"),
    "IQ3_XS": Recipe(22, "IQ3_S"),
    "IQ3_XXS": Recipe(23, "IQ3_XXS"),
    "Q2_K": Recipe(10, "Q2_K"),
    "Q2_K_S": Recipe(21, "Q2_K"),
    "IQ2_M": Recipe(29, "IQ2_S"),
    "IQ2_S": Recipe(28, "IQ2_XS"),
    "IQ2_XS": Recipe(20, "IQ2_XS"),
    "IQ2_XXS": Recipe(19, "IQ2_XXS"),
    "IQ1_M": Recipe(31, "IQ1_M"),
    "IQ1_S": Recipe(24, "IQ1_S"),
    "TQ2_0": Recipe(37, "TQ2_0"),
    "TQ1_0": Recipe(36, "TQ1_0"),
    "Q2_0": Recipe(41, "Q2_0"),
    "Q1_0": Recipe(40, "Q1_0"),
}


class Tensor(Protocol):
    """What is asked of a tensor; `shape` is numpy's, `type` ggml's number."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def type(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Traits:
    """What rules look at in a model. The heads are those of the first layer."""

    architecture: str
    n_layer: int
    n_head: int = 1
    n_head_kv: int = 1
    n_expert: int = 0
    has_imatrix: bool = False
    n_ahead: int = 0  # of the layers, the last ones, which predict further tokens

    @property
    def heads_per_kv(self) -> int:
        return self.n_head // self.n_head_kv if self.n_head_kv else 0


def n_matrices(tensor: Tensor) -> int:
    return tensor.shape[-3] if len(tensor.shape) > 2 else 1


def fits(tensor: Tensor, type_name: str) -> bool:
    return tensor.shape[-1] % TYPES[NUMBER_OF_TYPE[type_name]].elements == 0


# --- rules ---


@dataclass(frozen=True, slots=True)
class Case:
    """A tensor that rules are asked about: number `index` of `count` of its role."""

    model: Traits
    tensor: Tensor
    base: str
    index: int
    count: int


Condition = Callable[[Case], bool]


class Rule(NamedTuple):
    recipes: frozenset[str]
    type: str
    conditions: tuple[Condition, ...]


def rule(recipes: str, type_name: str, *conditions: Condition) -> Rule:
    """For recipes separated by spaces. They get the type where all conditions hold."""
    return Rule(frozenset(recipes.split()), type_name, conditions)


def first_eighth(case: Case) -> bool:
    return case.index < case.count // 8


def first_sixteenth(case: Case) -> bool:
    return case.index < case.count // 16


def middle(case: Case) -> bool:
    return case.count // 8 <= case.index < 7 * case.count // 8


def more_bits(case: Case) -> bool:
    """The first eighth, the last eighth, and every third in between."""
    eighth = case.count // 8
    return case.index < eighth or case.index >= 7 * case.count // 8 or (case.index - eighth) % 3 == 2


def first_two(case: Case) -> bool:
    return case.index < 2


def first_four(case: Case) -> bool:
    return case.index < 4


def grouped(case: Case) -> bool:
    """Four heads or more share a key and a value, whose weights are small for it."""
    return case.model.heads_per_kv >= 4


def grouped_or_experts(case: Case) -> bool:
    return grouped(case) or case.model.n_expert >= 4


def eight_experts(case: Case) -> bool:
    return case.model.n_expert == 8


def weighted(case: Case) -> bool:
    return case.model.has_imatrix


def unweighted(case: Case) -> bool:
    return not case.model.has_imatrix


def falcon(case: Case) -> bool:
    return case.model.architecture == "falcon"


def not_falcon(case: Case) -> bool:
    return not falcon(case)


def falcon_or_odd(case: Case) -> bool:
    """Or rows that blocks of the base type do not divide."""
    return falcon(case) or not fits(case.tensor, case.base)


def one_matrix(case: Case) -> bool:
    """Not one matrix for each expert."""
    return n_matrices(case.tensor) == 1


def seventy_billion(case: Case) -> bool:
    """The models of 70 billion weights, which have few heads of keys and values."""
    model = case.model
    if model.architecture == "llama":
        return model.n_layer == 80 and model.n_head != model.n_head_kv and model.n_expert != 8
    return model.n_layer == {"qwen2": 80, "deci": 80, "olmo": 80, "jais2": 68}.get(model.architecture, -1)


BASE = ""  # as the type of a rule: the recipe's base
ALL = " ".join(RECIPES)
LOW = "IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ2_M"
LOWER, UPPER = "IQ1_S IQ1_M IQ2_XXS IQ2_XS", "IQ2_S IQ2_M"
REST = " ".join(name for name in RECIPES if name not in LOW.split())

ROLES = {  # the first of these texts that is in a name tells the tensor's role
    "attn_qkv.weight": "attn_v",
    "attn_kv_b.weight": "attn_v",
    "attn_v.weight": "attn_v",
    "attn_k.weight": "attn_k",
    "attn_q.weight": "attn_q",
    "attn_output.weight": "attn_output",
    "ffn_up": "ffn_up",
    "ffn_gate": "ffn_gate",
    "ffn_down": "ffn_down",
}
EMBEDDINGS = ("token_embd.weight", "per_layer_token_embd.weight")

RULES = {
    "output": (
        rule("MXFP4_MOE", "Q8_0"),
        rule(ALL, "Q8_0", falcon_or_odd),
        rule(f"{LOW} IQ3_XXS", "Q5_K"),
        rule("Q8_0", BASE),
        rule(ALL, "Q6_K"),
    ),
    "token_embd": (
        rule(LOWER, "Q2_K"),
        rule(f"{UPPER} IQ3_XXS", "IQ3_S"),
        rule("TQ1_0 TQ2_0 Q2_0", "Q4_K"),
    ),
    "attn_v": (
        rule(LOW, "Q4_K", grouped_or_experts),
        rule(UPPER, "IQ3_S"),
        rule(LOWER, "Q2_K"),
        rule(REST, "Q8_0", eight_experts),
        rule("Q2_K Q2_K_S IQ3_XXS IQ3_XS IQ3_S", "Q4_K", grouped),
        rule("Q2_K", "Q3_K"),
        rule("IQ3_XXS", "IQ3_S", unweighted),
        rule("IQ3_M", "Q4_K"),
        rule("Q3_K_M", "Q5_K", first_two),
        rule("Q3_K_M", "Q4_K"),
        rule("Q3_K_L", "Q5_K"),
        rule("IQ4_NL IQ4_XS", "Q5_K", grouped),
        rule("Q4_K_M Q5_K_M", "Q6_K", more_bits),
        rule("Q4_K_S", "Q5_K", first_four),
    ),
    "attn_k": (
        rule(LOW, "Q4_K", eight_experts),
        rule(REST, "Q8_0", eight_experts),
        rule("IQ3_XS", "IQ3_XXS"),
        rule("IQ3_XXS", "IQ2_S"),
    ),
    "attn_q": (
        rule("IQ3_XS", "IQ3_XXS"),
        rule("IQ3_XXS", "IQ2_S"),
    ),
    "attn_output": (
        rule(LOW, "Q5_K", eight_experts),
        rule("IQ1_S IQ1_M", "IQ2_XXS"),
        rule(UPPER, "IQ3_S"),
        rule("Q3_K_L", "Q4_K", falcon),
        rule(REST, BASE, falcon),
        rule("Q2_K Q3_K_S Q3_K_M Q4_K_S Q4_K_M IQ3_XXS IQ3_XS IQ3_S IQ3_M IQ4_NL IQ4_XS", "Q5_K", eight_experts),
        rule(REST, BASE, eight_experts),
        rule("Q2_K", "Q3_K"),
        rule("IQ3_XXS", "IQ3_S"),
        rule("Q3_K_M IQ3_M", "Q4_K"),
        rule("Q3_K_L", "Q5_K"),
    ),
    "ffn_down": (
        rule(UPPER, "IQ3_S", first_eighth),
        rule(LOWER, "Q2_K", first_eighth),
        rule("Q2_K", "Q3_K"),
        rule("Q2_K_S", "Q4_K", first_eighth),
        rule("IQ3_XXS", "Q4_K", unweighted, first_eighth),
        rule("IQ3_XXS", "Q3_K", unweighted),
        rule("Q3_K_M", "Q5_K", first_sixteenth),
        rule("Q3_K_M", "Q4_K", not_falcon),
        rule("Q3_K_M", "Q4_K", more_bits),
        rule("IQ3_M", "Q4_K", first_eighth),
        rule("IQ3_M", "Q4_K", eight_experts, more_bits),
        rule("Q3_K_L", "Q4_K", falcon),
        rule("Q3_K_L", "Q5_K"),
        rule("Q4_K_M", "Q6_K", falcon, first_sixteenth),
        rule("Q4_K_M", "Q5_K", falcon, more_bits),
        rule("Q4_K_M", "Q6_K", not_falcon, more_bits),
        rule("Q5_K_M", "Q6_K", more_bits),
        rule("IQ4_NL IQ4_XS", "Q5_K", unweighted, first_eighth),
        rule("Q4_K_S", "Q5_K", not_falcon, first_eighth),
        rule("Q4_0", "Q4_1", weighted, first_eighth),
        rule("Q5_0", "Q5_1", weighted, first_eighth),
    ),
    "ffn_gate": (rule("IQ3_XS", "IQ3_XXS", middle),),
    "ffn_up": (rule("IQ3_XS", "IQ3_XXS", middle),),
}
EXPERTS_ONLY = (rule("MXFP4_MOE", "Q8_0", one_matrix), rule("MXFP4_MOE", BASE))  # come first, but for the output

RAISED = {"Q3_K": "Q5_K", "Q4_K": "Q5_K"}  # values of large models: an eighth of the weights of queries
