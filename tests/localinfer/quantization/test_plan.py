"""Quantization plans: model traits from the source's metadata, and importance matched to columns."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from localinfer.errors import LocalInferError
from localinfer.gguf.imatrix_file import Entry, Imatrix, write_imatrix
from localinfer.gguf.source import Field, Source, SourceTensor
from localinfer.quantization.plan import (
    Request,
    fields_for,
    importance_for,
    make_plan,
    parse_pattern,
    parse_type,
    read_traits,
)
from localinfer.quantization.recipes import COPY, TypeOverrides


def source_of(fields: dict[str, Field], **shapes: tuple[int, ...]) -> Source:
    def never() -> np.ndarray:
        raise AssertionError("nothing needs to be read")

    tensors = {name: SourceTensor(name, shape, 1, never) for name, shape in shapes.items()}
    return Source(Path("m"), fields, tensors, ())


LLAMA = {
    "general.architecture": Field.text("llama"),
    "llama.block_count": Field.uint32(4),
    "llama.attention.head_count": Field.uint32(8),
    "llama.attention.head_count_kv": Field.uint32(2),
    "llama.expert_count": Field.uint32(8),
}


def imatrix_of(path: Path, name: str, n: int) -> Path:
    """An importance matrix with one tensor."""
    write_imatrix(path, Imatrix({name: Entry(np.ones((1, n)), np.ones(1))}, (), 1, 8))
    return path


@pytest.mark.parametrize("calibrated", [False, True])
def test_mtp_matrices_without_importance(calibrated: bool, tmp_path: Path) -> None:
    """They get a type that needs no importance, unless the importance is known or the user overrides the type."""
    names = [f"blk.{layer}.{kind}.weight" for layer, kind in ((2, "attn_q"), (3, "attn_q"), (3, "nextn.eh_proj"))]
    source = source_of(LLAMA | {"llama.nextn_predict_layers": Field.uint32(1)}, **dict.fromkeys(names, (256, 256)))
    path = imatrix_of(tmp_path / "m.imatrix", names[0], 256)
    request = Request("IQ2_XXS", imatrix=path, calibrated=calibrated)
    plan = make_plan(source, request)
    assert plan.problem is None
    assert [plan.choices[name].type for name in names] == ["IQ2_XXS", "Q4_K", "Q4_K"]
    wish = TypeOverrides(patterns=((re.compile("eh_proj"), "IQ2_XS"),))
    problem = make_plan(source, replace(request, overrides=wish)).problem
    assert calibrated or "blk.3.nextn.eh_proj.weight: IQ2_XS needs an importance matrix" in str(problem)
    assert make_plan(source, replace(request, imatrix=None, calibrated=False)).problem is not None


class TestTraits:
    def test_from_metadata(self) -> None:
        traits = read_traits(source_of(LLAMA), {}, weighted=True)
        assert (traits.architecture, traits.n_layer, traits.heads_per_kv, traits.n_expert) == ("llama", 4, 4, 8)
        assert traits.has_imatrix

    def test_per_layer_numbers(self) -> None:
        heads = {"llama.attention.head_count_kv": Field.numbers(np.array([4, 1, 1, 1], np.int32))}
        assert read_traits(source_of(LLAMA | heads), {}, weighted=False).heads_per_kv == 2

    def test_minimal_metadata(self) -> None:
        traits = read_traits(source_of({"general.architecture": Field.text("x")}), {}, weighted=False)
        assert (traits.n_layer, traits.heads_per_kv, traits.n_expert) == (0, 1, 0)

    def test_zero_kv_heads(self) -> None:
        none = {"llama.attention.head_count_kv": Field.uint32(0)}
        assert read_traits(source_of(LLAMA), none, weighted=False).heads_per_kv == 0

    def test_without_architecture(self) -> None:
        with pytest.raises(LocalInferError, match=r"m: general\.architecture: is missing"):
            read_traits(source_of({}), {}, weighted=False)


def entry(*shape: int) -> Entry:
    sums = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    return Entry(sums, np.ones(shape[0], np.float32))


class TestImportance:
    def test_one_row_per_expert(self) -> None:
        source = source_of(LLAMA, experts=(3, 5, 32), matrix=(5, 32))
        actual = importance_for(source, Imatrix({"experts": entry(3, 32), "matrix": entry(1, 32)}), (), ())
        assert {name: values.shape for name, values in actual.items()} == {"experts": (3, 32), "matrix": (1, 32)}
        assert actual["experts"][2, 0] == 64

    def test_legacy_file_with_experts_in_one_row(self) -> None:
        actual = importance_for(source_of(LLAMA, experts=(3, 5, 32)), Imatrix({"experts": entry(1, 96)}), (), ())
        assert actual["experts"][2, 0] == 64

    def test_embedding_size_mismatch_is_ignored(self) -> None:
        shapes = {"token_embd.weight": (64, 32), "matrix": (5, 32)}
        matrix = Imatrix({"token_embd.weight": entry(1, 64), "matrix": entry(1, 32)})
        assert list(importance_for(source_of(LLAMA, **shapes), matrix, (), ())) == ["matrix"]

    def test_one_row_for_three_experts(self) -> None:
        with pytest.raises(LocalInferError, match="experts: has 32 values in the importance matrix, but 96 columns"):
            importance_for(source_of(LLAMA, experts=(3, 5, 32)), Imatrix({"experts": entry(1, 32)}), (), ())


class TestMetadata:
    def test_new_values_keep_key_order(self) -> None:
        old = {"general.file_type": Field.uint32(1), "general.name": Field.text("x")}
        fields = fields_for(source_of(old), "Q8_0", {"a": Field.flag(True)})
        assert list(fields) == ["general.file_type", "general.name", "general.quantization_version", "a"]
        assert fields["general.file_type"] == Field.uint32(7)

    def test_copy_keeps_metadata(self) -> None:
        assert fields_for(source_of(LLAMA), COPY, {}) == LLAMA


class TestParsing:
    def test_types(self) -> None:
        assert parse_type("iq4_xs") == "IQ4_XS"
        with pytest.raises(ValueError, match="known types: F32, F16, "):
            parse_type("I32")

    def test_patterns_may_have_equals_signs(self) -> None:
        pattern, kind = parse_pattern("a=b=q8_0")
        assert (pattern.pattern, kind) == ("a=b", "Q8_0")
