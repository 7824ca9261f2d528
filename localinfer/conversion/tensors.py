"""Convert a checkpoint's tensors to GGUF: renamed, rows reordered, vectors in F32.

Every tensor of the architecture must be present, in the shape that config.json implies; other tensors are rejected.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from localinfer.conversion import tensor_mapping
from localinfer.conversion.architecture import Architecture
from localinfer.conversion.checkpoint_folder import CheckpointFolder
from localinfer.conversion.draft_heads import mtp
from localinfer.conversion.hparams import HParams
from localinfer.conversion.tensor_formats import mxfp4, nvfp4, ternary
from localinfer.conversion.tensor_formats.reorder import COLUMN_REORDERS, Reorder, transpose
from localinfer.conversion.tensor_formats.safetensors_file import StackedTensor, StoredTensor
from localinfer.conversion.tensor_formats.values import FLOATS, Values, native_values, to_bytes, to_float32, to_int32
from localinfer.conversion.tensor_shapes import shape_of
from localinfer.errors import UnsupportedError
from localinfer.gguf.source import SourceTensor
from quant import ggml

Floats: TypeAlias = NDArray[np.float32]
TensorMap: TypeAlias = Mapping[str, StoredTensor | StackedTensor]
TYPES = {name: ggml.TYPE_NUMBERS[name] for name in ("F32", "F16", "BF16")}  # by safetensors' names, which ggml shares
F32, I32 = TYPES["F32"], ggml.TYPE_NUMBERS["I32"]
INTEGERS = ("ffn_gate_tid2eid",)
MXFP4, NVFP4 = ggml.TYPE_NUMBERS["MXFP4"], ggml.TYPE_NUMBERS["NVFP4"]
ALWAYS_F32 = re.compile(  # also if they are matrices
    r".*norm(_2)?|position_embd|token_types|ffn_gate_inp(_shexp)?|altup_(predict|correct)_coef|ssm_a|indexer\.proj"
    r"|time_mix_(lerp_fused|r_k|first|w[12]|decay_w[12])|(output_)?hc_(attn_|ffn_)?fn|\w+_compressor_ape"
)
# One filter per channel; checkpoints have an extra dimension of 1.
CONVOLUTION = re.compile(r".*\.conv|(ssm|ple)_conv1d(_[qkv])?")
KEEPS_TYPE = re.compile(r"ple_conv1d")  # of the convolutions, which otherwise become F32
BLOCK = re.compile(r"((enc|dec)\.)?blk\.\d+\.")
LAYER_NUMBER = re.compile(r"(?<=blk\.)\d+")
DECODER = "dec.blk"
NO_LAYER = -1


class ExpectedTensor(NamedTuple):
    """A tensor that must exist in a layer, or outside the layers (NO_LAYER).

    `kind` is its name without the layer and ".weight"; tensors in `no_weight_suffix` do not have this suffix.
    """

    layer: int
    kind: str
    no_weight_suffix: tuple[str, ...] = ()
    group: str = "blk"

    @property
    def prefix(self) -> str:
        return f"{self.group}.{self.layer}." if self.layer != NO_LAYER else ""

    def layer_hparams(self, hparams: HParams) -> HParams:
        """Return the hyperparameters of its layer."""
        return hparams.for_layer(self.layer) if self.layer != NO_LAYER else hparams

    def is_optional(self, hparams: HParams) -> bool:
        """Return whether the tensor may be missing."""
        return self.layer != NO_LAYER and self.kind in hparams.missing_tensors(self.layer)

    def source_kind(self, architecture: Architecture, present: TensorMap) -> str:
        """Return the kind of the checkpoint tensor that contains it, which may be a fused tensor."""
        whole = architecture.fused_sources.get(self.kind, self.kind)
        return self.kind if self.name in present else whole

    def full_name(self, kind: str) -> str:
        """Return the name of a tensor of this kind in the same layer."""
        whole = kind.endswith((".bias", ".scale")) or kind in self.no_weight_suffix
        return f"{self.prefix}{kind}" if whole else f"{self.prefix}{kind}.weight"

    @property
    def name(self) -> str:
        return self.full_name(self.kind)


def convert(
    folder: CheckpointFolder, architecture: Architecture, hparams: HParams, stored: Mapping[str, StoredTensor]
) -> dict[str, SourceTensor]:
    """Return all tensors of the GGUF file by name. Bytes are read and converted on demand.

    Raises LocalInferError naming a tensor that is missing or has another shape, UnsupportedError for an unexpected
    one.
    """
    present = tensor_mapping.map_tensors(architecture, hparams, stored)
    remaining = dict(present)
    tensors: dict[str, SourceTensor] = {}
    for wanted in expected_tensors(architecture, hparams, present):
        kind, layer_hparams = wanted.source_kind(architecture, present), wanted.layer_hparams(hparams)
        source = wanted.full_name(kind)
        blocks, scales = (source.replace(".weight", ending) for ending in (".blocks", ".scales"))
        if wanted.kind in architecture.mxfp4_rows and {blocks, scales} <= present.keys():
            shape, rows = (
                shape_of(wanted.kind, architecture.shapes, layer_hparams),
                architecture.mxfp4_rows[wanted.kind],
            )
            load = mxfp4.repack_mxfp4(present[blocks], present[scales], shape, rows)
            tensors[wanted.name] = SourceTensor(wanted.name, shape, MXFP4, load)
            remaining = {name: tensor for name, tensor in remaining.items() if name not in (blocks, scales)}
            continue
        if source not in present and wanted.is_optional(hparams):
            continue
        if source not in present:
            raise folder.error(f"tensor {checkpoint_name(present, source)}: is missing")
        remaining.pop(source, None)
        if hparams.ternary_scale_power and wanted.kind in architecture.ternary_tensors:
            shape, scale = (
                shape_of(wanted.kind, architecture.shapes, layer_hparams),
                remaining.pop(f"{source}_scale", None),
            )
            load = ternary.unpack_ternary(present[source], scale, shape, hparams.ternary_scale_power)
            tensors[wanted.name] = SourceTensor(wanted.name, shape, F32, load)
        else:
            tensors[wanted.name] = convert_tensor(present[source], wanted, kind, architecture, layer_hparams)
            if present[source].dtype == nvfp4.DTYPE:
                tensors |= {each.name: each for each in matrix_scales(wanted, source, present, remaining)}
    for name, tensor in remaining.items():
        reject_leftover(tensor, name, architecture, hparams)
    for name, other in architecture.copied_tensors.items():
        tensors[name] = replace(tensors[other], name=name)
    for name, values in {**hparams.rope.factors, **hparams.constant_tensors}.items():
        tensors[name] = SourceTensor(name, values.shape, F32, partial(to_bytes, values))
    return tensors


def matrix_scales(
    wanted: ExpectedTensor, source: str, present: TensorMap, remaining: dict[str, StoredTensor | StackedTensor]
) -> Iterator[SourceTensor]:
    """Yield the scale tensors of a matrix, with one value per expert, unless all values are 1."""
    for ending in tensor_mapping.SCALE_ENDINGS:
        stored = present.get(source.replace(".weight", ending))
        if stored is not None:
            remaining.pop(source.replace(".weight", ending), None)
            values = to_float32(stored)
            if not np.allclose(values, 1, rtol=0, atol=1e-6):
                yield SourceTensor(wanted.name.replace(".weight", ending), values.shape, F32, partial(to_bytes, values))


def expected_tensors(architecture: Architecture, hparams: HParams, present: TensorMap) -> Iterator[ExpectedTensor]:
    """Yield every tensor that must exist. An optional tensor must exist in all layers if any layer has it, except in
    MTP layers.
    """
    kinds = {BLOCK.sub("", name).removesuffix(".weight") for name in present}
    of_model = [kind for kind in architecture.optional_model_tensors if kind in kinds or f"{kind}.weight" in present]
    norm = (architecture.output_norm,) if architecture.output_norm and not architecture.is_encoder else ()
    embedding = () if architecture.is_draft_head else ("token_embd",)
    for kind in (*embedding, *norm, *architecture.model_tensors, *of_model):
        yield ExpectedTensor(NO_LAYER, kind, architecture.no_weight_suffix)
    optional = [
        kind
        for kind in architecture.optional_layer_tensors
        if architecture.fused_sources.get(kind, kind) in kinds and (hparams.n_ff_shared or not kind.endswith("_shexp"))
    ]
    of_layers = layer_tensors if architecture.layer_group == "blk" else grouped_tensors
    yield from of_layers(architecture, hparams, present, optional)
    if not (hparams.tied_embeddings or architecture.is_encoder or architecture.is_draft_head):
        yield ExpectedTensor(NO_LAYER, "output")


def layer_tensors(
    architecture: Architecture, hparams: HParams, present: TensorMap, optional: Sequence[str]
) -> Iterator[ExpectedTensor]:
    """Yield the tensors of all layers, MTP layers included. `optional` are those that the checkpoint has."""
    for block in range(hparams.n_layer + hparams.n_mtp_layers):
        ffn_tensors = feed_forward_tensors(architecture, hparams, present, block)
        of_type = architecture.layer_type_tensors[hparams.layer_types[block]] if architecture.layer_type_tensors else ()
        for kind in (
            *architecture.layer_tensors,
            *(architecture.not_first_layer_tensors if block else ()),
            *ffn_tensors,
            *of_type,
        ):
            if hparams.n_ff_shared or not kind.endswith("_shexp"):
                yield ExpectedTensor(block, kind, architecture.no_weight_suffix)
        if block < hparams.n_layer:
            yield from (ExpectedTensor(block, kind, architecture.no_weight_suffix) for kind in optional)
        else:
            yield from (ExpectedTensor(block, kind) for kind in mtp.REQUIRED_TENSORS)
            further = (
                ExpectedTensor(block, kind, architecture.no_weight_suffix)
                for kind in (*optional, *mtp.OPTIONAL_TENSORS)
            )
            yield from (each for each in further if each.full_name(each.source_kind(architecture, present)) in present)


def feed_forward_tensors(
    architecture: Architecture, hparams: HParams, present: TensorMap, block: int
) -> tuple[str, ...]:
    """Return the tensors of a layer with experts or of a dense one. MTP layers are what the checkpoint has."""
    is_dense = not hparams.has_experts(block)
    if block >= hparams.n_layer and architecture.dense_tensors:
        is_dense = f"blk.{block}.{architecture.dense_tensors[-1]}.weight" in present
    return architecture.dense_tensors if is_dense else architecture.moe_tensors


def checkpoint_name(present: TensorMap, name: str) -> str:
    """Return the checkpoint's name for a tensor, inferred from another layer if possible."""
    kind, number = LAYER_NUMBER.sub("", name), LAYER_NUMBER.search(name)
    for other, tensor in present.items():
        if number and other != name and LAYER_NUMBER.sub("", other) == kind:
            return re.sub(r"\.\d+\.", f".{number[0]}.", tensor.name, count=1)
    return name


def grouped_tensors(
    architecture: Architecture, hparams: HParams, present: TensorMap, optional: Sequence[str]
) -> Iterator[ExpectedTensor]:
    """Yield the tensors of the layers of an encoder, and of the decoder beside it if there is one."""
    groups = (
        (architecture.layer_group, hparams.n_layer, architecture.layer_tensors),
        (DECODER, hparams.n_decoder_layers, architecture.decoder_tensors),
    )
    for group, count, kinds in groups:
        for layer in range(count if kinds else 0):
            further = (ExpectedTensor(layer, kind, group=group) for kind in architecture.first_layer_tensors)
            yield from (each for each in further if not layer or each.name in present)
            yield from (ExpectedTensor(layer, kind, group=group) for kind in (*kinds, *optional))


def reject_leftover(
    tensor: StoredTensor | StackedTensor, name: str, architecture: Architecture, hparams: HParams
) -> None:
    """Raise UnsupportedError for an unused tensor, unless it is a duplicate or has no effect."""
    if (hparams.tied_embeddings and name == "output.weight") or 0 in tensor.shape:
        return
    if not (name.endswith(".bias") and tensor.dtype in FLOATS and not to_float32(tensor).any()):
        raise tensor_mapping.unexpected_tensor(tensor, architecture)


def convert_tensor(
    stored: StoredTensor | StackedTensor,
    wanted: ExpectedTensor,
    source_kind: str,
    architecture: Architecture,
    hparams: HParams,
) -> SourceTensor:
    """Return the converted tensor. A matrix keeps its type, and its values are only moved; a norm or bias becomes F32.

    `source_kind` is the kind of the checkpoint tensor; if it is a fused tensor, the reorder function selects the
    rows.
    """
    kind = wanted.kind
    is_separate = kind in architecture.fused_sources and source_kind == kind
    reorder = None if is_separate else architecture.reorder.get(kind)
    shape = shape_in_checkpoint(kind, source_kind, architecture, hparams)
    if stored.shape != shape:
        raise stored.error(f"has shape {list(stored.shape)}, not {list(shape)}")
    shape_after = shape_of(kind, {**architecture.shapes, **architecture.final_shapes}, hparams)
    if stored.dtype == nvfp4.DTYPE:
        if reorder in COLUMN_REORDERS:
            raise stored.error("is NVFP4 and needs its columns reordered, which is not supported", UnsupportedError)
        rows = partial(reorder_rows, stored, reorder, hparams)
        return SourceTensor(wanted.name, shape_after, NVFP4, rows)
    if kind in INTEGERS:
        return SourceTensor(wanted.name, shape_after, I32, lambda: to_bytes(to_int32(stored)))
    if stored.dtype not in TYPES:
        raise stored.error(f"type {stored.dtype} is not supported (only {', '.join(TYPES)})", UnsupportedError)

    def moved(values: Values) -> Values:
        return reorder(values.reshape(shape), hparams) if reorder else values

    if kind == "position_embd":
        shape_after = hparams.n_ctx, hparams.n_embd
    if kind in architecture.ternary_tensors:
        return SourceTensor(
            wanted.name, shape_after, F32, lambda: to_bytes(ternary.round_to_ternary(to_float32(stored)))
        )
    factor = hparams.weight_factors.get(kind, np.float32(1))
    is_vector = 1 in (len(shape), len(shape_after))  # stored vectors may have further dimensions of 1
    is_filter = CONVOLUTION.fullmatch(kind) and not KEEPS_TYPE.fullmatch(kind)
    is_f32 = kind in architecture.f32_tensors or ALWAYS_F32.fullmatch(kind)
    if is_vector or is_filter or is_f32 or kind.endswith(".bias"):
        change = value_transform(kind, architecture)
        return SourceTensor(wanted.name, shape_after, F32, lambda: to_bytes(change(moved(to_float32(stored))) * factor))
    if kind in hparams.weight_factors:
        return SourceTensor(
            wanted.name, shape_after, F32, lambda: to_bytes(moved(to_float32(stored)).reshape(shape) * factor)
        )
    load = (lambda: to_bytes(moved(native_values(stored)))) if reorder else stored.load
    return SourceTensor(wanted.name, shape_after, TYPES[stored.dtype], load)


def shape_in_checkpoint(kind: str, source_kind: str, architecture: Architecture, hparams: HParams) -> tuple[int, ...]:
    """Return the shape of the checkpoint tensor of `source_kind`, which contains the tensor of `kind`."""
    is_separate = kind in architecture.fused_sources and source_kind == kind
    shape = shape_of(source_kind, architecture.shapes, hparams)
    if architecture.reorder.get(kind) is transpose and not is_separate:
        shape = (*shape[:-2], *shape[:-3:-1])
    return (shape[0], 1, *shape[1:]) if CONVOLUTION.fullmatch(kind) else shape


def reorder_rows(stored: StoredTensor | StackedTensor, reorder: Reorder | None, hparams: HParams) -> Values:
    """Return the bytes of a matrix, or of stacked matrices, with reordered rows."""
    rows = stored.load().reshape(*stored.shape[:-1], -1)
    return to_bytes(reorder(rows, hparams) if reorder else rows)


def value_transform(kind: str, architecture: Architecture) -> Callable[[Floats], Floats]:
    """Return the transformation of an F32 tensor: ssm_a is stored as logarithms, norms without their offset."""
    usual = architecture.norm_offset if kind.endswith("norm") and kind != "ssm_norm" else 0.0
    decay_sign = np.float32(architecture.decay_sign)
    offset = np.float32(architecture.norm_offsets.get(kind, usual))

    def transformed(values: Floats) -> Floats:
        with np.errstate(all="ignore"):  # values that are not finite stay so, without a warning of numpy
            return decay_sign * np.exp(values) if kind == "ssm_a" else values + offset

    return transformed
