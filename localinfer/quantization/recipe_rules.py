"""The rules of the quantization recipes: the exceptions from a recipe's base type, by the role of the tensor.

A rule names its recipes, its conditions and the resulting type; the first matching rule decides. All rules are those of
llama.cpp. `localinfer.quantization.recipes` applies them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from localinfer.gguf import file_types
from quant.ggml import TYPE_NUMBERS, TYPES


class Recipe(NamedTuple):
    """`number` is the `general.file_type` of the resulting file; `base` is the type of tensors without a rule."""

    number: int
    base: str


BASE_TYPES = {
    "F32": "F32",
    "F16": "F16",
    "BF16": "BF16",
    "Q8_0": "Q8_0",
    "Q6_K": "Q6_K",
    "Q5_K_M": "Q5_K",
    "Q5_K_S": "Q5_K",
    "Q5_1": "Q5_1",
    "Q5_0": "Q5_0",
    "Q4_K_M": "Q4_K",
    "Q4_K_S": "Q4_K",
    "Q4_1": "Q4_1",
    "Q4_0": "Q4_0",
    "IQ4_NL": "IQ4_NL",
    "IQ4_XS": "IQ4_XS",
    "MXFP4_MOE": "MXFP4",
    "NVFP4": "NVFP4",
    "Q3_K_L": "Q3_K",
    "Q3_K_M": "Q3_K",
    "Q3_K_S": "Q3_K",
    "IQ3_M": "IQ3_S",
    "IQ3_S": "IQ3_S",
    "IQ3_XS": "IQ3_S",
    "IQ3_XXS": "IQ3_XXS",
    "Q2_K": "Q2_K",
    "Q2_K_S": "Q2_K",
    "IQ2_M": "IQ2_S",
    "IQ2_S": "IQ2_XS",
    "IQ2_XS": "IQ2_XS",
    "IQ2_XXS": "IQ2_XXS",
    "IQ1_M": "IQ1_M",
    "IQ1_S": "IQ1_S",
    "TQ2_0": "TQ2_0",
    "TQ1_0": "TQ1_0",
    "Q2_0": "Q2_0",
    "Q1_0": "Q1_0",
    **{name: name for name in ("IQ2_K", "IQ3_K", "IQ4_K", "IQ5_K", "IQ6_K", "IQ2_KS", "IQ3_KS", "IQ4_KS", "IQ5_KS")},
    **{name: name for name in ("IQ2_KL", "IQ4_KSS", "IQ1_KT", "IQ2_KT", "IQ3_KT", "IQ4_KT")},
}
RECIPES = {name: Recipe(file_types.NUMBERS[name], base) for name, base in BASE_TYPES.items()}


class Tensor(Protocol):
    """The properties of a tensor that rules use; `shape` is in numpy's order, `type` is ggml's number."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def type(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Traits:
    """The properties of a model that rules use. The head counts are those of the first layer."""

    architecture: str
    n_layer: int
    n_head: int = 1
    n_head_kv: int = 1
    n_expert: int = 0
    has_imatrix: bool = False
    n_mtp_layers: int = 0  # number of MTP layers, the last of the layers

    @property
    def heads_per_kv(self) -> int:
        """The number of query heads per key/value head."""
        return self.n_head // self.n_head_kv if self.n_head_kv else 0


def n_matrices(tensor: Tensor) -> int:
    """Return the number of matrices of a tensor: its number of experts, or 1."""
    return tensor.shape[-3] if len(tensor.shape) > 2 else 1


def fits(tensor: Tensor, type_name: str) -> bool:
    """Return whether the blocks of a type divide the rows of a tensor."""
    return tensor.shape[-1] % TYPES[TYPE_NUMBERS[type_name]].elements == 0


# --- rules ---


@dataclass(frozen=True, slots=True)
class Case:
    """The tensor to which rules are applied: number `index` of `count` of its role."""

    model: Traits
    tensor: Tensor
    base: str
    index: int
    count: int


Condition = Callable[[Case], bool]


class Rule(NamedTuple):
    """The type that some recipes give to tensors if all conditions hold."""

    recipes: frozenset[str]
    type: str
    conditions: tuple[Condition, ...]


def rule(recipes: str, type_name: str, *conditions: Condition) -> Rule:
    """Return a rule for recipes separated by spaces."""
    return Rule(frozenset(recipes.split()), type_name, conditions)


def first_eighth(case: Case) -> bool:
    return case.index < case.count // 8


def first_sixteenth(case: Case) -> bool:
    return case.index < case.count // 16


def middle(case: Case) -> bool:
    return case.count // 8 <= case.index < 7 * case.count // 8


def use_more_bits(case: Case) -> bool:
    """The layer is in the first eighth, in the last eighth, or every third layer in between."""
    eighth = case.count // 8
    return case.index < eighth or case.index >= 7 * case.count // 8 or (case.index - eighth) % 3 == 2


def first_two(case: Case) -> bool:
    return case.index < 2


def first_four(case: Case) -> bool:
    return case.index < 4


def grouped(case: Case) -> bool:
    """At least four query heads share a key/value head, whose weights are few in comparison."""
    return case.model.heads_per_kv >= 4


def shared(case: Case) -> bool:
    """Several query heads share a key/value head."""
    return case.model.heads_per_kv >= 2


def grouped_or_experts(case: Case) -> bool:
    return grouped(case) or case.model.n_expert >= 4


def eight_experts(case: Case) -> bool:
    return case.model.n_expert == 8


def with_imatrix(case: Case) -> bool:
    return case.model.has_imatrix


def without_imatrix(case: Case) -> bool:
    return not case.model.has_imatrix


def falcon(case: Case) -> bool:
    return case.model.architecture == "falcon"


def not_falcon(case: Case) -> bool:
    return not falcon(case)


def falcon_or_odd(case: Case) -> bool:
    """The model is Falcon, or the blocks of the base type do not divide the rows."""
    return falcon(case) or not fits(case.tensor, case.base)


def one_matrix(case: Case) -> bool:
    """The tensor has no experts."""
    return n_matrices(case.tensor) == 1


def seventy_billion(case: Case) -> bool:
    """The model has 70 billion weights and few key/value heads."""
    model = case.model
    if model.architecture == "llama":
        return model.n_layer == 80 and model.n_head != model.n_head_kv and model.n_expert != 8
    return model.n_layer == {"qwen2": 80, "deci": 80, "olmo": 80, "jais2": 68}.get(model.architecture, -1)


BASE = ""  # as the type of a rule: the base type of the recipe
ALL = " ".join(RECIPES)
LOW = "IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ2_M"
LOWER, UPPER = "IQ1_S IQ1_M IQ2_XXS IQ2_XS", "IQ2_S IQ2_M"
REST = " ".join(name for name in RECIPES if name not in LOW.split())

ROLES = {  # the first text that is part of a name determines the role
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
        rule(f"{LOW} IQ3_XXS IQ2_K IQ3_K IQ2_KS IQ3_KS IQ2_KL IQ1_KT IQ2_KT IQ3_KT", "Q5_K"),
        rule("Q8_0", BASE),
        rule(ALL, "Q6_K"),
    ),
    "token_embd": (
        rule(LOWER, "Q2_K"),
        rule(f"{UPPER} IQ3_XXS IQ3_KT", "IQ3_S"),
        rule("TQ1_0 TQ2_0 Q2_0", "Q4_K"),
    ),
    "attn_v": (
        rule(LOW, "Q4_K", grouped_or_experts),
        rule(UPPER, "IQ3_S"),
        rule(LOWER, "Q2_K"),
        rule("IQ2_KS IQ2_KT", "IQ4_K", grouped_or_experts),
        rule("IQ2_KS IQ2_KT", "IQ3_K", shared),
        rule("IQ2_KS IQ2_KT", "Q2_K"),
        rule(REST, "Q8_0", eight_experts),
        rule("Q2_K Q2_K_S IQ3_XXS IQ3_XS IQ3_S", "Q4_K", grouped),
        rule("Q2_K", "Q3_K"),
        rule("IQ3_XXS", "IQ3_S", without_imatrix),
        rule("IQ3_M", "Q4_K"),
        rule("Q3_K_M", "Q5_K", first_two),
        rule("Q3_K_M", "Q4_K"),
        rule("Q3_K_L", "Q5_K"),
        rule("IQ4_NL IQ4_XS", "Q5_K", grouped),
        rule("Q4_K_M Q5_K_M", "Q6_K", use_more_bits),
        rule("Q4_K_S", "Q5_K", first_four),
        rule("IQ2_K IQ3_K", "IQ4_K", shared),
        rule("IQ2_K", "IQ3_K"),
        rule("IQ3_KS IQ2_KL", "IQ4_KS", shared),
        rule("IQ4_K IQ4_KS IQ4_KSS", "IQ5_K", shared),
        rule("IQ3_KT", "IQ4_K", grouped),
        rule("IQ3_KT", "IQ3_K"),
        rule("IQ4_KT", "IQ5_K", grouped),
        rule("IQ4_KT", "IQ4_K"),
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
        rule("IQ2_K IQ2_KT", "IQ3_K"),
        rule("IQ3_KT", "IQ3_K", grouped),
    ),
    "ffn_down": (
        rule(UPPER, "IQ3_S", first_eighth),
        rule(f"{LOWER} IQ2_KS", "Q2_K", first_eighth),
        rule("Q2_K", "Q3_K"),
        rule("Q2_K_S", "Q4_K", first_eighth),
        rule("IQ2_KT", "IQ3_K", first_eighth),
        rule("IQ3_KT", "IQ4_K", without_imatrix, first_eighth),
        rule("IQ3_KT", "IQ3_K", without_imatrix),
        rule("IQ3_XXS", "Q4_K", without_imatrix, first_eighth),
        rule("IQ3_XXS", "Q3_K", without_imatrix),
        rule("Q3_K_M", "Q5_K", first_sixteenth),
        rule("Q3_K_M", "Q4_K", not_falcon),
        rule("Q3_K_M", "Q4_K", use_more_bits),
        rule("IQ3_M", "Q4_K", first_eighth),
        rule("IQ3_M", "Q4_K", eight_experts, use_more_bits),
        rule("Q3_K_L", "Q4_K", falcon),
        rule("Q3_K_L", "Q5_K"),
        rule("Q4_K_M", "Q6_K", falcon, first_sixteenth),
        rule("Q4_K_M", "Q5_K", falcon, use_more_bits),
        rule("Q4_K_M", "Q6_K", not_falcon, use_more_bits),
        rule("Q5_K_M", "Q6_K", use_more_bits),
        rule("IQ4_NL IQ4_XS IQ4_KS IQ4_KSS", "Q5_K", without_imatrix, first_eighth),
        rule("Q4_K_S", "Q5_K", not_falcon, first_eighth),
        rule("Q4_0", "Q4_1", with_imatrix, first_eighth),
        rule("Q5_0", "Q5_1", with_imatrix, first_eighth),
    ),
    "ffn_gate": (rule("IQ3_XS", "IQ3_XXS", middle),),
    "ffn_up": (rule("IQ3_XS", "IQ3_XXS", middle),),
}
EXPERTS_ONLY = (rule("MXFP4_MOE", "Q8_0", one_matrix), rule("MXFP4_MOE", BASE))  # applied first, except to the output

RAISED = {"Q3_K": "Q5_K", "Q4_K": "Q5_K"}  # attn_v of 70B models, which has an eighth of the size of attn_q
