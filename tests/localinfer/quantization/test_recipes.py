"""Recipes choose the same types as llama.cpp; names, numbers and overrides have the same meaning."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import recorded
from recipe_models import SHAPES, Shape

from localinfer.quantization.recipes import (
    COPY,
    RECIPES,
    Choice,
    Traits,
    TypeOverrides,
    choose_types,
    find_recipe,
    is_quantizable,
    requires_imatrix,
)

RECORDED: Mapping[str, Any] = recorded.read("recipes")
F32, F16 = 0, 1


@dataclass(frozen=True)
class FakeTensor:
    """The properties of a tensor that recipes use."""

    name: str
    shape: tuple[int, ...]
    type: int


def tensors(shape: Shape) -> list[FakeTensor]:
    return [FakeTensor(name, dims, F16 if len(dims) > 1 else F32) for name, dims in shape.tensors.items()]


def traits(shape: Shape, weighted: bool = False) -> Traits:
    return Traits(shape.architecture, shape.n_layer, shape.n_head, shape.n_head_kv, shape.n_expert, weighted)


def expected(label: str, recipe: str) -> dict[str, str]:
    """Return the type of each tensor name, from the fixture."""
    types, known = {}, SHAPES[label.removesuffix("; weighted")].tensors
    for kinds, names in RECORDED[label][recipe].items():
        each_layer = [kind for run in kinds.split() for kind in [run.split("*")[0]] * int(run.split("*")[1])]
        for name in names.split():
            tensors = [each for each in known if each.split(".", 2)[2:] == [f"{name}.weight"]]
            types |= dict(zip(tensors or [f"{name}.weight"], each_layer, strict=True))
    return types


def chosen(shape: Shape, recipe: str, **overrides: Any) -> dict[str, str]:
    choices = choose_types(recipe, traits(shape), tensors(shape), TypeOverrides(**overrides))
    return {name: choice.type for name, choice in choices.items()}


IK_LLAMA_CPP = (
    *("IQ2_K", "IQ3_K", "IQ4_K", "IQ5_K", "IQ6_K", "IQ2_KS", "IQ3_KS", "IQ4_KS", "IQ5_KS"),
    *("IQ2_KL", "IQ4_KSS", "IQ1_KT", "IQ2_KT", "IQ3_KT", "IQ4_KT"),
)


@pytest.mark.parametrize("recipe", [name for name in RECIPES if name not in IK_LLAMA_CPP])
@pytest.mark.parametrize("weighted", [False, True])
def test_types_match_llama_cpp(weighted: bool, recipe: str) -> None:
    """Skip NVFP4, which llama.cpp does not write, and shapes that do not fit Q1_0."""
    for name, shape in SHAPES.items():
        choices = choose_types(recipe, traits(shape, weighted), tensors(shape))
        label = f"{name}; weighted" if weighted else name
        if recipe not in RECORDED[label]:
            assert recipe in ("NVFP4", "Q1_0")
            continue
        assert {tensor: choice.type for tensor, choice in choices.items()} == expected(label, recipe), label


def test_recipes_of_ik_llama_cpp() -> None:
    """As in ik_llama.cpp's source: values have more bits where heads share them, and odd rows smaller blocks."""
    grouped = chosen(SHAPES["llama, grouped"], "IQ2_K")
    assert grouped["blk.0.attn_v.weight"] == "IQ4_K"
    assert grouped["blk.0.attn_output.weight"] == "IQ3_K"
    assert grouped["blk.0.ffn_up.weight"] == "IQ2_K"
    assert grouped["output.weight"] == "Q5_K"
    assert {chosen(SHAPES["llama, grouped"], recipe)["output.weight"] for recipe in IK_LLAMA_CPP[2:5]} == {"Q6_K"}
    assert chosen(SHAPES["llama, grouped"], "IQ4_K")["blk.0.attn_v.weight"] == "IQ5_K"
    assert chosen(SHAPES["llama, grouped"], "IQ5_K")["blk.0.attn_v.weight"] == "IQ5_K"
    values = {name: chosen(SHAPES["llama, grouped"], name)["blk.0.attn_v.weight"] for name in IK_LLAMA_CPP[5:]}
    assert values == {
        "IQ2_KS": "IQ4_K", "IQ3_KS": "IQ4_KS", "IQ4_KS": "IQ5_K", "IQ5_KS": "IQ5_KS",
        "IQ2_KL": "IQ4_KS", "IQ4_KSS": "IQ5_K",
        "IQ1_KT": "IQ1_KT", "IQ2_KT": "IQ4_K", "IQ3_KT": "IQ4_K", "IQ4_KT": "IQ5_K",
    }


@pytest.mark.parametrize(
    ("text", "recipe"),
    [("q4_k_m", "Q4_K_M"), ("Q4_K", "Q4_K_M"), ("q3_k", "Q3_K_M"), ("5", None), ("15", "Q4_K_M"), ("0", "F32"),
     ("copy", COPY), ("mxfp4_moe", "MXFP4_MOE"), ("Q4", None), ("", None), ("30", "IQ4_XS"), ("140", "IQ4_K")],
)  # fmt: skip
def test_names(text: str, recipe: str | None) -> None:
    assert find_recipe(text) == recipe


def test_copy_changes_nothing() -> None:
    assert set(chosen(SHAPES["llama"], COPY).values()) == {"F16", "F32"}


class TestOverrides:
    def test_pure(self) -> None:
        types = chosen(SHAPES["llama, grouped"], "Q4_K_M", pure=True)
        assert {kind for name, kind in types.items() if "norm" not in name} == {"Q4_K"}

    def test_leave_output(self) -> None:
        types = chosen(SHAPES["qwen2"], "Q4_K_M", leave_output=True)
        assert types["output.weight"] == "F16"
        assert types["token_embd.weight"] == "Q4_K"

    def test_output(self) -> None:
        assert chosen(SHAPES["qwen2"], "Q4_K_M", output="F16")["output.weight"] == "F16"

    def test_output_of_tied_embeddings(self) -> None:
        assert chosen(SHAPES["gemma3"], "Q4_K_M", output="Q8_0")["token_embd.weight"] == "Q8_0"

    def test_embedding(self) -> None:
        types = chosen(SHAPES["qwen2"], "Q4_K_M", token_embedding="Q2_K")
        assert (types["token_embd.weight"], types["output.weight"]) == ("Q2_K", "Q6_K")

    def test_embedding_overrides_output(self) -> None:
        types = chosen(SHAPES["gemma3"], "Q4_K_M", token_embedding="Q5_K", output="Q8_0")
        assert types["token_embd.weight"] == "Q5_K"

    def test_first_matching_pattern_wins(self) -> None:
        patterns = ((re.compile("attn_[qk]"), "Q8_0"), (re.compile("attn_"), "Q5_0"))
        types = chosen(SHAPES["qwen2"], "Q4_K_M", patterns=patterns)
        assert [types[f"blk.3.attn_{x}.weight"] for x in ("q", "k", "output", "norm")] == [
            "Q8_0", "Q8_0", "Q5_0", "F32"]  # fmt: skip

    def test_pattern_with_incompatible_shape(self) -> None:
        choices = choose_types("Q8_0", traits(SHAPES["llama, odd"]), tensors(SHAPES["llama, odd"]),
                         TypeOverrides(patterns=((re.compile("ffn_up"), "Q6_K"),)))  # fmt: skip
        assert choices["blk.0.ffn_up.weight"] == Choice("Q8_0", "Q6_K")


@pytest.mark.parametrize(
    ("name", "shape", "may"),
    [
        ("blk.0.attn_q.weight", (64, 64), True),
        ("blk.0.attn_q.weight", (1, 64), False),
        ("blk.0.attn_q.weight", (64,), False),
        ("blk.0.attn_q.bias", (64, 64), False),
        ("blk.0.ffn_gate_inp.weight", (8, 64), False),
        ("blk.0.ffn_up_exps.weight", (8, 64, 64), True),
        ("blk.0.time_mix_w1.weight", (64, 64), False),
        ("position_embd.weight", (64, 64), False),
        ("rope_freqs.weight", (64,), False),
    ],
)
def test_is_quantizable(name: str, shape: tuple[int, ...], may: bool) -> None:
    assert is_quantizable(FakeTensor(name, shape, F16)) is may


@pytest.mark.parametrize(
    ("recipe", "name", "kind", "needed"),
    [
        ("IQ2_XS", "blk.0.attn_q.weight", "IQ2_XS", True),
        ("IQ2_XS", "token_embd.weight", "IQ2_XS", False),
        ("IQ2_XS", "output.weight", "IQ2_XS", False),
        ("Q2_K", "blk.0.attn_q.weight", "Q2_K", False),
        ("Q2_K_S", "blk.0.attn_q.weight", "Q2_K", True),
        ("IQ3_S", "blk.0.attn_q.weight", "IQ3_S", False),
    ],
)
def test_requires_imatrix(recipe: str, name: str, kind: str, needed: bool) -> None:
    assert requires_imatrix(recipe, name, kind) is needed
