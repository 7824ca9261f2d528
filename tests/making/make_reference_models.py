"""Write tests/data/reference_models: the tiny checkpoints of `reference_models`, and the logits that transformers
computes.

    python tests/making/make_reference_models.py              # all of them
    python tests/making/make_reference_models.py gemma2 phi3  # these

MODELS has the models, and so has each file in reference_specs/. Needs torch and transformers. Only the configuration is
stored: the weights follow from their names and shapes.
Logits are computed in float32 with eager attention.
"""

import json
import re
import runpy
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file

sys.path.extend(str(Path(__file__).parents[1] / folder) for folder in ("models", "oracles"))
import alibi_model  # (needs the path above)
import cogvlm_model
import deci_model
import jina_v2_model
import neobert_model
import nomic_moe_model
import openelm_model
import plamo3_model
import reference_models
import rwkv7_model
import smallthinker_model
from reference_spec import SPECIAL_IDS, WINDOW, Shapes, Spec, Tensors, layer_types, longrope, rope, sizes

TEXT = "Attention is all you need: 3.14159 of it, naïve or not, over 日本語 and back, for ever and ever and ever!?"
N_TOKENS, N_ENCODER = 96, 40
# Positions whose logits are stored: in every part of the text, on both sides of the ends of windows and chunks.
POSITIONS = np.array([8, 23, 26, 47, 50, 71, 83, 95])
COLUMNS = np.arange(2, reference_models.N_VOCAB, 3)  # of the vocabulary, likewise
IDS = [256, *TEXT.encode()][:N_TOKENS]
assert len(IDS) == N_TOKENS
CHUNKED = {"attention_chunk_size": WINDOW, "floor_scale": 16}
NUMBER = re.compile(r"\.\d+\.")
VISION_TENSOR = re.compile(
    r"model\.(visual|vision_tower|projector|multi_modal_projector|image_newline|view_separator)\b"
)
DULL = (
    "version", "dtype", "attn_impl", "drop", "init", "use_cache", "output_", "summary_", "chunk_size", "pretraining",
    "time_step",
)  # fmt: skip


# --- checkpoints whose format differs from transformers' ---


def without(prefix: str) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    return lambda tensors: {key.removeprefix(prefix): value for key, value in tensors.items()}


def prefixed(prefix: str) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    return lambda tensors: {prefix + key: value for key, value in tensors.items()}


def renamed(name: str, parts: Mapping[str, str]) -> str:
    for old, new in parts.items():
        name = name.replace(old, new)
    return name


def within_mistral3(config: dict[str, Any]) -> dict[str, Any]:
    """Wrap the configuration as the text model of a vision model."""
    name = "Mistral3ForConditionalGeneration"
    return {"architectures": [name], "model_type": "mistral3", "text_config": config, "vision_config": {}}


def falcon(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration with falcon's keys for some of `sizes`."""
    return {key: value for key, value in config.items() if key not in ("intermediate_size", "num_key_value_heads")}


def minicpm(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration with minicpm's keys for granite's multipliers."""
    outright = ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")
    own = {"architectures": ["MiniCPMForCausalLM"], "model_type": "minicpm"}
    return {key: value for key, value in config.items() if key not in outright} | own | {
        "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 128,
    }  # fmt: skip


COGVLM = {key: value for key, value in sizes().items() if key != "num_key_value_heads"} | {
    "hidden_act": "silu", "rms_norm_eps": 1e-5,
}  # fmt: skip


def without_width(config: dict[str, Any]) -> dict[str, Any]:
    """Remove the width of dense blocks: all blocks have experts."""
    return {key: value for key, value in config.items() if key != "intermediate_size"}


def smallthinker(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration with the model type, which transformers does not know."""
    return without_width(config) | {"model_type": "smallthinker"}


MINICPM_AS_GRANITE = {
    "embedding_multiplier": 12.0,
    "attention_multiplier": 32**-0.5,
    "residual_multiplier": 1.4 / 2**0.5,
    "logits_scaling": 96 / 128,
}
INTERNLM2 = {
    "model.embed_tokens": "model.tok_embeddings",
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "lm_head": "output",
}
BITNET = {"self_attn.attn_sub_norm": "self_attn.inner_attn_ln", "mlp.ffn_sub_norm": "mlp.ffn_layernorm"}
PROJECTIONS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")


def internlm2(shapes: Shapes) -> Shapes:
    """Rename llama's tensors, and join queries, keys and values in one matrix."""
    actual: Shapes = {}
    for name, (rows, *columns) in shapes.items():
        key = renamed(name, INTERNLM2 | dict.fromkeys(PROJECTIONS, "attention.wqkv"))
        actual[key] = (actual.get(key, (0,))[0] + rows if "wqkv" in key else rows, *columns)
    return actual


def internlm2_as_llama(tensors: Tensors, kv: int = 2, heads_of_group: int = 3, head: int = 16) -> Tensors:
    """Split the joined matrix, in which each group's queries, key and value are adjacent."""
    actual: Tensors = {}
    for name, values in tensors.items():
        key = renamed(name, {new: old for old, new in INTERNLM2.items()})
        if "wqkv" in key:
            groups = values.reshape(kv, heads_of_group + 2, head, -1)
            slices = slice(heads_of_group), slice(-2, -1), slice(-1, None)
            for part, which in zip(PROJECTIONS, slices, strict=True):
                actual[key.replace("attention.wqkv", part)] = groups[:, which].reshape(-1, values.shape[1]).copy()
        else:
            actual[key] = values
    return actual


def bitnet(shapes: Shapes) -> Shapes:
    """Return the shapes with the first model's names of inner norms."""
    return {renamed(key, BITNET): shape for key, shape in shapes.items()}


def bitnet_as_b158(tensors: Tensors) -> Tensors:
    return {renamed(key, {new: old for old, new in BITNET.items()}): values for key, values in tensors.items()}


def ternary(tensors: Tensors) -> Tensors:
    """Round block matrices to -m, 0 and m (the mean of their magnitudes), as in b1.58."""

    def rounded(values: Any) -> Any:
        mean = np.abs(values).mean()
        return (np.clip(np.round(values / mean), -1, 1) * mean).astype(np.float32)

    return {key: rounded(values) if "_proj" in key else values for key, values in tensors.items()}


def unfused(
    gate: str, up: str, down: str, mlp: str = "mlp", own: str = "mlp"
) -> tuple[Callable[[Shapes], Shapes], Callable[[Tensors], Tensors]]:
    """Experts one by one, as checkpoints have them, where transformers' classes have gates and ups of all in one, and
    their `own` name for a network."""

    def shapes(fused: Shapes) -> Shapes:
        actual: Shapes = {}
        for name, shape in fused.items():
            where = name.rpartition(".")[0].replace(f"{own}.", f"{mlp}.")
            for expert in range(shape[0]) if ".experts." in name else ():
                if name.endswith("gate_up_proj"):
                    half = shape[1] // 2, shape[2]
                    actual |= {f"{where}.{expert}.{gate}.weight": half, f"{where}.{expert}.{up}.weight": half}
                elif name.endswith("up_proj"):
                    actual[f"{where}.{expert}.{up}.weight"] = shape[1:]
                else:
                    actual[f"{where}.{expert}.{down}.weight"] = shape[1:]
            if ".experts." not in name:
                actual[name.replace(f"{own}.", f"{mlp}.")] = shape
        return actual

    def computed(tensors: Tensors) -> Tensors:
        actual = {name.replace(f"{mlp}.", f"{own}."): x for name, x in tensors.items() if ".experts." not in name}
        blocks = sorted({name.partition(".experts.")[0] for name in tensors if ".experts." in name})
        for block in blocks:
            count = sum(name.startswith(f"{block}.experts.") and name.endswith(f".{down}.weight") for name in tensors)
            each = {
                kind: [tensors[f"{block}.experts.{expert}.{kind}.weight"] for expert in range(count)]
                for kind in (gate, up, down)
                if kind
            }
            where = f"{block.replace(mlp, own)}.experts"
            if gate:
                pairs = zip(each[gate], each[up], strict=True)
                actual[f"{where}.gate_up_proj"] = np.stack([np.concatenate(pair) for pair in pairs])
            else:
                actual[f"{where}.up_proj"] = np.stack(each[up])
            actual[f"{where}.down_proj"] = np.stack(each[down])
        return actual

    return shapes, computed


def transposed_experts(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return shapes or tensors with the dimensions of experts exchanged, as published checkpoints have them."""

    def exchanged(each: Any) -> Any:
        return (each[0], each[2], each[1]) if isinstance(each, tuple) else each.swapaxes(1, 2).copy()

    return {key: exchanged(each) if ".experts." in key else each for key, each in tensors.items()}


Conversions = tuple[Callable[[Shapes], Shapes], Callable[[Tensors], Tensors]]


def also_renamed(candidates: Conversions, names: Mapping[str, str]) -> Conversions:
    """Also rename parts of tensor names."""
    back = {new: old for old, new in names.items()}
    return (
        lambda shapes: {renamed(key, names): shape for key, shape in candidates[0](shapes).items()},
        lambda tensors: candidates[1]({renamed(key, back): values for key, values in tensors.items()}),
    )


def granite_hybrid(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration with the layer type names of its checkpoints."""
    words = {"linear_attention": "mamba", "full_attention": "attention"}
    return config | {"layer_types": [words[kind] for kind in config["layer_types"]]}


def nemotron_h(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration with a letter per layer, and without expert keys."""
    letters = {"linear_attention": "M", "full_attention": "*", "mlp": "-"}
    pattern = "".join(letters[kind] for kind in config["layers_block_type"])
    foreign = ("layers_block_type", "moe_", "n_routed", "n_shared", "topk", "routed", "num_experts")
    plain = {key: value for key, value in config.items() if not any(word in key for word in foreign)}
    plain.pop("n_group")
    return plain | {"hybrid_override_pattern": pattern, "num_hidden_layers": len(pattern)}


def with_rank(config: dict[str, Any]) -> dict[str, Any]:
    """Keep the rank, which is otherwise removed with the training keys."""
    return config | {"time_step_rank": config["hidden_size"] // 16}


def hunyuan_moe(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration with per-block lists of values that are equal for all blocks."""
    each = {"moe_topk": 3, "moe_intermediate_size": config["intermediate_size"], "num_shared_expert": 1}
    return config | {key: [value] * config["num_hidden_layers"] for key, value in each.items()}


def deepseek_ocr(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration as that of DeepSeek-OCR, of whose class transformers has only the successor's."""
    without = {"use_mla": False, "qk_nope_head_dim": 0, "qk_rope_head_dim": 0, "v_head_dim": 0}
    text = {key: value for key, value in config["text_config"].items() if key != "mlp_layer_types"}
    own = {"architectures": ["DeepseekOCRForCausalLM"], "model_type": "deepseek_vl_v2"}
    return own | {"language_config": text | without | {"first_k_dense_replace": 1}}


def hunyuan_vl(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration as published ones: the text model's values are at the top, with another name of RoPE."""
    text = dict(config["text_config"])
    parameters = text.pop("rope_parameters")
    scaling = {"type": "xdrope", "xdrope_section": parameters["mrope_section"]}
    scaling |= {key: parameters[key] for key in ("alpha", "factor")}
    top = {key: value for key, value in config.items() if key not in ("text_config", "model_type")}
    return top | text | {
        "model_type": "hunyuan_vl", "rope_theta": parameters["rope_theta"], "rope_scaling": scaling,
    }  # fmt: skip


IDLE = re.compile(r"model\.layers\.2[0-4]\.self_attn\.(k_|v_)")


def with_idle_keys(shapes: Shapes) -> Shapes:
    """Add the unused keys and values of layers that share others', as checkpoints of Gemma 3n have them."""
    first = {key: shape for key, shape in shapes.items() if re.search(r"layers\.0\.self_attn\.(k_|v_)", key)}
    return shapes | {key.replace(".0.", f".{layer}."): first[key] for layer in range(20, 25) for key in first}


def without_idle_keys(tensors: Tensors) -> Tensors:
    return {key: values for key, values in tensors.items() if not IDLE.match(key)}


def without_pooler(shapes: Shapes) -> Shapes:
    return {key: shape for key, shape in shapes.items() if not key.startswith("pooler.")}


NOMIC = {
    "embeddings.LayerNorm": "emb_ln",
    "self_attn.o_proj": "attn.out_proj",
    "post_attention_layernorm": "norm1",
    "post_mlp_layernorm": "norm2",
    "mlp.up_proj": "mlp.fc11",
    "mlp.gate_proj": "mlp.fc12",
    "mlp.down_proj": "mlp.fc2",
    "layers.": "encoder.layers.",
}


def nomic(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration with the keys of published checkpoints."""
    return {
        "architectures": ["NomicBertModel"], "model_type": "nomic_bert", "n_embd": config["hidden_size"],
        "n_head": config["num_attention_heads"], "n_layer": config["num_hidden_layers"], "n_positions": 2048,
        "n_inner": config["intermediate_size"], "max_trained_positions": config["max_position_embeddings"],
        "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "activation_function": "swiglu", "prenorm": False,
        "layer_norm_epsilon": config["layer_norm_eps"], "type_vocab_size": 2, "vocab_size": config["vocab_size"],
    }  # fmt: skip


Parts = Mapping[str, Mapping[str, int]]  # of joined matrices: numbers of rows, by name


def joined(wholes: Parts, names: Mapping[str, str]) -> Conversions:
    """Join matrices as rows of one, for all `wholes`, and rename other parts of tensor names."""
    joins = {part: whole for whole, parts in wholes.items() for part in parts}
    back = {new: old for old, new in names.items()}

    def shapes(separate: Shapes) -> Shapes:
        actual: Shapes = {}
        for name, (n, *columns) in separate.items():
            key = renamed(name, joins | names)
            is_part = any(f"{part}." in name for part in joins)
            actual[key] = (actual.get(key, (0,))[0] + n if is_part else n, *columns)
        return actual

    def computed(tensors: Tensors) -> Tensors:
        actual: Tensors = {}
        for name, values in tensors.items():
            whole = next((each for each in wholes if f"{each}." in name), "")
            parts = wholes.get(whole, {"": len(values)})
            ends = np.cumsum([*parts.values()])[:-1]
            for part, each in zip(parts, np.split(values, ends), strict=True):
                actual[renamed(name, ({whole: part} if whole else {}) | back)] = each.copy()
        return actual

    return shapes, computed


def joined_qkv(whole: str, q: int, kv: int, names: Mapping[str, str]) -> Conversions:
    """Join queries, keys and values, of which there are `q` and `kv`."""
    return joined({whole: dict(zip(PROJECTIONS, (q, kv, kv), strict=True))}, names)


def chained(first: Conversions, second: Conversions) -> Conversions:
    """Change shapes by both, and tensors back."""
    return lambda shapes: second[0](first[0](shapes)), lambda tensors: first[1](second[1](tensors))


def parametrized(shapes: Shapes) -> Shapes:
    """Return the shapes with the names that torch gives matrices with parametrizations."""
    ending = "parametrizations.weight.original"
    return {key.removesuffix("weight") + ending if len(n) > 1 else key: n for key, n in shapes.items()}


PARAMETRIZED: Conversions = (
    parametrized,
    lambda tensors: {renamed(key, {"parametrizations.weight.original": "weight"}): x for key, x in tensors.items()}
)  # fmt: skip


def as_exaone(config: dict[str, Any]) -> dict[str, Any]:
    """Return llama's configuration with the keys of published checkpoints of EXAONE 3."""
    names = {
        "num_hidden_layers": "num_layers", "rms_norm_eps": "layer_norm_epsilon", "hidden_act": "activation_function",
    }  # fmt: skip
    own = {"architectures": ["ExaoneForCausalLM"], "model_type": "exaone"}
    return {names.get(key, key): value for key, value in config.items()} | own


def as_qwen(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of Qwen's first generation."""
    return {
        "architectures": ["QWenLMHeadModel"], "model_type": "qwen", "hidden_size": config["hidden_size"],
        "intermediate_size": 2 * config["intermediate_size"], "num_hidden_layers": config["num_hidden_layers"],
        "num_attention_heads": config["num_attention_heads"], "kv_channels": config["head_dim"],
        "layer_norm_epsilon": config["rms_norm_eps"], "rotary_emb_base": config["rope_parameters"]["rope_theta"],
        "rotary_pct": 1.0, "max_position_embeddings": config["max_position_embeddings"], "no_bias": True,
        "seq_length": config["max_position_embeddings"], "vocab_size": config["vocab_size"],
        "tie_word_embeddings": False, "use_dynamic_ntk": True, "use_logn_attn": True,
    }  # fmt: skip


def as_codeshell(config: dict[str, Any]) -> dict[str, Any]:
    """Return StarCoder2's configuration as one of CodeShell."""
    return {
        "architectures": ["CodeShellForCausalLM"], "model_type": "codeshell", "n_embd": config["hidden_size"],
        "n_layer": config["num_hidden_layers"], "n_head": config["num_attention_heads"],
        "num_query_groups": config["num_key_value_heads"], "n_inner": config["intermediate_size"],
        "n_positions": config["max_position_embeddings"], "layer_norm_epsilon": config["norm_epsilon"],
        "vocab_size": config["vocab_size"], "activation_function": "gelu_pytorch_tanh", "group_query_attention": True,
        "position_embedding_type": "rope", "scale_attn_weights": True, "tie_word_embeddings": False,
    }  # fmt: skip


def as_refact(config: dict[str, Any]) -> dict[str, Any]:
    """Return llama's configuration as one of Refact."""
    return {
        "architectures": ["GPTRefactForCausalLM"], "model_type": "gpt_refact", "n_embd": config["hidden_size"],
        "n_layer": config["num_hidden_layers"], "n_head": config["num_attention_heads"], "multi_query": True,
        "n_positions": config["max_position_embeddings"], "layer_norm_epsilon": config["rms_norm_eps"],
        "vocab_size": config["vocab_size"], "activation_function": "silu", "tie_word_embeddings": False,
    }  # fmt: skip


def minimax_m2(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration with the keys of published checkpoints."""
    rotated = int(config["head_dim"] * config["rope_parameters"]["partial_rotary_factor"])
    own = {"scoring_func": "sigmoid", "use_qk_norm": True, "qk_norm_type": "per_layer", "rotary_dim": rotated}
    theta = {"rope_theta": config["rope_parameters"]["rope_theta"]}
    return {key: value for key, value in config.items() if key != "rope_parameters"} | own | theta


def k_exaone(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration with the keys of published checkpoints."""
    own = {"architectures": ["ExaoneMoEForCausalLM"], "first_last_k_dense_replace": config["first_k_dense_replace"]}
    known = {key: value for key, value in config.items() if key not in ("first_k_dense_replace", "mlp_layer_types")}
    return known | own | {"scoring_func": "sigmoid", "num_nextn_predict_layers": 0}


def afmoe(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration with the keys of published checkpoints."""
    return config | {"score_func": "sigmoid", "route_norm": True, "n_group": 1, "topk_group": 1}


def bailing(config: dict[str, Any]) -> dict[str, Any]:
    """Return GLM-4.5's configuration as one of Ling 2.0."""
    names = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}
    own = {
        "architectures": ["BailingMoeV2ForCausalLM"], "model_type": "bailing_moe", "score_function": "sigmoid",
        "moe_router_enable_expert_bias": True, "use_bias": False, "use_qkv_bias": False, "num_nextn_predict_layers": 0,
    }  # fmt: skip
    return {names.get(key, key): value for key, value in config.items() if key != "num_local_experts"} | own


def hy_v3(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration with the keys of published checkpoints."""
    dense = config["mlp_layer_types"].count("dense")
    own = {"first_k_dense_replace": dense, "moe_router_use_sigmoid": True, "qk_norm": True, "route_norm": True}
    return {key: value for key, value in config.items() if key != "mlp_layer_types"} | own


def mimo(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration with the keys of published checkpoints."""
    full, windows = (config["rope_parameters"][f"{kind}_attention"] for kind in ("full", "sliding"))
    windowed = {f"swa_{key}": config[key] for key in ("head_dim", "v_head_dim", "num_attention_heads")}
    own = {
        "layernorm_epsilon": config["rms_norm_eps"], "partial_rotary_factor": full["partial_rotary_factor"],
        "rope_theta": full["rope_theta"], "swa_rope_theta": windows["rope_theta"], "scoring_func": "sigmoid",
        "topk_method": "noaux_tc", "swa_num_key_value_heads": 2 * config["num_key_value_heads"],
        "hybrid_layer_pattern": [int(kind == "sliding_attention") for kind in config["layer_types"]],
        "moe_layer_freq": [int(kind == "sparse") for kind in config["mlp_layer_types"]],
        "add_full_attention_sink_bias": False, "add_swa_attention_sink_bias": True,
    }  # fmt: skip
    replaced = ("rope_parameters", "rms_norm_eps", "layer_types", "mlp_layer_types")
    return {key: value for key, value in config.items() if key not in replaced} | windowed | own


def plamo3(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of published checkpoints, whose context may be extended from 64 tokens."""
    own = {"architectures": ["Plamo3ForCausalLM"], "model_type": "plamo3"}
    return config | own | ({} if config["rope_scaling_factor"] == 1 else {"initial_context_length": 64})


def openelm(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration with the names that it has in published checkpoints."""
    others = {key: value for key, value in config.items() if key not in ("num_hidden_layers", "tie_word_embeddings")}
    return others | {"architectures": ["OpenELMForCausalLM"], "model_type": "openelm"}


def eurobert(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration without the pooling of classifiers, which published checkpoints do not state."""
    return {key: value for key, value in config.items() if key != "classifier_pooling"}


def neo_bert(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration with the length of texts, which transformers takes for one of generation."""
    return config | {"architectures": ["NeoBERT"], "model_type": "neobert", "max_length": 256}


def jina_v3(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration with the keys of published checkpoints."""
    own = {
        "architectures": ["XLMRobertaModel"], "model_type": "xlm-roberta", "position_embedding_type": "rotary",
        "rotary_emb_base": config["rope_parameters"]["rope_theta"], "lora_adaptations": ["retrieval.query"],
    }  # fmt: skip
    return {key: value for key, value in config.items() if key != "rope_parameters"} | own


def dbrx(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration with the keys of published checkpoints."""
    attention, network = (
        {key: config[part][key] for key in keys}
        for part, keys in (
            ("attn_config", ("clip_qkv", "kv_n_heads", "rope_theta")),
            ("ffn_config", ("ffn_hidden_size", "moe_num_experts", "moe_top_k", "ffn_act_fn")),
        )
    )
    without = {key: value for key, value in config.items() if key not in ("rope_parameters", "num_key_value_heads")}
    return without | {"attn_config": attention, "ffn_config": network}


def named(architecture: str, model_type: str, **changes: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a function that gives a configuration another class, and keys other names."""
    own = {"architectures": [architecture], "model_type": model_type}
    return lambda config: {changes.get(key, key): value for key, value in config.items()} | own


# --- the reference models ---

T = transformers
LLAMA3 = rope(
    "llama3", 500_000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32
)
YARN = rope("yarn", factor=4.0, original_max_position_embeddings=64)
TIED = {"tie_word_embeddings": True}
QUARTER = rope(partial_rotary_factor=0.25)
GPT2 = {"n_embd": 96, "n_head": 3, "n_layer": 2, "n_positions": 256, "vocab_size": reference_models.N_VOCAB}
BLOOM = {"hidden_size": 96, "vocab_size": reference_models.N_VOCAB} | SPECIAL_IDS
MPT = {"d_model": 96, "vocab_size": reference_models.N_VOCAB, "max_seq_len": 256} | SPECIAL_IDS
GEMMA2_CAPS = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0, "query_pre_attn_scalar": 48}
GRANITE = {
    "embedding_multiplier": 12.0, "attention_multiplier": 0.125, "residual_multiplier": 0.25, "logits_scaling": 0.75
}  # fmt: skip
GEMMA3_ROPE = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
GEMMA4 = {
    "sliding_window": WINDOW,
    "final_logit_softcapping": 5.0,
    "rope_parameters": {
        "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}
GEMMA3N = {
    "hidden_size_per_layer_input": 32, "laurel_rank": 32, "final_logit_softcapping": 30.0,
    "rope_parameters": GEMMA3_ROPE | {"full_attention": {"rope_type": "default", "rope_theta": 1e6}},
}  # fmt: skip
GEMMA4_LAYERS = [f"{'full' if i in (2, 4, 6, 8) else 'sliding'}_attention" for i in range(9)]
OLMO3_ROPE = {
    "full_attention": {
        "rope_type": "yarn", "rope_theta": 5e5, "factor": 4.0, "original_max_position_embeddings": 64,
        "attention_factor": 1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0,
    },
    "sliding_attention": {"rope_type": "default", "rope_theta": 5e5},
}  # fmt: skip
TWO_BASES = {
    "full_attention": {"rope_type": "default", "rope_theta": 5e5},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
NOMIC_MOE = {
    "vocab_size": reference_models.N_VOCAB, "n_positions": 2048, "max_trained_positions": 2048, "prenorm": False,
    "activation_function": "gelu", "causal": False, "qkv_proj_bias": True, "mlp_fc1_bias": True, "mlp_fc2_bias": True,
    "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "rotary_emb_scale_base": None,
    "layer_norm_epsilon": 1e-5, "moe_every_n_layers": 2, "moe_normalize_expert_weights": False,
    "tie_word_embeddings": False,
}  # fmt: skip
JINA_V2 = {
    "position_embedding_type": "alibi", "feed_forward_type": "geglu", "layer_norm_eps": 1e-12, "hidden_act": "gelu",
    "tie_word_embeddings": False,
}  # fmt: skip
NEOBERT = {
    "vocab_size": reference_models.N_VOCAB, "intermediate_size": 240, "hidden_act": "SwiGLU",
    "rms_norm": True, "rope": True, "tie_word_embeddings": False,
}  # fmt: skip
PLAMO3 = {
    "window_size": WINDOW, "rope_local_theta": 10000, "rms_norm_eps": 1e-6, "attention_bias": False,
    "scale_embedding": False,
}  # fmt: skip
OPENELM = {
    "vocab_size": reference_models.N_VOCAB, "max_context_length": 256, "ffn_with_glu": True,
    "normalize_qk_projections": True, "normalization_layer_name": "rms_norm", "share_input_output_layers": True,
    "activation_fn_name": "swish", "tie_word_embeddings": False, **SPECIAL_IDS,
}  # fmt: skip
DECI = {
    "vocab_size": reference_models.N_VOCAB, "hidden_size": 96, "num_attention_heads": 6, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 256, "tie_word_embeddings": False, "hidden_act": "silu", **SPECIAL_IDS,
}  # fmt: skip
SMALLTHINKER = {"rms_norm_eps": 1e-6, "moe_enable_early_router": True, "moe_enable_secondary_experts": False}
MINISTRAL3 = rope(
    "yarn", 1e6, factor=4.0, original_max_position_embeddings=64, beta_fast=32.0, beta_slow=1.0, mscale=1.0,
    mscale_all_dim=1.0, llama_4_scaling_beta=0.1,
)  # fmt: skip
HUNYUAN = rope("dynamic", alpha=1000.0, factor=1.0, beta_fast=32, beta_slow=1, mscale=1.0, mscale_all_dim=1.0)
SMALL = {"hidden_size": 32, "intermediate_size": 32}  # for as many layers as the real ones have: llama.cpp counts them
BIASED = {
    "n_routed_experts": 10, "num_experts_per_tok": 3, "moe_intermediate_size": 64, "routed_scaling_factor": 2.5,
    "norm_topk_prob": True, "n_group": 1, "topk_group": 1, "num_nextn_predict_layers": 0,
}  # fmt: skip
OSS_ROPE = rope(
    "yarn", 150_000.0, factor=32.0, original_max_position_embeddings=64, beta_fast=32.0, beta_slow=1.0, truncate=False
)
QWEN3VLMOE = transposed_experts, transposed_experts
UNFUSED, MIXTRAL = unfused("gate_proj", "up_proj", "down_proj"), unfused("w1", "w3", "w2", "block_sparse_moe")
EXAONE_MOE = also_renamed(UNFUSED, {"mlp.gate.e_score_correction_bias": "mlp.e_score_correction_bias"})
HY_V3 = also_renamed(
    UNFUSED,
    {"mlp.e_score_correction_bias": "mlp.expert_bias", "mlp.gate.": "mlp.router.gate.", "shared_experts": "shared_mlp"},
)
LAGUNA = also_renamed(
    UNFUSED,
    {"mlp.gate.e_score_correction_bias": "mlp.experts.e_score_correction_bias", "shared_experts": "shared_expert"},
)
MIMO = also_renamed(UNFUSED, {"self_attn.sinks": "self_attn.attention_sink_bias"})
LFM2MOE = unfused("w1", "w3", "w2", "feed_forward", "feed_forward")
JINA = {
    "embeddings.LayerNorm": "roberta.emb_ln", "embeddings.word": "roberta.embeddings.word",
    "embeddings.token": "roberta.embeddings.token", "layers.": "roberta.encoder.layers.",
    "self_attn.o_proj": "mixer.out_proj", "post_attention_layernorm": "norm1", "post_mlp_layernorm": "norm2",
}  # fmt: skip
JINA_V3, JINA_V3_NARROW = (chained(joined_qkv("mixer.Wqkv", n, n, JINA), PARAMETRIZED) for n in (96, 64))
NOMIC_BERT = joined_qkv("attn.Wqkv", 96, 96, NOMIC)
GPT_NAMES = {
    "model.embed_tokens": "transformer.wte", "model.layers.": "transformer.h.", "model.norm": "transformer.ln_f",
    "input_layernorm": "ln_1", "post_attention_layernorm": "ln_2",
}  # fmt: skip
EXAONE = also_renamed(
    (dict, dict),
    GPT_NAMES | {
        "self_attn.o_proj": "attn.attention.out_proj", "self_attn.": "attn.attention.", "mlp.gate_proj": "mlp.c_fc_0",
        "mlp.up_proj": "mlp.c_fc_1", "mlp.down_proj": "mlp.c_proj",
    },
)  # fmt: skip
QWEN_NAMES = GPT_NAMES | {
    "self_attn.o_proj": "attn.c_proj", "mlp.gate_proj": "mlp.w2", "mlp.up_proj": "mlp.w1",
    "mlp.down_proj": "mlp.c_proj",
}  # fmt: skip
QWEN, QWEN_NARROW = (joined_qkv("attn.c_attn", n, n, QWEN_NAMES) for n in (96, 64))
CODESHELL = joined_qkv("attn.c_attn", 96, 32, GPT_NAMES | {"self_attn.o_proj": "attn.c_proj"})
BAICHUAN = joined_qkv("self_attn.W_pack", 32, 32, {})
REFACT_NAMES = GPT_NAMES | {
    "self_attn.q_proj": "attn.q", "self_attn.o_proj": "attn.c_proj", "mlp.down_proj": "mlp.c_proj",
}  # fmt: skip
REFACT, REFACT_WIDE = (
    joined(
        {
            "attn.kv": {"self_attn.k_proj": 32, "self_attn.v_proj": 32},
            "mlp.gate_up_proj": {"mlp.gate_proj": n, "mlp.up_proj": n},
        },
        REFACT_NAMES,
    )
    for n in (256, 512)
)
BAILING_NAMES = {
    "model.embed_tokens": "model.word_embeddings", "self_attn.o_proj": "attention.dense",
    "self_attn.q_norm": "attention.query_layernorm", "self_attn.k_norm": "attention.key_layernorm",
    "gate.e_score_correction_bias": "gate.expert_bias",
}  # fmt: skip
BAILING, BAILING_NARROW = (
    chained(UNFUSED, joined_qkv("attention.query_key_value", q, 32, BAILING_NAMES)) for q in (96, 64)
)
HUNYUAN_VL = also_renamed((dict, dict), {"model.language_model.": "model."})
DEEPSEEK_OCR = also_renamed(UNFUSED, {"model.language_model.": "model."})
PHIMOE = also_renamed(MIXTRAL, {"block_sparse_moe.router": "block_sparse_moe.gate"})
ERNIE = also_renamed(UNFUSED, {"mlp.gate.moe_statics": "mlp.moe_statics"})
GRANITE_NAMES = {
    "moe.experts.gate_up_proj": "moe.input_linear.weight",
    "moe.experts.down_proj": "moe.output_linear.weight",
    "moe.router": "moe.router.layer",
}
GRANITEMOE = also_renamed((dict, dict), GRANITE_NAMES)
GRANITEHYBRID = also_renamed(
    (dict, dict), {f"block_sparse_{old}": f"block_sparse_{new}" for old, new in GRANITE_NAMES.items()}
)
GRANITE_EXPERTS = {"num_local_experts": 10, "num_experts_per_tok": 3}
GATED_SHARED = {
    "num_experts": 9, "num_experts_per_tok": 3, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 96
}  # fmt: skip
DELTA_NET = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
    "layer_types": ["linear_attention", "full_attention"] * 2,
}  # fmt: skip
LINEAR_AND_FULL = ["linear_attention", "full_attention", "linear_attention", "linear_attention"]
NEMOTRON_H = {"mamba_num_heads": 6, "mamba_head_dim": 32, "ssm_state_size": 16, "n_groups": 2}
NEMOTRON_EXPERTS = {
    "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"], "n_routed_experts": 12,
    "num_experts_per_tok": 6, "moe_intermediate_size": 64, "moe_shared_expert_intermediate_size": 96,
    "routed_scaling_factor": 0.5,  # as the weights of six add up to one: another choice of the last changes little
}  # fmt: skip
BACKBONE = also_renamed((dict, dict), {"model.": "backbone."})
UNGATED = also_renamed(unfused("", "up_proj", "down_proj", "mixer", "mixer"), {"model.": "backbone."})
RECURRENT = {"mamba_n_heads": 6, "mamba_d_head": 32, "mamba_d_state": 16, "mamba_n_groups": 2}
MULTIPLIERS = {  # of a few bits, so that products are exact
    "embedding_multiplier": 1.5, "lm_head_multiplier": 0.75, "mlp_multipliers": [0.75, 1.25], "key_multiplier": 0.625,
    "attention_in_multiplier": 1.25, "attention_out_multiplier": 0.875, "ssm_in_multiplier": 1.75,
    "ssm_out_multiplier": 0.875, "ssm_multipliers": [0.75, 1.25, 0.5, 1.5, 0.625],
}  # fmt: skip
LATENT = {"kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 32}
LITE_ROPE = rope(
    "yarn", factor=40.0, original_max_position_embeddings=64, beta_fast=32.0, beta_slow=1.0, mscale=0.707,
    mscale_all_dim=0.707,
)  # fmt: skip
DEEPSEEK3_ROPE = rope(
    "yarn", factor=4.0, original_max_position_embeddings=64, beta_fast=32.0, beta_slow=1.0, mscale=1.0,
    mscale_all_dim=1.0,
)  # fmt: skip
QWEN3MOE = {"num_experts": 10, "num_experts_per_tok": 3, "moe_intermediate_size": 64, "norm_topk_prob": True}
BERT = {"hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 3}
BERT |= {
    "vocab_size": reference_models.N_VOCAB,
    "max_position_embeddings": 258,
    "pad_token_id": 1,
    "type_vocab_size": 2,
}
MODERN = {"hidden_size": 96, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 3}
MODERN |= {
    "vocab_size": reference_models.N_VOCAB,
    "max_position_embeddings": 256,
    "local_attention": WINDOW,
} | SPECIAL_IDS
ODD_QWEN = sizes(7, 1, hidden_size=224)
IMAGE_IDS = {"vision_start_token_id": 258, "vision_end_token_id": 259, "image_token_id": 260, "video_token_id": 261}
VISION = {
    "depth": 3, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2,
    "temporal_patch_size": 2, "out_hidden_size": 96,
}  # fmt: skip
DEEPSTACK_VISION = VISION | {"deepstack_visual_indexes": [0, 2], "num_position_embeddings": 16}
SAM = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "output_channels": 16, "image_size": 64,
    "patch_size": 4, "window_size": 4, "global_attn_indexes": [1], "downsample_channels": [16, 32],
}  # fmt: skip
SIGLIP = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 4,
    "image_size": 32,
}  # fmt: skip
GLM_IMAGE_IDS = {
    "image_start_token_id": 258, "image_end_token_id": 259, "image_token_id": 260, "video_token_id": 261,
    "video_start_token_id": 262, "video_end_token_id": 263,
}  # fmt: skip
GLM_VISION = VISION | {"image_size": 32}
QWEN3VL_TEXT = sizes(3, 1, 3, head_dim=32) | rope(theta=5e6, mrope_section=[6, 5, 5], mrope_interleaved=True)

MODELS = {
    # variants of llama
    "llama2": Spec(architecture="llama", config=T.LlamaConfig(**sizes(3, 3), **rope())),
    "llama3": Spec(architecture="llama", config=T.LlamaConfig(**sizes(6, 2, head_dim=32) | TIED, **LLAMA3)),
    "llama-biases": Spec(
        architecture="llama",
        config=T.LlamaConfig(
            **sizes(5, 1, hidden_size=160, head_dim=48), **rope(), attention_bias=True, mlp_bias=True
        ),
    ),
    "llama-linear": Spec(architecture="llama", config=T.LlamaConfig(**sizes(3, 1), **rope("linear", factor=4.0))),
    "llama-yarn": Spec(architecture="llama", config=T.LlamaConfig(**sizes(3, 1), **YARN)),
    "llama-longrope": Spec(architecture="llama", config=T.LlamaConfig(**sizes(3, 1), **longrope(16, 32))),
    "open-llama": Spec(
        architecture="llama", config=T.LlamaConfig(**sizes(8, 8, hidden_size=64, head_dim=100), **rope())
    ),
    "smollm2": Spec(
        architecture="llama", config=T.LlamaConfig(**sizes(9, 3, hidden_size=288) | TIED, **rope(theta=1e5))
    ),
    "nemo": Spec(
        architecture="llama",
        config=T.MistralConfig(**sizes(4, 2, head_dim=40), **rope(theta=1e6), sliding_window=None),
    ),
    "mistral-window": Spec(
        architecture="llama", config=T.MistralConfig(**sizes(3, 1), **rope(), sliding_window=WINDOW)
    ),
    "mistral3": Spec(
        architecture="mistral3",
        config=T.MistralConfig(**sizes(4, 2, head_dim=32), **rope(theta=1e9), sliding_window=None),
        written=within_mistral3,
        shapes=prefixed("language_model."),
        computed=without("language_model."),
    ),
    "ministral3": Spec(architecture="mistral3", config=T.Ministral3Config(**sizes(4, 2, head_dim=32), **MINISTRAL3)),
    "smollm3": Spec(architecture="smollm3", config=T.SmolLM3Config(**sizes(6, 2, 5) | TIED, **rope(theta=2e6))),
    "smollm3-window": Spec(
        architecture="smollm3",
        config=T.SmolLM3Config(**sizes(3, 1, 4), **rope(), use_sliding_window=True, **layer_types(4, 3)),
    ),
    "granite": Spec(architecture="granite", config=T.GraniteConfig(**sizes(3, 1) | TIED, **rope(), **GRANITE)),
    "granite-swa": Spec(
        architecture="granite_swa",
        config=T.GraniteSWAConfig(
            **sizes(6, 2, 5) | TIED, **rope(theta=1e6), **GRANITE, sliding_window=WINDOW,
            layer_rope_theta=[0, 1e6, 1e6, 1e6, 0],
        ),
        written=lambda config: config | {"no_rope_layers": [0, 1, 1, 1, 0]},
    ),
    "granitemoe-swa": Spec(
        architecture="granite_swa",
        config=T.GraniteMoeSWAConfig(
            **sizes(4, 1, 3, hidden_size=64, intermediate_size=32), **rope(), **GRANITE, sliding_window=WINDOW,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"], num_local_experts=6,
            num_experts_per_tok=2, shared_intermediate_size=96,
        ),
    ),
    "minicpm": Spec(
        architecture="minicpm",
        config=T.GraniteConfig(**sizes(3, 3) | TIED, **rope(), **MINICPM_AS_GRANITE),
        written=minicpm,
    ),
    "minicpm4": Spec(
        architecture="minicpm",
        config=T.GraniteConfig(**sizes(3, 1), **longrope(16, 32), **MINICPM_AS_GRANITE),
        written=minicpm,
    ),
    "internlm2": Spec(
        architecture="internlm2",
        config=T.LlamaConfig(**sizes(6, 2), **rope(theta=1e6)),
        written=lambda config: config | {"architectures": ["InternLM2ForCausalLM"], "model_type": "internlm2"},
        shapes=internlm2,
        computed=internlm2_as_llama,
    ),
    "internlm3": Spec(
        architecture="llama", config=T.InternLM3Config(**sizes(3, 1, head_dim=48), **rope(theta=5e7))
    ),
    "arcee": Spec(architecture="arcee", config=T.ArceeConfig(**sizes(6, 2) | TIED, **rope(theta=5e5))),
    "arcee-yarn": Spec(architecture="arcee", config=T.ArceeConfig(**sizes(3, 1, 3, head_dim=48), **YARN)),
    "apertus": Spec(architecture="apertus", config=T.ApertusConfig(**sizes(6, 2), **LLAMA3)),
    "apertus-mha": Spec(architecture="apertus", config=T.ApertusConfig(**sizes(3, 3, 3), **rope(theta=1.2e7))),
    "exaone": Spec(
        architecture="exaone", config=T.LlamaConfig(**sizes(6, 2), **LLAMA3), written=as_exaone, shapes=EXAONE[0],
        computed=EXAONE[1],
    ),
    "exaone-tied": Spec(
        architecture="exaone", config=T.LlamaConfig(**sizes(3, 3, 3) | TIED, **rope(theta=5e5)), written=as_exaone,
        shapes=EXAONE[0], computed=EXAONE[1],
    ),
    "xverse": Spec(
        architecture="xverse", config=T.LlamaConfig(**sizes(3, 3), **rope()),
        written=named("XverseForCausalLM", "xverse"),
    ),
    "xverse-wide": Spec(
        architecture="xverse", config=T.LlamaConfig(**sizes(4, 4, 3, hidden_size=160), **rope(theta=5e5)),
        written=named("XverseForCausalLM", "xverse"),
    ),
    # llama.cpp recognizes both by their numbers of layers
    "baichuan": Spec(
        architecture="baichuan", config=T.LlamaConfig(**sizes(2, 2, 32, **SMALL), **rope()), shapes=BAICHUAN[0],
        computed=BAICHUAN[1],
        written=named("BaichuanForCausalLM", "baichuan", max_position_embeddings="model_max_length"),
    ),
    "baichuan-13b": Spec(
        architecture="baichuan", model=alibi_model.AlibiLlamaForCausalLM,
        config=T.LlamaConfig(**sizes(2, 2, 40, **SMALL), **rope()), shapes=BAICHUAN[0],
        computed=BAICHUAN[1],
        written=named("BaichuanForCausalLM", "baichuan", max_position_embeddings="model_max_length"),
    ),
    "refact": Spec(
        architecture="refact", model=alibi_model.AlibiLlamaForCausalLM,
        config=T.LlamaConfig(**sizes(3, 1, intermediate_size=256), **rope()), written=as_refact, shapes=REFACT[0],
        computed=REFACT[1],
    ),
    "refact-wide": Spec(
        architecture="refact", model=alibi_model.AlibiLlamaForCausalLM, written=as_refact, shapes=REFACT_WIDE[0],
        computed=REFACT_WIDE[1],
        config=T.LlamaConfig(**sizes(5, 1, 3, hidden_size=160, intermediate_size=512), **rope()),
    ),
    "olmo": Spec(architecture="olmo", config=T.OlmoConfig(**sizes(3, 3), **rope())),
    "olmo-clipped": Spec(
        architecture="olmo", config=T.OlmoConfig(**sizes(6, 2, 3) | TIED, **rope(theta=5e5), clip_qkv=0.75)
    ),
    "orion": Spec(
        architecture="orion", config=T.StableLmConfig(**sizes(3, 3), **rope(partial_rotary_factor=1.0)),
        written=named("OrionForCausalLM", "orion", layer_norm_eps="rms_norm_eps"),
    ),
    "orion-gqa": Spec(
        architecture="orion", config=T.StableLmConfig(**sizes(6, 2, 3), **rope(theta=1e5, partial_rotary_factor=1.0)),
        written=named("OrionForCausalLM", "orion", layer_norm_eps="rms_norm_eps"),
    ),
    "chatglm": Spec(
        architecture="chatglm", config=T.GlmConfig(**sizes(6, 2, head_dim=16), **rope(partial_rotary_factor=0.5)),
    ),
    "chatglm-mha": Spec(
        architecture="chatglm",
        config=T.GlmConfig(
            **sizes(3, 3, 3, head_dim=32), **rope(theta=5e5, partial_rotary_factor=0.5), attention_bias=False
        ),
    ),
    # near relatives
    "qwen": Spec(
        architecture="qwen", config=T.Qwen2Config(**sizes(3, 3, head_dim=32), **rope()), written=as_qwen,
        shapes=QWEN[0], computed=QWEN[1],
    ),
    "qwen-narrow": Spec(
        architecture="qwen", written=as_qwen,
        config=T.Qwen2Config(**sizes(4, 4, 3, hidden_size=64, intermediate_size=96, head_dim=16), **rope(theta=1e6)),
        shapes=QWEN_NARROW[0], computed=QWEN_NARROW[1],
    ),
    "qwen2": Spec(architecture="qwen2", config=T.Qwen2Config(**sizes(6, 2) | TIED, **rope(theta=1e6))),
    "qwen2-window": Spec(
        architecture="qwen2",
        config=T.Qwen2Config(
            **sizes(3, 1, 3), **rope(), use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1
        ),
    ),
    "qwen2-odd": Spec(architecture="qwen2", config=T.Qwen2Config(**ODD_QWEN, **YARN)),
    "qwen3": Spec(
        architecture="qwen3",
        config=T.Qwen3Config(**sizes(5, 1, head_dim=64) | TIED, **rope(theta=1e6)),
    ),
    "qwen3-window": Spec(
        architecture="qwen3",
        config=T.Qwen3Config(**sizes(3, 1, 3, head_dim=32), **rope(), use_sliding_window=True, **layer_types(3, 3)),
    ),
    # mixtures of experts
    "mixtral": Spec(
        architecture="llama",
        config=T.MixtralConfig(
            **sizes(3, 1), **rope(theta=1e6), num_local_experts=5, num_experts_per_tok=2, sliding_window=None
        ),
        shapes=MIXTRAL[0],
        computed=MIXTRAL[1],
    ),
    "llama4": Spec(
        architecture="llama4",
        config=T.Llama4TextConfig(
            **sizes(4, 2, 5, head_dim=32), **LLAMA3, **CHUNKED, intermediate_size_mlp=160, num_local_experts=6,
        ),
        written=lambda config: config | {"attention_chunk_size": WINDOW},
    ),
    "llama4-maverick": Spec(
        architecture="llama4",
        config=T.Llama4TextConfig(
            **sizes(4, 2, 4, head_dim=32, intermediate_size=32), **rope(theta=5e5), intermediate_size_mlp=160,
            num_local_experts=128, interleave_moe_layer_step=2, use_qk_norm=False,
        ),
        written=lambda config: config | {"attention_chunk_size": 8192},
    ),
    "minimax-m2": Spec(
        architecture="minimax-m2", written=minimax_m2, shapes=MIXTRAL[0], computed=MIXTRAL[1],
        config=T.MiniMaxM2Config(
            **sizes(4, 2, 3, head_dim=32, intermediate_size=64), **rope(theta=5e6, partial_rotary_factor=0.5),
            num_local_experts=10, num_experts_per_tok=3,
        ),
    ),
    "minimax-m2-wide": Spec(
        architecture="minimax-m2", written=minimax_m2, shapes=MIXTRAL[0], computed=MIXTRAL[1],
        config=T.MiniMaxM2Config(
            **sizes(3, 1, head_dim=64, intermediate_size=96), **rope(partial_rotary_factor=0.25), num_local_experts=6,
            num_experts_per_tok=2,
        ),
    ),
    "qwen3moe": Spec(
        architecture="qwen3moe",
        config=T.Qwen3MoeConfig(**sizes(4, 2, head_dim=32), **rope(theta=1e6), **QWEN3MOE),
        shapes=UNFUSED[0],
        computed=UNFUSED[1],
    ),
    "qwen3moe-dense": Spec(
        architecture="qwen3moe",
        config=T.Qwen3MoeConfig(
            **sizes(3, 1, 4, head_dim=32), **rope(theta=1e6), **QWEN3MOE | {"mlp_only_layers": [0, 2]},
            use_sliding_window=True, sliding_window=WINDOW,
        ),
        shapes=UNFUSED[0],
        computed=UNFUSED[1],
    ),
    "olmoe": Spec(
        architecture="olmoe",
        config=T.OlmoeConfig(**sizes(3, 3), **rope(), num_experts=12, num_experts_per_tok=4, norm_topk_prob=False),
        shapes=UNFUSED[0],
        computed=UNFUSED[1],
    ),
    "qwen2moe": Spec(
        architecture="qwen2moe",
        config=T.Qwen2MoeConfig(**sizes(4, 2), **rope(theta=1e6), **GATED_SHARED, norm_topk_prob=False),
        shapes=UNFUSED[0],
        computed=UNFUSED[1],
    ),
    "qwen2moe-dense": Spec(
        architecture="qwen2moe",
        config=T.Qwen2MoeConfig(
            **sizes(3, 1, 4), **rope(theta=1e6), **GATED_SHARED | {"decoder_sparse_step": 2}, norm_topk_prob=False,
        ),
        shapes=UNFUSED[0],
        computed=UNFUSED[1],
    ),
    "dots1": Spec(
        architecture="dots1",
        config=T.Dots1Config(
            **sizes(3, 3, 3, head_dim=32), **rope(theta=1e6), first_k_dense_replace=1, **BIASED, n_shared_experts=2,
        ),
        written=lambda config: config | {"scoring_func": "sigmoid"},
        shapes=UNFUSED[0],
        computed=UNFUSED[1],
    ),
    "exaone-moe": Spec(
        architecture="exaone-moe", shapes=EXAONE_MOE[0], computed=EXAONE_MOE[1], written=k_exaone,
        config=T.ExaoneMoeConfig(
            **sizes(6, 2, 5, head_dim=32), **rope(theta=1e6), **layer_types(5, 4), **QWEN3MOE, num_shared_experts=1,
            first_k_dense_replace=1,
        ),
    ),
    "exaone-moe-groups": Spec(
        architecture="exaone-moe", shapes=UNFUSED[0], computed=UNFUSED[1],
        written=lambda config: config | {"scoring_func": "sigmoid"},
        config=T.ExaoneMoeConfig(
            **sizes(3, 3, 4, hidden_size=64), **rope(), **layer_types(4, 4), num_experts=8, num_experts_per_tok=2,
            moe_intermediate_size=32, num_shared_experts=2, n_group=4, topk_group=2, routed_scaling_factor=1.5,
            head_dim=16, first_k_dense_replace=2,
        ),
    ),
    "afmoe": Spec(
        architecture="afmoe", shapes=UNFUSED[0], computed=UNFUSED[1], written=afmoe,
        config=T.AfmoeConfig(
            **sizes(6, 2, 5, head_dim=32), **rope(), **layer_types(5, 4), **QWEN3MOE, num_shared_experts=1,
            num_dense_layers=1, route_scale=2.5, mup_enabled=True,
        ),
    ),
    "afmoe-narrow": Spec(
        architecture="afmoe", shapes=UNFUSED[0], computed=UNFUSED[1], written=afmoe,
        config=T.AfmoeConfig(
            **sizes(4, 1, 4, hidden_size=64, head_dim=16), **rope(theta=5e5), **layer_types(4, 4), num_experts=6,
            num_experts_per_tok=2, moe_intermediate_size=32, num_shared_experts=2, num_dense_layers=2, mup_enabled=True,
        ),
    ),
    "bailingmoe2": Spec(
        architecture="bailingmoe2", shapes=BAILING[0], computed=BAILING[1], written=bailing,
        config=T.Glm4MoeConfig(
            **sizes(3, 1, 3), **rope(theta=6e5, partial_rotary_factor=0.5), first_k_dense_replace=1, n_routed_experts=8,
            num_experts_per_tok=3, n_group=4, topk_group=2, moe_intermediate_size=64, norm_topk_prob=True,
            routed_scaling_factor=2.5, n_shared_experts=1, use_qk_norm=True, attention_bias=False,
        ),
    ),
    "bailingmoe2-narrow": Spec(
        architecture="bailingmoe2", shapes=BAILING_NARROW[0], computed=BAILING_NARROW[1], written=bailing,
        config=T.Glm4MoeConfig(
            **sizes(4, 2, 4, hidden_size=64), **rope(partial_rotary_factor=0.25), first_k_dense_replace=2,
            n_routed_experts=6, num_experts_per_tok=2, n_group=1, topk_group=1, moe_intermediate_size=32,
            norm_topk_prob=True, routed_scaling_factor=1.5, n_shared_experts=1, use_qk_norm=True, attention_bias=False,
        ),
    ),
    "hy_v3": Spec(
        architecture="hy_v3", shapes=HY_V3[0], computed=HY_V3[1], written=hy_v3,
        config=T.HYV3Config(
            **sizes(6, 2, 3, head_dim=32), **rope(theta=1.1e7), num_experts=10, num_experts_per_tok=3,
            moe_intermediate_size=64, num_shared_experts=1, router_scaling_factor=2.826,
        ),
    ),
    "hy_v3-narrow": Spec(
        architecture="hy_v3", shapes=HY_V3[0], computed=HY_V3[1], written=hy_v3,
        config=T.HYV3Config(
            **sizes(4, 1, 4, hidden_size=64, head_dim=16), **rope(), num_experts=6, num_experts_per_tok=2,
            moe_intermediate_size=32, num_shared_experts=2, router_scaling_factor=1.0,
            mlp_layer_types=["dense", "dense", "sparse", "sparse"],
        ),
    ),
    "laguna": Spec(
        architecture="laguna", shapes=LAGUNA[0], computed=LAGUNA[1],
        config=T.LagunaConfig(
            **sizes(6, 2, 5, head_dim=32), sliding_window=WINDOW, num_experts=8, num_experts_per_tok=3,
            moe_intermediate_size=64, shared_expert_intermediate_size=96, moe_routed_scaling_factor=2.5,
            num_attention_heads_per_layer=[6, 8, 8, 8, 6],
            layer_types=[f"{'sliding' if layer % 4 else 'full'}_attention" for layer in range(5)],
            rope_parameters={
                "full_attention": OLMO3_ROPE["full_attention"] | {"partial_rotary_factor": 0.5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0},
            },
        ),
    ),
    "laguna-elements": Spec(
        architecture="laguna", shapes=LAGUNA[0], computed=LAGUNA[1],
        config=T.LagunaConfig(
            **sizes(4, 1, 4, hidden_size=64, head_dim=16), num_experts=6, num_experts_per_tok=2, gating="per-element",
            moe_intermediate_size=32, shared_expert_intermediate_size=64,
            mlp_layer_types=["dense", "dense", "sparse", "sparse"],
            rope_parameters={
                "full_attention": {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.25},
            },
        ),
        written=lambda config: {key: value for key, value in config.items() if key != "sliding_window"},
    ),
    "mimo2": Spec(
        architecture="mimo2", shapes=MIMO[0], computed=MIMO[1], written=mimo,
        config=T.MiMoV2FlashConfig(
            **sizes(6, 1, 4, head_dim=48), v_head_dim=32, **layer_types(4, 4), n_routed_experts=10,
            num_experts_per_tok=3, n_group=1, topk_group=1, moe_intermediate_size=64, norm_topk_prob=True,
            rope_parameters={
                kind: {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": 0.334}
                for kind, theta in (("full_attention", 5e6), ("sliding_attention", 1e4))
            },
        ),
    ),
    "mimo2-narrow": Spec(
        architecture="mimo2", shapes=MIMO[0], computed=MIMO[1], written=mimo,
        config=T.MiMoV2FlashConfig(
            **sizes(4, 2, 4, hidden_size=64, head_dim=32), v_head_dim=32, sliding_window=WINDOW,
            layer_types=[f"{kind}_attention" for kind in ("full", "sliding", "full", "full")], n_routed_experts=8,
            num_experts_per_tok=2, n_group=1, topk_group=1, moe_intermediate_size=32, norm_topk_prob=True,
            attention_value_scale=None, mlp_layer_types=["dense", "dense", "sparse", "sparse"],
            rope_parameters={
                kind: {"rope_type": "default", "rope_theta": 1e5, "partial_rotary_factor": 0.5}
                for kind in ("full_attention", "sliding_attention")
            },
        ),
    ),
    "plamo3": Spec(
        architecture="plamo3", model=plamo3_model.Plamo3ForCausalLM, norm=0.0, written=plamo3,
        config=T.PreTrainedConfig(
            **sizes(6, 2, 9, head_dim=32), **PLAMO3, sliding_window_pattern=8, rope_theta=150000,
            rope_scaling_factor=4.0, initial_context_length=64,
        ),
    ),
    "plamo3-narrow": Spec(
        architecture="plamo3", model=plamo3_model.Plamo3ForCausalLM, norm=0.0, written=plamo3,
        config=T.PreTrainedConfig(
            **sizes(4, 1, 4, hidden_size=64, head_dim=32), **PLAMO3, sliding_window_pattern=3, rope_theta=1000000,
            rope_scaling_factor=1,
        ),
    ),
    "openelm": Spec(
        architecture="openelm", model=openelm_model.OpenELMForCausalLM, written=openelm,
        config=T.PreTrainedConfig(
            **OPENELM, model_dim=96, num_transformer_layers=4, num_hidden_layers=4, head_dim=32,
            num_query_heads=[3, 3, 4, 5], num_kv_heads=[1, 1, 2, 1], ffn_multipliers=[0.5, 1.0, 2.1, 4.0],
            ffn_dim_divisor=32, rope_freq_constant=10000,
        ),
    ),
    "openelm-narrow": Spec(
        architecture="openelm", model=openelm_model.OpenELMForCausalLM, written=openelm,
        config=T.PreTrainedConfig(
            **OPENELM, model_dim=64, num_transformer_layers=3, num_hidden_layers=3, head_dim=16,
            num_query_heads=[8, 4, 2], num_kv_heads=[4, 2, 2], ffn_multipliers=[1.3, 3.0, 0.9], ffn_dim_divisor=64,
            rope_freq_constant=500000,
        ),
    ),
    "deci": Spec(
        architecture="deci", model=deci_model.DeciLMForCausalLM, written=named("DeciLMForCausalLM", "nemotron-nas"),
        config=T.PreTrainedConfig(
            **DECI, rope_theta=5e5, num_hidden_layers=6,
            block_configs=[
                {"attention": {"n_heads_in_group": group, "replace_with_linear": linear}, "ffn": {"ffn_mult": factor}}
                for group, linear, factor in (
                    (3, False, 3.0), (None, True, 5.0), (None, False, 1.0), (2, False, None), (None, False, None),
                    (6, False, 2.0),
                )
            ],
        ),
    ),
    "decilm": Spec(
        architecture="deci", model=deci_model.DeciLMForCausalLM, written=named("DeciLMForCausalLM", "deci"),
        config=T.PreTrainedConfig(
            **DECI, rope_theta=1e4, num_hidden_layers=3, intermediate_size=160, num_key_value_heads_per_layer=[3, 1, 6],
        ),
    ),
    "mellum": Spec(
        architecture="mellum", shapes=UNFUSED[0], computed=UNFUSED[1],
        config=T.MellumConfig(
            **sizes(6, 2, 5, head_dim=32), rope_parameters=OLMO3_ROPE, **layer_types(5, 4), **QWEN3MOE,
        ),
    ),
    "mellum-narrow": Spec(
        architecture="mellum", shapes=UNFUSED[0], computed=UNFUSED[1],
        config=T.MellumConfig(
            **sizes(4, 1, 3, hidden_size=64, head_dim=16), num_experts=6, num_experts_per_tok=2,
            moe_intermediate_size=32, norm_topk_prob=True, **layer_types(3, 2), rope_parameters=TWO_BASES,
        ),
    ),
    "smallthinker": Spec(
        architecture="smallthinker", model=smallthinker_model.SmallThinkerForCausalLM,
        config=T.PreTrainedConfig(
            **sizes(6, 2, 5, head_dim=32), **SMALLTHINKER, rope_layout=[0, 1, 1, 1, 0], rope_theta=1.5e6,
            sliding_window_layout=[0, 1, 1, 1, 0], sliding_window_size=WINDOW, moe_num_primary_experts=10,
            moe_num_active_primary_experts=3, moe_ffn_hidden_size=64, moe_primary_router_apply_softmax=False,
        ),
        written=smallthinker,
    ),
    "smallthinker-softmax": Spec(
        architecture="smallthinker", model=smallthinker_model.SmallThinkerForCausalLM,
        config=T.PreTrainedConfig(
            **sizes(4, 1, 3, hidden_size=64, head_dim=16), **SMALLTHINKER, rope_layout=[1, 1, 1], rope_theta=1e4,
            sliding_window_layout=[0, 0, 0], moe_num_primary_experts=6, moe_num_active_primary_experts=2,
            moe_ffn_hidden_size=32, moe_primary_router_apply_softmax=True,
        ),
        written=smallthinker,
    ),
    "cohere2moe": Spec(
        architecture="cohere2moe", shapes=UNFUSED[0], computed=UNFUSED[1],
        config=T.Cohere2MoeConfig(
            **sizes(6, 2, 5, head_dim=32, intermediate_size=64) | TIED, rope_theta=5e4, **layer_types(5, 4),
            logit_scale=0.75, num_experts=8, num_experts_per_tok=3, num_shared_experts=2,
            expert_selection_fn="sigmoid", prefix_dense_intermediate_size=160,
            mlp_layer_types=["dense", "sparse", "sparse", "sparse", "sparse"],
        ),
    ),
    "cohere2moe-rms": Spec(
        architecture="cohere2moe", shapes=UNFUSED[0], computed=UNFUSED[1],
        config=T.Cohere2MoeConfig(
            **sizes(4, 1, 4, hidden_size=64, head_dim=16, intermediate_size=32), rope_theta=1e4, logit_scale=0.5,
            sliding_window=WINDOW, rms_norm_eps=1e-5, num_experts=6, num_experts_per_tok=2, num_shared_experts=0,
            layer_types=["full_attention", "full_attention", "sliding_attention", "full_attention"],
            expert_selection_fn="softmax", prefix_dense_intermediate_size=96,
            mlp_layer_types=["dense", "sparse", "sparse", "sparse"],
        ),
    ),
    "dbrx": Spec(
        architecture="dbrx", written=dbrx,
        config=T.DbrxConfig(
            d_model=96, n_heads=3, n_layers=2, max_seq_len=256, vocab_size=reference_models.N_VOCAB, **SPECIAL_IDS,
            **rope(theta=5e5), attn_config={"clip_qkv": 0.75, "kv_n_heads": 1, "rope_theta": 5e5},
            ffn_config={"ffn_hidden_size": 64, "moe_num_experts": 8, "moe_top_k": 3},
        ),
    ),
    "dbrx-narrow": Spec(
        architecture="dbrx", written=dbrx,
        config=T.DbrxConfig(
            d_model=64, n_heads=4, n_layers=3, max_seq_len=256, vocab_size=reference_models.N_VOCAB, **SPECIAL_IDS,
            **rope(), attn_config={"clip_qkv": 8, "kv_n_heads": 2, "rope_theta": 1e4},
            ffn_config={"ffn_hidden_size": 96, "moe_num_experts": 6, "moe_top_k": 2},
        ),
    ),
    "glm4moe": Spec(
        architecture="glm4moe",
        config=T.Glm4MoeConfig(
            **sizes(6, 2, 3, head_dim=32), **rope(theta=1e6, partial_rotary_factor=0.5), first_k_dense_replace=1,
            **BIASED, n_shared_experts=1, attention_bias=True, use_qk_norm=True,
        ),
        shapes=UNFUSED[0],
        computed=UNFUSED[1],
    ),
    "glm4moe-air": Spec(
        architecture="glm4moe",
        config=T.Glm4MoeConfig(
            **sizes(6, 2, head_dim=32), **rope(theta=1e6, partial_rotary_factor=0.5), first_k_dense_replace=0,
            **BIASED, n_shared_experts=1, attention_bias=True, use_qk_norm=False,
        ),
        shapes=UNFUSED[0],
        computed=UNFUSED[1],
    ),
    "deepseek2-lite": Spec(
        architecture="deepseek2",
        config=T.DeepseekV2Config(
            **sizes(2, 2, 27, **SMALL), **LITE_ROPE, **LATENT | {"kv_lora_rank": 32}, q_lora_rank=None,
            n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=32, n_shared_experts=2,
            first_k_dense_replace=1, topk_method="greedy", routed_scaling_factor=1.0, n_group=1, topk_group=1,
        ),
        written=lambda config: config | {"scoring_func": "softmax"},
        shapes=UNFUSED[0],
        computed=UNFUSED[1],
    ),
    "deepseek2": Spec(
        architecture="deepseek2",
        config=T.DeepseekV2Config(
            **sizes(4, 4, 3), **LITE_ROPE, **LATENT, q_lora_rank=64, n_routed_experts=12, num_experts_per_tok=6,
            moe_intermediate_size=64, n_shared_experts=2, first_k_dense_replace=1, routed_scaling_factor=1.0,
            topk_method="group_limited_greedy", n_group=4, topk_group=3,
        ),
        written=lambda config: config | {"scoring_func": "softmax"},
        shapes=UNFUSED[0],
        computed=UNFUSED[1],
    ),
    "deepseek3": Spec(
        architecture="deepseek2",
        config=T.DeepseekV3Config(
            **sizes(4, 4, 3), **DEEPSEEK3_ROPE, **LATENT, q_lora_rank=64, first_k_dense_replace=1, n_shared_experts=1,
            **BIASED | {
                "n_routed_experts": 12, "num_experts_per_tok": 6, "n_group": 4, "topk_group": 3,
                "routed_scaling_factor": 1.0,
            },
        ),
        written=lambda config: config | {"scoring_func": "sigmoid", "topk_method": "noaux_tc"},
        shapes=UNFUSED[0],
        computed=UNFUSED[1],
    ),
    "deepseek2-ocr": Spec(
        architecture="deepseek2-ocr", model=T.DeepseekOcr2ForConditionalGeneration,
        config=T.DeepseekOcr2Config(
            tie_word_embeddings=False,
            text_config=sizes(3, 3, 3) | rope() | {
                "n_routed_experts": 12, "num_experts_per_tok": 6, "moe_intermediate_size": 64, "n_shared_experts": 2,
                "topk_method": "greedy", "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0,
                "mlp_layer_types": ["dense", "sparse", "sparse"],
            },
            vision_config={
                "sam_config": SAM, "encoder_config": {
                    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
                    "num_key_value_heads": 2, "vocab_size": 8,
                },
            },
        ),
        written=deepseek_ocr,
        shapes=DEEPSEEK_OCR[0],
        computed=DEEPSEEK_OCR[1],
    ),
    "mistral4": Spec(
        architecture="mistral4", model=T.Mistral4ForCausalLM,
        config=T.Mistral4Config(
            **sizes(4, 4), **MINISTRAL3, **LATENT, q_lora_rank=64, first_k_dense_replace=0, n_shared_experts=1,
            **BIASED | {"n_routed_experts": 12, "num_experts_per_tok": 6, "routed_scaling_factor": 1.0},
        ),
        written=within_mistral3,
    ),
    "glm4moe-lite": Spec(
        architecture="deepseek2",
        config=T.Glm4MoeLiteConfig(
            **sizes(5, 5, 3), **rope(theta=1e6), **LATENT | {"qk_nope_head_dim": 96, "v_head_dim": 64}, q_lora_rank=64,
            **BIASED, n_shared_experts=1, mlp_layer_types=["dense", "sparse", "sparse"],
        ),
        written=lambda config: config | {"scoring_func": "sigmoid", "first_k_dense_replace": 1},
        shapes=UNFUSED[0],
        computed=UNFUSED[1],
    ),
    "gpt-oss": Spec(
        architecture="gpt-oss",
        config=T.GptOssConfig(
            **sizes(8, 2, head_dim=32), **OSS_ROPE, **layer_types(2, 2), num_local_experts=6, num_experts_per_tok=3
        ),
    ),
    "gpt-oss-limits": Spec(
        architecture="gpt-oss", norm=1.5,  # so that activations reach them
        config=T.GptOssConfig(
            **sizes(4, 4, head_dim=64), **rope(theta=150_000.0), **layer_types(2, 2), num_local_experts=4,
            num_experts_per_tok=1,
        ),
    ),
    "granitemoe": Spec(
        architecture="granitemoe",
        config=T.GraniteMoeConfig(**sizes(6, 2) | TIED, **rope(), **GRANITE, **GRANITE_EXPERTS),
        shapes=GRANITEMOE[0],
        computed=GRANITEMOE[1],
    ),
    "granitemoe-shared": Spec(
        architecture="granitemoe",
        config=T.GraniteMoeSharedConfig(
            **sizes(6, 2) | TIED, **rope(), **GRANITE, **GRANITE_EXPERTS, shared_intermediate_size=96
        ),
        shapes=GRANITEMOE[0],
        computed=GRANITEMOE[1],
    ),
    "ernie4_5-moe": Spec(
        architecture="ernie4_5-moe",
        config=T.Ernie4_5_MoeConfig(
            **sizes(6, 2, 3, intermediate_size=256) | TIED, **rope(theta=5e5), moe_num_experts=10, moe_k=3,
            moe_intermediate_size=64, moe_num_shared_experts=2,
        ),
        shapes=ERNIE[0],
        computed=ERNIE[1],
    ),
    "ernie4_5-moe-interleaved": Spec(
        architecture="ernie4_5-moe",
        config=T.Ernie4_5_MoeConfig(
            **sizes(6, 3, 4, intermediate_size=96), **rope(), moe_num_experts=6, moe_k=2,
            moe_intermediate_size=32, moe_num_shared_experts=1, moe_layer_interval=2, moe_layer_start_index=1,
        ),
        shapes=ERNIE[0],
        computed=ERNIE[1],
    ),
    "hunyuan-moe": Spec(
        architecture="hunyuan-moe",
        config=T.HunYuanMoEV1Config(**sizes(6, 2, head_dim=32), **rope(), num_experts=10, moe_topk=3),
        written=hunyuan_moe,
        shapes=UNFUSED[0],
        computed=UNFUSED[1],
    ),
    "phimoe": Spec(
        architecture="phimoe",
        config=T.PhimoeConfig(
            **sizes(3, 1, max_position_embeddings=512), num_local_experts=10, attention_bias=True, lm_head_bias=True,
            **longrope(16, 256, short_mscale=1.25, long_mscale=1.25),
        ),
        written=lambda config: config | {"architectures": ["PhiMoEForCausalLM"]},
        shapes=PHIMOE[0],
        computed=PHIMOE[1],
    ),
    "phimoe-window": Spec(
        architecture="phimoe",
        config=T.PhimoeConfig(
            **sizes(3, 1), **rope(), num_local_experts=6, attention_bias=True, lm_head_bias=True, sliding_window=WINDOW,
        ),
        written=lambda config: config | {"architectures": ["PhiMoEForCausalLM"]},
        shapes=PHIMOE[0],
        computed=PHIMOE[1],
    ),
    "exaone4": Spec(
        architecture="exaone4",
        config=T.Exaone4Config(
            **sizes(6, 2) | TIED, **LLAMA3, sliding_window=None, layer_types=["full_attention"] * 2
        ),
    ),
    "exaone4-windows": Spec(
        architecture="exaone4", config=T.Exaone4Config(**sizes(2, 1, 64, **SMALL), **LLAMA3, **layer_types(64, 4))
    ),
    "olmo2": Spec(architecture="olmo2", config=T.Olmo2Config(**sizes(6, 2), **rope(theta=5e5))),
    "olmo3": Spec(
        architecture="olmo2", config=T.Olmo3Config(**sizes(6, 2, 4), rope_parameters=OLMO3_ROPE, **layer_types(4, 4))
    ),
    "ernie4_5": Spec(
        architecture="ernie4_5", config=T.Ernie4_5Config(**sizes(6, 2, head_dim=32) | TIED, **rope(theta=5e5))
    ),
    "hunyuan": Spec(
        architecture="hunyuan-dense",
        config=T.HunYuanDenseV1Config(
            **sizes(6, 2, head_dim=32, max_position_embeddings=32_768) | TIED, **HUNYUAN
        ),
    ),
    "seed_oss": Spec(
        architecture="seed_oss",
        config=T.SeedOssConfig(
            **sizes(5, 1, head_dim=32), **rope(theta=1e7), attention_bias=True, attention_out_bias=False
        ),
    ),
    "stablelm": Spec(
        architecture="stablelm", config=T.StableLmConfig(**sizes(3, 3), **QUARTER, use_qkv_bias=True)
    ),
    "stablelm-parallel": Spec(
        architecture="stablelm",
        config=T.StableLmConfig(**sizes(3, 1), **QUARTER, use_parallel_residual=True, qk_layernorm=True),
    ),
    "glm4": Spec(
        architecture="glm4", config=T.Glm4Config(**sizes(6, 2, head_dim=32), **rope(partial_rotary_factor=0.5))
    ),
    "nemotron": Spec(
        architecture="nemotron", norm=0.0,
        config=T.NemotronConfig(**sizes(6, 2), **rope(partial_rotary_factor=0.5)),
    ),
    "bitnet": Spec(
        architecture="bitnet",
        config=T.BitNetConfig(**sizes(6, 2) | TIED, **rope(theta=5e5), hidden_act="silu"),
        written=lambda config: config | {"architectures": ["BitnetForCausalLM"]},
        shapes=bitnet,
        computed=lambda tensors: bitnet_as_b158(ternary(tensors)),
    ),
    "bitnet-b1.58": Spec(
        architecture="bitnet-b1.58",
        config=T.BitNetConfig(**sizes(6, 2) | TIED, **rope(theta=5e5)),
        computed=ternary,
    ),
    # gemma
    "gemma": Spec(
        architecture="gemma", norm=0.0, config=T.GemmaConfig(**sizes(3, 1, head_dim=64) | TIED, **rope())
    ),
    "gemma2": Spec(
        architecture="gemma2", norm=0.0,
        config=T.Gemma2Config(**sizes(4, 2, 4, head_dim=48) | TIED, **rope(), **layer_types(4, 2), **GEMMA2_CAPS),
    ),
    "gemma3": Spec(
        architecture="gemma3", norm=0.0,
        config=T.Gemma3TextConfig(
            **sizes(3, 1, 7, head_dim=64) | TIED, rope_parameters=GEMMA3_ROPE, **layer_types(7, 6),
            query_pre_attn_scalar=64,
        ),
    ),
    "gemma4": Spec(
        architecture="gemma4", norm=0.375,  # or scores, which are not divided by anything, would be very large
        config=T.Gemma4TextConfig(
            **sizes(4, 1, 9, head_dim=32) | TIED, **GEMMA4, layer_types=GEMMA4_LAYERS, num_kv_shared_layers=4,
            hidden_size_per_layer_input=32, vocab_size_per_layer_input=reference_models.N_VOCAB,
            use_double_wide_mlp=True,
            global_head_dim=64,
        ),
    ),
    "gemma4-dense": Spec(
        architecture="gemma4", norm=0.5,
        config=T.Gemma4TextConfig(
            **sizes(4, 2, 5, head_dim=48) | TIED, **GEMMA4, layer_types=GEMMA4_LAYERS[:5], attention_k_eq_v=True,
            hidden_size_per_layer_input=0, global_head_dim=80, num_global_key_value_heads=1,
        ),
    ),
    "gemma4-experts": Spec(
        architecture="gemma4", norm=0.375,
        config=T.Gemma4TextConfig(
            **sizes(4, 2, 3, head_dim=32) | TIED, **GEMMA4, layer_types=GEMMA4_LAYERS[:3], attention_k_eq_v=True,
            hidden_size_per_layer_input=0, global_head_dim=64, num_global_key_value_heads=1,
            enable_moe_block=True, num_experts=10, top_k_experts=8, moe_intermediate_size=64,
        ),
    ),
    "gemma3n": Spec(
        architecture="gemma3n", norm=0.5,
        config=T.Gemma3nTextConfig(
            **sizes(2, 1, 6, head_dim=32) | TIED, **layer_types(6, 3), **GEMMA3N, num_kv_shared_layers=3,
            vocab_size_per_layer_input=reference_models.N_VOCAB - 4,
            activation_sparsity_pattern=[0.75, 0.5, 0.0, 0.0, 0.0, 0.0],
        ),
    ),
    "gemma3n-25": Spec(  # with the sizes that llama.cpp assumes
        architecture="gemma3n", norm=0.5,
        config=T.Gemma3nTextConfig(
            **sizes(2, 1, 25, head_dim=32, intermediate_size=512) | TIED, **layer_types(25, 5),
            **GEMMA3N | {"hidden_size_per_layer_input": 256, "laurel_rank": 64}, num_kv_shared_layers=5,
            vocab_size_per_layer_input=reference_models.N_VOCAB,
        ),
        shapes=with_idle_keys,
        computed=without_idle_keys,
    ),
    # phi
    "phi2": Spec(
        architecture="phi2",
        config=T.PhiConfig(**sizes(2, 2, hidden_size=160, intermediate_size=640), **rope(partial_rotary_factor=0.4)),
    ),
    "phi3": Spec(
        architecture="phi3",
        config=T.Phi3Config(**sizes(3, 3), **rope(), original_max_position_embeddings=256, sliding_window=WINDOW),
    ),
    "phi3-long": Spec(
        architecture="phi3", config=T.Phi3Config(**sizes(3, 1), **longrope(16, 32), original_max_position_embeddings=32)
    ),
    "phi3-short": Spec(
        architecture="phi3",
        config=T.Phi3Config(
            **sizes(3, 1, max_position_embeddings=512), **longrope(16, 256), original_max_position_embeddings=256
        ),
    ),
    "phi4-mini": Spec(
        architecture="phi3",
        config=T.Phi3Config(
            **sizes(3, 1) | TIED, **longrope(12, 32, partial_rotary_factor=0.75), original_max_position_embeddings=32
        ),
    ),
    # recurrent states
    "lfm2": Spec(
        architecture="lfm2",
        config=T.Lfm2Config(
            **sizes(6, 2, 4) | TIED, **rope(theta=1e6), block_multiple_of=32, norm_eps=1e-5,
            layer_types=["conv", "conv", "full_attention", "conv"],
        ),
    ),
    "lfm2moe": Spec(
        architecture="lfm2moe",
        config=T.Lfm2MoeConfig(
            **sizes(6, 2, 4) | TIED, **rope(theta=1e6), num_dense_layers=1, num_experts=10, num_experts_per_tok=3,
            moe_intermediate_size=64, layer_types=["conv", "conv", "full_attention", "conv"],
        ),
        shapes=LFM2MOE[0],
        computed=LFM2MOE[1],
    ),
    "qwen35": Spec(
        architecture="qwen35", norm=0.0,
        config=T.Qwen3_5TextConfig(
            **sizes(3, 1, 4, head_dim=64), **rope(theta=1e7, partial_rotary_factor=0.25, mrope_section=[3, 3, 2]),
            **DELTA_NET,
        ),
    ),
    "qwen35moe": Spec(
        architecture="qwen35moe", norm=0.0, written=without_width,
        config=T.Qwen3_5MoeTextConfig(
            **sizes(3, 1, 4, head_dim=64), **rope(theta=1e7, partial_rotary_factor=0.25, mrope_section=[3, 3, 2]),
            **DELTA_NET, **GATED_SHARED,
        ),
    ),
    "qwen3next": Spec(
        architecture="qwen3next", norm=0.0,
        config=T.Qwen3NextConfig(
            **sizes(3, 1, 4, head_dim=64), **rope(theta=1e7, partial_rotary_factor=0.25), **DELTA_NET,
            **GATED_SHARED,
        ),
        shapes=UNFUSED[0],
        computed=UNFUSED[1],
    ),
    "mamba2": Spec(
        architecture="mamba2",
        config=T.Mamba2Config(
            vocab_size=reference_models.N_VOCAB, hidden_size=96, num_heads=6, head_dim=32, state_size=16, n_groups=2,
            num_hidden_layers=2, **SPECIAL_IDS,
        ),
    ),
    "mamba": Spec(
        architecture="mamba",
        config=T.MambaConfig(vocab_size=reference_models.N_VOCAB, hidden_size=96, num_hidden_layers=3, **SPECIAL_IDS),
        written=with_rank,
    ),
    "falcon-mamba": Spec(
        architecture="mamba",
        config=T.FalconMambaConfig(
            vocab_size=reference_models.N_VOCAB, hidden_size=160, num_hidden_layers=2, state_size=24,
            mixer_rms_eps=1e-5,
            tie_word_embeddings=False, **SPECIAL_IDS,
        ),
        written=with_rank,
    ),
    "falcon-h1": Spec(
        architecture="falcon-h1",
        config=T.FalconH1Config(
            **sizes(6, 2, head_dim=32), **rope(theta=1e11), **RECURRENT, mamba_d_ssm=192, mamba_norm_before_gate=False,
            **MULTIPLIERS,
        ),
    ),
    "falcon-h1-normed": Spec(
        architecture="falcon-h1",
        config=T.FalconH1Config(
            **sizes(3, 1, head_dim=32), **rope(theta=1e11), **RECURRENT, mamba_d_ssm=192, mamba_norm_before_gate=False,
            mamba_rms_norm=True,
        ),
    ),
    "granitehybrid": Spec(
        architecture="granitehybrid",
        config=T.GraniteMoeHybridConfig(
            **sizes(6, 2, 4) | TIED, **rope(), **GRANITE, **RECURRENT, num_local_experts=0, num_experts_per_tok=0,
            shared_intermediate_size=160, layer_types=LINEAR_AND_FULL,
        ),
        written=granite_hybrid,
    ),
    "granitehybrid-experts": Spec(
        architecture="granitehybrid",
        config=T.GraniteMoeHybridConfig(
            **sizes(6, 2, 4, intermediate_size=64) | TIED, **rope(), **GRANITE, **GRANITE_EXPERTS, **RECURRENT,
            shared_intermediate_size=96, layer_types=LINEAR_AND_FULL,
        ),
        written=granite_hybrid,
        shapes=GRANITEHYBRID[0],
        computed=GRANITEHYBRID[1],
    ),
    "granite4": Spec(
        architecture="granite",
        config=T.GraniteMoeHybridConfig(
            **sizes(6, 2) | TIED, **rope(theta=1e7), **GRANITE, num_local_experts=0, num_experts_per_tok=0,
            shared_intermediate_size=160, layer_types=["full_attention"] * 2, position_embedding_type="rope",
            mamba_n_heads=6,
        ),
        written=granite_hybrid,
    ),
    "nemotron_h": Spec(
        architecture="nemotron_h",
        config=T.NemotronHConfig(
            **sizes(6, 2, head_dim=32), **NEMOTRON_H,
            layers_block_type=["linear_attention", "full_attention", "mlp", "linear_attention"],
        ),
        written=nemotron_h,
        shapes=BACKBONE[0],
        computed=BACKBONE[1],
    ),
    "nemotron_h_moe": Spec(
        architecture="nemotron_h_moe",
        config=T.NemotronHConfig(**sizes(6, 2, head_dim=32), **NEMOTRON_H, **NEMOTRON_EXPERTS),
        shapes=UNGATED[0],
        computed=UNGATED[1],
    ),
    "nemotron_h_moe-latent": Spec(
        architecture="nemotron_h_moe",
        config=T.NemotronHConfig(**sizes(6, 2, head_dim=32), **NEMOTRON_H, **NEMOTRON_EXPERTS, moe_latent_size=64),
        shapes=UNGATED[0],
        computed=UNGATED[1],
    ),
    "rwkv7": Spec(
        architecture="rwkv7", model=rwkv7_model.RWKV7ForCausalLM,
        config=T.PreTrainedConfig(
            hidden_size=128, head_dim=64, num_hidden_layers=3, intermediate_size=192,
            vocab_size=reference_models.N_VOCAB,
            decay_low_rank_dim=32, a_low_rank_dim=32, v_low_rank_dim=32, gate_low_rank_dim=64, norm_eps=1e-5,
            hidden_act="sqrelu", norm_first=True, norm_bias=True, attn=None, max_position_embeddings=2048,
            tie_word_embeddings=False, **SPECIAL_IDS,
        ),
        written=lambda config: config | {"model_type": "rwkv7"},
    ),
    # others
    "starcoder": Spec(architecture="starcoder", config=T.GPTBigCodeConfig(**GPT2, **SPECIAL_IDS)),
    "starcoder-wide": Spec(
        architecture="starcoder",
        config=T.GPTBigCodeConfig(
            **GPT2 | {"n_embd": 160, "n_head": 5, "n_layer": 3}, **SPECIAL_IDS,
            tie_word_embeddings=False,
        ),
    ),
    "bloom": Spec(
        architecture="bloom", config=T.BloomConfig(**BLOOM, n_head=4, n_layer=2),
        written=lambda config: config | {"seq_length": 256},
    ),
    "bloom-odd": Spec(
        architecture="bloom", config=T.BloomConfig(**BLOOM, n_head=3, n_layer=3),
        written=lambda config: config | {"seq_length": 256},
    ),
    "mpt": Spec(
        architecture="mpt", config=T.MptConfig(**MPT, n_heads=4, n_layers=2), written=named("MPTForCausalLM", "mpt")
    ),
    "mpt-clipped": Spec(
        architecture="mpt", written=named("MPTForCausalLM", "mpt"),
        config=T.MptConfig(**MPT, n_heads=6, n_layers=3, attn_config={"clip_qkv": 0.75}),
    ),
    "codeshell": Spec(
        architecture="codeshell", written=as_codeshell,
        config=T.Starcoder2Config(**sizes(6, 2, intermediate_size=384), **rope(), sliding_window=None),
        shapes=CODESHELL[0], computed=CODESHELL[1],
    ),
    "codeshell-mqa": Spec(
        architecture="codeshell", written=as_codeshell,
        config=T.Starcoder2Config(**sizes(3, 1, 3, intermediate_size=384), **rope(), sliding_window=None),
        shapes=CODESHELL[0], computed=CODESHELL[1],
    ),
    "jais2": Spec(architecture="jais2", config=T.Jais2Config(**sizes(3, 3), **rope(theta=5e5))),
    "jais2-gqa": Spec(
        architecture="jais2", config=T.Jais2Config(**sizes(6, 2, 3, head_dim=32) | TIED, **rope())
    ),
    "starcoder2": Spec(
        architecture="starcoder2",
        config=T.Starcoder2Config(**sizes(6, 2) | TIED, **rope(theta=1e5), sliding_window=None),
    ),
    "gpt2": Spec(
        architecture="gpt2",
        config=T.GPT2Config(**GPT2, **SPECIAL_IDS),
        shapes=without("transformer."),
        computed=prefixed("transformer."),
    ),
    "gptneox": Spec(architecture="gptneox", config=T.GPTNeoXConfig(**sizes(3, 3), **QUARTER)),
    "gptneox-sequential": Spec(
        architecture="gptneox", config=T.GPTNeoXConfig(**sizes(3, 3), **QUARTER, use_parallel_residual=False)
    ),
    "falcon": Spec(architecture="falcon", config=T.FalconConfig(**sizes(3) | TIED, **rope()), written=falcon),
    "falcon-40b": Spec(
        architecture="falcon",
        config=T.FalconConfig(**sizes(6), **rope(), num_kv_heads=2, new_decoder_architecture=True),
        written=falcon,
    ),
    "command-r": Spec(
        architecture="command-r", config=T.CohereConfig(**sizes(6, 2) | TIED, **rope(theta=8e6), logit_scale=0.75)
    ),
    "command-r-plus": Spec(
        architecture="command-r",
        config=T.CohereConfig(
            **sizes(2, 1, 64, **SMALL) | TIED, **rope(theta=8e6), logit_scale=0.75, use_qk_norm=True
        ),
    ),
    "cohere2": Spec(
        architecture="cohere2",
        config=T.Cohere2Config(**sizes(6, 2, 5) | TIED, **rope(theta=5e4), **layer_types(5, 4), logit_scale=0.75),
    ),
    # text models of vision models
    "qwen2vl": Spec(
        architecture="qwen2vl", model=T.Qwen2_5_VLForConditionalGeneration,
        config=T.Qwen2_5_VLConfig(
            **IMAGE_IDS,
            text_config=sizes(3, 1, 3) | rope(theta=1e6, mrope_section=[4, 6, 6]),
            vision_config=VISION | {"window_size": 16, "fullatt_block_indexes": [1], "out_hidden_size": 96},
        ),
    ),
    "qwen3vl": Spec(
        architecture="qwen3vl", model=T.Qwen3VLForConditionalGeneration,
        config=T.Qwen3VLConfig(**IMAGE_IDS, text_config=QWEN3VL_TEXT, vision_config=DEEPSTACK_VISION),
    ),
    "qwen3vlmoe": Spec(
        architecture="qwen3vlmoe", model=T.Qwen3VLMoeForConditionalGeneration, shapes=QWEN3VLMOE[0],
        computed=QWEN3VLMOE[1],
        config=T.Qwen3VLMoeConfig(**IMAGE_IDS, text_config=QWEN3VL_TEXT | QWEN3MOE, vision_config=DEEPSTACK_VISION),
    ),
    "qwen35-vision": Spec(
        architecture="qwen35", norm=0.0, model=T.Qwen3_5ForConditionalGeneration,
        config=T.Qwen3_5Config(
            **IMAGE_IDS,
            text_config=sizes(3, 1, 4, head_dim=64) | DELTA_NET | rope(
                theta=1e7, partial_rotary_factor=0.25, mrope_section=[3, 3, 2], mrope_interleaved=True
            ),
            vision_config=VISION | {"num_position_embeddings": 16},
        ),
    ),
    "paddleocr": Spec(
        architecture="paddleocr", model=T.PaddleOCRVLForConditionalGeneration,
        config=T.PaddleOCRVLConfig(
            **IMAGE_IDS, tie_word_embeddings=False,
            text_config=sizes(3, 1, 3, head_dim=32) | rope(theta=5e5, mrope_section=[4, 6, 6]),
            vision_config=SIGLIP | {"num_hidden_layers": 3, "spatial_merge_size": 2},
        ),
    ),
    "glm4v": Spec(
        architecture="glm4", model=T.Glm4vForConditionalGeneration,
        config=T.Glm4vConfig(
            **GLM_IMAGE_IDS,
            text_config=sizes(3, 1, 3) | rope(partial_rotary_factor=0.5, mrope_section=[2, 3, 3]),
            vision_config=GLM_VISION,
        ),
    ),
    "glm-ocr": Spec(
        architecture="glm4", model=T.GlmOcrForConditionalGeneration,
        config=T.GlmOcrConfig(
            **GLM_IMAGE_IDS,
            text_config=sizes(3, 1, 2, head_dim=64)
            | rope(theta=1e4, partial_rotary_factor=1.0, mrope_section=[8, 12, 12]),
            vision_config=GLM_VISION,
        ),
    ),
    "glm4vmoe": Spec(
        architecture="glm4moe", model=T.Glm4vMoeForConditionalGeneration, shapes=UNFUSED[0], computed=UNFUSED[1],
        config=T.Glm4vMoeConfig(
            **GLM_IMAGE_IDS,
            text_config=sizes(3, 1, 3, head_dim=32)
            | rope(theta=1e6, partial_rotary_factor=0.5, mrope_section=[3, 2, 3])
            | BIASED
            | {"first_k_dense_replace": 1, "n_shared_experts": 1, "attention_bias": True},
            vision_config=GLM_VISION,
        ),
    ),
    "granite-vision": Spec(
        architecture="granite", model=T.LlavaNextForConditionalGeneration,
        config=T.LlavaNextConfig(
            text_config=sizes(3, 1) | rope() | GRANITE | {"model_type": "granite", "logits_scaling": 1.0},
            tie_word_embeddings=False,  # transformers' class does not scale logits
            vision_config=SIGLIP | {"model_type": "siglip_vision_model", "vision_use_head": False},
            image_token_index=260, vision_feature_layer=[-2, -1], vision_feature_select_strategy="full",
            image_grid_pinpoints=[[32, 64], [64, 32]],
        ),
    ),
    "minicpm-v": Spec(
        architecture="qwen2", config=T.Qwen2Config(**sizes(3, 1), **rope(theta=1e6)),
        written=lambda config: config | {"architectures": ["MiniCPMV"], "version": 2.6}, shapes=prefixed("llm."),
        computed=without("llm."),
    ),
    "cogvlm": Spec(
        architecture="cogvlm", model=cogvlm_model.CogVLMForCausalLM, config=T.PreTrainedConfig(**COGVLM),
        written=lambda config: config | {"model_type": "cogvlm", "num_key_value_heads": 4},  # for llama.cpp's converter
    ),
    "cogvlm2": Spec(
        architecture="cogvlm", model=cogvlm_model.CogVLMForCausalLM,
        config=T.PreTrainedConfig(
            **COGVLM | {"hidden_size": 192, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 6},
            num_multi_query_heads=2,
        ),
        written=lambda config: config | {"model_type": "cogvlm"},
    ),
    "hunyuan-vl": Spec(
        architecture="hunyuan_vl", model=T.HunYuanVLForConditionalGeneration,
        config=T.HunYuanVLConfig(
            image_token_id=260, tie_word_embeddings=True,
            text_config=sizes(3, 1, 3, head_dim=32) | TIED | rope(
                "dynamic", alpha=50.0, factor=1.0, mrope_section=[3, 5, 4, 4]
            ),
            vision_config=SIGLIP | {"max_image_size": 32},
        ),
        written=hunyuan_vl,
        shapes=HUNYUAN_VL[0],
        computed=HUNYUAN_VL[1],
    ),
    "gemma3-vision": Spec(
        architecture="gemma3", norm=0.0, model=T.Gemma3ForConditionalGeneration,
        config=T.Gemma3Config(
            image_token_id=260, boi_token_index=258, eoi_token_index=259, image_token_index=260, mm_tokens_per_image=16,
            text_config=sizes(3, 1, 7, head_dim=64) | TIED | layer_types(7, 6) | {
                "rope_parameters": GEMMA3_ROPE, "query_pre_attn_scalar": 64, "sliding_window": 8,
            },
            vision_config=SIGLIP,
        ),
    ),
    # encoders
    "bert": Spec(architecture="bert", encoder=True, config=T.BertConfig(**BERT), shapes=without_pooler),
    "xlm-roberta": Spec(architecture="bert", encoder=True, config=T.XLMRobertaConfig(**BERT), shapes=without_pooler),
    "modern-bert": Spec(architecture="modern-bert", encoder=True, config=T.ModernBertConfig(**MODERN)),
    "nomic-bert": Spec(
        architecture="nomic-bert",
        encoder=True,
        config=T.NomicBertConfig(**BERT, **rope(theta=1000.0), hidden_act="silu"),
        written=nomic,
        shapes=NOMIC_BERT[0],
        computed=NOMIC_BERT[1],
    ),
    "nomic-bert-moe": Spec(
        architecture="nomic-bert-moe", encoder=True, model=nomic_moe_model.NomicBertModel,
        config=T.PreTrainedConfig(
            **NOMIC_MOE, n_embd=96, n_head=3, n_layer=4, num_hidden_layers=4, n_inner=160, num_experts=8, moe_top_k=2,
            rotary_emb_base=10000, type_vocab_size=1,
        ),
        written=named("NomicBertModel", "nomic_bert"),
    ),
    "nomic-bert-moe-narrow": Spec(
        architecture="nomic-bert-moe", encoder=True, model=nomic_moe_model.NomicBertModel,
        config=T.PreTrainedConfig(
            **NOMIC_MOE, n_embd=64, n_head=4, n_layer=4, num_hidden_layers=4, n_inner=96, num_experts=5, moe_top_k=3,
            rotary_emb_base=1000, type_vocab_size=2,
        ),
        written=named("NomicBertModel", "nomic_bert"),
    ),
    "neo-bert": Spec(
        architecture="neo-bert", encoder=True, model=neobert_model.NeoBERT,
        config=T.PreTrainedConfig(**NEOBERT, hidden_size=96, num_attention_heads=3, num_hidden_layers=2, norm_eps=1e-5),
        written=neo_bert,
    ),
    "neo-bert-narrow": Spec(
        architecture="neo-bert", encoder=True, model=neobert_model.NeoBERT,
        config=T.PreTrainedConfig(**NEOBERT, hidden_size=64, num_attention_heads=4, num_hidden_layers=3, norm_eps=1e-6),
        written=neo_bert,
    ),
    "jina-bert-v2": Spec(
        architecture="jina-bert-v2", encoder=True, model=jina_v2_model.JinaBertModel,
        config=T.PreTrainedConfig(**BERT, **JINA_V2), written=named("JinaBertForMaskedLM", "bert"),
    ),
    "jina-bert-v2-narrow": Spec(
        architecture="jina-bert-v2", encoder=True, model=jina_v2_model.JinaBertModel,
        config=T.PreTrainedConfig(
            **BERT | {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 3, "intermediate_size": 96},
            **JINA_V2,
        ),
        written=named("JinaBertModel", "bert"),
    ),
    "jina-bert-v3": Spec(
        architecture="jina-bert-v3", encoder=True, written=jina_v3, shapes=JINA_V3[0], computed=JINA_V3[1],
        config=T.JinaEmbeddingsV3Config(**BERT | {"type_vocab_size": 1}, **rope(theta=2e4)),
    ),
    "jina-bert-v3-narrow": Spec(
        architecture="jina-bert-v3", encoder=True, written=jina_v3, shapes=JINA_V3_NARROW[0],
        computed=JINA_V3_NARROW[1],
        config=T.JinaEmbeddingsV3Config(
            **BERT | {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 3, "type_vocab_size": 2},
            **rope(),
        ),
    ),
    "eurobert": Spec(
        architecture="eurobert", encoder=True, config=T.EuroBertConfig(**sizes(3, 3), **rope(theta=2.5e5)),
        written=eurobert, shapes=prefixed("model."), computed=without("model."),
    ),
    "eurobert-gqa": Spec(
        architecture="eurobert", encoder=True, config=T.EuroBertConfig(**sizes(4, 1, 3, hidden_size=64), **rope()),
        written=eurobert,
    ),
    "llama-embed": Spec(
        architecture="llama-embed", encoder=True, config=T.EuroBertConfig(**sizes(6, 2), **LLAMA3),
        written=named("LlamaBidirectionalModel", "llama_bidirec"),
    ),
    "llama-embed-mha": Spec(
        architecture="llama-embed", encoder=True, config=T.EuroBertConfig(**sizes(4, 4, 3, hidden_size=64), **rope()),
        written=named("LlamaBidirectionalModel", "llama_bidirec"),
    ),
    "gemma-embedding": Spec(
        architecture="gemma-embedding",
        encoder=True,
        norm=0.0,
        config=T.Gemma3TextConfig(
            **sizes(3, 1, 7, head_dim=64) | TIED, rope_parameters=GEMMA3_ROPE, **layer_types(7, 6),
            query_pre_attn_scalar=64, use_bidirectional_attention=True,
        ),
    ),
}  # fmt: skip


def main() -> None:
    """Write the models named on the command line, or all."""
    for path in sorted(Path(__file__).with_name("reference_specs").glob("*.py")):
        MODELS.update(runpy.run_path(str(path))["MODELS"])
    transformers.utils.logging.disable_progress_bar()
    reference_models.DATA.mkdir(exist_ok=True)
    for name in sys.argv[1:] or MODELS:
        logits = make(name, MODELS[name])
        print(f"{name:20} standard deviation of logits {logits.std():.2f}")


def make(name: str, spec: Spec) -> Any:
    """Write both files of a reference model, and return the computed logits."""
    model = write_and_load(name, spec)
    ids, positions, given = IDS, POSITIONS, IDS
    options: dict[str, Any] = {} if spec.encoder else {"use_cache": False}
    if spec.encoder_decoder:
        ids = [*(~id for id in IDS[:N_ENCODER]), *IDS[N_ENCODER:]]
        positions = POSITIONS[POSITIONS < N_TOKENS - N_ENCODER]
        given, options = IDS[:N_ENCODER], options | {"decoder_input_ids": torch.tensor([IDS[N_ENCODER:]])}
    with torch.no_grad():
        actual = model(torch.tensor([given]), **options)
        logits = (actual.last_hidden_state if spec.encoder else actual.logits)[0].numpy()
    columns = np.arange(logits.shape[1]) if spec.encoder else COLUMNS
    np.savez_compressed(
        reference_models.DATA / f"{name}.npz", ids=np.array(ids, np.int16), positions=positions.astype(np.int16),
        columns=columns.astype(np.int16), logits=logits[np.ix_(positions, columns)],
    )  # fmt: skip
    return logits


def write_and_load(name: str, spec: Spec) -> Any:
    """Write the description of a reference model, and return the model of transformers."""
    model, text = class_of(spec)._from_config(spec.config, attn_implementation="eager").float().eval(), text_of(spec)
    tied = set(model.all_tied_weights_keys) if text.tie_word_embeddings else set()
    if spec.encoder:
        tied |= {key for key in model.state_dict() if key.startswith("pooler.")}  # not needed for the stored output
    own = {key: tuple(values.shape) for key, values in model.state_dict().items() if key not in tied}
    own, integers = saved_shapes(model) if spec.saved else (own, {})
    vision = {key: shape for key, shape in own.items() if VISION_TENSOR.match(key)}  # not part of the description
    shapes = spec.shapes({key: shape for key, shape in own.items() if key not in vision})
    described = {
        "architecture": spec.architecture,
        **{kind: True for kind in ("encoder", "encoder_decoder") if getattr(spec, kind)},
        "norm": spec.norm,
        "n_layer": text.num_hidden_layers,
        "config": config_of(spec),
        "tensors": folded(shapes, text.num_hidden_layers),
        "only": only(shapes, text.num_hidden_layers),
        "integers": integers,
    }
    write(name, described)
    if spec.saved:
        return load_checkpoint(name, type(model), spec.config)
    weights = spec.computed(reference_models.weights(name, reference_models.read_description(name)))
    weights |= {key: reference_models.values(f"{name}/{key}", shape, 1.0) for key, shape in vision.items()}
    remaining = model.load_state_dict({key: torch.from_numpy(values) for key, values in weights.items()}, strict=False)
    assert set(remaining.missing_keys) <= tied, remaining
    assert not remaining.unexpected_keys, remaining
    return model


def saved_shapes(model: Any) -> tuple[Shapes, dict[str, list[int]]]:
    """Return the shapes of the tensors that transformers saves, and those of integers, which follow from the
    configuration."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        saved = load_file(Path(folder) / "model.safetensors")
    integers = {key: values.tolist() for key, values in saved.items() if values.dtype == np.int64}
    return {key: values.shape for key, values in saved.items() if key not in integers}, integers


def load_checkpoint(name: str, model_class: Any, config: Any) -> Any:
    """Return the model of transformers with the weights of the checkpoint, whose own config.json may be another."""
    with tempfile.TemporaryDirectory() as folder:
        path = reference_models.checkpoint(name, Path(folder))
        return model_class.from_pretrained(path, config=config, attn_implementation="eager").float().eval()


def text_of(spec: Spec) -> Any:
    """Return the configuration of the text model."""
    return spec.config.get_text_config()


def config_of(spec: Spec) -> dict[str, Any]:
    """Return config.json without keys that change between versions or are about training."""
    values = json.loads(spec.config.to_json_string()) | {"architectures": [class_of(spec).__name__]}
    return spec.written(without_dull(values))


def without_dull(values: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration, with those of its parts, without keys that change between versions."""
    retained = {key: value for key, value in values.items() if not any(word in key for word in DULL)}
    parts = {key: without_dull(value) for key, value in retained.items() if key in ("text_config", "vision_config")}
    return retained | parts


def class_of(spec: Spec) -> Any:
    kind = transformers.AutoModel if spec.encoder else transformers.AutoModelForCausalLM
    return spec.model or kind._model_mapping[type(spec.config)]


def folded(shapes: Mapping[str, tuple[int, ...]], n_layer: int) -> dict[str, tuple[int, ...]]:
    """Return shapes by name; tensors that are equal in all layers occur once, with "{}" for the layer's number."""
    alike = Counter((NUMBER.sub(".{}.", key, count=1), shape) for key, shape in shapes.items() if NUMBER.search(key))
    actual = {}
    for key, shape in shapes.items():
        general = NUMBER.sub(".{}.", key, count=1)
        actual[general if alike[general, shape] == n_layer else key] = shape
    return actual


def only(shapes: Mapping[str, tuple[int, ...]], n_layer: int) -> dict[str, list[int]]:
    """Return the layers of tensors that not all layers have."""
    general = [key for key in folded(shapes, n_layer) if "{}" in key]
    actual = {key: [i for i in range(n_layer) if key.replace("{}", str(i)) in shapes] for key in general}
    return {key: layers for key, layers in actual.items() if len(layers) < n_layer}


def write(name: str, described: dict[str, Any]) -> None:
    """Write JSON with a line per configuration entry and per tensor."""
    lines = [f' "{key}": {json.dumps(value)}' for key, value in described.items() if not isinstance(value, dict)]
    for key in ("config", "tensors", *(key for key in ("only", "integers") if described[key])):
        entries = ",\n".join(f'  "{entry}": {json.dumps(value)}' for entry, value in described[key].items())
        lines.append(f' "{key}": {{\n{entries}\n }}')
    (reference_models.DATA / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
