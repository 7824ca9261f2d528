"""Options of config.json that reference models lack: checkpoints with an option compute what an equivalent one does."""

import json
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import pytest
import reference_models
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from localinfer import naive
from localinfer.conversion import open_checkpoint
from localinfer.errors import LocalInferError, UnsupportedError
from localinfer.gguf.reader import GGUF, open_gguf

Config = dict[str, Any]
Tensors = dict[str, NDArray[np.float32]]
Change = Callable[[Config, Tensors], object]
SHARED_DOWN, ATTENTION = "shared_experts.down_proj", ("q_proj", "k_proj", "v_proj", "o_proj")


def changed(name: str, folder: Path, change: Change) -> Path:
    """Write a reference model with a changed configuration and tensors, and return its checkpoint."""
    path = reference_models.checkpoint(name, folder)
    config, tensors = json.loads((path / "config.json").read_text()), load_file(path / "model.safetensors")
    change(config, tensors)
    (path / "config.json").write_text(json.dumps(config))
    save_file(tensors, path / "model.safetensors")
    return path


def converted(name: str, folder: Path, change: Change) -> GGUF:
    return open_gguf(checkpoints.as_f32(changed(name, folder, change), folder / "model.gguf"))


def logits(name: str, folder: Path, change: Change) -> NDArray[np.float64]:
    """Return the exact logits of a changed reference model."""
    folder.mkdir()
    model = naive.Model(converted(name, folder, change))
    model.ctx_size = 128
    return np.asarray(naive.forward(model, reference_models.expected(name).ids))


def unchanged(config: Config, tensors: Tensors) -> None:
    """Change nothing."""


def option(tensors: Callable[[Tensors], object] = lambda tensors: None, **values: Any) -> Change:
    """Set values of config.json and change tensors."""

    def change(config: Config, stored: Tensors) -> None:
        config.update(values)
        tensors(stored)

    return change


def removed(*parts: str) -> Callable[[Tensors], object]:
    return lambda tensors: [tensors.pop(name) for name in list(tensors) if any(part in name for part in parts)]


def multiplied(factor: float, *parts: str) -> Callable[[Tensors], object]:
    """Multiply all tensors whose names contain one of the parts."""

    def change(tensors: Tensors) -> None:
        tensors |= {
            name: values * np.float32(factor)
            for name, values in tensors.items()
            if any(part in name for part in parts)
        }

    return change


def with_biases(value: float, *parts: str) -> Callable[[Tensors], object]:
    def change(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.endswith(tuple(f"{part}.weight" for part in parts))]:
            tensors[name.replace(".weight", ".bias")] = np.full(len(tensors[name]), value, np.float32)

    return change


def copied_output(tensors: Tensors) -> None:
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()


def with_doubled_query_norms(tensors: Tensors) -> None:
    """Double the weights of norms of queries, which are stored without 1."""
    tensors |= {name: 2 * (1 + values) - 1 for name, values in tensors.items() if "q_norm" in name}


def as_transformers_5_saves_it(config: Config, tensors: Tensors) -> None:
    """Write layer types as words, and the keys about experts that the class always has."""
    words = {"M": "linear_attention", "*": "full_attention", "-": "mlp"}
    config["layers_block_type"] = [words[letter] for letter in config.pop("hybrid_override_pattern")]
    config |= {
        "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1, "moe_intermediate_size": 64,
        "moe_shared_expert_intermediate_size": 96, "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
        "routed_scaling_factor": 1.0, "moe_latent_size": None,
    }  # fmt: skip


def with_empty_dense_layer(config: Config, tensors: Tensors) -> None:
    """Replace the experts of the last layer by a feed-forward network that adds nothing."""
    removed("layers.2.mlp.")(tensors)
    config["moe_layer_end_index"] = 1
    n, n_ff = config["hidden_size"], config["intermediate_size"]
    for name, shape in (("gate", (n_ff, n)), ("up", (n_ff, n)), ("down", (n, n_ff))):
        tensors[f"model.layers.2.mlp.{name}_proj.weight"] = np.zeros(shape, np.float32)


BIASES = [f"{each}.bias" for each in ATTENTION]
EQUIVALENT: dict[str, tuple[str, Change, Change]] = {
    "glm4moe without biases": (
        "glm4moe",
        option(removed(*BIASES), attention_bias=False),
        option(multiplied(0, *BIASES)),
    ),
    "glm4moe without shared experts": (
        "glm4moe",
        option(removed("shared_experts"), n_shared_experts=0),
        option(multiplied(0, SHARED_DOWN)),
    ),
    "ernie4_5-moe without shared experts": (
        "ernie4_5-moe",
        option(removed("shared_experts"), moe_num_shared_experts=0),
        option(multiplied(0, SHARED_DOWN)),
    ),
    "ernie4_5-moe with a dense last layer": (
        "ernie4_5-moe",
        with_empty_dense_layer,
        option(multiplied(0, "layers.2.mlp.")),
    ),
    "gptneox without biases": (
        "gptneox",
        option(removed("attention.query_key_value.bias", "attention.dense.bias"), attention_bias=False),
        option(multiplied(0, "attention.query_key_value.bias", "attention.dense.bias")),
    ),
    "dense nemotron_h of transformers 5": ("nemotron_h", as_transformers_5_saves_it, unchanged),
    "gemma2 without caps": (
        "gemma2",
        option(attn_logit_softcapping=None, final_logit_softcapping=None),
        option(attn_logit_softcapping=1e6, final_logit_softcapping=1e6),
    ),
    "gemma2 with another scale": (
        "gemma2",
        option(multiplied(2, "q_proj"), query_pre_attn_scalar=4 * 48),
        option(query_pre_attn_scalar=48),
    ),
    "gemma3 with another scale": (
        "gemma3",
        option(with_doubled_query_norms, query_pre_attn_scalar=4 * 64),
        option(query_pre_attn_scalar=64),
    ),
    "gemma with a stored output layer": ("gemma", option(copied_output), unchanged),
    "gemma with an output layer of its own": ("gemma", option(copied_output, tie_word_embeddings=False), unchanged),
    "falcon-h1 with a shared output layer": (
        "falcon-h1",
        option(removed("lm_head"), tie_word_embeddings=True),
        option(copied_output),
    ),
    "qwen3 with biases": (
        "qwen3",
        option(with_biases(0, *ATTENTION), attention_bias=True),
        unchanged,
    ),
    "seed_oss with all biases": (
        "seed_oss",
        option(with_biases(0, "o_proj", "gate_proj", "up_proj", "down_proj"), attention_out_bias=True, mlp_bias=True),
        unchanged,
    ),
    "cohere2 with biases": (
        "cohere2",
        option(with_biases(0, *ATTENTION), attention_bias=True),
        unchanged,
    ),
    "granitemoe with biases": (
        "granitemoe",
        option(with_biases(0, *ATTENTION), attention_bias=True),
        unchanged,
    ),
    "qwen2moe with one expert, normalized": (
        "qwen2moe",
        option(norm_topk_prob=True, num_experts_per_tok=9),
        option(multiplied(1, "mlp"), num_experts_per_tok=9),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EQUIVALENT)
def test_equivalent_checkpoints_have_equal_logits(name: str, tmp_path: Path) -> None:
    reference, one, other = EQUIVALENT[name]
    actual, expected = logits(reference, tmp_path / "one", one), logits(reference, tmp_path / "other", other)
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-4)


def test_final_softcapping_of_gemma3(tmp_path: Path) -> None:
    capped = logits("gemma3", tmp_path / "capped", option(final_logit_softcapping=2.0))
    np.testing.assert_allclose(capped, 2 * np.tanh(logits("gemma3", tmp_path / "plain", unchanged) / 2), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "change", "key", "value"),
    [
        ("gptneox", option(hidden_act="gelu_fast"), "hidden_activation", "gelu_fast"),
        ("gptneox", option(hidden_act="gelu"), "hidden_activation", None),
        ("gpt2", option(activation_function="gelu"), "hidden_activation", "gelu"),
        ("qwen2moe", option(norm_topk_prob=True), "expert_weights_norm", True),
        ("qwen3moe", option(norm_topk_prob=False), "expert_weights_norm", False),
        ("olmoe", option(norm_topk_prob=True), "expert_weights_norm", True),
        ("qwen3moe", unchanged, "expert_weights_norm", None),
        ("dots1", option(n_group=2, topk_group=1), "expert_group_count", 2),
    ],
)
def test_options_with_a_key(name: str, change: Change, key: str, value: object, tmp_path: Path) -> None:
    f = converted(name, tmp_path, change)
    assert f.metadata.get(f"{f.get('general.architecture', str)}.{key}") == value


def test_exact_gelu_differs_from_its_approximation(tmp_path: Path) -> None:
    exact = logits("gpt2", tmp_path / "exact", option(activation_function="gelu"))
    difference = np.abs(exact - logits("gpt2", tmp_path / "tanh", unchanged)).max()
    assert 1e-4 < difference < 1e-2


@pytest.mark.parametrize(
    ("name", "values", "named"),
    [
        ("llama2", {"intermediate_size": 150}, "intermediate_size: makes 150 columns"),
        ("llama2", {"hidden_size": 80, "head_dim": 32}, "hidden_size: makes 80 columns"),
        ("qwen3moe", {"moe_intermediate_size": 48}, "moe_intermediate_size: makes 48 columns"),
        ("falcon", {"hidden_size": 120}, "hidden_size: makes 120 columns"),
        ("gpt2", {"n_inner": 150}, "n_inner: makes 150 columns"),
        ("deepseek3", {"first_k_dense_replace": 3}, "first_k_dense_replace: 3 leaves no layer with experts"),
        ("gemma3", {"attn_logit_softcapping": 5.0}, "attn_logit_softcapping: 5.0 is not supported"),
        ("qwen3moe", {"mlp_only_layers": [0, 1]}, "mlp_only_layers: leave no layer with experts"),
        ("qwen2moe", {"decoder_sparse_step": 3}, "mlp_only_layers: leave no layer with experts"),
        ("ernie4_5-moe", {"moe_layer_interval": 9}, "moe_layer_interval: leaves no layer with experts"),
        ("qwen3next", {"mlp_only_layers": [1]}, r"mlp_only_layers: \[1\] is not supported"),
        ("mamba2", {"time_step_limit": [0.001, 0.1]}, r"time_step_limit: \[0.001, 0.1\] is not supported: GGUF has no"),
        ("nemotron_h", {"time_step_limit": [0.01, inf]}, r"time_step_limit: \[0.01, inf\] is not supported"),
        ("granitehybrid", {"time_step_limit": [0.0, 0.1]}, r"time_step_limit: \[0.0, 0.1\] is not supported"),
        ("falcon-h1", {"time_step_limit": [0.0, 10]}, r"time_step_limit: \[0.0, 10\] is not supported"),
    ],
)
def test_a_refusal_names_the_field(name: str, values: Config, named: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=f"config.json: {named}"):
        open_checkpoint(changed(name, tmp_path, option(**values)))


@pytest.mark.parametrize("name", ["mamba2", "nemotron_h", "granitehybrid", "falcon-h1"])
@pytest.mark.parametrize("limits", [[0, inf], [-1.0, inf], [0.0, {"__float__": "Infinity"}], [0.0, 1e39], None])
def test_limits_of_time_steps_without_effect(limits: list[Any] | None, name: str, tmp_path: Path) -> None:
    open_checkpoint(changed(name, tmp_path, option(time_step_limit=limits)))


@pytest.mark.parametrize("limits", [[0.0], [0.0, "inf"]])
def test_invalid_limits_of_time_steps(limits: list[Any], tmp_path: Path) -> None:
    with pytest.raises(LocalInferError, match="time_step_limit: must be two numbers"):
        open_checkpoint(changed("mamba2", tmp_path, option(time_step_limit=limits)))


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"mlp_only_layers": ["0"]}, "mlp_only_layers: must be numbers"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step: is 0"),
    ],
)
def test_invalid_dense_layers(values: Config, named: str, tmp_path: Path) -> None:
    with pytest.raises(LocalInferError, match=f"config.json: {named}"):
        open_checkpoint(changed("qwen3moe", tmp_path, option(**values)))
