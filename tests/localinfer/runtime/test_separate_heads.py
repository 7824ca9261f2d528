"""Draft heads in separate files: their logits match torch's, whatever the batches of the text."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import draft_head_models
import numpy as np
import pytest
import reference_models
import separate_heads
from checkpoints import as_type
from draft_head_models import Pair
from speculative_helpers import check_draft_head_isolation, draft_of_block, evaluate_draft_head
from tiny import tiny_llama

from localinfer.errors import LocalInferError, UnsupportedError
from localinfer.gguf.gguf_source import from_gguf
from localinfer.gguf.reader import open_gguf
from localinfer.gguf.source import Field
from localinfer.options import Options
from localinfer.quantization.quantize import make_encoder_factory, quantize
from localinfer.runtime.batch import Segment
from localinfer.runtime.engine import Engine
from localinfer.runtime.graph_building import Extensions

EXACT = Options(ctx_size=128, threads=1, parallel=2, precision="high", cache_type_k="f32", cache_type_v="f32")
each = pytest.mark.parametrize("name", [*separate_heads.EAGLE3, *separate_heads.ASSISTANTS])
each_block = pytest.mark.parametrize("name", separate_heads.DFLASH)
one_of_each_kind = pytest.mark.parametrize("name", ["eagle3", "gemma4-assistant"])


@contextlib.contextmanager
def opened(pair: Pair, **options: str | int) -> Iterator[Engine]:
    files = [open_gguf(path) for path in (pair.model, pair.head)]
    chosen = replace(EXACT, **options)  # type: ignore[arg-type]
    with contextlib.closing(Engine.load(files[0], chosen, extensions=Extensions(files[1]))) as engine:
        yield engine


def ids_of(name: str) -> list[int]:
    return reference_models.expected(separate_heads.read_description(name)["model"]).ids


@each
@pytest.mark.parametrize("batch_size", [2048, 7])
def test_logits_match_torch(name: str, batch_size: int, tmp_path: Path) -> None:
    expected, ids = separate_heads.expected(name), ids_of(name)
    with opened(draft_head_models.write_model_and_head(name, tmp_path), parallel=1, batch_size=batch_size) as engine:
        for position, logits in zip(expected.positions, expected.logits, strict=True):
            engine.evaluate(ids[engine.n_past : position])
            actual, _ = evaluate_draft_head(engine, ids[position], int(position))
            np.testing.assert_allclose(actual[expected.tokens], logits, rtol=0, atol=1e-4)
            assert np.isneginf(actual).sum() == reference_models.N_VOCAB - len(expected.tokens)
            assert engine.n_past == position


@each
def test_head_continues_its_own_draft(name: str, tmp_path: Path) -> None:
    expected, ids = separate_heads.expected(name), ids_of(name)
    with opened(draft_head_models.write_model_and_head(name, tmp_path), parallel=1) as engine:
        for at, tokens, chain in zip(expected.chains, expected.chain_tokens, expected.chain_logits, strict=True):
            engine.evaluate(ids[engine.n_past : at])
            before, id = None, ids[at]
            for step, (token, logits) in enumerate(zip(tokens, chain, strict=True)):
                position = int(at) + (0 if engine.compiled_graph.model_graph.draft_head_shares_keys else step)
                actual, before = evaluate_draft_head(engine, id, position, before)
                np.testing.assert_allclose(actual[expected.tokens], logits, rtol=0, atol=1e-4)
                id = int(actual.argmax())
                assert id == token


@each_block
@pytest.mark.parametrize("batch_size", [2048, 7])
def test_blocks_match_torch(name: str, batch_size: int, tmp_path: Path) -> None:
    expected, ids, tokens = separate_heads.expected_blocks(name), ids_of(name), separate_heads.draft_tokens(name)
    with opened(draft_head_models.write_model_and_head(name, tmp_path), parallel=1, batch_size=batch_size) as engine:
        for position, logits, wanted in zip(expected.positions, expected.logits, expected.confidences, strict=True):
            engine.evaluate(ids[engine.n_past : position])
            actual, confidences = draft_of_block(engine, ids[position], int(position))
            np.testing.assert_allclose(actual[:, tokens], logits, rtol=0, atol=1e-4)
            lacking = len(actual) * (reference_models.N_VOCAB - len(tokens))
            assert np.isneginf(actual).sum() == lacking + np.isneginf(logits).sum()
            np.testing.assert_allclose(confidences, wanted, rtol=0, atol=1e-5)
            assert engine.n_past == position


@each_block
def test_blocks_leave_no_trace(name: str, tmp_path: Path) -> None:
    """A block depends on the tokens before it only: not on earlier blocks, rejected tokens and other sequences."""
    ids = ids_of(name)
    with opened(draft_head_models.write_model_and_head(name, tmp_path, "Q8_0")) as engine:
        engine.evaluate(ids[:43])
        expected = draft_of_block(engine, ids[43], 43)
        engine.reset()
        engine.evaluate(ids[:40])
        engine.draft_head.evaluate_block(engine.sequence, 7, 40)
        engine.sequence.begin_draft(3)
        engine.evaluate_draft([*ids[40:43], 7, 7])
        assert engine.rewind(43) == 43
        engine.draft_head.evaluate_block(engine.sequence, 9, 43)
        other = engine.runner.new_sequence()
        engine.runner.evaluate_segments([Segment(other, np.array(ids[:20], np.int32))])
        engine.draft_head.evaluate_block(other, 5, 20)
        for actual, alone in zip(draft_of_block(engine, ids[43], 43), expected, strict=True):
            np.testing.assert_array_equal(actual, alone)


def test_block_ends_with_the_context(tmp_path: Path) -> None:
    """Without a ring buffer, a block has no tokens beyond the context; with one, it has."""
    pair, ids = draft_head_models.write_model_and_head("dflash-window", tmp_path, "Q8_0"), ids_of("dflash-window")
    with opened(pair, ctx_size=64) as engine:
        engine.evaluate(ids[:61])
        assert len(engine.draft_head.evaluate_block(engine.sequence, ids[61], 61).logits) == 2
    with opened(pair, ctx_size=64, ctx_policy="ring") as engine:
        for id in ids[:90]:
            engine.evaluate([id])
        block = engine.draft_head.evaluate_block(engine.sequence, ids[90], 90)
        assert len(block.logits) == 4
        assert np.isfinite(block.logits).all()


@one_of_each_kind
def test_model_logits_do_not_depend_on_the_head(name: str, tmp_path: Path) -> None:
    pair, ids = draft_head_models.write_model_and_head(name, tmp_path, "Q8_0"), ids_of(name)
    with opened(pair) as engine, opened(pair, spec_type="none") as plain:
        assert engine.compiled_graph.has_draft_head
        assert not plain.compiled_graph.has_draft_head
        np.testing.assert_array_equal(engine.logits(ids), plain.logits(ids))


@one_of_each_kind
def test_rewound_tokens_leave_no_trace(name: str, tmp_path: Path) -> None:
    pair, ids = draft_head_models.write_model_and_head(name, tmp_path, "Q8_0"), ids_of(name)
    with opened(pair) as engine:
        engine.evaluate(ids[:43])
        expected = evaluate_draft_head(engine, ids[43], 43)[0]
        assert engine.rewind(40) == 40
        engine.evaluate_draft([*ids[40:43], 7, 7])
        assert engine.rewind(43) == 43
        _, state = evaluate_draft_head(engine, 9, 43)
        evaluate_draft_head(engine, 9, 44, state)
        np.testing.assert_array_equal(evaluate_draft_head(engine, ids[43], 43)[0], expected)


@one_of_each_kind
def test_sequences_are_independent(name: str, tmp_path: Path) -> None:
    pair, ids = draft_head_models.write_model_and_head(name, tmp_path, "Q8_0"), ids_of(name)
    with opened(pair) as engine:
        check_draft_head_isolation(engine, ids)


@one_of_each_kind
def test_logits_are_finite_in_a_ring_buffer(name: str, tmp_path: Path) -> None:
    pair, ids = draft_head_models.write_model_and_head(name, tmp_path, "Q8_0"), ids_of(name)
    with opened(pair, ctx_size=64, ctx_policy="ring") as engine:
        for position in range(1, len(ids)):
            engine.evaluate([ids[position - 1]])
            actual, _ = evaluate_draft_head(engine, ids[position], position)
            assert np.isfinite(actual[separate_heads.expected(name).tokens]).all()


def changed(path: Path, fields: dict[str, Field]) -> Path:
    """Return the file with changed metadata."""
    out, source = path.with_name("changed.gguf"), from_gguf(path)
    types = {name: tensor.type for name, tensor in source.tensors.items()}
    source = replace(source, fields={**source.fields, **fields})
    quantize(source, out, types, encoder_factory=make_encoder_factory("fast", {}))
    return out


@pytest.mark.parametrize(
    ("name", "fields", "problem"),
    [
        ("eagle3", {"target_layers": Field.numbers(np.array([0, 1, 3]))}, "has 3; the model has 2 layers"),
        ("eagle3", {"target_layers": Field.numbers(np.array([0, 1]))}, "target_layers: must have an integer for each"),
        ("eagle3", {"target_hidden_size": Field.uint32(64)}, "is 64; the model's embedding has 96 values"),
        ("eagle3", {"block_count": Field.uint32(2)}, "block_count: is 2; it must be 1 to 1"),
        ("gemma4-assistant", {"embedding_length_out": Field.uint32(64)}, "is 64; the model's embedding has 96 values"),
        ("gemma4-assistant", {"attention.sliding_window": Field.uint32(16)}, "is 16; the model has layers with 24"),
        ("gemma4-assistant", {"attention.head_count_kv": Field.uint32(1)}, "other heads than the model's layer blk.3"),
        ("dflash", {"target_layers": Field.numbers(np.array([1, 5]))}, "has 5; the model has 4 layers"),
        ("dflash", {"target_layers": Field.numbers(np.array([1]))}, "tensor fc.weight: "),
        ("dflash", {"block_size": Field.uint32(1)}, "block_size: is 1; it must be 2 to 256"),
        ("dflash", {"selector_rank": Field.uint32(8)}, "selector_rank: 8 is not supported by the dflash architecture"),
        ("dflash2", {"selector_rank": Field.uint32(64)}, "tensor selector_hidden.weight: has shape"),
        ("dflash2", {"selector_top_k": Field.uint32(265)}, "selector_top_k: is 265; it must be 1 to 264"),
        ("dflash2", {"conv_group_size": Field.uint32(24)}, "is 24; it must be a multiple of 16 that divides 96"),
        ("dspark-deepseek4", {"attention.compress_ratios": Field.numbers(np.array([0, 4]))}, "4 is not supported"),
        ("dflash2", {"conv_kernel_size": Field.uint32(2)}, "tensor blk.0.attn_conv_proj.weight: has shape"),
    ],
)
def test_head_of_another_model_is_rejected(
    name: str, fields: dict[str, Field], problem: str, tmp_path: Path
) -> None:
    pair = draft_head_models.write_model_and_head(name, tmp_path)
    architecture = "dflash" if name in separate_heads.DFLASH else name
    named = {f"{architecture}.{key}": field for key, field in fields.items()}
    with pytest.raises(LocalInferError, match=problem), opened(Pair(pair.model, changed(pair.head, named))):
        pass


def test_dflash_head_needs_the_embedding_of_its_length(tmp_path: Path) -> None:
    pair = draft_head_models.write_model_and_head("dflash", tmp_path)
    shorter = tiny_llama(tmp_path / "other.gguf")
    problem = "embedding_length: is 96; the model's embedding has 256 values"
    with pytest.raises(LocalInferError, match=problem), opened(Pair(shorter, pair.head)):
        pass


def test_head_of_a_model_with_alternating_updates_is_refused(tmp_path: Path) -> None:
    head = draft_head_models.write_model_and_head("dflash", tmp_path / "other").head
    model = as_type(reference_models.checkpoint("gemma3n", tmp_path), tmp_path / "model.gguf", "F32")
    with pytest.raises(UnsupportedError, match="gemma3n has several residual streams"), opened(Pair(model, head)):
        pass


def test_assistant_needs_a_model_of_gemma4(tmp_path: Path) -> None:
    model = draft_head_models.write_model_and_head("eagle3", tmp_path / "other").model
    head = draft_head_models.write_model_and_head("gemma4-assistant", tmp_path).head
    problem = "drafts for a model of the architecture gemma4; the model's is llama"
    with pytest.raises(LocalInferError, match=problem), opened(Pair(model, head)):
        pass


@pytest.mark.parametrize("value", [-1, reference_models.N_VOCAB])
def test_token_map_out_of_range_is_rejected(value: int, tmp_path: Path) -> None:
    pair = draft_head_models.write_model_and_head("eagle3", tmp_path)
    tensor = open_gguf(pair.head).tensors["d2t"]
    with pair.head.open("r+b") as file:
        file.seek(tensor.offset)
        file.write(np.int64(value).tobytes())
    with pytest.raises(LocalInferError, match="tensor d2t: has a token outside the vocabulary"), opened(pair):
        pass
