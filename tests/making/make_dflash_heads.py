"""Write the DFlash heads in tests/data/heads: their config.json, and what torch computes with them.

    python tests/making/make_dflash_heads.py

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

sys.path.extend(str(Path(__file__).parents[1] / folder) for folder in ("models", "oracles", "making"))
import reference_models  # (needs the path above)
import separate_heads
from dflash_model import Head
from make_eagle3_heads import inputs

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
}  # fmt: skip


def main() -> None:
    transformers.utils.logging.disable_progress_bar()
    for name, (target, positions, values) in HEADS.items():
        make(name, target, positions, COMMON | values)


def make(name: str, target: str, positions: list[int], values: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = reference_models.checkpoint(target, Path(folder))
        model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    head = Head(transformers.Qwen3Config(**values)).eval()
    shapes = {each: list(tensor.shape) for each, tensor in head.state_dict().items()}
    written = {"model": target, "config": values, "tensors": shapes}
    (separate_heads.DATA / f"{name}.json").write_text(json.dumps(written) + "\n", encoding="utf-8")
    head.load_state_dict({each: torch.from_numpy(value) for each, value in separate_heads.weights(name).items()})
    ids, own = torch.tensor(reference_models.expected(target).ids), values["dflash_config"]
    with torch.no_grad():
        captured = inputs(model, ids)
        features = torch.cat([captured[layer + 1] for layer in own["target_layer_ids"]], 1)
        blocks = []
        for at in positions:
            block = torch.tensor([int(ids[at]), *[own["mask_token_id"]] * (values["block_size"] - 1)])
            states = head(model.get_input_embeddings()(block), features[:at])
            blocks.append(model.get_output_embeddings()(states[1:]).numpy())
    np.savez_compressed(separate_heads.DATA / f"{name}.npz", positions=positions, logits=np.stack(blocks))
    print(f"{name:20} standard deviation of logits {np.stack(blocks).std():.2f}")


if __name__ == "__main__":
    main()
