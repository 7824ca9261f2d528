"""LLaVA 1.5 (Liu et al., 2023): CLIP (Radford et al., 2021) on images of one size, and two layers. LLaVA-NeXT (Liu et
al., 2024) also has tiles, and Granite Vision (IBM, 2025) reads several layers of SigLIP."""

from collections.abc import Sequence
from math import isqrt

import numpy as np

from localinfer.graph.ops.buffers import Buffer
from localinfer.multimodal.encoder_graph import learned_positions
from localinfer.multimodal.encoder_graph.bounds import CLASS
from localinfer.multimodal.encoder_graph.encoder_builder import EncoderBuilder
from localinfer.multimodal.encoder_graph.matrices import n_rows_of
from localinfer.multimodal.encoder_graph.transformer import activation, transform, two_layers
from localinfer.multimodal.encoders.arrangement import Part, View, join_tiles

ARCHITECTURES = ()
CLASS_ROWS = True
HAS_PROJECTION_DIM = False  # files have that of CLIP, which the model does not use
NEWLINES = ("v.image_newline", "model.image_newline")  # the second one in older files
MAX_FEATURES = 16


def build(g: EncoderBuilder) -> Buffer:
    """CLIP or SigLIP up to the last layer that the model reads; the rows of the patches, with those of all such layers
    side by side, and two layers. The last row is the embedding of a newline, if there is one."""
    g.use_layer_norm()
    x = g.embed_patches(learned_positions.of_all_rows(g))
    if g.tensors.has("v.pre_ln.weight"):
        x = g.norm(x, "v.pre_ln")
    features, n = feature_layers(g), x.n
    joined = g.graph.buffer(n * len(features)) if len(features) > 1 else x

    def keep(number: int, x: Buffer) -> None:
        """Copy the output of a layer, if the model reads it."""
        for place, feature in enumerate(features if len(features) > 1 else ()):
            if feature == number + 1:
                g.copy_columns(x, joined, n * place)

    transform(g, x, feed_forward_activation(g), n_layers=max(features), on_layer=keep)
    if g.tensors.has("v.post_ln.weight") and len(features) == 1:
        joined = g.norm(x, "v.post_ln")
    x = g.gather(joined, g.patch_rows())
    newline = newline_of(g)
    if not newline:
        return two_layers(g, x, "mm.0", "mm.2", "gelu_erf")
    n_out = n_rows_of(g, "mm.2")
    rows = g.graph.buffer(n_out, g.rows(g.n_patches + 1))
    g.constants.set_rows(rows, g.n_patches, g.tensors.values(newline, n_out))
    return two_layers(g, x, "mm.0", "mm.2", "gelu_erf", n_out=n_out, out=rows)


def feature_layers(g: EncoderBuilder) -> list[int]:
    """Return the numbers of layers after which the model reads the rows: those of the file, or all layers."""
    key = "feature_layer"
    layers = g.f.get(g.hparams.full_name(key), np.ndarray, None)
    if layers is None:
        return [g.block_count]
    numbers = [int(layer) for layer in layers] if layers.dtype.kind in "iu" else []
    if not 1 <= len(numbers) <= MAX_FEATURES or not all(1 <= number <= g.block_count for number in numbers):
        raise g.hparams.unsupported(key, layers.tolist())
    return numbers


def feed_forward_activation(g: EncoderBuilder) -> str:
    """Return the activation of the feed-forward networks. Files have no flag for that of SigLIP, which is recognized by
    not having a class row."""
    name = activation(g, "gelu_erf")
    return "gelu" if name == "gelu_quick" and CLASS not in g.f.tensors else name


def newline_of(g: EncoderBuilder) -> str:
    """Return the name of the embedding that ends each row of patches of a tiled image, or ""."""
    merge = g.hparams.text("mm_patch_merge_type", "spatial_unpad")
    found = [name for name in NEWLINES if g.tensors.has(name)]
    if merge not in ("flat", "spatial_unpad") or len(found) > 1:
        raise g.hparams.unsupported("mm_patch_merge_type", merge)
    if merge == "flat":
        g.tensors.accept(*found)
        return ""
    return found[0] if found else ""


def arrange(views: Sequence[View]) -> list[Part]:
    """The whole image, then the tiles, joined if the rows of a view end with that of a newline."""
    has_newline = any(len(view.rows) != isqrt(len(view.rows)) ** 2 for view in views)
    return [join_tiles(views)] if has_newline else [view.rows for view in views]
