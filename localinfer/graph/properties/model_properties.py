"""What a model file specifies about the model as a whole: its layers, lengths, attention heads and norms."""

from collections.abc import Sequence
from typing import NamedTuple

from localinfer.gguf.reader import GGUF
from localinfer.graph.properties.attention import AttentionHeads, read_attention_heads
from localinfer.graph.properties.embedded_adapters import read_embedded_adapters
from localinfer.graph.properties.hyperparameters import Hyperparameters, multiple_of_32
from localinfer.graph.properties.sliding_window import sliding_window_layers
from localinfer.graph.properties.tensors import Tensors

RMS_EPSILON, LAYER_EPSILON = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"


ENCODER, DECODER = "enc.blk", "dec.blk"  # the groups of the layers of encoder-decoder models
DECODER_START = "decoder_start_token_id"
MTP_ARCHITECTURES = ("gemma4-assistant",)  # of draft heads in files of their own, which call all layers MTP layers


class Block(NamedTuple):
    """A layer. As text, it is the prefix of the layer's tensor names. `group` is that of all layers of a model, or of
    its encoder or decoder. MTP layers follow the others (`is_mtp`)."""

    number: int
    heads: AttentionHeads
    group: str = "blk"
    is_mtp: bool = False

    def __str__(self) -> str:
        return f"{self.group}.{self.number}."


class ModelProperties:
    """The properties of the model in a file, and its hyperparameters and tensors.

    `block_count` does not count MTP layers, whose tensors need not be used, unless the file has no others. Norms are
    RMSNorms, unless the architecture calls `use_layer_norm`.
    """

    def __init__(self, f: GGUF, hparams: Hyperparameters) -> None:
        self.f, self.hparams = f, hparams
        blocks = hparams.count("block_count")
        has_others = hparams.architecture not in MTP_ARCHITECTURES
        n_mtp = hparams.count("nextn_predict_layers", 0, minimum=0, maximum=blocks - has_others)
        self.block_count = blocks - n_mtp * has_others
        self.tensors = Tensors(f, self.block_count)
        self.tensors.accept(*(name for name in f.tensors if is_mtp_tensor(name, self.block_count, blocks)))
        self.embedding_length = multiple_of_32(hparams, "embedding_length")
        self.embedded_adapters = read_embedded_adapters(hparams, self.tensors.n_vocab)
        self.uses_layer_norm, self.has_norm_weights = False, True
        self.eps = read_epsilon(hparams, RMS_EPSILON, LAYER_EPSILON)
        self.attention_heads: Sequence[AttentionHeads] = read_attention_heads(
            hparams, self.embedding_length, self.block_count
        )

    def use_layer_norm(self, *, weights: bool = True) -> None:
        """Make all norms LayerNorms, possibly without weights. Call it before the first of them."""
        self.uses_layer_norm, self.has_norm_weights = True, weights
        self.eps = read_epsilon(self.hparams, LAYER_EPSILON, RMS_EPSILON)

    @property
    def has_decoder(self) -> bool:
        """Whether the model has a decoder beside an encoder."""
        return has_decoder(self.f)

    def heads_of(self, group: str) -> Sequence[AttentionHeads]:
        """Return the heads of each layer of a group. Those of a decoder beside an encoder are the encoder's."""
        if group != DECODER:
            return self.attention_heads
        return [self.attention_heads[0]] * self.hparams.count("decoder_block_count", self.block_count)

    @property
    def n_deepstack(self) -> int:
        """The number of layers after which rows of images are added to the residual stream (DeepStack)."""
        return self.hparams.count("n_deepstack_layers", 0, minimum=0, maximum=self.block_count)

    def key_length(self, *, sliding: bool) -> int:
        """Return the key size of the layers with or without a sliding window."""
        kinds = zip(self.attention_heads, sliding_window_layers(self.hparams, self.block_count, 0), strict=True)
        return next((heads.key for heads, kind in kinds if kind == sliding), self.attention_heads[0].key)


def has_decoder(f: GGUF) -> bool:
    """Return whether the model has a decoder beside an encoder."""
    return f"{DECODER}.0.attn_norm.weight" in f.tensors


def trained_context(hparams: Hyperparameters, default: int | None = None) -> int:
    """Return the number of tokens that the model was trained on. With an encoder and a decoder, a sequence has as many
    of each."""
    return hparams.count("context_length", default) * (2 if has_decoder(hparams.f) else 1)


def read_epsilon(hparams: Hyperparameters, key: str, other: str) -> float:
    """Return the epsilon of the norms. Some files have it under the `other` key, and some have both keys."""
    return hparams.positive(other if hparams.has(other) and not hparams.has(key) else key, maximum=1.0)


def is_mtp_tensor(name: str, first: int, end: int) -> bool:
    """Return whether a tensor belongs to the layers first .. end - 1, which are MTP layers."""
    return any(name.startswith(f"blk.{number}.") for number in range(first, end))
