"""Recipe files: which tensor gets which type, and what is wrong with a damaged file."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny import tiny_llama

from localinfer.errors import LocalInferError
from localinfer.gguf.gguf_source import from_gguf
from localinfer.gguf.reader import open_gguf
from localinfer.quantization.plan import Request
from localinfer.quantization.recipe_file import plan_for_recipe, read_recipe

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("source") / "m.gguf", type="F16", **{"blk.0.attn_v.weight": "F32"})


def types_for(model: Path, folder: Path, content: Any) -> dict[str, str]:
    path = folder / "recipe.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    plan = plan_for_recipe(from_gguf(model), Request(""), read_recipe(path))
    return {name: choice.type for name, choice in plan.choices.items()}


def test_names_before_patterns_and_the_first_pattern(model: Path, tmp_path: Path) -> None:
    types = {"ffn": "Q5_0", r"blk\.1\.": "q6_k", "blk.1.ffn_up.weight": "Q8_0"}
    actual = types_for(model, tmp_path, {"types": types, "more": 1})
    expected = {
        name: "Q8_0" if name == "blk.1.ffn_up.weight"
        else each.type_name if "norm" in name
        else "Q5_0" if "ffn" in name
        else "Q6_K" if name.startswith("blk.1.")
        else each.type_name
        for name, each in from_gguf(model).tensors.items()
    }  # fmt: skip
    assert actual == expected


def test_base_recipe(model: Path, tmp_path: Path) -> None:
    actual = types_for(model, tmp_path, {"base": "q4_k_m", "types": {"attn_q": "Q3_K"}})
    assert (actual["blk.0.attn_q.weight"], actual["blk.0.attn_k.weight"]) == ("Q3_K", "Q4_K")
    assert actual["blk.0.attn_norm.weight"] == "F32"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ([], "must be a JSON object"),
        ({}, "types: must be an object with the types of tensors"),
        ({"types": ["Q4_K"]}, "types: must be an object with the types of tensors"),
        ({"types": {"attn_q": 4}}, "attn_q: must be the name of a type, not 4"),
        ({"types": {"attn_q": "Q4_Z"}}, "attn_q: 'Q4_Z' is not a tensor type; known types: F32, "),
        ({"types": {"attn_(": "Q4_K"}}, r"attn_(: missing ), unterminated subpattern"),
        ({"types": {"attn_x": "Q4_K"}}, "attn_x: "),
        ({"types": {"blk.0.attn_norm.weight": "Q4_K"}}, "blk.0.attn_norm.weight: "),
        ({"base": "Q4_Z", "types": {"attn_q": "Q4_K"}}, "base: 'Q4_Z' is not a recipe"),
        ({"base": 4, "types": {"attn_q": "Q4_K"}}, "base: 4 is not a recipe"),
    ],
)
def test_damaged_file(model: Path, tmp_path: Path, content: Any, problem: str) -> None:
    with pytest.raises(LocalInferError, match=re.escape(f"{tmp_path / 'recipe.json'}: {problem}")):
        types_for(model, tmp_path, content)


def test_rows_that_blocks_do_not_divide(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "m.gguf", type="F16", n_ff=96, n_layer=1)
    with pytest.raises(LocalInferError, match=r"ffn: blocks of Q4_K do not divide the 96 columns of blk\.0"):
        types_for(model, tmp_path, {"types": {"ffn": "Q4_K"}})


def test_not_json(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_bytes(b"{\xff")
    with pytest.raises(LocalInferError, match=r"r\.json: is not JSON: "):
        read_recipe(tmp_path / "r.json")
    with pytest.raises(LocalInferError, match=r"missing\.json: No such file"):
        read_recipe(tmp_path / "missing.json")


# --- the command ---


def test_command(run: Run, model: Path, tmp_path: Path) -> None:
    (tmp_path / "small.json").write_text('{"types": {"weight": "Q8_0", "token_embd.weight": "Q6_K"}}')
    code, out, err = run(model, "out.gguf", "--recipe", "small.json")
    assert (code, out) == (0, ""), err
    written = open_gguf(tmp_path / "out.gguf").tensors
    assert (written["token_embd.weight"].type_name, written["blk.1.ffn_up.weight"].type_name) == ("Q6_K", "Q8_0")
    assert run(model, "--recipe", "small.json")[0] == 0
    (model.parent / "ggml-model-small.gguf").unlink()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["Q4_K_M"], "Q4_K_M: cannot be combined with a target or a recipe file, which choose the types"),
        (["--pure"], "--pure: cannot be combined with --recipe"),
        (["--target-size", "1MB"], "--target-size: cannot be combined with --recipe"),
        (["--tensor-type", "x=q4_0"], "--tensor-type: cannot be combined with --recipe"),
        (["--lab", "lab.json"], "--lab: requires --target-size or --target-bpw"),
    ],
)
def test_usage(run: Run, model: Path, tmp_path: Path, arguments: list[str], problem: str) -> None:
    (tmp_path / "r.json").write_text('{"types": {"attn_q": "Q8_0"}}')
    code, out, err = run(model, *arguments, "--recipe", "r.json")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {problem}")
    assert len(err.splitlines()) == 1
