"""Multi-token prediction (MTP) layers, which follow the normal layers: their number and names.

See `localinfer.graph.recording.operations.mtp`. Most families continue the layer numbering. MiMo, DeepSeek-V4 and
Hunyuan 4 have a module of MTP layers; so has Qwen, whose projection and norms in front of the first MTP layer are not
numbered as a layer. Neither is the embedding of dots3 note. config.json may announce MTP layers that the checkpoint
lacks, for example after finetuning with a library that ignores them, so only the layers that are present count.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from localinfer.conversion.architecture import Architecture
from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.hparams import HParams

T = TypeVar("T")
MERGE = tuple(f"nextn.output_hc_{kind}" for kind in ("fn", "base", "scale"))  # weights of a sum of residual streams
TENSOR_NAMES = {  # tensors before and after an MTP layer -> GGUF's names
    "eh_proj": "nextn.eh_proj",
    "enorm": "nextn.enorm",
    "hnorm": "nextn.hnorm",
    "embed_tokens": "nextn.embed_tokens",
    "shared_head.head": "nextn.shared_head_head",
    "shared_head.norm": "nextn.shared_head_norm",
    "final_layernorm": "layer_output_norm",
    **{name: name for name in MERGE},
}
REQUIRED_TENSORS, OPTIONAL_TENSORS = tuple(TENSOR_NAMES.values())[:3], tuple(TENSOR_NAMES.values())[3:]
TENSOR_OF_MODULE = re.compile(r"(model\.)?mtp\.(layers\.(?P<number>\d{1,9})|(?P<module>\w+))\.(?P<suffix>.+)")
NAMES_OF_MODULE = {  # of tensors that are not numbered
    "fc": "eh_proj", "pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm", "norm": "shared_head.norm",
    "embed_tokens": "embed_tokens",
}  # fmt: skip
NUMBERED_IN_MODULE = re.compile(r"(?P<prefix>(model\.)?)mtp(_layers)?\.(?P<number>\d{1,9})\.(?P<suffix>.+)")
EH_PROJ = re.compile(r"(?:.*\.)?layers\.(\d{1,9})\.eh?_proj\.weight")


def rename_mtp_layers(architecture: Architecture, n_layer: int, stored: Mapping[str, T]) -> dict[str, T]:
    """Return the same tensors with MTP layers numbered after the last normal layer."""

    def numbered(name: str) -> str:
        match = TENSOR_OF_MODULE.fullmatch(name)
        if match and match["number"]:
            return f"model.layers.{n_layer + int(match['number'])}.{match['suffix']}"
        if match and match["module"] in NAMES_OF_MODULE:
            return f"model.layers.{n_layer}.{NAMES_OF_MODULE[match['module']]}.{match['suffix']}"
        if each := NUMBERED_IN_MODULE.fullmatch(name):
            return f"{each['prefix']}layers.{n_layer + int(each['number'])}.{each['suffix']}"
        return name

    return {numbered(name) if architecture.has_mtp else name: each for name, each in stored.items()}


def count_mtp_layers(
    architecture: Architecture, config: JsonObject, hparams: HParams, names: Iterable[str]
) -> HParams:
    """Return the hyperparameters with the number of complete MTP layers: consecutive ones with an eh_proj matrix, or a
    half of it, e_proj. They use full attention where layers differ in type, except for the windows that
    `architecture.mtp_windows` states.
    """
    joined = {int(match[1]) for name in names if (match := EH_PROJ.fullmatch(name))}
    count = 0
    while architecture.has_mtp and hparams.n_layer + count in joined:
        count += 1
    if not count:
        return hparams
    kinds = (*hparams.layer_types, *["full_attention"] * count) if hparams.layer_types else ()
    sliding = (*hparams.is_sliding, *architecture.mtp_windows(config, count))
    whole = replace(hparams, n_mtp_layers=count, layer_types=kinds, is_sliding=sliding)
    return replace(whole, layer_overrides=architecture.layer_overrides(config, whole))
