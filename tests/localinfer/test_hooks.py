"""Hooks with whole runs: captures leave bits as they are, patches stay within their sequence, errors end a run cleanly.

That the activations are right is tested in architectures/test_points.py.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import checkpoints
import draft_head_models
import numpy as np
import pytest
import reference_models
from numpy.typing import NDArray
from tiny import tiny_llama

import localinfer
from localinfer import Model, UsageError, paths
from localinfer.prefix_store.directory import stored_models
from localinfer.runtime.activations.hooks import RowInfo

Floats = NDArray[np.float32]
IDS = np.random.default_rng(0).integers(5, 260, 40).tolist()
LAST, LAST_OUTPUT = "blk.1.resid_post", "blk.1.ffn_out"
GREEDY = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}


def zeros(values: Floats, info: RowInfo) -> Floats:
    return np.zeros_like(values)


def failing(values: Floats, info: RowInfo) -> Floats:
    raise KeyError(info.name)


@pytest.fixture(scope="module")
def llama_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "llama.gguf", n_ctx=2048)


@pytest.fixture(scope="module")
def model(llama_file: Path) -> Iterator[Model]:
    """Yield a quantized model that evaluates prompts in several batches."""
    with localinfer.load(llama_file, threads=2, ctx_size=256, batch_size=16, parallel=4) as loaded:
        yield loaded


def test_captures_do_not_change_bits(model: Model) -> None:
    without, answer = model.logits(IDS).copy(), model.generate(IDS, **GREEDY)
    with model.capture("*") as trace:
        np.testing.assert_array_equal(model.logits(IDS), without)
        of_prompt = trace[LAST].copy()
        assert model.generate(IDS, **GREEDY).tokens == answer.tokens
    assert trace.tokens == [*IDS, *answer.tokens[:-1]]
    assert trace.positions().tolist() == list(range(len(IDS) + 11))
    np.testing.assert_array_equal(trace[LAST][: len(IDS)], of_prompt)
    assert trace.positions("logits").tolist() == list(range(len(IDS) - 1, len(IDS) + 11))
    np.testing.assert_array_equal(trace["logits"][0], without[-1])


def test_a_model_without_hooks_is_not_cut(model: Model) -> None:
    graph = model.engine.compiled_graph
    n_ops = len(graph.graph.ops)
    with model.capture("*"):
        assert not graph.cuts
        assert len(graph.graph.ops) == n_ops
        assert len(model.engine.runner._hooked_graphs.get(frozenset(model.points())).graph.ops) > n_ops


def test_tokens_that_were_cached_are_evaluated_again(model: Model) -> None:
    model.generate(IDS, **GREEDY)
    with model.capture(LAST) as trace:
        for _ in range(2):
            assert model.generate(IDS, **GREEDY).stats.reused_tokens == 0
            assert trace[LAST].shape == (len(IDS) + 11, 256)
    assert model.generate(IDS, **GREEDY).stats.reused_tokens == 0
    assert model.generate(IDS, **GREEDY).stats.reused_tokens == len(IDS) - 1


def test_patches_end_with_their_block(model: Model) -> None:
    without, answer = model.logits(IDS).copy(), model.generate(IDS, **GREEDY)
    with model.patch({"blk.*.ffn_out": zeros}):
        assert np.abs(model.logits(IDS) - without).max() > 0.1
        changed = model.generate(IDS, **GREEDY)
    assert changed.tokens != answer.tokens
    assert model.generate(IDS, **GREEDY).tokens == answer.tokens
    np.testing.assert_array_equal(model.logits(IDS), without)


def test_a_patch_knows_the_tokens_and_their_positions(model: Model) -> None:
    seen: list[RowInfo] = []

    def steer(values: Floats, info: RowInfo) -> Floats:
        assert values.shape == (len(info.tokens), 256)
        seen.append(info)
        values[info.positions == 20] += 1.0  # a copy: changing it has no effect by itself
        return values

    without = model.logits(IDS).copy()
    with model.patch({LAST: steer}):
        changed = model.logits(IDS)
    assert [id for info in seen for id in info.tokens] == IDS
    assert [position for info in seen for position in info.positions] == list(range(len(IDS)))
    assert {info.name for info in seen} == {LAST}
    differs = (changed != without).any(axis=1)
    assert differs.nonzero()[0].tolist() == [20]


def test_changed_logits_determine_the_text(model: Model) -> None:
    def prefer(values: Floats, info: RowInfo) -> Floats:
        values[:, 70 + info.positions % 2] = 1e4
        return values

    with model.patch({"logits": prefer}):
        result = model.generate(IDS, temperature=0, max_tokens=4)
    assert result.tokens == [71, 70, 71, 70]


def test_a_model_may_be_closed_while_hooks_are_set(llama_file: Path) -> None:
    with localinfer.load(llama_file, threads=1, ctx_size=64) as closed, closed.capture(LAST) as trace:
        closed.logits(IDS)
        closed.close()
    assert trace.tokens == IDS


def test_activations_of_one_run_replace_those_of_another(model: Model) -> None:
    """Activation patching: with the residual stream of a run, the later layers compute that run."""
    other = IDS[::-1]
    with model.capture("blk.0.resid_post") as trace:
        expected = model.logits(IDS).copy()
    with model.patch({"blk.0.resid_post": lambda values, info: trace["blk.0.resid_post"][info.positions]}):
        np.testing.assert_array_equal(model.logits(other), expected)


def test_hooks_are_called_in_the_order_in_which_they_were_set(model: Model) -> None:
    with (
        model.capture(LAST) as before,
        model.patch({"blk.1.resid_pos?": zeros, LAST: lambda values, info: values + 2}),
        model.capture(LAST) as between,
        model.patch({LAST: lambda values, info: values * 3}),
        model.capture(LAST) as after,
    ):
        model.logits(IDS)
    assert np.ptp(before[LAST]) > 0
    assert (between[LAST] == 2).all()
    assert (after[LAST] == 6).all()


@pytest.mark.parametrize(
    ("name", "similar"),
    [("blk.1.resid_pots", "blk.1.resid_post"), ("blk.9.resid_post", "blk.1.resid_post"), ("logit", "logits")],
)
def test_unknown_points_are_errors_that_list_similar_ones(model: Model, name: str, similar: str) -> None:
    message = f"^{name}: the model has no such point; similar: .*{similar}"
    with pytest.raises(UsageError, match=message), model.capture(LAST, name):
        pass


def test_a_pattern_without_a_match_is_an_error(model: Model) -> None:
    message = r"^blk\.\*\.ssm_out: the model has no such point; similar: "
    with pytest.raises(UsageError, match=message), model.patch({"blk.*.ssm_out": zeros}):
        pass


@pytest.mark.parametrize(
    ("patch", "what"),
    [
        (lambda values, info: values[:, :3], r"an array of shape \(\d+, 3\); it must be \(\d+, 256\)"),
        (lambda values, info: None, "returned None; it must return the new values"),
        (lambda values, info: "text", "returned str, not an array of numbers"),
    ],
)
def test_a_wrong_result_of_a_patch_is_an_error(model: Model, patch: Callable[..., object], what: str) -> None:
    with model.patch({LAST: patch}), pytest.raises(UsageError, match=f"^{LAST}: a patch .*{what}"):
        model.generate(IDS)


def test_what_cannot_be_changed_is_an_error(model: Model) -> None:
    with (
        pytest.raises(UsageError, match=r"^blk\.0\.attn_weights: cannot be changed"),
        model.patch({"blk.0.attn_weights": zeros}),
    ):
        pass
    with pytest.raises(UsageError, match=r"^logits: the patch is no function"), model.patch({"logits": 3}):  # type: ignore[dict-item]
        pass


def test_an_exception_of_a_patch_ends_the_run(model: Model) -> None:
    without = model.logits(IDS).copy()
    with model.patch({LAST: failing}):
        for _ in range(2):
            with pytest.raises(KeyError, match=LAST):
                model.generate(IDS, **GREEDY)
    np.testing.assert_array_equal(model.logits(IDS), without)


def test_a_patch_cannot_run_the_model(model: Model) -> None:
    message = "a hook cannot evaluate the model that it belongs to"
    with model.patch({LAST: lambda values, info: model.logits(IDS)}), pytest.raises(UsageError, match=message):
        model.logits(IDS)


def test_a_cache_with_hooks_is_not_saved(model: Model, tmp_path: Path) -> None:
    with model.capture(LAST):
        with pytest.raises(UsageError, match="hooks are set"):
            model.save_cache(tmp_path / "cache")
        with pytest.raises(UsageError, match="hooks are set"):
            model.load_cache(tmp_path / "cache")


def test_nothing_is_drafted_with_hooks(model: Model) -> None:
    answer = model.generate([*IDS, *IDS], spec_type="ngram", **GREEDY)
    with model.capture(LAST) as trace:
        result = model.generate([*IDS, *IDS], spec_type="ngram", **GREEDY)
    assert result.tokens == answer.tokens
    assert result.stats.drafted_tokens == 0
    assert trace.tokens == [*IDS, *IDS, *result.tokens[:-1]]


def test_the_prefix_store_is_not_used_with_hooks(
    llama_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "prefixes_dir", lambda: tmp_path / "prefixes")
    long = IDS * 20

    def run(*, patched: bool) -> tuple[list[int], int]:
        with localinfer.load(llama_file, threads=2, ctx_size=1024, prefix_store=True, tune=False) as loaded:
            if not patched:
                result = loaded.generate(long, **GREEDY)
            else:
                with loaded.patch({LAST: zeros}):
                    result = loaded.generate(long, **GREEDY)
        return list(result.tokens), result.stats.reused_tokens

    changed, _ = run(patched=True)
    assert not list(stored_models(tmp_path / "prefixes"))
    answer, reused = run(patched=False)
    assert (reused, answer != changed) == (0, True)
    assert run(patched=True) == (changed, 0)
    again, reused = run(patched=False)
    assert (again, reused > 500) == (answer, True)


# --- continuous batching ---


def test_prompts_of_a_list_run_with_the_hooks(model: Model) -> None:
    prompts = [IDS, IDS[:20]]
    with model.patch({"blk.*.ffn_out": zeros}), model.capture(LAST) as trace:
        expected = [model.generate(each, **GREEDY).tokens for each in prompts]
        assert [each.tokens for each in model.generate(prompts, **GREEDY)] == expected
    assert trace.tokens[:20] == IDS[:20]


def together(model: Model, hooks: Sequence[Callable[[Model], list[int]]]) -> list[list[int] | Exception]:
    """Run a function for each slot at the same time; return what they return or raise."""

    def run(slot: int) -> list[int] | Exception:
        try:
            return hooks[slot](model.concurrent(slot))
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(hooks)) as threads:
        return list(threads.map(run, range(len(hooks))))


def test_sequences_of_a_batch_have_their_own_hooks(model: Model) -> None:
    traces = {}

    def plain(handle: Model) -> list[int]:
        return list(handle.generate(IDS, **GREEDY).tokens)

    def patched(handle: Model) -> list[int]:
        with handle.patch({LAST_OUTPUT: zeros}):
            return plain(handle)

    def captured(handle: Model) -> list[int]:
        with handle.capture(LAST, "logits") as traces[handle]:
            return plain(handle)

    def failed(handle: Model) -> list[int]:
        with handle.patch({"blk.0.attn_out": failing}):
            return plain(handle)

    expected = [plain(model), patched(model), captured(model)]
    for _ in range(3):
        actual = together(model, [plain, patched, captured, failed])
        assert actual[:3] == expected
        assert isinstance(actual[3], KeyError)
    whole, in_batch = traces.values()
    assert whole.tokens == in_batch.tokens
    for name in (LAST, "logits"):
        np.testing.assert_array_equal(whole[name], in_batch[name])
        np.testing.assert_array_equal(whole.positions(name), in_batch.positions(name))


def test_a_prefix_of_a_sequence_with_hooks_is_not_shared(model: Model) -> None:
    expected = model.generate(IDS, **GREEDY).tokens
    with model.concurrent(0).patch({"blk.0.ffn_out": zeros}):
        changed = model.concurrent(0).generate(IDS, **GREEDY)
        result = model.concurrent(1).generate(IDS, **GREEDY)
    assert result.tokens == expected
    assert changed.tokens != expected


def test_the_prefix_of_another_sequence_is_not_used_with_hooks(model: Model) -> None:
    model.concurrent(1).generate(IDS, **GREEDY)
    with model.concurrent(0).capture(LAST) as trace:
        assert model.concurrent(0).generate(IDS, **GREEDY).stats.reused_tokens == 0
    assert trace.tokens[: len(IDS)] == IDS


# --- other models ---


@pytest.mark.parametrize("name", ["qwen35", "mamba"])
def test_recurrent_states_are_kept_apart(name: str, tmp_path: Path) -> None:
    path = checkpoints.as_type(reference_models.checkpoint(name, tmp_path), tmp_path / "model.gguf", "Q8_0")
    ids = reference_models.expected(name).ids[:40]
    with localinfer.load(path, threads=1, ctx_size=128) as model:
        answer, point = model.generate(ids, **GREEDY).tokens, "blk.0.resid_post"
        with model.capture(point) as trace:
            assert model.generate(ids, **GREEDY).tokens == answer
        assert trace.tokens == [*ids, *answer[:-1]]
        with model.patch({point: zeros}):
            assert model.generate(ids, **GREEDY).tokens != answer
        assert model.generate(ids, **GREEDY).tokens == answer


def test_a_model_with_a_draft_head_has_hooks(tmp_path: Path) -> None:
    path, ids = draft_head_models.write_with_mtp_head("glm4moe", tmp_path, "Q8_0"), IDS[:20]
    with localinfer.load(path, threads=1, ctx_size=128, spec_type="draft-mtp", parallel=2) as model:
        answer = model.generate(ids, **GREEDY)
        with model.capture("blk.1.resid_post") as trace:
            assert model.generate(ids, **GREEDY).tokens == answer.tokens
        assert trace.tokens == [*ids, *answer.tokens[:-1]]
        assert model.generate(ids, **GREEDY).tokens == answer.tokens

        def patched(handle: Model) -> list[int]:
            with handle.patch({"blk.1.resid_post": zeros}):
                return list(handle.generate(ids, **GREEDY).tokens)

        changed, same = together(model, [patched, lambda handle: list(handle.generate(ids, **GREEDY).tokens)])
        assert (changed == answer.tokens, same) == (False, answer.tokens)


def test_attention_weights_of_a_ring_buffer(llama_file: Path) -> None:
    ring = {"ctx_policy": "ring", "ctx_size": 64, "batch_size": 16, "keep": 0}
    with localinfer.load(llama_file, threads=1, **ring) as model, model.capture("blk.0.attn_weights") as trace:
        model.generate(IDS, **GREEDY | {"max_tokens": 80})
    weights = trace["blk.0.attn_weights"]
    n = len(IDS) + 79
    assert weights.shape == (4, n, n)
    np.testing.assert_allclose(weights.sum(axis=2), 1, rtol=0, atol=1e-5)
    assert not np.tril(weights, -64).any()
    assert not np.triu(weights, 1).any()


def test_experts_are_ablated_by_their_weights(tmp_path: Path) -> None:
    path = checkpoints.as_type(reference_models.checkpoint("qwen3moe", tmp_path), tmp_path / "model.gguf", "Q8_0")
    ids = reference_models.expected("qwen3moe").ids[:30]
    with (
        localinfer.load(path, threads=1, ctx_size=128) as model,
        model.patch({"blk.0.ffn_expert_weights": zeros}),
        model.capture("blk.0.ffn_out", "blk.0.ffn_expert_ids") as trace,
    ):
        model.logits(ids)
    assert not trace["blk.0.ffn_out"].any()
    assert all(len(set(row)) == len(row) for row in trace["blk.0.ffn_expert_ids"].tolist())


def test_embeddings_are_those_of_changed_activations(model: Model) -> None:
    with model.capture("output_norm", LAST) as trace:
        states = model.embed_tokens([IDS, IDS[:5]])
    np.testing.assert_array_equal(trace["output_norm"], np.concatenate(states))
    with model.patch({"output_norm": zeros}):
        assert not model.embed_tokens([IDS])[0].any()
