"""Snapshots of sequences with images: the table of another process numbers their rows differently."""

import json
from contextlib import closing
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest
from engine_helpers import media_ids
from media_rows import grid, random_rows
from tiny import tiny_gemma3, tiny_qwen2

from localinfer.errors import LocalInferError
from localinfer.gguf.reader import open_gguf
from localinfer.options import Options
from localinfer.runtime import snapshot
from localinfer.runtime.engine import Engine
from localinfer.runtime.graph_building import Extensions
from localinfer.runtime.media.media_table import MAX_POSITIONS
from localinfer.runtime.sequence import Sequence

OPTIONS = Options(threads=2, ctx_size=150)
A = random_rows("a", 20, n_positions=5)
B = random_rows("b", 12, n_positions=4, coordinates=grid(3, 4))
BOTH_WAYS = random_rows("c", 9, bidirectional=True)


def load(path: Path, *, media: bool = True) -> Engine:
    return Engine.load(open_gguf(path), OPTIONS, extensions=Extensions(media=media))


def with_header(path: Path, change: object) -> None:
    """Replace the `media` of a snapshot's header, with a valid digest."""
    data = path.read_bytes()[: -snapshot.DIGEST_BYTES]
    magic, version, size = snapshot.PREAMBLE.unpack_from(data)
    rest = data[snapshot.PREAMBLE.size + size :]
    header = json.loads(data[snapshot.PREAMBLE.size : snapshot.PREAMBLE.size + size])
    encoded = json.dumps(header | {"media": change}).encode()
    body = snapshot.PREAMBLE.pack(magic, version, len(encoded)) + encoded + rest
    path.write_bytes(body + blake2b(body, digest_size=snapshot.DIGEST_BYTES).digest())


@pytest.mark.parametrize("is_whole", [True, False], ids=["whole", "a part of an image"])
def test_a_restored_sequence_continues_with_the_same_bits(is_whole: bool, tmp_path: Path) -> None:
    model, path = tiny_qwen2(tmp_path / "m.gguf"), tmp_path / "snapshot"
    with closing(load(model)) as engine:
        a, b = media_ids(engine, A), media_ids(engine, B)
        tokens = [1, 2, *b, 3, *a, *b, 4, 5, *b, 6]
        n = 37 if is_whole else 43
        engine.evaluate(tokens[:n])
        snapshot.save(path, engine, OPTIONS)
        expected = engine.logits(tokens[n:]).copy()
    with closing(load(model)) as engine:
        media_ids(engine, random_rows("d", 30))
        assert snapshot.load(path, engine, OPTIONS) == n
        b, a = media_ids(engine, B), media_ids(engine, A)
        renumbered = [1, 2, *b, 3, *a, *b, 4, 5, *b, 6]
        assert engine.sequence.tokens == renumbered[:n]
        assert engine.reuse_prefix(renumbered, len(renumbered) - 1) == n
        np.testing.assert_array_equal(engine.logits(renumbered[n:]), expected)


def test_another_image_is_another_prefix(tmp_path: Path) -> None:
    model, path = tiny_gemma3(tmp_path / "m.gguf"), tmp_path / "snapshot"
    with closing(load(model)) as engine:
        engine.evaluate([1, 2, *media_ids(engine, BOTH_WAYS), 3])
        snapshot.save(path, engine, OPTIONS)
    with closing(load(model)) as engine:
        assert snapshot.load(path, engine, OPTIONS) == 12
        other = media_ids(engine, random_rows("e", 9, bidirectional=True))
        assert engine.reuse_prefix([1, 2, *other, 3], 11) == 2


def test_a_model_without_media_refuses_images(tmp_path: Path) -> None:
    model, path = tiny_qwen2(tmp_path / "m.gguf"), tmp_path / "snapshot"
    with closing(load(model)) as engine:
        engine.evaluate([1, 2, *media_ids(engine, A), 3])
        snapshot.save(path, engine, OPTIONS)
        engine.reset()
        engine.evaluate([1, 2])
        snapshot.save(tmp_path / "text", engine, OPTIONS)
    with closing(load(model, media=False)) as engine:
        with pytest.raises(LocalInferError, match="has images or sounds"):
            snapshot.load(path, engine, OPTIONS)
        assert snapshot.load(tmp_path / "text", engine, OPTIONS) == 2


SPAN = {"digest": "61", "count": 20, "n_positions": 5, "bidirectional": False}


@pytest.mark.parametrize(
    "media",
    [
        [],
        [SPAN | {"count": 19}],
        [SPAN | {"count": 0}, SPAN],
        [SPAN | {"count": 1.5}],
        [SPAN | {"n_positions": -1}],
        [SPAN | {"count": 1 << 30}],
        [SPAN | {"n_positions": 1 << 70}],
        [SPAN | {"n_positions": MAX_POSITIONS + 1}],
        [SPAN, *({**SPAN, "digest": f"{n:04x}", "count": 150} for n in range(2))],
        [SPAN, SPAN],
        [SPAN, SPAN | {"digest": "62"}, SPAN | {"digest": "63", "count": 0}],
        [SPAN | {"digest": "x"}],
        [{}],
        7,
    ],
    ids=["missing", "too few", "none", "no integer", "no positions", "huge", "huge position",
         "position outside", "too many", "twice", "a wrong one behind others", "digest", "empty", "no list"],
)
def test_invalid_media_are_damage(media: object, tmp_path: Path) -> None:
    model, path = tiny_qwen2(tmp_path / "m.gguf"), tmp_path / "snapshot"
    with closing(load(model)) as engine:
        engine.evaluate([1, 2, *media_ids(engine, A), 3])
        snapshot.save(path, engine, OPTIONS)
    with_header(path, media)
    with closing(load(model)) as engine:
        with pytest.raises(LocalInferError, match="damaged"):
            snapshot.load(path, engine, OPTIONS)
        assert engine.n_past == 0
        assert media_ids(engine, B)[0] == -1  # nothing was reserved


def test_a_snapshot_that_fails_later_reserves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, path = tiny_qwen2(tmp_path / "m.gguf"), tmp_path / "snapshot"
    with closing(load(model)) as engine:
        engine.evaluate([1, 2, *media_ids(engine, A), 3])
        snapshot.save(path, engine, OPTIONS)
    with closing(load(model)) as engine:
        with monkeypatch.context() as patched:
            patched.setattr(Sequence, "accept_loaded", raise_value_error)
            with pytest.raises(LocalInferError, match="damaged"):
                snapshot.load(path, engine, OPTIONS)
        assert media_ids(engine, B)[0] == -1
        assert snapshot.load(path, engine, OPTIONS) == 23
        assert media_ids(engine, A)[0] == -1 - len(B)
    with closing(load(model)) as engine:
        media_ids(engine, random_rows("a", 7))  # other rows of the same digest
        with pytest.raises(LocalInferError, match="damaged"):
            snapshot.load(path, engine, OPTIONS)
        assert media_ids(engine, B)[0] == -8


def raise_value_error(*_: object) -> None:
    raise ValueError
