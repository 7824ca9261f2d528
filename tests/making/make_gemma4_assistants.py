"""Write the assistants of Gemma 4 in tests/data/heads: their config.json, and what transformers computes with them.

    python tests/making/make_gemma4_assistants.py

Needs torch and transformers. Everything is computed in float32. An assistant attends to as many tokens before its
position as the model would: the window of the model includes the token itself.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

sys.path.extend(str(Path(__file__).parents[1] / folder) for folder in ("models", "oracles"))
import reference_models  # (needs the path above)
import separate_heads

POSITIONS = np.array([5, 93])
CHAINS, STEPS = np.array([40]), 2
LAYERS = {
    "gemma4-assistant": ("gemma4-dense", ["sliding_attention", "full_attention"], 64),
    "gemma4-assistant-shared": ("gemma4", ["sliding_attention", "sliding_attention", "full_attention"], 128),
}  # the model, the layers and the embedding length
KEPT = (
    "head_dim", "max_position_embeddings", "num_key_value_heads", "rms_norm_eps", "rope_parameters", "sliding_window",
    "vocab_size", "attention_k_eq_v", "bos_token_id", "eos_token_id",
)  # fmt: skip


def main() -> None:
    transformers.utils.logging.disable_progress_bar()
    for name, (target, layer_types, n_embd) in LAYERS.items():
        make(name, target, layer_types, n_embd)


def make(name: str, target: str, layer_types: list[str], n_embd: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = reference_models.checkpoint(target, Path(folder))
        model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    values = config_of(reference_models.read_description(target)["config"], layer_types, n_embd)
    assistant = transformers.Gemma4AssistantForCausalLM(transformers.Gemma4AssistantConfig(**values)).eval()
    state = {each: tensor for each, tensor in assistant.state_dict().items() if each != "lm_head.weight"}
    shapes = {each: list(tensor.shape) for each, tensor in state.items()}
    written = {"model": target, "config": values | {"architectures": ["Gemma4AssistantForCausalLM"]}, "tensors": shapes}
    (separate_heads.DATA / f"{name}.json").write_text(json.dumps(written) + "\n", encoding="utf-8")
    weights = {each: torch.from_numpy(value) for each, value in separate_heads.weights(name).items()}
    assistant.load_state_dict(weights, strict=False)
    ids = torch.tensor(reference_models.expected(target).ids)
    with torch.no_grad():
        drafts = [draft(assistant, model, ids[: at + 1], 1) for at in POSITIONS]
        chains = [draft(assistant, model, ids[: at + 1], STEPS) for at in CHAINS]
    logits = np.stack([each[0] for _, each in drafts])
    np.savez_compressed(
        separate_heads.DATA / f"{name}.npz", positions=POSITIONS, logits=logits, chains=CHAINS,
        chain_tokens=np.array([tokens for tokens, _ in chains]), chain_logits=np.stack([each for _, each in chains]),
        tokens=separate_heads.draft_tokens(name),
    )  # fmt: skip
    print(f"{name:24} standard deviation of logits {logits.std():.2f}")


def config_of(model: dict[str, Any], layer_types: list[str], n_embd: int) -> dict[str, Any]:
    """Return the config.json of an assistant for a model with this one."""
    long = next(iter(model["per_layer_config"].values()))
    full = [number for number, kind in enumerate(layer_types) if kind == "full_attention"]
    text = {key: model[key] for key in KEPT} | {
        "model_type": "gemma4_text", "hidden_size": n_embd, "intermediate_size": 96, "layer_types": layer_types,
        "num_hidden_layers": len(layer_types), "num_attention_heads": 2, "num_kv_shared_layers": len(layer_types),
        "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0, "enable_moe_block": False,
        "use_double_wide_mlp": False, "per_layer_config": {str(number): long for number in full},
        "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True, "pad_token_id": None,
    }  # fmt: skip
    return {"model_type": "gemma4_assistant", "backbone_hidden_size": model["hidden_size"], "text_config": text}


def draft(assistant: Any, model: Any, ids: torch.Tensor, steps: int) -> tuple[list[int], Any]:
    """Return the tokens drafted after the last of these ids, which the model has not seen, and their logits."""
    seen = model(ids[None, :-1], output_hidden_states=True, return_shared_kv_states=True, use_cache=False)
    window = assistant.config.text_config.sliding_window
    shared = dict(seen.shared_kv_states)
    shared["sliding_attention"] = tuple(each[:, :, -(window - 1) :] for each in shared["sliding_attention"])
    state, token = seen.hidden_states[-1][:, -1:], ids[None, -1:]
    position, tokens, logits = torch.tensor([[len(ids) - 1]]), [], []
    for _ in range(steps):
        inputs = torch.cat([model.get_input_embeddings()(token), state], dim=-1)
        found = assistant(inputs_embeds=inputs, position_ids=position, shared_kv_states=shared)
        logits.append(found.logits[0, -1].numpy())
        tokens.append(int(logits[-1].argmax()))
        state, token = found.last_hidden_state, torch.tensor([tokens[-1:]])
    return tokens, np.stack(logits)


if __name__ == "__main__":
    main()
