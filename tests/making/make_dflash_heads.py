"""Write the DFlash and DSpark heads in tests/data/heads: their config.json, and what torch computes with them.

    python tests/making/make_dflash_heads.py            # all of them
    python tests/making/make_dflash_heads.py dspark     # these

Needs torch and transformers. The heads are computed in float64, from states of the model in float32; that for
DeepSeek-V4 in float32, as some steps of transformers' layers are.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

sys.path.extend(str(Path(__file__).parents[1] / folder) for folder in ("models", "oracles", "making"))
import dspark_deepseek4_model  # (needs the path above)
import reference_models
import separate_heads
from dflash_model import Head
from make_eagle3_heads import inputs
from reference_spec import Shapes, Tensors
from reference_specs.deepseek4 import Checkpoint

ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
COMMON: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "hidden_act": "silu", "hidden_size": 96,
    "vocab_size": reference_models.N_VOCAB, "max_position_embeddings": 256, "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False, "rope_parameters": ROPE,
}  # fmt: skip
HEADS: dict[str, tuple[str, list[int], dict[str, Any]]] = {  # the model, positions, and what config.json has besides
    "dflash": (
        "qwen35", [5],
        {
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
            "intermediate_size": 160, "block_size": 4, "layer_types": ["full_attention"] * 2,
            "dflash_config": {"mask_token_id": 200, "target_layer_ids": [0, 2]},
        },
    ),
    "dflash-window": (
        "llama3", [70],
        {
            "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 1, "head_dim": 16,
            "intermediate_size": 128, "block_size": 5, "use_sliding_window": True, "sliding_window": 24,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "dflash_config": {"mask_token_id": 3, "target_layer_ids": [0]},
        },
    ),
    "dflash-streams": (  # of a model with hyper-connections
        "deepseek4", [30],
        {
            "num_hidden_layers": 1, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 32,
            "intermediate_size": 64, "block_size": 3, "layer_types": ["full_attention"],
            "dflash_config": {"mask_token_id": 11, "target_layer_ids": [0, 2]},
        },
    ),
    "dflash2": (
        "qwen35", [40],
        {
            "architectures": ["DFlash2DraftModel"], "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 128, "use_sliding_window": True,
            "sliding_window": 24, "layer_types": ["sliding_attention", "full_attention"], "is_causal": False,
            "dflash_config": {
                "block_size": 4, "mask_token_id": 9, "target_layer_ids": [0, 2], "conv_kernel_size": 3,
                "conv_group_size": 16, "selector_rank": 32, "selector_top_k": 8, "output_multiplier": 0.5,
                "final_logit_softcapping": 3.0,
            },
        },
    ),
    "dspark": (
        "qwen3", [6, 41],
        {
            "architectures": ["Qwen3DSparkModel"], "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 160, "block_size": 4, "mask_token_id": 201,
            "target_layer_ids": [0], "markov_rank": 32, "markov_head_type": "vanilla",
        },
    ),
    "dspark-reduced": (  # in the form of an EAGLE-3 head
        "qwen35", [50],
        {
            "architectures": ["DSparkSpeculator"], "model_type": "dspark", "block_size": 5, "mask_token_id": 7,
            "draft_vocab_size": 160, "aux_hidden_state_layer_ids": [1, 3], "markov_rank": 64, "is_causal": True,
            "transformer_layer_config": {
                **COMMON, "num_hidden_layers": 1, "num_attention_heads": 6, "num_key_value_heads": 1, "head_dim": 16,
                "intermediate_size": 128,
            },
        },
    ),
    "dspark-gemma4": (
        "gemma4-dense", [33],
        {
            "architectures": ["Gemma4DSparkModel"], "model_type": "gemma4_text", "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32, "num_global_key_value_heads": 1,
            "global_head_dim": 64, "attention_k_eq_v": True, "attention_bias": False, "enable_moe_block": False,
            "hidden_act": None, "hidden_activation": "gelu_pytorch_tanh", "intermediate_size": 128, "block_size": 4,
            "layer_types": ["full_attention"] * 2, "tie_word_embeddings": True, "mask_token_id": 4,
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0,
                },
            },
            "target_layer_ids": [1, 3], "markov_rank": 32,
        },
    ),
}  # fmt: skip
DEEPSEEK4 = "dspark-deepseek4"  # in the form of the checkpoint of a model
STAGES = 2  # layers of this head
HEADS[DEEPSEEK4] = (
    "deepseek4", [9, 40],
    {
        **reference_models.read_description("deepseek4")["config"], "architectures": ["DeepseekV4DSparkModel"],
        "dspark_block_size": 4, "dspark_noise_token_id": 12, "dspark_target_layer_ids": [1, 3],
    },
)  # fmt: skip
HAS_CONFIDENCE, HAS_SINKS = ("dspark", "dspark-gemma4"), ("dspark-reduced",)
GEMMA4 = ("dspark-gemma4",)


def main() -> None:
    transformers.utils.logging.disable_progress_bar()
    for name in sys.argv[1:] or HEADS:
        target, positions, values = HEADS[name]
        is_whole = "transformer_layer_config" in values or name == DEEPSEEK4
        make(name, target, positions, values if is_whole else COMMON | values)


def make(name: str, target: str, positions: list[int], values: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = reference_models.checkpoint(target, Path(folder))
        model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    is_deepseek4 = name == DEEPSEEK4
    config = deepseek4_config(values) if is_deepseek4 else config_of(name, values)
    head = (dspark_deepseek4_model.Head if is_deepseek4 else Head)(config).eval()
    own, type = config.dflash_config, torch.float32 if is_deepseek4 else torch.float64
    stored = Stages(config.num_hidden_layers) if is_deepseek4 else Stored()
    shapes = stored.shapes({each: tuple(tensor.shape) for each, tensor in head.state_dict().items()})
    written = {"model": target, "config": values, "tensors": {each: list(shape) for each, shape in shapes.items()}}
    (separate_heads.DATA / f"{name}.json").write_text(json.dumps(written) + "\n", encoding="utf-8")
    tensors = stored.computed(separate_heads.weights(name))
    head.load_state_dict({each: torch.from_numpy(value) for each, value in tensors.items()})
    ids, head = torch.tensor(reference_models.expected(target).ids), head.to(type)
    with torch.no_grad():
        captured, model = inputs(model, ids), model.to(type)
        output = getattr(head, "lm_head", model.get_output_embeddings())
        features = torch.cat([captured[layer + 1] for layer in own["target_layer_ids"]], 1).to(type)
        blocks, confidences = [], []
        for at in positions:
            block = torch.tensor(separate_heads.block_input(name, int(ids[at])))
            states = head(model.get_input_embeddings()(block), features[:at])[config.first_row :]
            logits, confidence = scaled(output(head.before_output(states)), own), torch.zeros(0)
            if "selector_rank" in own:
                logits = head.candidate_selector(states, logits, int(ids[at]))
            if config.markov_rank:
                tokens = separate_heads.draft_tokens(name).tolist()
                logits, confidence = head.chain(states, logits, int(ids[at]), tokens)
            blocks.append(logits.float().numpy())
            confidences.append(confidence.float().numpy())
    np.savez_compressed(
        separate_heads.DATA / f"{name}.npz", positions=positions, logits=np.stack(blocks),
        confidences=np.stack(confidences),
    )  # fmt: skip
    found = np.stack(blocks)
    deviation = found[np.isfinite(found)].std()
    print(f"{name:20} standard deviation of logits {deviation:.2f}, confidences {np.stack(confidences)}")


class Stored:
    """The tensors of a checkpoint, named as those of the class in torch."""

    def shapes(self, own: Shapes) -> Shapes:
        return own

    def computed(self, tensors: Tensors) -> Tensors:
        return tensors


class Stages(Stored):
    """The tensors of a head in the checkpoint of DeepSeek-V4: of its layers, the first of which also has those before
    the layers, and the last one those after them."""

    def __init__(self, count: int) -> None:
        self.count, self.names, self.checkpoint = count, dict[str, str](), Checkpoint()

    def shapes(self, own: Shapes) -> Shapes:
        plain = self.checkpoint.shapes({f"model.{name}": shape for name, shape in own.items()})
        self.names = {self.published(name.removeprefix("model.")): name for name in plain}
        return {name: plain[old] for name, old in self.names.items()}

    def computed(self, tensors: Tensors) -> Tensors:
        own = self.checkpoint.computed({self.names[name]: values for name, values in tensors.items()})
        return {name.removeprefix("model."): values for name, values in own.items()}

    def published(self, name: str) -> str:
        if name.startswith("layers."):
            return name.replace("layers.", "mtp.", 1)
        return f"mtp.{0 if name.startswith('main_') else self.count - 1}.{name}"


def deepseek4_config(values: dict[str, Any]) -> Any:
    """Return the configuration of a head for DeepSeek-V4, whose layers have a window only."""
    own = {"target_layer_ids": values["dspark_target_layer_ids"]}
    further = {"markov_rank": 32, "draft_vocab_size": None, "confidence_bias": False, "first_row": 0}
    layers = {"num_hidden_layers": STAGES, "compress_ratios": [0] * STAGES, "num_hash_layers": 0, "rope_scaling": None}
    return transformers.DeepseekV4Config(**values | layers, **further, dflash_config=own)


def scaled(logits: torch.Tensor, own: dict[str, Any]) -> torch.Tensor:
    """Return logits as a model scales and caps them."""
    logits, cap = logits * own.get("output_multiplier", 1.0), own.get("final_logit_softcapping")
    return cap * torch.tanh(logits / cap) if cap else logits


def config_of(name: str, values: dict[str, Any]) -> Any:
    """Return the configuration of a head in DFlash's form, with what follows from its form."""
    nested = {**values, **values.get("transformer_layer_config", {})}
    layers = values.get("target_layer_ids") or [each - 1 for each in values.get("aux_hidden_state_layer_ids", [])]
    own = {"mask_token_id": values.get("mask_token_id"), "target_layer_ids": layers}
    further = {
        "dflash_config": own, "draft_vocab_size": None, "markov_rank": 0, "has_sinks": name in HAS_SINKS,
        "has_confidence": name in HAS_CONFIDENCE, "confidence_bias": True, "is_gemma4": name in GEMMA4,
        "first_row": int("markov_rank" not in values or "transformer_layer_config" in values),
    }  # fmt: skip
    if name in GEMMA4:
        nested |= {
            "head_dim": nested["global_head_dim"], "num_key_value_heads": nested["num_global_key_value_heads"],
            "hidden_act": nested["hidden_activation"], "rope_parameters": nested["rope_parameters"]["full_attention"],
        }  # fmt: skip
    return transformers.Qwen3Config(**further | nested)


if __name__ == "__main__":
    main()
