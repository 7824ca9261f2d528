"""Write tests/data/heads: the tiny EAGLE-3 heads of `separate_heads`, and what torch computes with them.

    python tests/making/make_eagle3_heads.py

Needs torch and transformers. Everything is computed in float32.
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
import reference_models
import separate_heads  # (needs the path above)
from eagle3_model import Head

POSITIONS = np.arange(1, 96, 4)
CHAINS, STEPS = np.array([1, 30, 90]), 4
COMMON: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_hidden_layers": 1, "hidden_act": "silu",
    "vocab_size": reference_models.N_VOCAB, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "intermediate_size": 160, "num_attention_heads": 6, "num_key_value_heads": 2, "target_hidden_size": 96,
}  # fmt: skip
LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 500_000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
HEADS: dict[str, tuple[str, dict[str, Any]]] = {  # the reference model, and what config.json has besides COMMON
    "eagle3": (
        "llama3",
        {
            "hidden_size": 96, "head_dim": 32, "draft_vocab_size": 160, "rope_parameters": LLAMA3_ROPE,
            "eagle_aux_hidden_state_layer_ids": [0, 1, 1],
        },
    ),
    "eagle3-normed": (
        "qwen3",
        {
            "architectures": ["Eagle3Speculator"], "hidden_size": 64, "head_dim": 16, "num_attention_heads": 4,
            "draft_vocab_size": 264, "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
            "eagle_aux_hidden_state_layer_ids": [1, 0, 1], "norm_before_residual": True, "norm_before_fc": True,
        },
    ),
    "eagle3-borrowing": (
        "smollm3",
        {
            "hidden_size": 96, "head_dim": 16, "draft_vocab_size": 264,
            "eagle_aux_hidden_state_layer_ids": [2, 4, 5],  # including the output of the last of five layers
            "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
        },
    ),
}  # fmt: skip
HEADS = {
    "eagle3": (False, True),
    "eagle3-normed": (True, True),
    "eagle3-borrowing": (False, False),
}  # embedding, output


def main() -> None:
    transformers.utils.logging.disable_progress_bar()
    separate_heads.DATA.mkdir(exist_ok=True)
    for name, (model, more) in HEADS.items():
        make(name, model, COMMON | more)


def make(name: str, target: str, values: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = reference_models.checkpoint(target, Path(folder))
        model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    embedding, output = HEADS[name]
    config = transformers.LlamaConfig(**values, own_embedding=embedding, own_output=output)
    head = Head(config, model).eval()
    shapes = {each: list(tensor.shape) for each, tensor in head.state_dict().items()}
    written = {"model": target, "config": values, "tensors": shapes}
    (separate_heads.DATA / f"{name}.json").write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    head.load_state_dict({each: torch.from_numpy(value) for each, value in separate_heads.weights(name).items()})
    layers = model.config.num_hidden_layers
    chosen = values.get("eagle_aux_hidden_state_layer_ids", [2, layers // 2, layers - 3])
    ids = torch.tensor(reference_models.expected(target).ids)
    with torch.no_grad():
        g = head.fuse(torch.cat([inputs(model, ids)[layer] for layer in chosen], 1))
        logits, _ = head(ids[1:], g[:-1])  # from each token but the first, and the state before it
        chains = [chain(name, head, ids[: at + 1], g[:at]) for at in CHAINS]
    np.savez_compressed(
        separate_heads.DATA / f"{name}.npz", positions=POSITIONS, logits=logits.numpy()[POSITIONS - 1], chains=CHAINS,
        chain_tokens=np.array([tokens for tokens, _ in chains]), chain_logits=np.stack([each for _, each in chains]),
        tokens=separate_heads.draft_tokens(name),
    )  # fmt: skip
    print(f"{name:20} standard deviation of logits {logits.std():.2f}")


def inputs(model: Any, ids: torch.Tensor) -> list[torch.Tensor]:
    """Return the inputs of each layer, and the output of the last one: of several residual streams, their mean."""
    actual: list[torch.Tensor] = []
    layers = model.model.layers
    hooks = [each.register_forward_pre_hook(lambda _, args: actual.append(args[0][0])) for each in layers]
    after = getattr(model.model, "hc_head", model.model.norm)  # the module that reads the last layer's output
    hooks.append(after.register_forward_pre_hook(lambda _, args: actual.append(args[0][0])))
    model(ids[None])
    for hook in hooks:
        hook.remove()
    return [each.mean(1) if each.ndim == 3 else each for each in actual]


def chain(name: str, head: Head, ids: torch.Tensor, g: torch.Tensor) -> tuple[list[int], Any]:
    """Return the tokens drafted after the last of these ids, and their logits."""
    pairs, before, tokens, logits = ids[1:], g, [], []
    for _ in range(STEPS):
        actual, states = head(pairs, before)
        logits.append(actual[-1].numpy())
        tokens.append(int(separate_heads.draft_tokens(name)[int(actual[-1].argmax())]))
        pairs, before = torch.cat([pairs, torch.tensor(tokens[-1:])]), torch.cat([before, states[-1:]])
    return tokens, np.stack(logits)


if __name__ == "__main__":
    main()
