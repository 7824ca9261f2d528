"""Write tests/data/adapters: LoRA adapters of the tiny reference models as PEFT saves them, and the logits that PEFT
computes with them.

    python tests/making/make_adapter_fixtures.py              # all of them
    python tests/making/make_adapter_fixtures.py llama3 gpt2  # these

Needs torch, transformers and peft. Each folder has adapter_config.json and adapter_model.safetensors.xz; logits.npz has
the logits of the reference model's text at its positions, in float32 with eager attention: with the adapter, with
another scale, and where there is a second adapter, in a folder `second`, with both at once.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.numpy import save_file

sys.path.extend(str(Path(__file__).parents[1] / folder) for folder in ("models", "oracles"))
import reference_models  # (needs the path above)
from peft_adapters import DATA, TENSORS, compress

ATTENTION, FFN = ["q_proj", "k_proj", "v_proj", "o_proj"], ["gate_proj", "up_proj", "down_proj"]
OTHER_SCALE = -0.5
MAGNITUDE = {"A": 0.25, "B": 0.25}  # standard deviations, with which the logits change by about their own size
SAVED = ("lora_alpha", "r", "use_rslora", "alpha_pattern", "rank_pattern", "bias", "peft_type", "target_modules")


EXPERTS = {  # names and sizes (inputs, outputs) of each expert's modules, as in checkpoints
    "qwen3moe": {
        "mlp.experts.{}.gate_proj": (0, 1), "mlp.experts.{}.up_proj": (0, 1), "mlp.experts.{}.down_proj": (1, 0),
    },
}  # fmt: skip


class Case(NamedTuple):
    """An adapter of a reference model, the arguments of its LoraConfig, and those of a second adapter."""

    model: str
    config: dict[str, Any]
    second: dict[str, Any] | None = None
    saves_embeddings: bool = False


CASES = {
    # Rows of queries and keys are reordered; ranks and alphas that differ by module.
    "llama3": Case(
        "llama3",
        {"r": 4, "lora_alpha": 6, "target_modules": [*ATTENTION, *FFN, "lm_head"],
         "rank_pattern": {"o_proj": 3, r"layers\.1\.self_attn\.v_proj": 2}, "alpha_pattern": {"down_proj": 2.5}},
        {"r": 5, "lora_alpha": 4, "target_modules": ["q_proj", "up_proj", "embed_tokens"]},
    ),
    "qwen2": Case("qwen2", {"r": 6, "lora_alpha": 4, "use_rslora": True, "target_modules": [*ATTENTION, *FFN]}),
    "gemma3": Case(
        "gemma3", {"r": 4, "lora_alpha": 4, "target_modules": ["v_proj", "up_proj", "embed_tokens"]},
        saves_embeddings=True,
    ),
    "phi3": Case("phi3", {"r": 4, "lora_alpha": 8, "target_modules": ["qkv_proj", "o_proj", "gate_up_proj"]}),
    "gptneox": Case("gptneox", {"r": 3, "lora_alpha": 3, "target_modules": ["query_key_value", "dense_h_to_4h"]}),
    "gpt2": Case("gpt2", {"r": 4, "lora_alpha": 4, "target_modules": ["c_attn", "c_proj"]}),
    "qwen35": Case("qwen35", {"r": 4, "lora_alpha": 4, "target_modules": ["q_proj", "down_proj"]}),
    "mixtral": Case("mixtral", {"r": 4, "lora_alpha": 4, "target_modules": [*ATTENTION, "gate"]}),
}  # fmt: skip


def main() -> None:
    """Write the adapters named on the command line, or all."""
    transformers.utils.logging.disable_progress_bar()
    for name in sys.argv[1:] or [*CASES, *EXPERTS]:
        changes = make(name, CASES[name]) if name in CASES else make_with_experts(name)
        print(f"{name:10} standard deviation of the changes of logits {changes:.2f}")


def make(name: str, case: Case) -> float:
    """Write the files of a case, and return the standard deviation of the changes of the logits."""
    reference = reference_models.expected(case.model)
    with tempfile.TemporaryDirectory() as temporary:
        folder = reference_models.checkpoint(case.model, Path(temporary))
        base = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        )
        model = get_peft_model(base.eval(), LoraConfig(**case.config))
        if case.second:
            model.add_adapter("second", LoraConfig(**case.second))
        fill(model)
        # By default, PEFT also saves the embeddings that an adapter changes; one case has them.
        model.save_pretrained(DATA / name, save_embedding_layers=case.saves_embeddings)
        saved = [DATA / name, *([DATA / name / "second"] if case.second else [])]
        logits = {"whole": compute(model, ["default"], 1.0), "scaled": compute(model, ["default"], OTHER_SCALE)}
        if case.second:
            logits["both"] = compute(model, ["default", "second"], 1.0)
    for each in saved:
        (each / "README.md").unlink(missing_ok=True)
        compress(each)
        path = each / "adapter_config.json"
        config = json.loads(path.read_text())
        kept = {key: sorted(value) if isinstance(value, list) else value
                for key, value in config.items() if key in SAVED}  # fmt: skip
        path.write_text(json.dumps(kept, indent=1) + "\n")
    np.savez_compressed(DATA / name / "logits.npz", scale=OTHER_SCALE, **logits)
    return float((logits["whole"][:, reference.columns] - reference.logits).std())


def make_with_experts(name: str) -> float:
    """Write an adapter with a module for each expert, as it was saved before transformers fused the experts. PEFT
    converts it when it is loaded."""
    reference, rank = reference_models.expected(name), 3
    with tempfile.TemporaryDirectory() as temporary:
        folder = reference_models.checkpoint(name, Path(temporary))
        base = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        config, tensors = base.config, {}
        sizes = config.hidden_size, config.moe_intermediate_size
        for layer in range(config.num_hidden_layers):
            for expert in range(config.num_experts):
                for module, (n_in, n_out) in EXPERTS[name].items():
                    key = f"base_model.model.model.layers.{layer}.{module.format(expert)}.lora_"
                    for side, shape in ("A", (rank, sizes[n_in])), ("B", (sizes[n_out], rank)):
                        tensors[f"{key}{side}.weight"] = values(f"{key}{side}", shape, side)
        (DATA / name).mkdir(parents=True, exist_ok=True)
        save_file(tensors, DATA / name / TENSORS)
        modules = sorted({module.rpartition(".")[2] for module in EXPERTS[name]})
        config = {"peft_type": "LORA", "r": rank, "lora_alpha": 4, "target_modules": modules, "bias": "none"}
        (DATA / name / "adapter_config.json").write_text(json.dumps(config, indent=1) + "\n")
        model = PeftModel.from_pretrained(base, DATA / name)
        compress(DATA / name)
        logits = {"whole": compute(model, ["default"], 1.0), "scaled": compute(model, ["default"], OTHER_SCALE)}
    np.savez_compressed(DATA / name / "logits.npz", scale=OTHER_SCALE, **logits)
    return float((logits["whole"][:, reference.columns] - reference.logits).std())


def fill(model: Any) -> None:
    """Give all matrices values that follow from their names, and that float16 can represent."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            side = name.partition("lora_")[2].removeprefix("embedding_")[:1]
            if side:
                parameter.copy_(torch.from_numpy(values(name, tuple(parameter.shape), side)))


def values(name: str, shape: tuple[int, ...], side: str) -> Any:
    """Return the values of a matrix A or B."""
    return reference_models.random_integers(name, shape, 127) / np.float32(128) * np.float32(MAGNITUDE[side])


def compute(model: Any, names: list[str], scale: float) -> Any:
    """Return the logits with these adapters, whose factors are multiplied by a scale."""
    reference = reference_models.expected(model.base_model.model.config.name_or_path.rstrip("/").rpartition("/")[2])
    model.base_model.set_adapter(names)
    layers = [each for each in model.modules() if isinstance(getattr(each, "scaling", None), dict)]
    before = [dict(each.scaling) for each in layers]
    for each in layers:
        each.scaling = {key: value * scale for key, value in each.scaling.items()}
    with torch.no_grad():
        logits = model(torch.tensor([reference.ids]), use_cache=False).logits[0].numpy()
    for each, scaling in zip(layers, before, strict=True):
        each.scaling = scaling
    return logits[reference.positions]


if __name__ == "__main__":
    main()
