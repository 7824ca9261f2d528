"""Write tests/data/mtp_heads.npz: the logits of MTP heads, computed with the layers of transformers, which has no MTP
heads of these families, and with what their authors' code has before and after the layer.

    python tests/making/make_mtp_heads.py

Needs torch and transformers. The models are those of `draft_head_models`. A model gets one more layer, which has the
weights of the MTP layer: its input and the other arguments that transformers gives it are those of the head, too.
"""

import runpy
import sys
import tempfile
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file, save_file

sys.path.append(str(Path(__file__).parents[1] / "models"))
import draft_head_models  # (needs the path above)
import reference_models

SPECS = Path(__file__).with_name("reference_specs")
Tensors = dict[str, Any]


def main() -> None:
    transformers.utils.logging.disable_progress_bar()
    actual = {}
    for name, compute in HEADS.items():
        ids = reference_models.expected(name).ids
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            path = draft_head_models.checkpoint(name, Path(folder))
            tensors = {each: torch.from_numpy(x) for each, x in load_file(path / "model.safetensors").items()}
            logits = compute(path, tensors, torch.tensor([ids]))[0].numpy()
        actual[name] = reference_models.expected(name).part(logits)
        print(f"{name:20} standard deviation of logits {actual[name].std():.2f}")
    np.savez_compressed(draft_head_models.LOGITS, **actual)


def spec_of(file: str, name: str) -> Any:
    return runpy.run_path(str(SPECS / f"{file}.py"))["MODELS"][name]


def with_layer(config: Any, **kinds: str) -> Any:
    """Return the configuration with one more layer, of these kinds."""
    further = deepcopy(config)
    further.num_hidden_layers += 1
    for key, kind in kinds.items():
        setattr(further, key, [*getattr(config, key), kind])
    return further


def loaded(spec: Any, config: Any, tensors: Tensors) -> Any:
    """Return transformers' model with the tensors of a checkpoint."""
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    shapes = spec.shapes({key: tuple(values.shape) for key, values in model.state_dict().items()})
    own = spec.computed({key: values.numpy() for key, values in tensors.items() if key in shapes})
    remaining = model.load_state_dict({key: torch.from_numpy(values) for key, values in own.items()}, strict=False)
    assert not remaining.unexpected_keys, remaining
    assert all("_hc." in key for key in remaining.missing_keys), remaining
    return model


def inputs_of_last_layer(model: Any, ids: torch.Tensor) -> tuple[torch.Tensor, dict[str, Any]]:
    """Return the hidden states before the last layer, and its other arguments."""
    found: list[Any] = []
    model.model.layers[-1].register_forward_pre_hook(lambda _, *given: found.append(given), with_kwargs=True)
    model(ids, use_cache=False)
    [(arguments, options)] = found
    return arguments[0], options


def previous(states: torch.Tensor) -> torch.Tensor:
    """Return the state before each token, 0 before the first one."""
    return torch.cat([torch.zeros_like(states[:, :1]), states[:, :-1]], 1)


def normed(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x, weight.shape, weight, eps)


def renamed(tensors: Tensors, old: str, new: str) -> Tensors:
    return {key.replace(old, new): values for key, values in tensors.items()}


def deepseek4(path: Path, tensors: Tensors, ids: torch.Tensor) -> torch.Tensor:
    """All residual streams of the last layer are the input, each with the embedding, and all are merged at the end."""
    spec, head = spec_of("deepseek4", "deepseek4"), {k.removeprefix("mtp.0."): x for k, x in tensors.items()}
    config = with_layer(spec.config, layer_types="sliding_attention", mlp_layer_types="moe")
    model = loaded(spec, config, renamed(tensors, "mtp.0.", f"layers.{spec.config.num_hidden_layers}."))
    states, options = inputs_of_last_layer(model, ids)
    embedding = normed(model.model.embed_tokens(ids), head["enorm.weight"], config.rms_norm_eps)
    before = normed(previous(states), head["hnorm.weight"], config.rms_norm_eps)
    x = (embedding @ head["e_proj.weight"].T).unsqueeze(2) + before @ head["h_proj.weight"].T
    merge = model.model.hc_head
    merge.load_state_dict({f"hc_{kind}": tensors[f"mtp.0.hc_head_{kind}"] for kind in ("fn", "base", "scale")})
    y = merge(model.model.layers[-1](x, **options))
    return model.lm_head(normed(y, tensors["mtp.0.norm.weight"], config.rms_norm_eps))


def joined(model: Any, states: torch.Tensor, head: Tensors, embedding: torch.Tensor, eps: float) -> torch.Tensor:
    """Return the projection of the embedding and of the states after the last norm."""
    before = normed(previous(model.model.norm(states)), head["hnorm.weight"], eps)
    return torch.cat([normed(embedding, head["enorm.weight"], eps), before], 2) @ head["eh_proj.weight"].T


def hy_v4(path: Path, tensors: Tensors, ids: torch.Tensor) -> torch.Tensor:
    """The layer has one residual stream."""
    spec, prefix = spec_of("hunyuan4", "hy_v4"), "model.mtp_layers.0."
    kinds = {"layer_types": spec.config.layer_types[-1], "mlp_layer_types": "sparse", "indexer_types": "full"}
    config = with_layer(spec.config, **kinds)
    model = loaded(spec, config, renamed(tensors, prefix, f"model.layers.{spec.config.num_hidden_layers}."))
    head = {key.removeprefix(prefix): values for key, values in tensors.items() if key.startswith(prefix)}
    streams, options = inputs_of_last_layer(model, ids)
    layer, embedding = model.model.layers[-1], model.model.embed_tokens(ids)
    x = joined(model, model.model.hc_head(streams), head, embedding, config.rms_norm_eps)
    x = x + layer.self_attn(hidden_states=layer.input_layernorm(x), **options)[0]
    x = x + layer.mlp(layer.post_attention_layernorm(x))
    return model.lm_head(normed(x, head["final_layernorm.weight"], config.rms_norm_eps))


def sparse(path: Path, tensors: Tensors, ids: torch.Tensor) -> torch.Tensor:
    """The layer has experts, and an indexer."""
    spec = spec_of("sparse_attention", path.name)
    kinds = {"mlp_layer_types": "sparse", "indexer_types": "full"}
    config = with_layer(spec.config, **{key: kind for key, kind in kinds.items() if hasattr(spec.config, key)})
    return logits_of_last_layer(saved(spec, config, path, tensors), tensors, ids)


def saved(spec: Any, config: Any, path: Path, tensors: Tensors) -> Any:
    """Return transformers' model of a checkpoint with these tensors."""
    save_file({key: values.numpy() for key, values in tensors.items()}, path / "model.safetensors")
    kind = spec.model or transformers.AutoModelForCausalLM
    return kind.from_pretrained(path, config=config, attn_implementation="eager", dtype=torch.float32).eval()


def logits_of_last_layer(
    model: Any, tensors: Tensors, ids: torch.Tensor, own_embedding: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the logits of the last layer of a model as its MTP layer."""
    prefix, eps = f"model.layers.{model.config.num_hidden_layers - 1}.", model.config.rms_norm_eps
    head = {key.removeprefix(prefix): values for key, values in tensors.items() if key.startswith(prefix)}
    states, options = inputs_of_last_layer(model, ids)
    matrix = model.model.embed_tokens.weight if own_embedding is None else own_embedding
    x = joined(model, states, head, torch.nn.functional.embedding(ids, matrix), eps)
    output = model.model.layers[-1](x, **options)  # of layers with an indexer: also the positions that it chose
    y = output[0] if isinstance(output, tuple) else output
    return model.lm_head(normed(y, head["shared_head.norm.weight"], eps))


def dots3note(path: Path, tensors: Tensors, ids: torch.Tensor) -> torch.Tensor:
    """The layer has a sliding window, no experts, and an embedding of its own."""
    spec, given = spec_of("sparse_attention", "dots3note-narrow"), reference_models.read_description("dots3note-narrow")
    kinds = {
        "layer_types": [*given["config"]["layer_types"], "sliding_attention"],
        "mlp_layer_types": [*spec.config.mlp_layer_types, "dense"],
        "num_hidden_layers": given["n_layer"] + 1,
    }
    own_embedding = tensors.pop("model.mtp.embed_tokens.weight")
    model = saved(spec, type(spec.config)(**given["config"] | kinds), path, tensors)
    return logits_of_last_layer(model, tensors, ids, own_embedding)


HEADS: dict[str, Callable[[Path, Tensors, torch.Tensor], torch.Tensor]] = {
    "deepseek32": sparse, "deepseek4": deepseek4, "dots3note-narrow": dots3note, "glm-dsa": sparse, "hy_v4": hy_v4,
}  # fmt: skip

if __name__ == "__main__":
    main()
