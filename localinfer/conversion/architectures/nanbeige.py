"""Nanbeige 4.2, whose checkpoints are those of Llama, with the number of passes over the layers."""

from dataclasses import replace

from localinfer.conversion.architectures.llama import LLAMA
from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.hparams import HParams
from localinfer.gguf.source import Field
from localinfer.graph.properties.hyperparameters import MAXIMA
from localinfer.graph.properties.repeated_layers import NUM_LOOPS


def passes(config: JsonObject, hp: HParams) -> dict[str, Field]:
    """Return the number of passes over the layers."""
    return {NUM_LOOPS: Field.uint32(config.positive_int(NUM_LOOPS, MAXIMA["block_count"] // hp.n_layer, 1))}


NANBEIGE = replace(
    LLAMA,
    name="nanbeige",
    name_map_architecture="llama",
    optional_layer_tensors=(),
    bool_keys={"skip_loop_final_norm": "skip_loop_final_norm"},
    metadata=passes,
    defaults={"skip_loop_final_norm": False},
)
BY_CLASS = {"NanbeigeForCausalLM": NANBEIGE}
