"""What a checkpoint has: the keys of config.json, and the names and shapes of its tensors. No weights are read.

Of the layers that have a tensor of a name, only the first one's is kept, so that checkpoints with many layers and
experts are compared quickly.
"""

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localinfer.conversion import quantization_config
from localinfer.conversion.architectures.llama import LLAMA
from localinfer.conversion.checkpoint_folder import CONFIG, CheckpointFolder, JsonObject
from localinfer.conversion.config_key_aliases import TEXT_KEYS
from localinfer.conversion.tensor_formats import safetensors_file
from localinfer.conversion.tensor_formats.safetensors_file import INDEX_FILE, StoredTensor
from localinfer.errors import LocalInferError
from localinfer.gguf.mapped_file import MappedFile

LAYER = re.compile(r"(?<!_projections)\.(\d+)\.")  # the number of a layer; those of projections are of streams
# Keys of config.json that do not change what is computed: training, tokens, types, other models.
IRRELEVANT = re.compile(
    r".*(dropout|_pdrop|_drop|loss|initializer|_init_|init_std|token_id|token_index|attn_implementation).*|_.*"
    r"|(torch_)?dtype|transformers_version|auto_map|architectures|model_type|tokenizer_class|use_cache|pretraining_tp"
    r"|output_(attentions|hidden_states|router_logits)|return_dict.*|id2label|label2id|problem_type|is_.*decoder"
    r"|gradient_checkpointing.*|router_jitter.*|seq_aux|ep_size|task_specific_params|finetuning_task"
    r"|vocab_size|max_window_layers|mamba_chunk_size|num_logits_to_keep"
    r"|chunk_size_feed_forward|(vision|audio|text|language|llm|thinker|quantization|compression)_config"
)

ENCODER = re.compile(r"bert|encoder|formaskedlm", re.IGNORECASE)  # within the class of an encoder


@dataclass(frozen=True)
class Survey:
    """A checkpoint without its weights.

    `tensors` has the tensors outside of the layers, and for each name in layers the one of the first layer that has it;
    `layers` has the layers by that name, with "{}" for the number. Without `has_shapes`, only names are known.
    """

    config: JsonObject
    tensors: Mapping[str, StoredTensor]
    layers: Mapping[str, tuple[int, ...]]
    has_shapes: bool

    @property
    def class_name(self) -> str:
        """The class that config.json names; "" if it names none."""
        names = self.config.get("architectures", list, [])
        return names[0] if names and isinstance(names[0], str) else ""

    @property
    def is_perhaps_encoder(self) -> bool:
        """Whether the name of the class is like those of encoders."""
        return bool(ENCODER.search(self.class_name))

    @property
    def n_layer(self) -> int:
        """The number of layers by the tensors' names."""
        return 1 + max((layer for layers in self.layers.values() for layer in layers), default=0)

    @property
    def relevant_keys(self) -> Mapping[str, Any]:
        """The keys of config.json, and of a nested text model, that may change what is computed; those that are null,
        false, 0 or empty do not."""
        values = dict(self.config.values)
        for key in TEXT_KEYS:
            values |= self.config.child(key).values
        return {key: value for key, value in values.items() if value and not IRRELEVANT.fullmatch(key)}

    def layers_of(self, name: str) -> tuple[int, ...]:
        """Return the layers that have a tensor, given by its name in one of them; () outside of layers."""
        return self.layers.get(pattern(name), ())


def read_survey(path: Path) -> Survey:
    """Read config.json and the headers of the safetensors files; their index alone if some of these files are missing.

    Raises LocalInferError for a damaged file, UnsupportedError if there are only pickles, ModelNotFoundError if there
    is no such directory.
    """
    folder = CheckpointFolder(path)
    config = folder.json(CONFIG)
    stored, has_shapes = read_tensors(folder)
    if has_shapes:
        with contextlib.suppress(LocalInferError):  # then its scales are tensors without a name
            stored = quantization_config.dequantize(LLAMA, config, stored)
    layers: dict[str, list[int]] = {}
    kept: dict[str, StoredTensor] = {}
    for name in sorted(stored, key=lambda name: [int(number) for number in LAYER.findall(name)]):
        if found := LAYER.search(name):
            layers.setdefault(pattern(name), []).append(int(found[1]))
        if not found or len(layers[pattern(name)]) == 1:
            kept[name] = stored[name]
    return Survey(config, kept, {name: tuple(found) for name, found in layers.items()}, has_shapes)


def read_tensors(folder: CheckpointFolder) -> tuple[dict[str, StoredTensor], bool]:
    """Return the tensors by name, and whether their shapes are known."""
    weight_map = folder.optional_json(INDEX_FILE).get("weight_map", dict, {})
    if all(isinstance(file, str) and folder.has(file) for file in weight_map.values()):
        return safetensors_file.open_weights(folder), True
    index = MappedFile(folder.path / INDEX_FILE)
    return {name: StoredTensor(name, "F32", (), index, 0) for name in weight_map}, False


def pattern(name: str) -> str:
    """Return the name of a tensor with "{}" for the number of its layer."""
    return LAYER.sub(".{}.", name, count=1)
