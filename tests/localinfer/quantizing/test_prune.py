"""Layers that are pruned are gone, and everything of the others is as it was, under its new number."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tiny import Field as Metadatum
from tiny import tiny_gemma3, tiny_llama

import localinfer
from cli import __main__
from localinfer.errors import UsageError
from localinfer.files.gguf import open_gguf
from localinfer.files.imatrix_file import Entry, Imatrix, write_imatrix
from localinfer.files.source import Field
from localinfer.files.split import from_gguf
from localinfer.quantizing.mixture import Request, mix
from localinfer.quantizing.prune import renumbered, without_layers

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: object) -> tuple[int, str]:
        return __main__.run(["quantize", *map(str, arguments)]), capsys.readouterr().err

    return run


def test_the_others_move_up(run: Run, tmp_path: Path) -> None:
    source = tiny_llama(tmp_path / "source", n_layer=5)
    assert run(source, tmp_path / "out", "COPY", "--prune-layers", "3,0,3")[0] == 0
    old, new = open_gguf(source), open_gguf(tmp_path / "out")
    assert from_gguf(tmp_path / "out").fields == {**from_gguf(source).fields, "llama.block_count": Field.uint32(3)}
    was = {0: 1, 1: 2, 2: 4}
    outside = {name for name in old.tensors if not name.startswith("blk.")}
    of_a_layer = {name.removeprefix("blk.0.") for name in old.tensors if name.startswith("blk.0.")}
    assert set(new.tensors) == outside | {f"blk.{layer}.{name}" for layer in was for name in of_a_layer}
    for name, tensor in new.tensors.items():
        before = name if name in outside else f"blk.{was[int(name[4])]}.{name[6:]}"
        assert tensor.data.tobytes() == old.tensors[before].data.tobytes()
    with localinfer.load(tmp_path / "out", ctx_size=32) as model:
        assert np.isfinite(model.logits([1, 2, 3])).all()


def test_arrays_of_a_value_a_layer(tmp_path: Path) -> None:
    arrays = {
        "llama.attention.head_count_kv": Metadatum("ARRAY", [2, 1, 2, 4], "UINT32"),
        "llama.attention.sliding_window_pattern": Metadatum("ARRAY", [True, False, True, False], "BOOL"),
        "llama.rope.dimension_sections": Metadatum("ARRAY", [8, 8, 8, 8], "INT32"),
        "general.numbers": Metadatum("ARRAY", [1, 2, 3, 4], "INT32"),
    }
    source = from_gguf(tiny_llama(tmp_path / "source", n_layer=4, **arrays))
    fields = without_layers(source, (1, 2)).fields
    assert fields["llama.attention.head_count_kv"] == Field.numbers(np.array([2, 4], "<u4"))
    assert fields["llama.attention.sliding_window_pattern"] == Field.flags([True, False])
    for key in ("llama.rope.dimension_sections", "general.numbers"):
        assert fields[key] == source.fields[key]


@pytest.mark.parametrize(("layers", "left"), [((1, 2), 1), ((3,), 0)])
def test_the_last_layers_may_predict_further_tokens(layers: tuple[int, ...], left: int, tmp_path: Path) -> None:
    key = "llama.nextn_predict_layers"
    source = from_gguf(tiny_llama(tmp_path / "source", n_layer=4, **{key: Metadatum("UINT32", 1)}))
    assert without_layers(source, layers).fields[key] == Field.uint32(left)
    with pytest.raises(UsageError, match="one must be left"):
        without_layers(source, (0, 1, 2))


def test_the_importance_of_the_others(tmp_path: Path) -> None:
    source = from_gguf(tiny_llama(tmp_path / "source", n_layer=3, type="F16"))
    entries = {
        f"blk.{layer}.ffn_up.weight": Entry(np.full((1, 256), layer + 1, np.float32), np.ones(1, np.float32))
        for layer in range(3)
    }
    write_imatrix(tmp_path / "imatrix", Imatrix(entries, (), 1, 512))
    request = Request("Q4_K_M", imatrix=tmp_path / "imatrix", pruned=(1,))
    importance = mix(without_layers(source, request.pruned), request).importance
    assert {name: values[0, 0] for name, values in importance.items()} == {
        "blk.0.ffn_up.weight": 1,
        "blk.1.ffn_up.weight": 3,
    }


def test_numbers_of_several_digits() -> None:
    names = [f"blk.{layer}.x" for layer in (1, 10, 11, 100)]
    assert list(renumbered(dict.fromkeys(names), {1, 10})) == ["blk.9.x", "blk.98.x"]
    assert renumbered({"token_embd.weight": 1}, {0}) == {"token_embd.weight": 1}


def test_layers_that_look_back_by_their_numbers(tmp_path: Path) -> None:
    source = from_gguf(tiny_gemma3(tmp_path / "source"))
    with pytest.warns(UserWarning, match="which layers look back how far goes by their numbers"):
        assert "blk.6.attn_q.weight" not in without_layers(source, (2,)).tensors


@pytest.mark.parametrize(
    ("layers", "problem"),
    [
        ("2", "2: the model has layers 0 to 1, and one must be left"),
        ("0,1", "1: the model has layers 0 to 1, and one must be left"),
        ("-1", "must be numbers of layers, such as 3,7, not '-1'"),
        ("", "must be numbers of layers, such as 3,7, not ''"),
    ],
)
def test_usage(run: Run, tmp_path: Path, layers: str, problem: str) -> None:
    source = tiny_llama(tmp_path / "source")
    assert run(source, tmp_path / "out", "COPY", "--prune-layers", layers) == (2, f"error: --prune-layers: {problem}\n")
    assert not (tmp_path / "out").exists()
