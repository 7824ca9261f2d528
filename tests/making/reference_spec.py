"""The description of a reference model, which make_reference_models.py writes, and configurations that many have."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import reference_models

WINDOW = 24  # four of them in the text
SPECIAL_IDS = {"bos_token_id": 256, "eos_token_id": 256, "pad_token_id": None}
Shapes = dict[str, tuple[int, ...]]
Tensors = dict[str, np.ndarray[Any, np.dtype[np.float32]]]


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A reference model. `config` makes the model that computes the logits; `norm` is the mean of its norms' weights.

    If transformers has no class for a checkpoint, or its format differs from published ones, `written` changes
    config.json, `shapes` the tensors' names and shapes, and `computed` the checkpoint's tensors to the model's own.
    With `saved`, transformers converts them: the checkpoint has the names that it saves, as published ones do.
    """

    architecture: str
    config: Any
    model: Any = None  # the class, if transformers cannot infer it from the configuration
    encoder: bool = False  # no output layer: hidden states are stored
    encoder_decoder: bool = False  # the first tokens of the text are the encoder's, the others the decoder's
    norm: float = 1.0
    saved: bool = False
    written: Callable[[dict[str, Any]], dict[str, Any]] = dict
    shapes: Callable[[Shapes], Shapes] = dict
    computed: Callable[[Tensors], Tensors] = dict


def sizes(heads: int = 4, kv: int = 2, layers: int = 2, **more: Any) -> dict[str, Any]:
    """Return the sizes that most models have: an embedding of 96, split between the heads unless `more` differs."""
    common = {
        "hidden_size": 96,
        "intermediate_size": 160,
        "num_hidden_layers": layers,
        "vocab_size": reference_models.N_VOCAB,
    }
    counts = {"num_attention_heads": heads, "num_key_value_heads": kv, "max_position_embeddings": 256}
    return common | counts | SPECIAL_IDS | {"tie_word_embeddings": False} | more


def rope(kind: str = "default", theta: float = 10_000.0, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **more}}


def longrope(pairs: int, original: int, **more: Any) -> dict[str, Any]:
    """Return longrope parameters with different factors for each pair."""
    factors = {
        "short_factor": [1.0 + 0.03125 * (i % 5) for i in range(pairs)],
        "long_factor": [1.0 + 0.25 * i + 0.5 * (i % 3) for i in range(pairs)],
    }
    return rope("longrope", original_max_position_embeddings=original, **factors, **more)


def layer_types(layers: int, period: int) -> dict[str, Any]:
    """Return layer types: the last of every `period` layers is global, the others have a window."""
    kinds = ["full_attention" if (i + 1) % period == 0 else "sliding_attention" for i in range(layers)]
    return {"sliding_window": WINDOW, "layer_types": kinds}


def with_names(named: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return tensors or shapes with parts of their names replaced."""
    result = {}
    for name, value in named.items():
        for old, new in names.items():
            name = name.replace(old, new)
        result[name] = value
    return result


def renaming(names: Mapping[str, str]) -> dict[str, Any]:
    """Return the functions of a Spec whose checkpoint has other names than the model: parts of its names -> others."""
    return {
        "shapes": lambda shapes: with_names(shapes, names),
        "computed": lambda tensors: with_names(tensors, {new: old for old, new in reversed(names.items())}),
    }
