"""A head in a file of its own expects what torch computes with it, however it came to know the text."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import eagle3_heads
import heads
import numpy as np
import proofs
import pytest
from guessing import looks_are_apart
from heads import Pair

from localinfer.engine.engine import Engine
from localinfer.errors import LocalInferError
from localinfer.files.gguf import open_gguf
from localinfer.files.source import Field
from localinfer.files.split import from_gguf
from localinfer.options import Options
from localinfer.quantizing.quantize import encoders, quantize

EXACT = Options(ctx_size=128, threads=1, parallel=2, precision="high", cache_type_k="f32", cache_type_v="f32")
each = pytest.mark.parametrize("name", eagle3_heads.NAMES)


@contextlib.contextmanager
def opened(pair: Pair, **options: str | int) -> Iterator[Engine]:
    files = [open_gguf(path) for path in (pair.model, pair.head)]
    with contextlib.closing(Engine(files[0], replace(EXACT, **options), head=files[1])) as engine:  # type: ignore[arg-type]
        yield engine


def ids_of(name: str) -> list[int]:
    return proofs.expected(eagle3_heads.described(name)["model"]).ids


@each
@pytest.mark.parametrize("batch_size", [2048, 7])
def test_it_expects_what_torch_expects(name: str, batch_size: int, tmp_path: Path) -> None:
    expected, ids = eagle3_heads.expected(name), ids_of(name)
    with opened(heads.beside(name, tmp_path), batch_size=batch_size) as engine:
        for position, logits in zip(expected.positions, expected.logits, strict=True):
            engine.evaluate(ids[engine.n_past : position])
            found, _ = engine.evaluate_further(ids[position], int(position))
            np.testing.assert_allclose(found[expected.tokens], logits, rtol=0, atol=1e-3)
            assert np.isneginf(found).sum() == proofs.N_VOCAB - len(expected.tokens)
            assert engine.n_past == position


@each
def test_it_goes_on_behind_its_own_guesses(name: str, tmp_path: Path) -> None:
    expected, ids = eagle3_heads.expected(name), ids_of(name)
    with opened(heads.beside(name, tmp_path)) as engine:
        for at, tokens, chain in zip(expected.chains, expected.chain_tokens, expected.chain_logits, strict=True):
            engine.evaluate(ids[engine.n_past : at])
            before, id = None, ids[at]
            for step, (token, logits) in enumerate(zip(tokens, chain, strict=True)):
                found, before = engine.evaluate_further(id, int(at) + step, before)
                np.testing.assert_allclose(found[expected.tokens], logits, rtol=0, atol=1e-3)
                id = int(found.argmax())
                assert id == token


def test_logits_are_those_without_it(tmp_path: Path) -> None:
    pair, ids = heads.beside("eagle3", tmp_path, "Q8_0"), ids_of("eagle3")
    with opened(pair) as engine, opened(pair, spec_type="none") as plain:
        assert engine.looks_further
        assert not plain.looks_further
        np.testing.assert_array_equal(engine.logits(ids), plain.logits(ids))


def test_what_was_forgotten_leaves_nothing(tmp_path: Path) -> None:
    pair, ids = heads.beside("eagle3", tmp_path, "Q8_0"), ids_of("eagle3")
    with opened(pair) as engine:
        engine.evaluate(ids[:43])
        expected = engine.evaluate_further(ids[43], 43)[0]
        assert engine.rewind(40) == 40
        engine.evaluate_guesses([*ids[40:43], 7, 7])
        assert engine.rewind(43) == 43
        _, state = engine.evaluate_further(9, 43)
        engine.evaluate_further(9, 44, state)
        np.testing.assert_array_equal(engine.evaluate_further(ids[43], 43)[0], expected)


def test_sequences_have_pasts_of_their_own(tmp_path: Path) -> None:
    pair, ids = heads.beside("eagle3", tmp_path, "Q8_0"), ids_of("eagle3")
    with opened(pair) as engine:
        looks_are_apart(engine, ids)


def test_in_a_ring_that_wraps_its_logits_are_numbers(tmp_path: Path) -> None:
    pair, ids = heads.beside("eagle3", tmp_path, "Q8_0"), ids_of("eagle3")
    with opened(pair, ctx_size=64, ctx_policy="ring") as engine:
        for position in range(1, len(ids)):
            engine.evaluate([ids[position - 1]])
            found, _ = engine.evaluate_further(ids[position], position)
            assert np.isfinite(found[eagle3_heads.expected("eagle3").tokens]).all()


def changed(path: Path, **fields: Field) -> Path:
    """The file with other numbers."""
    out, source = path.with_name("changed.gguf"), from_gguf(path)
    types = {name: tensor.type for name, tensor in source.tensors.items()}
    named = {f"eagle3.{key}": field for key, field in fields.items()}
    quantize(source, out, types, encoder_of=encoders("fast", {}), fields={**source.fields, **named})
    return out


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"target_layers": Field.numbers(np.array([0, 1, 3]))}, "target_layers: has 3; the model has 2 blocks"),
        ({"target_layers": Field.numbers(np.array([0, 1]))}, "target_layers: must have an integer for each"),
        ({"target_hidden_size": Field.uint32(64)}, "target_hidden_size: is 64; the model's embedding has 96 values"),
        ({"block_count": Field.uint32(2)}, "block_count: is 2; it must be 1 to 1"),
    ],
)
def test_a_head_of_another_model_is_refused(fields: dict[str, Field], problem: str, tmp_path: Path) -> None:
    pair = heads.beside("eagle3", tmp_path)
    with pytest.raises(LocalInferError, match=problem), opened(Pair(pair.model, changed(pair.head, **fields))):
        pass


@pytest.mark.parametrize("value", [-1, proofs.N_VOCAB])
def test_no_logit_is_of_a_token_that_there_is_not(value: int, tmp_path: Path) -> None:
    pair = heads.beside("eagle3", tmp_path)
    tensor = open_gguf(pair.head).tensors["d2t"]
    with pair.head.open("r+b") as file:
        file.seek(tensor.offset)
        file.write(np.int64(value).tobytes())
    with pytest.raises(LocalInferError, match="tensor d2t: has a token outside of the vocabulary"), opened(pair):
        pass
