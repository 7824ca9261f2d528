"""LoRA adapters in a model file, which control tokens in the text switch on (Granite Switch; IBM, 2026).

Each control token stands for an adapter. Adapters are numbered from 1 on; number 0 is the model without an adapter. An
attention head determines the adapter of a token from all tokens up to it: the score of a control token is `gain`, and
its value the number of its adapter; the score of another token is -gain, and its value 0. With c control tokens among
n tokens, the result of this attention is

    mean = (sum of the adapters of the control tokens) / (c + (n - c) exp(-2 gain))

The adapter is this mean, rounded to the nearest integer, halves up. With the usual gain of 15, a control token switches
its adapter on, for itself and for all tokens after it. Several control tokens switch on the rounded mean of their
numbers, because attention weighs them equally, wherever they are. The mean is computed with 32-bit floats, as in
llama.cpp and the authors' code, because other floats may round to another adapter.

In place of a control token, the model gets the embedding of the token's substitute.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from localinfer.gguf.reader import Value
from localinfer.graph.properties.hyperparameters import Hyperparameters

MAX_ADAPTERS = MAX_RANK = 4096
MAX_GAIN, USUAL_GAIN = 1e4, 15.0
LORA_A, LORA_B = ".lora_a", ".lora_b"  # the matrices of all adapters beside a matrix of the model
ACTIVATE, SUBSTITUTE = "adapters.token_ids_activate", "adapters.token_ids_substitute"

Numbers = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class EmbeddedAdapters:
    """The adapters of a model: their number, the rank of their matrices, and the gain of the control tokens.

    `adapters` are the adapters that the tokens of the vocabulary switch on, and `substitutes` the tokens whose
    embeddings they have: int32 (n_vocab,).
    """

    count: int
    rank: int
    gain: float
    adapters: Numbers
    substitutes: Numbers

    def switched_on(self, ids: Sequence[int] | Numbers) -> Numbers:
        """Return the adapter that each token switches on, or 0. Negative ids are no tokens of the vocabulary."""
        given = np.asarray(ids)
        return np.where(given < 0, 0, self.adapters[np.maximum(given, 0)])

    def active(self, ids: Numbers, earlier: Sequence[int], first: int) -> Numbers:
        """Return the adapter of each of the tokens `ids`, which are at positions `first`, `first` + 1, ... The control
        tokens before them have the adapters `earlier`."""
        own = self.switched_on(ids)
        controls = len(earlier) + np.cumsum(own > 0)
        others = first + 1 + np.arange(len(ids)) - controls
        total = (sum(earlier) + np.cumsum(own)).astype(np.float32)
        weight = controls.astype(np.float32) + others.astype(np.float32) * np.exp(np.float32(-2 * self.gain))
        mean = np.divide(total, weight, out=np.zeros_like(total), where=controls > 0)
        active: Numbers = np.floor(mean + np.float32(0.5)).astype(np.int32)
        return active


def parts_of(name: str) -> Sequence[str]:
    """Return the names of the matrices that have adapters of their own, where one has the rows of several."""
    prefix = name.removesuffix("attn_qkv")
    return [f"{prefix}attn_{part}" for part in "qkv"] if prefix != name else [name]


def is_adapter_matrix(name: str) -> bool:
    """Return whether a tensor has matrices of adapters."""
    return name.endswith((LORA_A, LORA_B))


def read_embedded_adapters(hparams: Hyperparameters, n_vocab: int) -> EmbeddedAdapters | None:
    """Return the adapters of a file, or None if it has none. Raises LocalInferError for keys that do not fit each other
    or the vocabulary."""
    if not hparams.has("adapters.count"):
        return None
    count = hparams.count("adapters.count", maximum=MAX_ADAPTERS)
    rank = hparams.count("adapters.lora_rank", maximum=MAX_RANK)
    controls, substitutes = (read_token_ids(hparams, key, count, n_vocab) for key in (ACTIVATE, SUBSTITUTE))
    if len(np.unique(controls)) < count:
        raise hparams.error(ACTIVATE, "has a token for two adapters")
    adapters, tokens = np.zeros(n_vocab, np.int32), np.arange(n_vocab, dtype=np.int32)
    adapters[controls], tokens[controls] = np.arange(1, count + 1), substitutes
    gain = hparams.positive("adapters.router_gain", USUAL_GAIN, maximum=MAX_GAIN)
    return EmbeddedAdapters(count, rank, gain, adapters, tokens)


def read_token_ids(hparams: Hyperparameters, key: str, count: int, n_vocab: int) -> NDArray[np.int64]:
    """Return an array of one token for each adapter."""
    found: Value | None = hparams.f.metadata.get(hparams.full_name(key))
    if not isinstance(found, np.ndarray) or found.dtype.kind not in "iu" or len(found) != count:
        raise hparams.error(key, f"must be an array of {count} tokens, one for each adapter")
    ids = found.astype(np.int64)
    if ids.min() < 0 or ids.max() >= n_vocab:
        raise hparams.error(key, f"has a token that is out of range, 0 to {n_vocab - 1}")
    return ids
