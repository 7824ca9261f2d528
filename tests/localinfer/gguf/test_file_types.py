"""File types have the numbers of the gguf package or of ik_llama.cpp; the flag for a guessed type is ignored."""

import gguf
import pytest

from localinfer.gguf.file_types import GUESSED, NAMES, NUMBERS, file_type_name
from localinfer.quantization.recipe_rules import RECIPES

KNOWN = {each.name.removeprefix("ALL_").removeprefix("MOSTLY_"): each.value for each in gguf.LlamaFileType}
NEWEST = {"NVFP4": 39, "Q1_0": 40, "Q2_0": 41}  # missing in some versions of the package
IK_LLAMA_CPP = {f"IQ{bits}_K": 136 + bits for bits in range(2, 7)} | {
    "IQ4_KS": 145, "IQ2_KS": 147, "IQ4_KSS": 148, "IQ5_KS": 150, "IQ3_KS": 154,
    "IQ2_KT": 151, "IQ3_KT": 152, "IQ4_KT": 153, "IQ2_KL": 155, "IQ1_KT": 156,
}  # fmt: skip


def test_numbers_are_those_of_llama_cpp() -> None:
    assert {name: (KNOWN | NEWEST | IK_LLAMA_CPP)[name] for name in NUMBERS} == NUMBERS


def test_numbers_are_unique() -> None:
    assert len(NAMES) == len(NUMBERS)


def test_every_recipe_has_a_file_type() -> None:
    assert {name: recipe.number for name, recipe in RECIPES.items()} == NUMBERS


@pytest.mark.parametrize(
    ("number", "name"),
    [(15, "Q4_K_M"), (15 | GUESSED, "Q4_K_M"), (0, "F32"), (5, None), (-1, None), (None, None), ("15", None)],
)
def test_names(number: object, name: str | None) -> None:
    assert file_type_name(number) == name
