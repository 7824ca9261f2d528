"""Numbers that a checkpoint stores as a tensor, in each layer or once, and GGUF as metadata: an array of a number per
layer, a number, or an array of integers."""

from collections.abc import Mapping

import numpy as np

from localinfer.conversion import tensor_mapping
from localinfer.conversion.architecture import Architecture
from localinfer.conversion.checkpoint_folder import CheckpointFolder
from localinfer.conversion.tensor_formats.safetensors_file import StoredTensor
from localinfer.conversion.tensor_formats.values import to_float32, to_uint64
from localinfer.gguf.source import Field


def split(
    folder: CheckpointFolder, architecture: Architecture, n_layer: int, stored: Mapping[str, StoredTensor]
) -> tuple[dict[str, StoredTensor], dict[str, Field]]:
    """Return the tensors without those of `architecture.layer_numbers` and `architecture.integers`, and the fields that
    these become.

    Raises LocalInferError if a number is missing, or several are in its place.
    """
    remaining, fields = dict(stored), {}
    stored_names = {tensor_mapping.name_in_text_model(name): name for name in stored}
    for name, key in architecture.integers.items():
        if name not in stored_names:
            raise folder.error(f"tensor {name}: is missing")
        fields[key] = Field.numbers(to_uint64(remaining.pop(stored_names[name])))
    for name, key in architecture.layer_numbers.items():
        values = []
        for layer in range(n_layer if "{}" in name else 1):
            full_name = name.format(layer)
            if full_name not in remaining:
                raise folder.error(f"tensor {full_name}: is missing")
            tensor = remaining.pop(full_name)
            if tensor.shape not in ((), (1,)):
                raise tensor.error(f"has shape {list(tensor.shape)}, not [1]")
            values.append(float(to_float32(tensor).reshape(-1)[0]))
        fields[key] = Field.numbers(np.array(values, np.float32)) if "{}" in name else Field.float32(values[0])
    return remaining, fields
