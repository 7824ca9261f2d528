"""The hyperparameters of a model during conversion. Contains no config.json keys and no limits."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localinfer.conversion.rope import RopeMetadata
from localinfer.errors import UsageError
from localinfer.escaping import printable


@dataclass(frozen=True)
class LayerOverrides:
    """The differences of one layer: some hyperparameters, and tensors that may be missing."""

    values: Mapping[str, Any]
    missing_tensors: frozenset[str] = frozenset()


@dataclass(frozen=True, eq=False)
class HParams:
    """Hyperparameters read from config.json. `is_sliding` has one flag per layer: whether it has sliding-window
    attention. Without any, `sliding_window` is 0.
    """

    n_layer: int
    n_ctx: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_vocab: int
    eps: float
    tied_embeddings: bool  # the output layer shares the token embedding's weights
    rope: RopeMetadata
    rope_swa: RopeMetadata  # rope parameters of sliding-window layers
    sliding_window: int
    is_sliding: tuple[bool, ...]
    n_expert: int = 0
    n_ff_expert: int = 0
    n_token_types: int = 0  # token types (segments) of BERT
    n_labels: int = 0  # classifier outputs
    position_offset: int = 0  # row of a text's first token among the learned positions
    head_dim_full: int = 0  # head_dim of full-attention layers
    head_dim_value: int = 0  # head_dim of values, if it is not that of keys
    n_embd_per_layer: int = 0  # width of the per-layer embeddings (Gemma 3n)
    layer_overrides: tuple[LayerOverrides, ...] = ()  # one per layer; empty if all layers are alike
    n_ff_shared: int = 0  # feed-forward length of the shared experts
    n_decoder_layers: int = 0  # layers of a decoder beside the encoder, which has n_layer layers
    n_mtp_layers: int = 0  # multi-token prediction (MTP) layers after the others
    n_dense_layers: int = 0  # leading layers without experts
    moe_interleave: int = 1  # every moe_interleave-th layer has experts
    mlp_only_layers: frozenset[int] = frozenset()  # further layers without experts
    layer_types: tuple[str, ...] = ()  # one per layer, MTP layers included, if there are several types
    sizes: Mapping[str, int] = field(default_factory=dict)  # further dimensions of one architecture, by name
    weight_factors: Mapping[str, NDArray[np.float32]] = field(
        default_factory=dict
    )  # factors multiplied into tensors, or into each of their rows
    constant_tensors: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)  # which no checkpoint has
    ternary_scale_power: int = 0  # power of the scale of packed ternary matrices (1 or -1); 0: not packed

    def size(self, name: str) -> int:
        """Return a dimension by its name. Raises UsageError if there is none: the user's conversion file names it."""
        try:
            return self.sizes[name] if name in self.sizes else int(getattr(self, name))
        except (AttributeError, TypeError):
            what = f"size {printable(name, 80)}: neither a hyperparameter nor in `sizes`"
            raise UsageError(f"conversion (--conversion): {what}") from None

    def for_layer(self, layer: int) -> "HParams":
        """Return the hyperparameters of one layer."""
        overrides: dict[str, Any] = dict(self.layer_overrides[layer].values) if self.layer_overrides else {}
        return replace(self, **overrides)

    def has_experts(self, layer: int) -> bool:
        """Return whether a layer of a mixture-of-experts model has experts."""
        is_dense = layer < self.n_dense_layers or layer in self.mlp_only_layers
        return not is_dense and (layer + 1) % self.moe_interleave == 0

    def missing_tensors(self, layer: int) -> frozenset[str]:
        """Return the tensors of the architecture that this layer may lack."""
        return self.layer_overrides[layer].missing_tensors if self.layer_overrides else frozenset()

    @property
    def n_embd_all_layers(self) -> int:
        """The number of columns of the per-layer embeddings of all layers together."""
        return self.n_embd_per_layer * self.n_layer

    @property
    def one(self) -> int:
        """The dimension of a scalar."""
        return 1

    @property
    def n_2embd(self) -> int:
        """Twice the embedding length: the columns of a matrix that reads two vectors."""
        return 2 * self.n_embd

    @property
    def n_q(self) -> int:
        """The number of rows of attn_q."""
        return self.n_head * self.head_dim

    @property
    def n_kv(self) -> int:
        """The number of rows of attn_k and of attn_v."""
        return self.n_head_kv * self.head_dim

    @property
    def value_length(self) -> int:
        """The number of values of a head of values."""
        return self.head_dim_value or self.head_dim

    @property
    def n_kv_values(self) -> int:
        """The number of rows of attn_v."""
        return self.n_head_kv * self.value_length

    @property
    def n_q_values(self) -> int:
        """The number of columns of attn_output."""
        return self.n_head * self.value_length

    @property
    def n_2kv(self) -> int:
        """The number of rows of a fused matrix of keys and values."""
        return 2 * self.n_kv

    @property
    def n_qkv(self) -> int:
        """The number of rows of a fused matrix of queries, keys and values."""
        return self.n_q + 2 * self.n_kv

    @property
    def n_positions(self) -> int:
        """The number of learned position embeddings in a checkpoint."""
        return self.n_ctx + self.position_offset

    @property
    def n_gate_and_up(self) -> int:
        """The number of rows of a fused matrix of gate and up."""
        return 2 * self.n_ff

    @property
    def n_gate_and_up_expert(self) -> int:
        """The number of rows of an expert's fused matrix of gate and up."""
        return 2 * self.n_ff_expert

    @property
    def n_ff_all_experts(self) -> int:
        """The number of rows of a matrix with the rows of all experts."""
        return self.n_expert * self.n_ff_expert

    @property
    def n_gate_and_up_shared(self) -> int:
        """The number of rows of the shared experts' fused matrix of gate and up."""
        return 2 * self.n_ff_shared

    @property
    def heads_per_group(self) -> int:
        """The number of query heads that share one key-value head."""
        return self.n_head // self.n_head_kv
