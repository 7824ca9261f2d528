"""Stored prefixes with images: they are found after a restart by the content of the images, and never for others."""

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from engine_helpers import media_ids
from media_rows import grid, random_rows
from numpy.typing import NDArray
from tiny import tiny_gemma3, tiny_qwen2

from localinfer.generation.session import GenerationSession
from localinfer.gguf.reader import open_gguf
from localinfer.options import Options
from localinfer.prefix_store.keys import block_digests
from localinfer.prefix_store.store import PrefixStore
from localinfer.runtime.engine import Engine
from localinfer.runtime.graph_building import Extensions
from localinfer.runtime.media.media_embeddings import MediaEmbeddings
from localinfer.runtime.media.media_table import MediaTable
from localinfer.tokenizer import tokenizer

OPTIONS = Options(ctx_size=2048, threads=2, temp=0, tune=False, n_predict=3, ignore_eos=True)
IDS = np.random.default_rng(0).integers(3, 260, 2000).tolist()
A = random_rows("a", 120, n_positions=12, coordinates=grid(10, 12))
B = random_rows("b", 120, n_positions=12, coordinates=grid(10, 12))
BOTH_WAYS, OTHER_WAYS = random_rows("c", 120, bidirectional=True), random_rows("d", 120, bidirectional=True)
Make = Callable[..., Path]


def answer(
    model: Path, folder: Path, images: Sequence[MediaEmbeddings], make_prompt: Callable[..., list[int]]
) -> tuple[int, NDArray[np.float32]]:
    """Load a model as a new program does, and answer. Return the reused tokens of the prompt, and the logits after the
    answer."""
    with closing(Engine.load(open_gguf(model), OPTIONS, extensions=Extensions(media=True))) as engine:
        media_ids(engine, random_rows(folder.name, 7))  # numbers the rows differently
        prompt = make_prompt(*(media_ids(engine, image) for image in images))
        store = PrefixStore(folder / "prefixes", 1 << 30, OPTIONS)
        session = GenerationSession(engine, tokenizer.from_gguf(engine.file), prefix_store=store)
        stats, pieces = session.run(prompt, OPTIONS)
        list(pieces)
        store.close()
        return stats.reused_tokens, engine.evaluate([5]).copy()


@pytest.mark.parametrize("kind", ["causal", "bidirectional", "windows"])
def test_prefixes_are_found_by_the_content_of_their_images(kind: str, tmp_path: Path) -> None:
    model = {
        "causal": lambda path: tiny_qwen2(path, n_ctx=2048),
        "bidirectional": lambda path: tiny_gemma3(path, n_ctx=2048, sliding_window=0, n_layer=2),
        "windows": lambda path: tiny_gemma3(path, n_ctx=2048),
    }[kind](tmp_path / "m.gguf")
    image, other = (A, B) if kind == "causal" else (BOTH_WAYS, OTHER_WAYS)
    fresh, stored = tmp_path / "fresh", tmp_path / "stored"

    def prompt(a: list[int]) -> list[int]:
        return [*IDS[:500], *a, *IDS[500:620]]

    def longer(a: list[int]) -> list[int]:
        return [*IDS[:500], *a, *IDS[500:900]]

    assert answer(model, stored, [image], prompt)[0] == 0
    reused, logits = answer(model, stored, [image], longer)
    assert reused > 620
    np.testing.assert_array_equal(logits, answer(model, fresh, [image], longer)[1])
    reused, logits = answer(model, stored, [other], longer)
    assert reused <= 500
    np.testing.assert_array_equal(logits, answer(model, tmp_path / "other", [other], longer)[1])


def test_a_restored_prefix_does_not_end_within_a_bidirectional_span(tmp_path: Path) -> None:
    model = tiny_gemma3(tmp_path / "m.gguf", n_ctx=2048, sliding_window=0, n_layer=2)

    def prompt(c: list[int]) -> list[int]:
        return [*IDS[:600], *c, *IDS[:10]]

    answer(model, tmp_path, [BOTH_WAYS], prompt)
    reused, logits = answer(model, tmp_path, [BOTH_WAYS], prompt)
    assert reused == 576  # the blocks after it end at 640 and 704, within the image
    np.testing.assert_array_equal(logits, answer(model, tmp_path / "fresh", [BOTH_WAYS], prompt)[1])


def test_digests_of_texts_are_unchanged_and_those_of_images_depend_on_their_content() -> None:
    table = MediaTable(256)
    a, b = table.add(A), table.add(B)
    assert block_digests("00", IDS[:200], table) == block_digests("00", IDS[:200])
    digests = {block_digests("00", tokens, table)[1] for tokens in (a[:64], b[:64], a[1:65], [*a[:63], 5], IDS[:64])}
    assert len(digests) == 5
    other = MediaTable(256)
    other.add(B)
    assert block_digests("00", [1, *other.add(A), 2, 3], other) == block_digests("00", [1, *a, 2, 3], table)
