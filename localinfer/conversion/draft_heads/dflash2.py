"""DFlash 2 draft heads: DFlash heads with convolutions over the tokens of a block, and a selector of draft tokens."""

from dataclasses import replace

from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.draft_heads import dflash
from localinfer.conversion.hparams import HParams
from localinfer.gguf.source import Field
from localinfer.graph.properties.hyperparameters import MAXIMA

GROUP, RANK, CANDIDATES = "conv_group_size", "selector_rank", "selector_top_k"


def add_sizes(config: JsonObject, hp: HParams) -> HParams:
    """Return the hyperparameters with the sizes of a DFlash head, of the filters and of the selector. Raises
    LocalInferError unless all groups of values have the same length."""
    hp, group = dflash.add_sizes(config, hp), config.positive_int(GROUP, hp.n_embd)
    if hp.n_embd % group:
        raise config.error(GROUP, f"is {group}; it must divide the hidden size, {hp.n_embd}")
    taps, rank = (config.positive_int(key, MAXIMA["embedding_length"]) for key in (dflash.TAPS, RANK))
    sizes = {"n_sides": 2, "n_taps": taps, "n_filters": 2 * taps * (hp.n_embd // group), "n_rank": rank}
    return replace(hp, sizes={**hp.sizes, **sizes})


def metadata(config: JsonObject, hp: HParams) -> dict[str, Field]:
    """Return the metadata of a DFlash head, of the filters and of the selector."""
    keys = (dflash.TAPS, GROUP, RANK, CANDIDATES)
    return {**dflash.metadata(config, hp), **{key: Field.uint32(config.positive_int(key, hp.n_vocab)) for key in keys}}
