"""Layer pruning: pruned layers are gone, and the others are unchanged except for their numbers."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny import Field as Metadatum
from tiny import tiny_gemma3, tiny_llama

import localinfer
from cli import __main__
from localinfer.errors import UsageError
from localinfer.gguf.gguf_source import from_gguf
from localinfer.gguf.imatrix_file import Entry, Imatrix, write_imatrix
from localinfer.gguf.reader import open_gguf
from localinfer.gguf.source import Field
from localinfer.quantization.plan import Request, make_plan
from localinfer.quantization.prune import prune_layers, renumber_layers

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: object) -> tuple[int, str]:
        return __main__.run(["quantize", *map(str, arguments)]), capsys.readouterr().err

    return run


def test_remaining_layers_are_renumbered(run: Run, tmp_path: Path) -> None:
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


def test_per_layer_arrays(tmp_path: Path) -> None:
    arrays = {
        "llama.attention.head_count_kv": Metadatum("ARRAY", [2, 1, 2, 4], "UINT32"),
        "llama.attention.sliding_window_pattern": Metadatum("ARRAY", [True, False, True, False], "BOOL"),
        "llama.rope.dimension_sections": Metadatum("ARRAY", [8, 8, 8, 8], "INT32"),
        "general.numbers": Metadatum("ARRAY", [1, 2, 3, 4], "INT32"),
    }
    source = from_gguf(tiny_llama(tmp_path / "source", n_layer=4, **arrays))
    fields = prune_layers(source, (1, 2)).fields
    assert fields["llama.attention.head_count_kv"] == Field.numbers(np.array([2, 4], "<u4"))
    assert fields["llama.attention.sliding_window_pattern"] == Field.flags([True, False])
    for key in ("llama.rope.dimension_sections", "general.numbers"):
        assert fields[key] == source.fields[key]


@pytest.mark.parametrize(("layers", "remaining"), [((1, 2), 1), ((3,), 0)])
def test_mtp_layers(layers: tuple[int, ...], remaining: int, tmp_path: Path) -> None:
    key = "llama.nextn_predict_layers"
    source = from_gguf(tiny_llama(tmp_path / "source", n_layer=4, **{key: Metadatum("UINT32", 1)}))
    assert prune_layers(source, layers).fields[key] == Field.uint32(remaining)
    with pytest.raises(UsageError, match="one must remain"):
        prune_layers(source, (0, 1, 2))


def test_importance_is_renumbered(tmp_path: Path) -> None:
    source = from_gguf(tiny_llama(tmp_path / "source", n_layer=3, type="F16"))
    entries = {
        f"blk.{layer}.ffn_up.weight": Entry(np.full((1, 256), layer + 1, np.float32), np.ones(1, np.float32))
        for layer in range(3)
    }
    write_imatrix(tmp_path / "imatrix", Imatrix(entries, (), 1, 512))
    request = Request("Q4_K_M", imatrix=tmp_path / "imatrix", pruned=(1,))
    importance = make_plan(prune_layers(source, request.pruned), request).importance
    assert {name: values[0, 0] for name, values in importance.items()} == {
        "blk.0.ffn_up.weight": 1,
        "blk.1.ffn_up.weight": 3,
    }


def test_numbers_of_several_digits() -> None:
    names = [f"blk.{layer}.x" for layer in (1, 10, 11, 100)]
    assert list(renumber_layers(dict.fromkeys(names), {1, 10})) == ["blk.9.x", "blk.98.x"]
    assert renumber_layers({"token_embd.weight": 1}, {0}) == {"token_embd.weight": 1}


def test_sliding_window_by_layer_number_warns(tmp_path: Path) -> None:
    source = from_gguf(tiny_gemma3(tmp_path / "source"))
    with pytest.warns(UserWarning, match="sliding windows depend on layer numbers"):
        assert "blk.6.attn_q.weight" not in prune_layers(source, (2,)).tensors


def test_models_that_are_recognized_by_their_number_of_layers(tmp_path: Path) -> None:
    source = from_gguf(tiny_gemma3(tmp_path / "source", n_layer=62))
    with pytest.raises(UsageError, match="gemma3 with other than 62 layers has another kind of attention"):
        prune_layers(source, (2,))
    scaled = replace(source, fields={**source.fields, "gemma3.attention.scale": Field.float32(0.125)})
    with pytest.warns(UserWarning, match="sliding windows"):
        assert prune_layers(scaled, (2,)).fields["gemma3.block_count"] == Field.uint32(61)


@pytest.mark.parametrize(
    ("layers", "problem"),
    [
        ("2", "2: the model has layers 0 to 1; one must remain"),
        ("0,1", "1: the model has layers 0 to 1; one must remain"),
        ("-1", "must be numbers of layers, such as 3,7, or auto:COUNT, not '-1'"),
        ("", "must be numbers of layers, such as 3,7, or auto:COUNT, not ''"),
    ],
)
def test_usage(run: Run, tmp_path: Path, layers: str, problem: str) -> None:
    source = tiny_llama(tmp_path / "source")
    assert run(source, tmp_path / "out", "COPY", "--prune-layers", layers) == (2, f"error: --prune-layers: {problem}\n")
    assert not (tmp_path / "out").exists()
