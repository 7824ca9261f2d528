"""A conversion that yields a file that cannot be run is an error, and leaves nothing behind."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import checkpoints
import pytest

from localinfer.conversion import open_checkpoint
from localinfer.errors import LocalInferError, UsageError
from localinfer.gguf.source import Field, Source
from localinfer.quantization.pipeline import write_plan
from localinfer.quantization.plan import Request, make_plan
from localinfer.quantization.quantize import OutputOptions, make_encoder_factory, quantize


def write(source: Source, out: Path) -> None:
    types = dict.fromkeys(source.tensors, checkpoints.F32)
    quantize(
        source, out, types, encoder_factory=make_encoder_factory("fast", {}), options=OutputOptions(replace=True)
    )


def with_unknown_key(source: Source) -> Source:
    return replace(source, fields={**source.fields, "llama.unknown": Field.uint32(1)})


def without_tensor(source: Source) -> Source:
    left = {name: tensor for name, tensor in source.tensors.items() if name != "blk.1.ffn_up.weight"}
    return replace(source, tensors=left)


def with_unknown_tokenizer(source: Source) -> Source:
    return replace(source, fields={**source.fields, "tokenizer.ggml.model": Field.text("unknown")})


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (with_unknown_key, "llama.unknown"),
        (without_tensor, "blk.1.ffn_up.weight"),
        (with_unknown_tokenizer, "tokenizer.ggml.model"),
    ],
)
def test_a_file_that_cannot_be_run_is_not_written(
    damage: Callable[[Source], Source], named: str, tmp_path: Path
) -> None:
    checkpoint, out = checkpoints.copy_checkpoint("llama", tmp_path), tmp_path / "out" / "model.gguf"
    out.parent.mkdir()
    out.write_bytes(b"before")
    with pytest.raises(LocalInferError, match=f"llama: the converted file cannot be run: .*{named}"):
        write(damage(open_checkpoint(checkpoint)), out)
    assert [path.read_bytes() for path in out.parent.iterdir()] == [b"before"]
    write(open_checkpoint(checkpoint), out)
    assert out.stat().st_size > len(b"before")


@pytest.mark.parametrize(("text", "message"), [(None, "No such file"), ("x = 1", "has no function `build`")])
def test_a_wrong_architecture_file_is_an_error_before_the_first_tensor(
    text: str | None, message: str, tmp_path: Path
) -> None:
    own, written = tmp_path / "own.py", list[str]()
    if text is not None:
        own.write_text(text)
    plan = make_plan(open_checkpoint(checkpoints.copy_checkpoint("llama", tmp_path)), Request("F32"))
    options = OutputOptions(architecture_file=str(own))
    with pytest.raises(UsageError, match=rf"^architecture \(--architecture\): .*own\.py: {message}"):
        write_plan(plan, tmp_path / "m.gguf", options=options, progress=lambda tensor, _: written.append(tensor.name))
    assert written == []
