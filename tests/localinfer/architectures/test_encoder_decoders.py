"""Encoder-decoder models compute what `transformers` computes, and their sequences are batched and reused as others."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import checkpoints
import numpy as np
import pytest
import reference_models

import localinfer
from localinfer import naive
from localinfer.errors import UnsupportedError, UsageError
from localinfer.evaluation.benchmark import BenchmarkTest, benchmark
from localinfer.gguf.reader import open_gguf
from localinfer.options import Options
from localinfer.runtime.encoder_tokens import encoder_length
from localinfer.runtime.engine import Engine

EXACT = Options(threads=1, precision="high", cache_type_k="f32", cache_type_v="f32")
PROMPTS = ["to be or not to be", "that is", "that is the question", "x" * 90]

each = pytest.mark.parametrize("name", reference_models.ENCODER_DECODERS)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a model in Q8_0."""
    folder = tmp_path_factory.mktemp("t5")
    return checkpoints.as_type(reference_models.checkpoint("t5-gated", folder), folder / "t5.gguf", "Q8_0")


@contextlib.contextmanager
def engine(name: str, folder: Path, options: Options) -> Iterator[Engine]:
    file = checkpoints.as_type(reference_models.checkpoint(name, folder), folder / "model.gguf", "F32")
    with contextlib.closing(Engine.load(open_gguf(file), options)) as running:
        yield running


@each
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    reference = reference_models.expected(name)
    with engine(name, tmp_path, EXACT) as running:
        oracle = naive.forward(naive.Model(running.file), reference.ids)
        actual = running.logits(reference.ids)
    np.testing.assert_allclose(reference.part(oracle), reference.logits, rtol=0, atol=1e-4)
    np.testing.assert_allclose(reference.part(actual), reference.logits, rtol=0, atol=1e-4)


def test_long_prompts_and_texts(tmp_path: Path) -> None:
    """Distances of more than 128 have the same bias, and pages have both kinds of tokens."""
    generator = np.random.default_rng(0)
    ids = [*(~generator.integers(0, 256, 300)).tolist(), *generator.integers(0, 256, 200).tolist()]
    with engine("umt5", tmp_path, replace(EXACT, threads=2)) as running:
        expected = naive.forward(naive.Model(running.file), ids)
        np.testing.assert_allclose(running.logits(ids), expected, rtol=0, atol=2e-4)


@pytest.mark.parametrize("options", [Options(threads=2), Options(threads=1, cache_type_k="q8_0", cache_type_v="q8_0")])
def test_tokens_one_by_one_have_the_same_bits(options: Options, path: Path) -> None:
    ids = reference_models.expected("t5-gated").ids
    first = encoder_length(ids) + 1
    with contextlib.closing(Engine.load(open_gguf(path), options)) as running:
        together = running.logits(ids).copy()
        running.reset()
        one_by_one = [running.evaluate(ids[:first]).copy(), *(running.evaluate([id]).copy() for id in ids[first:])]
    np.testing.assert_array_equal(together, one_by_one)


def test_prompts_in_a_batch_are_answered_as_alone(path: Path) -> None:
    """Prompts of encoders are evaluated beside the decode steps of other sequences."""
    options = {"temperature": 0.8, "seed": 3, "max_tokens": 40, "ignore_eos": True}
    with localinfer.load(path, threads=2) as model:
        alone = [model.generate(prompt, **options).tokens for prompt in PROMPTS]
        assert len(set(map(tuple, alone))) == len(PROMPTS)
    with localinfer.load(path, threads=2, parallel=3) as model:
        assert [result.tokens for result in model.generate(PROMPTS, **options)] == alone


def test_the_output_of_the_encoder_is_reused_for_the_same_prompt_only(path: Path) -> None:
    options = {"temperature": 0.0, "max_tokens": 3, "ignore_eos": True}
    with localinfer.load(path, threads=1) as model:
        n = len(model.tokenize("that is"))
        results = [model.generate(prompt, **options) for prompt in ("that is", "that is", "that is it", "that is")]
        assert [each.stats.reused_tokens for each in results] == [0, n, 0, 0]
        assert [each.stats.prompt_tokens for each in results] == [n + 1, n + 1, n + 4, n + 1]
        assert results[0].tokens == results[1].tokens == results[3].tokens != results[2].tokens


def test_the_most_probable_text(path: Path) -> None:
    """Also with several beams: one is the same as none."""
    with localinfer.load(path, threads=1, precision="high") as model:
        ids = model.tokenize("to be")
        greedy = model.generate("to be", temperature=0.0, max_tokens=5, ignore_eos=True).tokens
        tokens = [*(~id for id in ids), 5]
        for id in greedy:
            assert id == int(naive.forward(naive.Model(model.file), tokens)[-1].argmax())
            tokens.append(id)
        assert len(model.generate("to be", beams=3, max_tokens=5, ignore_eos=True).tokens) == 5


def test_activations_are_those_of_the_oracle(tmp_path: Path) -> None:
    ids = reference_models.expected("t5").ids
    file = checkpoints.as_type(reference_models.checkpoint("t5", tmp_path), tmp_path / "model.gguf", "F32")
    exact = {"precision": "high", "cache_type_k": "f32", "cache_type_v": "f32"}
    with localinfer.load(file, threads=1, **exact) as model:
        with model.capture("*") as trace:
            model.logits(ids)
        expected = naive.run_builder(naive.Model(model.file), ids)
        for point in model.points():
            if not point.endswith(("attn_weights", "logits")):
                np.testing.assert_allclose(trace[point], expected.points[point], rtol=0, atol=1e-3, err_msg=point)


def test_a_prompt_cache_file_has_the_output_of_the_encoder(path: Path, tmp_path: Path) -> None:
    options = {"temperature": 0.0, "max_tokens": 4, "ignore_eos": True}
    with localinfer.load(path, threads=1) as model:
        expected = model.generate("to be", **options)
        model.save_cache(tmp_path / "cache")
    with localinfer.load(path, threads=1) as model:
        assert model.load_cache(tmp_path / "cache") == expected.stats.prompt_tokens + 3
        again = model.generate("to be", **options)
        assert again.tokens == expected.tokens
        assert again.stats.reused_tokens == expected.stats.prompt_tokens - 1


def test_a_benchmark_encodes_and_decodes(path: Path) -> None:
    tests = [BenchmarkTest(20, 0, 0, 1), BenchmarkTest(0, 4, 8, 1), BenchmarkTest(20, 4, 0, 1)]
    prefill, decode, both = (each.cost for each in benchmark(path, tests, Options(), 1, lambda _: None))
    assert 0 < decode.macs < prefill.macs < both.macs < prefill.macs + 2 * decode.macs
    with pytest.raises(UsageError, match="the prompt of an encoder-decoder model comes first"):
        list(benchmark(path, [BenchmarkTest(20, 0, 8, 1)], Options(), 1, lambda _: None))


def test_what_encoder_decoder_models_refuse(path: Path) -> None:
    with localinfer.load(path, threads=1) as model:
        with pytest.raises(UnsupportedError, match="t5 is an encoder-decoder model: it answers prompts"):
            model.logits([1, 2, 3])
        with pytest.raises(UnsupportedError, match="does not evaluate texts"):
            model.lens("text")
        with pytest.raises(UnsupportedError, match="does not evaluate texts"):
            model.attention("text")
        with pytest.raises(UnsupportedError, match="embeddings are those of an encoder alone"):
            model.embed("text")
        with pytest.raises(UsageError, match="those of an encoder must be the first ones"):
            model.logits([~1, 2, ~3])
        with pytest.raises(UsageError, match="must be followed by those of the decoder"):
            model.logits([~1, ~2])
    with pytest.raises(UnsupportedError, match="biases with ctx_policy ring are not supported"):
        Engine.load(open_gguf(path), Options(threads=1, ctx_policy="ring"))
