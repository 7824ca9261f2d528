"""Removing layers on trial: divergences are those of files without the layers, and the search takes the smallest."""

from contextlib import closing
from pathlib import Path

import checkpoints
import numpy as np
import pytest
import reference_models
from numpy.typing import NDArray
from tiny import tiny_llama

import localinfer
from cli import __main__
from localinfer.errors import UnsupportedError, UsageError
from localinfer.evaluation.compare import score_row
from localinfer.evaluation.layer_removal import Removal, remove_layers
from localinfer.gguf.reader import open_gguf
from localinfer.options import Options
from localinfer.runtime.engine import Engine

CHUNKS = np.random.default_rng(5).integers(3, 250, (2, 24)).astype(np.int32)
N_LAYERS = 4


def search(model: Path, count: int) -> list[Removal]:
    options = Options(threads=1, ctx_size=24, batch_size=24, ubatch_size=24, tune=False)
    with closing(Engine.load(open_gguf(model), options)) as engine:
        return list(remove_layers(engine, CHUNKS, count))


def logits_of(model: Path) -> NDArray[np.float32]:
    """Return the logits of all scored tokens."""
    with localinfer.load(model, ctx_size=24, threads=1, tune=False) as loaded:
        return np.concatenate([loaded.logits(chunk.tolist())[12:23] for chunk in CHUNKS])


def divergence(base: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    return float(np.mean([score_row(p, q, 0)[2] for p, q in zip(base, other, strict=True)]))


def test_the_layer_whose_removal_changes_least_is_removed_first(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "model.gguf", n_layer=N_LAYERS, type="F32")
    base, removed = logits_of(model), list[int]()
    for removal in search(model, 2):
        by_layer = {}
        for layer in set(range(N_LAYERS)) - set(removed):
            pruned, numbers = tmp_path / f"{layer}-{len(removed)}.gguf", ",".join(map(str, [*removed, layer]))
            assert __main__.run(["quantize", str(model), str(pruned), "COPY", "--prune-layers", numbers]) == 0
            by_layer[layer] = divergence(base, logits_of(pruned))
        assert removal.layer == min(by_layer, key=by_layer.__getitem__)
        np.testing.assert_allclose(removal.divergence.value, by_layer[removal.layer], rtol=1e-4)
        removed.append(removal.layer)


def test_a_layer_must_remain(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "model.gguf", n_layer=2)
    with pytest.raises(UsageError, match="has 2 layers, so 1 to 1 can be removed, not 2"):
        search(model, 2)


def test_layers_that_share_more_than_the_residual_stream(tmp_path: Path) -> None:
    checkpoint = reference_models.checkpoint("gemma3n", tmp_path / "gemma3n")
    model = checkpoints.as_f32(checkpoint, tmp_path / "model.gguf")
    with pytest.raises(UnsupportedError, match="cannot run one by one"):
        search(model, 1)


def test_quantize_removes_the_chosen_layers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, text = tiny_llama(tmp_path / "model.gguf", n_layer=N_LAYERS, n_ctx=512), tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 60)
    out = tmp_path / "out.gguf"
    arguments = ["quantize", str(model), str(out), "COPY", "--prune-layers", "auto:1", "--prune-text", str(text)]
    assert __main__.run(arguments) == 0
    lines = capsys.readouterr().err.splitlines()
    [choice] = [line for line in lines if line.startswith("without layer ")]
    assert f"chosen: --prune-layers {choice.split()[2].removesuffix(':')}" in lines
    assert open_gguf(out).get("llama.block_count", int) == N_LAYERS - 1


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--prune-layers", "auto:2"], "--prune-layers: auto:COUNT requires --prune-text FILE"),
        (["--prune-text", "text.txt"], "--prune-text: requires --prune-layers auto:COUNT"),
        (["--prune-layers", "1", "--prune-text", "text.txt"], "--prune-text: requires --prune-layers auto:COUNT"),
        (["--prune-layers", "auto:0", "--prune-text", "text.txt"],
         "--prune-layers: must be a number of layers, such as auto:4, not auto:0"),
        (["--prune-layers", "auto:2", "--prune-text", "text.txt"],
         "--prune-layers: the model has 2 layers, and one must remain"),
        (["--prune-layers", "auto:1", "--prune-text", "short.txt"],
         "--prune-text: a text of 5 tokens is too short: 2 chunks of 512 need 1024"),
    ],
)  # fmt: skip
def test_usage(arguments: list[str], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
               capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    tiny_llama(tmp_path / "model.gguf", n_layer=2, n_ctx=512)
    Path("text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 60)
    Path("short.txt").write_text("short")
    assert __main__.run(["quantize", "model.gguf", "out.gguf", "COPY", *arguments]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"error: {problem}"
    assert not Path("out.gguf").exists()


def test_a_checkpoint_must_be_converted_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                              capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("checkpoint").mkdir()
    Path("text.txt").write_text("text")
    arguments = ["quantize", "checkpoint", "COPY", "--prune-layers", "auto:1", "--prune-text", "text.txt"]
    assert __main__.run(arguments) == 2
    hint = "convert it with `localinfer quantize checkpoint FILE F16`"
    assert capsys.readouterr().err == f"error: --prune-layers: checkpoint: must be a GGUF file; {hint}\n"
