"""Adapters: LoRA files of llama.cpp and of PEFT, and control vectors.

    open_adapters(f, options)        -> `localinfer.graph.properties.adapters.Adapters`, applied beside the weights
    merging.merge_adapters(source)   -> a `Source` whose weights include them

Data flow of a LoRA adapter:

    GGUF                  ->  gguf_adapter.py               ->  pairs of matrices by the names of a model's tensors
    adapter_config.json,  ->  peft_adapter.py: renamed and  ->  the same
    safetensors               reordered as the converter of checkpoints does
                          ->  lora_file.py: checked against the shapes of the model

Files are untrusted: every name, shape and factor is checked before anything is computed.
"""

from typing import TYPE_CHECKING

from localinfer.gguf.reader import GGUF
from localinfer.options import Options

if TYPE_CHECKING:  # most models run without adapters
    from localinfer.graph.properties.adapters import Adapters

__all__ = ["open_adapters"]


def open_adapters(f: GGUF, options: Options) -> "Adapters | None":
    """Return the adapters that the options name, checked against the model, or None without any.

    Raises LocalInferError for a file that is damaged or belongs to another model, UnsupportedError for a kind that is
    not supported, UsageError for an invalid range of layers.
    """
    if not (options.lora or options.lora_scaled or options.control_vector or options.control_vector_scaled):
        return None
    from localinfer.adapters.loading import load_adapters

    return load_adapters(f, options)
