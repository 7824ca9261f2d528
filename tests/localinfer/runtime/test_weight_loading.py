"""Engines whose weights are read into memory: the same logits, and an error if memory is insufficient."""

import os
import re
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from split_files import split
from tiny import tiny_gemma3, tiny_llama, tiny_qwen3moe

import localinfer
from localinfer.errors import NotEnoughMemoryError
from localinfer.gguf.reader import open_gguf
from localinfer.machine import resources
from localinfer.options import Options
from localinfer.runtime import weight_loading
from localinfer.runtime.engine import Engine
from localinfer.runtime.graph_building import build_graph_within_memory
from localinfer.runtime.requirements import memory_requirements

MAPPED = Options(threads=2, ctx_size=64)
READ = replace(MAPPED, mmap=False)
IDS = list(range(3, 30))


def logits(path: Path, options: Options) -> NDArray[np.float32]:
    with closing(Engine.load(open_gguf(path), options)) as engine:
        assert engine.file.in_memory is not options.mmap
        return engine.logits(IDS)


@pytest.mark.parametrize("write", [tiny_llama, tiny_gemma3, tiny_qwen3moe])
def test_logits_are_those_of_a_mapped_file(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    path = write(tmp_path / "m.gguf")
    assert np.array_equal(logits(path, READ), logits(path, MAPPED))


def test_logits_are_those_of_mapped_splits(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "m.gguf")
    assert np.array_equal(logits(split(path, 6)[2], READ), logits(path, MAPPED))


def test_file_may_be_deleted_after_loading(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "m.gguf")
    with localinfer.load(path, threads=1, ctx_size=64) as model:
        expected = "".join(piece.text for piece in model.stream("Hello", n_predict=8, temp=0))
    with localinfer.load(path, threads=1, ctx_size=64, mmap=False) as model:
        path.write_bytes(b"something else")
        assert "".join(piece.text for piece in model.stream("Hello", n_predict=8, temp=0)) == expected


def test_draft_models_are_read_too(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "m.gguf")
    draft = tiny_llama(tmp_path / "draft.gguf", n_layer=1)
    with localinfer.load(path, threads=1, ctx_size=64, mmap=False, spec_draft_model=str(draft)) as model:
        draft.write_bytes(b"something else")
        assert len(list(model.stream("Hello", n_predict=8, ignore_eos=True))) == 8


def test_is_read_once(tmp_path: Path) -> None:
    """Several engines can share a file that is in memory."""
    read = weight_loading.load_weights(open_gguf(tiny_llama(tmp_path / "m.gguf")), READ)
    assert weight_loading.load_weights(read, READ) is read
    with closing(Engine.load(read, READ)) as engine:
        assert engine.file is read


def test_not_enough_memory(tmp_path: Path) -> None:
    """A sparse file takes no disk space, but would take memory."""
    path = tiny_llama(tmp_path / "m.gguf")
    os.truncate(path, 2 * resources.available_memory())
    with pytest.raises(NotEnoughMemoryError) as error:
        Engine.load(open_gguf(path), READ)
    assert re.fullmatch(
        rf"{path}: mmap: \d+\.\d GiB of weights and 0\.0 GiB for 64 tokens are needed, \d+\.\d GiB are available; "
        r"mmap=True \(--mmap\) reads only what is needed of the file",
        str(error.value),
    )
    assert error.value.exit_code == 4


def test_loaded_weights_are_not_loaded_again(tmp_path: Path) -> None:
    mapped = open_gguf(tiny_llama(tmp_path / "m.gguf", **{"llama.context_length": 100_000}))
    available = build_graph_within_memory(1 << 40, mapped, Options()).graph.nbytes
    read = weight_loading.load_weights(mapped, Options(mmap=False))
    assert build_graph_within_memory(available, mapped, Options()).context.n_ctx == 16_384
    assert build_graph_within_memory(available, read, Options()).context.n_ctx == 32_768


def test_memory_requirements_include_the_whole_file(tmp_path: Path) -> None:
    f = open_gguf(tiny_llama(tmp_path / "m.gguf"))
    mapped, read = memory_requirements(f, MAPPED), memory_requirements(f, READ)
    assert read == mapped | {"weights": f.size}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_can_be_locked(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "m.gguf")
    with closing(Engine.load(open_gguf(path), replace(READ, mlock=True))) as engine:
        [kilobytes] = re.findall(r"VmLck:\s+(\d+) kB", Path("/proc/self/status").read_text())
        assert engine.warnings or 1024 * int(kilobytes) >= path.stat().st_size
