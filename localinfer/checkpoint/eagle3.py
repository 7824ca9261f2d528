"""EAGLE-3's heads: what they take from the model that they guess for, and what only they have.

A head's config.json does not say all: the layers whose inputs it looks at may follow from how many the model has, and
its tokens are those of the model. Its vocabulary is `d2t`: what is to be added to the number of each row of its output
layer, to be the token's id.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from localinfer.checkpoint.folder import CONFIG, Folder, Table
from localinfer.checkpoint.numbers import Numbers
from localinfer.checkpoint.stored.values import raw
from localinfer.checkpoint.stored.weights import Stored
from localinfer.errors import UsageError
from localinfer.files.source import Field, SourceTensor
from localinfer.plan.keys import LARGEST
from localinfer.text import printable
from quant import ggml

FEATURES = 3
LAYERS, HIDDEN, VOCABULARY, DRAFT = "target_layers", "target_hidden_size", "target_vocab_size", "draft_vocab_size"
NESTED, GIVEN_LAYERS = "transformer_layer_config", "eagle_aux_hidden_state_layer_ids"
I64 = next(number for number, each in ggml.TYPES.items() if each.name == "I64")


def is_head(config: Table) -> bool:
    """Whether config.json is of such a head, whose class has many names."""
    return DRAFT in config.values


def flat(config: Table) -> Table:
    """With the numbers of its layer among the others."""
    return replace(config, values={**config.values, **config.table(NESTED).values})


def of_target(config: Table, target: Path | None) -> tuple[Folder, Table]:
    """The directory of the model that a head guesses for, and the head's config.json with what it needs of that one's.
    UsageError where none is named."""
    if target is None:
        what = "is of a head (EAGLE-3): --target-model-dir names the checkpoint of the model that it guesses for"
        raise UsageError(f"{printable(str(config.path))}: {what}")
    folder = Folder(target)
    found = folder.table(CONFIG)
    found = found.table("text_config") if found.values.get("text_config") else found
    layers = found.count("num_hidden_layers", LARGEST["block_count"])
    usual = [2, layers // 2, layers - 3]
    of_model = {
        LAYERS: config.get(GIVEN_LAYERS, list, []) or usual,
        HIDDEN: config.values.get(HIDDEN) or found.count("hidden_size", LARGEST["embedding_length"]),
        VOCABULARY: found.values.get("vocab_size"),
    }
    given = Table(config.path, {**config.values, **of_model})
    chosen = given.get(LAYERS, list)
    if len(chosen) != FEATURES or any(type(layer) is not int or not 0 <= layer <= layers for layer in chosen):
        what = f"is {printable(repr(chosen), 80)}; it must be {FEATURES} of the model's {layers} layers"
        raise given.error(GIVEN_LAYERS, what)
    return folder, given


def numbers(config: Table, n: Numbers) -> Numbers:
    """How large what it reads is, and its output layer."""
    features = FEATURES * config.count(HIDDEN, LARGEST["embedding_length"])
    draft = config.count(DRAFT, n.n_vocab, n.n_vocab)
    return replace(n, sizes={**n.sizes, "n_features": features, "n_pair": 2 * n.n_embd, "n_draft": draft})


def keys(config: Table, n: Numbers) -> dict[str, Field]:  # noqa: ARG001 (one signature for all)
    """Which layers' inputs it looks at, and where there are norms."""
    return {
        "target_layers": Field.numbers(np.array(config.get(LAYERS, list), np.int32)),
        "target_hidden_size": Field.uint32(config.get(HIDDEN, int)),
        "norm_before_residual": Field.flag(config.get("norm_before_residual", bool, False)),
        "norm_before_fc": Field.flag(config.get("norm_before_fc", bool, False)),
    }


def named(stored: Mapping[str, Stored]) -> dict[str, Stored]:
    """Its tensors but for those of its vocabulary, with the names that a model's first layer has."""
    found = {}
    for name, tensor in stored.items():
        prefix = next((prefix for prefix in ("midlayer.", "layers.0.") if name.startswith(prefix)), None)
        if name not in ("d2t", "t2d"):
            found[f"model.layers.0.{name.removeprefix(prefix)}" if prefix else name] = tensor
    return found


def vocabulary(stored: Mapping[str, Stored], config: Table, n: Numbers) -> dict[str, SourceTensor]:
    """The token of each row of its output layer, if these are not all. LocalInferError for one that there is not."""
    found = stored.get("d2t")
    if found is None:
        return {}
    count, tokens = n.sizes["n_draft"], config.count(VOCABULARY, n.n_vocab, n.n_vocab)
    if (found.dtype, found.shape) != ("I64", (count,)):
        raise found.error(f"has type {found.dtype} and shape {list(found.shape)}; it must be I64 [{count}]")
    ids = found.load().view("<i8") + np.arange(count)
    if ids.min() < 0 or ids.max() >= tokens:
        raise found.error(f"leads beyond the vocabulary of {tokens} tokens")
    if len(np.unique(ids)) < count:
        raise found.error("leads to one token twice")
    return {"d2t": SourceTensor("d2t", (count,), I64, partial(raw, ids))}
