"""Snapshots: a restored engine computes the same bits, and an invalid snapshot is rejected."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import tiny_gemma3, tiny_llama

from localinfer.errors import LocalInferError
from localinfer.gguf.reader import open_gguf
from localinfer.options import Options
from localinfer.runtime import snapshot
from localinfer.runtime.engine import Engine

IDS = np.random.default_rng(0).integers(0, 270, 160).tolist()
OTHER_FILE = "exists but is not a snapshot"
DEFAULT_OPTIONS = {"threads": 1, "ctx_size": 200}
OpenEngine = Callable[..., tuple[Engine, Options]]


@pytest.fixture
def opened() -> Iterator[OpenEngine]:
    with ExitStack() as stack:

        def open_engine(path: Path, **changed: Any) -> tuple[Engine, Options]:
            options = Options(**(DEFAULT_OPTIONS | changed))
            engine = Engine.load(open_gguf(path), options)
            stack.callback(engine.close)
            return engine, options

        yield open_engine


@pytest.mark.parametrize(
    ("tiny", "changed"),
    [
        (tiny_llama, {}),
        (tiny_llama, {"cache_type_k": "q8_0", "cache_type_v": "q4_0"}),
        (tiny_gemma3, {"batch_size": 16}),
        (tiny_llama, {"ctx_policy": "ring", "ctx_size": 64, "batch_size": 16}),
    ],
    ids=["f16", "quantized", "sliding", "ring"],
)
def test_restored_engine_is_bit_identical(
    opened: OpenEngine, tmp_path: Path, tiny: Any, changed: dict[str, Any]
) -> None:
    model, path = tiny(tmp_path / "m.gguf"), tmp_path / "snapshot"
    engine, options = opened(model, **changed)
    engine.evaluate(IDS[:120])
    snapshot.save(path, engine, options)
    expected = engine.logits(IDS[120:])
    assert path.stat().st_mode & 0o777 == 0o600

    other, options = opened(model, **changed)
    other.evaluate(IDS[::-1][:50])
    assert snapshot.load(path, other, options) == 120
    assert other.sequence.tokens == IDS[:120]
    np.testing.assert_array_equal(other.logits(IDS[120:]), expected)


def load_error(path: Path, engine: Engine, options: Options) -> str:
    engine.evaluate(IDS[:5])
    with pytest.raises(LocalInferError) as error:
        snapshot.load(path, engine, options)
    assert engine.n_past == 0
    return str(error.value).removeprefix(f"{path}: ")


@pytest.fixture
def written(opened: OpenEngine, tmp_path: Path) -> tuple[Path, Engine, Options]:
    engine, options = opened(tiny_llama(tmp_path / "m.gguf"))
    engine.evaluate(IDS[:40])
    snapshot.save(tmp_path / "snapshot", engine, options)
    return tmp_path / "snapshot", engine, options


def test_damage_is_detected(written: tuple[Path, Engine, Options]) -> None:
    path, engine, options = written
    whole = path.read_bytes()
    for position in (16, 100, len(whole) // 2, len(whole) - 33, len(whole) - 1):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        assert load_error(path, engine, options) == "damaged"
    for end in (49, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:end])
        assert load_error(path, engine, options) == "damaged"
    for content, problem in ((whole[:20], OTHER_FILE), (b"GGUF" * 100, OTHER_FILE), (b"", "empty file")):
        path.write_bytes(content)
        assert load_error(path, engine, options) == problem
    path.write_bytes(whole[:8] + bytes([snapshot.FORMAT + 1]) + whole[9:])
    assert load_error(path, engine, options) == "was written by a different version"
    path.write_bytes(whole)
    assert snapshot.load(path, engine, options) == 40


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"sizes": [[', b'"sizes": [[-'),
        (b'"sizes": [[', b'"sizes": [[0.5, ' + b"9" * 400 + b", "),
        (b'"tokens": 40', b'"tokens": 44'),
        (b'"tokens": 40', b'"tokens": 1e999'),
        (b'"tokens": 40', b'"tokens":"4"'),
        (b'{"identity"', b'["identity"'),
    ],
)
def test_invalid_contents_with_a_valid_digest(written: tuple[Path, Engine, Options], old: bytes, new: bytes) -> None:
    path, engine, options = written
    body = path.read_bytes()[: -snapshot.DIGEST_BYTES].replace(old, new, 1)
    path.write_bytes(body + blake2b(body, digest_size=snapshot.DIGEST_BYTES).digest())
    assert load_error(path, engine, options) == "damaged"


def test_too_many_pages(written: tuple[Path, Engine, Options]) -> None:
    _, engine, _ = written
    [[numbers, *arrays]] = engine.sequence.save()
    numbers.view(np.int64)[1] = 1000
    with pytest.raises(ValueError, match="1000 pages are in use"):
        engine.sequence.load(IDS[:40], [[numbers, *arrays]])


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"ctx_size": 100}, "was written with another context: size, policy or cache types"),
        ({"ubatch_size": 32}, "was written with another ubatch_size (--ubatch-size)"),
    ],
)
def test_other_options_are_rejected(
    written: tuple[Path, Engine, Options], opened: OpenEngine, tmp_path: Path, changed: dict[str, Any], problem: str
) -> None:
    assert load_error(written[0], *opened(tmp_path / "m.gguf", **changed)) == problem


def test_other_model_is_rejected(written: tuple[Path, Engine, Options], opened: OpenEngine, tmp_path: Path) -> None:
    """The other model differs in one weight only."""
    path, engine, _ = written
    name = "blk.0.attn_v.weight"
    content = bytearray((tmp_path / "m.gguf").read_bytes())
    content[engine.file.tensors[name].offset + 1] ^= 1
    (tmp_path / "trained.gguf").write_bytes(content)
    for other in (tiny_gemma3(tmp_path / "other.gguf"), tmp_path / "trained.gguf"):
        assert load_error(path, *opened(other)) == "belongs to another model"
