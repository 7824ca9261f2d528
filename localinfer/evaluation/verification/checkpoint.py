"""Compares a model with its checkpoint in `transformers`: the hidden states after each layer, and the logits.

That a converted model computes what its authors' code computes is what an architecture file and a conversion promise.
The kernels of this machine compute it from the model file; torch computes it from the checkpoint, in 32-bit floats.
"""

import importlib.util
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import LocalInferError, UnsupportedError, UsageError
from localinfer.evaluation.verification.operation_check import OperationCheck
from localinfer.gguf.reader import GGUF
from localinfer.graph.properties.hyperparameters import Hyperparameters
from localinfer.graph.properties.model_properties import DECODER, ENCODER, ModelProperties
from localinfer.runtime.encoder_tokens import encoder_length

# The difference that is allowed, relative to the largest value of a row, by the widest rounding of weights in the file.
ALLOWED = {"F32": 1e-4, "BF16": 2e-2, "F16": 4e-3}
PACKAGES = "torch", "transformers"
# Classes of transformers for language models, and its tables of the types of models that they open.
ENCODER_DECODER_CLASSES = {"AutoModelForSeq2SeqLM": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES"}
DECODER_CLASSES = {
    "AutoModelForCausalLM": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "AutoModelForImageTextToText": "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "AutoModelForMultimodalLM": "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES",
}

Floats = NDArray[np.floating[Any]]


def require_packages() -> None:
    """Raise UnsupportedError unless torch and transformers are installed."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UnsupportedError(f"--against: {' and '.join(missing)} must be installed: pip install torch transformers")


def allowed_difference(f: GGUF) -> float:
    """Return the difference that the rounding of a file's weights allows. Raises UsageError for quantized weights."""
    types = {tensor.type_name for tensor in f.tensors.values()}
    if not types <= ALLOWED.keys():
        other = ", ".join(sorted(types - ALLOWED.keys()))
        raise UsageError(f"--against: {f.path.name} has tensors in {other}; convert the checkpoint to F32, BF16 or F16")
    return max(ALLOWED[name] for name in types)


def compute_hidden_states(
    checkpoint: Path, tokens: Sequence[int], n_layers: Mapping[str, int], *, trust_remote_code: bool = False
) -> tuple[Mapping[str, Floats], Floats]:
    """Return what a checkpoint computes in transformers: the outputs of its layers, (tokens, n), by the prefix of their
    names, and the logits, (tokens, n_vocab). With `trust_remote_code`, its own Python files are run. `n_layers` are
    those of each group of layers; with an encoder, its tokens are the first ones, as ~id.

    Raises LocalInferError with the message of transformers if it cannot load the checkpoint, or if it has another
    number of layers.
    """
    import torch  # type: ignore[import-not-found, unused-ignore] # optional

    model = load_checkpoint(checkpoint, has_decoder=DECODER in n_layers, trust_remote_code=trust_remote_code)
    outputs: dict[str, Floats] = {}

    def keep(group: str, number: int, _module: Any, _inputs: Any, output: Any) -> None:
        while f"{group}.{number}." in outputs:  # the model applies its layers several times
            number += n_layers[group]
        outputs[f"{group}.{number}."] = (output[0] if isinstance(output, tuple) else output).squeeze(0).numpy()

    parts = {ENCODER: "get_encoder"}  # the decoder of a model with images is its text model
    for group, count in n_layers.items():
        part = getattr(model, parts.get(group, "get_decoder"))()
        lists = (each for each in part.modules() if isinstance(each, torch.nn.ModuleList) and len(each) == count)
        if (layers := next(lists, None)) is None:
            raise LocalInferError(f"{checkpoint}: has other layers than the model, which has {count}")
        for number, layer in enumerate(layers):
            layer.register_forward_hook(partial(keep, group, number))
    first = encoder_length(tokens)
    inputs = [[~id for id in tokens[:first]], tokens[first:]] if first else [tokens]
    names = ("input_ids", "decoder_input_ids")
    with torch.no_grad():
        tensors = {name: torch.tensor([list(ids)]) for name, ids in zip(names, inputs, strict=False)}
        logits = model(**tensors, use_cache=False).logits
    return outputs, logits[0].numpy()


def load_checkpoint(checkpoint: Path, *, has_decoder: bool, trust_remote_code: bool) -> Any:
    """Return a checkpoint as a language model of transformers in 32-bit floats. `has_decoder` says that it is an
    encoder-decoder model. The class of a model that also reads images or sounds is used if there is none for text.

    Raises LocalInferError with the message of transformers if it cannot load the checkpoint, and UnsupportedError if it
    has no class for it.
    """
    import torch  # type: ignore[import-not-found, unused-ignore]
    import transformers  # type: ignore[import-not-found, unused-ignore]
    from transformers.models.auto import modeling_auto  # type: ignore[import-not-found, unused-ignore]

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        config = transformers.PretrainedConfig.get_config_dict(checkpoint)[0]
        type, own_classes = config.get("model_type"), config.get("auto_map") or {}
        for name, table in (ENCODER_DECODER_CLASSES if has_decoder else DECODER_CLASSES).items():
            if (trust_remote_code and name in own_classes) or type in getattr(modeling_auto, table, ()):
                model, found = getattr(transformers, name).from_pretrained(
                    checkpoint, dtype=torch.float32, trust_remote_code=trust_remote_code, output_loading_info=True
                )
                require_weights(checkpoint, model, found["missing_keys"])
                return model.eval()
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise LocalInferError(f"{checkpoint}: transformers: {' '.join(str(error).split())}") from None
    can_trust = own_classes and not trust_remote_code
    advice = "; --trust-remote-code runs the Python files of the checkpoint" if can_trust else ""
    version = transformers.__version__
    raise UnsupportedError(f"{checkpoint}: transformers {version} has no language model of type {type}{advice}")


def require_weights(checkpoint: Path, model: Any, missing: Collection[str]) -> None:
    """Raise LocalInferError if transformers did not find weights of the text model, which then have random values."""
    parts = (model.get_decoder(), model.get_output_embeddings())
    used = {id(weight) for part in parts if part is not None for weight in part.parameters()}
    if names := sorted(name for name, weight in model.named_parameters() if name in missing and id(weight) in used):
        more = f" and {len(names) - 1} others" if len(names) > 1 else ""
        raise LocalInferError(f"{checkpoint}: transformers does not find the weights {names[0]}{more}")


def compare_with_checkpoint(
    f: GGUF, checkpoint: Path, tokens: Sequence[int], activations: Mapping[str, Floats], *,
    trust_remote_code: bool = False,
) -> Iterator[OperationCheck]:  # fmt: skip
    """Yield a check of the output of each layer and of the logits. `activations` are those of the model, by point:
    "blk.N.resid_post", unless it has several residual streams, and "logits"."""
    allowed, properties = allowed_difference(f), ModelProperties(f, Hyperparameters(f))
    groups = (ENCODER, DECODER) if properties.has_decoder else ("blk",)
    n_layers = {group: len(properties.heads_of(group)) for group in groups}
    states, logits = compute_hidden_states(checkpoint, tokens, n_layers, trust_remote_code=trust_remote_code)
    for prefix, expected in states.items():
        if (name := f"{prefix}resid_post") in activations:
            yield check(name, activations[name], expected, allowed)
    yield check("logits", activations["logits"], logits, allowed)


def check(name: str, actual: Floats, expected: Floats, allowed: float) -> OperationCheck:
    """Return the check of activations, (tokens, n). Logits may have more columns than the model has tokens."""
    n = min(actual.shape[1], expected.shape[1])
    size = np.abs(expected[:, :n]).max(axis=1, keepdims=True)
    error = np.abs(actual[:, :n].astype(np.float64) - expected[:, :n]) / np.where(size > 0, size, 1)
    largest = float(np.where(np.isfinite(error), error, np.inf).max())
    return OperationCheck(name, "transformers", "", actual.shape, largest, allowed)
