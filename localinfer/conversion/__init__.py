"""Conversion of a checkpoint: a model directory as saved by Hugging Face libraries -> a `Source`.

Data flow:

    config.json                       ->  config_key_aliases.py, metadata/, rope.py           ->  fields
    generation_config.json, README    ->  metadata/general_metadata.py                        ->  fields
    modules.json, 1_Pooling           ->  embedders/pooling.py                                ->  fields
    2_Dense, prompts                  ->  embedders/sentence_transformers.py                  ->  fields, tensors
    tokenizer.json, tokenizer.model   ->  vocabulary/                                         ->  fields
    tokenizer_config.json, templates  ->  vocabulary/special_tokens.py                        ->  fields
    *.safetensors  ->  tensor_formats/  ->  tensors.py: renamed, retyped and reordered  ->  tensors
                       quantization_config.py: quantized matrices are joined with their scales
                                        ->  metadata/layer_numbers.py: numbers of each layer become fields
                                        ->  draft_heads/mtp.py: multi-token prediction (MTP) layers
                                        ->  embedders/rerankers.py: rows of the output layer become a classifier, and
                                            a projector dense layers

Speech recognition models have nothing in common with this: speech_recognition.py converts them.

Each architecture is a table in architectures/. Files are untrusted: JSON has size limits (checkpoint_folder.py),
file names cannot leave the directory, every shape is checked against config.json, and pickles are never loaded.
Keys, names and conventions are those of llama.cpp, which can run the result.
"""

from pathlib import Path

from localinfer.architectures import DFLASH, EAGLE3
from localinfer.conversion import quantization_config, speech_recognition, tensors, vocabulary
from localinfer.conversion.architectures import find_architecture, read_classes
from localinfer.conversion.checkpoint_folder import CONFIG, CheckpointFolder
from localinfer.conversion.draft_heads import dflash, dspark, eagle3, mtp
from localinfer.conversion.embedders import pooling, rerankers, sentence_transformers
from localinfer.conversion.metadata import config_hyperparameters, general_metadata, layer_numbers
from localinfer.conversion.tensor_formats import safetensors_file
from localinfer.conversion.vocabulary import special_tokens
from localinfer.gguf.source import Field, Source

__all__ = ["open_checkpoint"]


def open_checkpoint(path: str | Path, target: str | Path | None = None, conversion: str | Path | None = None) -> Source:
    """Read everything in the directory except tensor bytes, which are loaded on demand.

    `target` is the checkpoint of the target model; an EAGLE-3, DFlash or DSpark draft head needs it. With a target, the
    head that a checkpoint of DeepSeek-V4 has is read instead of the model. `conversion` is a Python file with BY_CLASS,
    as the modules in architectures/ have it, for classes of the user's own.

    Raises LocalInferError with `<file>: <key or tensor>: <what is wrong>`, UnsupportedError naming what is not
    supported, ModelNotFoundError if there is no such directory, UsageError for a draft head without its target.
    """
    folder = tokenizer_folder = CheckpointFolder(Path(path))
    if speech_recognition.is_speech_recognition(folder.json(CONFIG)):
        return speech_recognition.open_speech_recognition(folder)
    own_classes = read_classes(Path(conversion)) if conversion else {}
    described = dspark.describe_class(folder.json(CONFIG), is_head=target is not None)
    architecture, config = find_architecture(described, own_classes)
    stored = quantization_config.dequantize(architecture, config, safetensors_file.open_weights(folder))
    if architecture.is_draft_head:
        read_target = eagle3.read_target if architecture.name == EAGLE3 else dflash.read_target
        tokenizer_folder, config = read_target(config, Path(target) if target else None)
        stored = dspark.head_tensors(stored)
        config = dspark.describe_tensors(config, stored)
    numbers = config_hyperparameters.read_hparams(architecture, config)
    of_layers: dict[str, Field] = {}
    if architecture.is_draft_head:
        model_tensors = eagle3.model_tensors if architecture.name == EAGLE3 else dflash.model_tensors
        converted = tensors.convert(folder, architecture, numbers, model_tensors(config, numbers, stored))
        converted |= eagle3.draft_vocabulary(stored, config, numbers)
    else:
        stored = mtp.rename_mtp_layers(architecture, numbers.n_layer, stored)
        numbers = mtp.count_mtp_layers(architecture, config, numbers, stored)
        stored, of_layers = layer_numbers.split(folder, architecture, numbers.n_layer, stored)
        converted = tensors.convert(folder, architecture, numbers, stored) | sentence_transformers.dense_tensors(folder)
    tokens = vocabulary.read_vocabulary(tokenizer_folder, numbers.n_vocab, architecture.character_bpe_model)
    projector = rerankers.projector_tensors(folder, stored, numbers.n_embd) if rerankers.reads_lists(config) else {}
    reranker = rerankers.find_reranker(folder, architecture) if not projector else None
    if reranker:
        converted = rerankers.with_classifier(reranker, converted, tokens)
    converted = {**converted, **projector}
    fields = {
        "general.architecture": Field.text(architecture.name),
        **general_metadata.fields(folder, converted.values()),
        **config_hyperparameters.fields(architecture, config, numbers),
        **of_layers,
        **pooling.fields(folder, architecture, numbers),
        **sentence_transformers.dense_fields(folder, architecture.name),
        **sentence_transformers.prompt_fields(folder),
        **vocabulary.fields(tokens, numbers.n_vocab),
        **special_tokens.fields(
            tokenizer_folder, tokens, numbers.n_vocab, architecture.end_of_turn, architecture.chat_template
        ),
        **(dflash.token_fields(config, numbers.n_vocab) if architecture.name == DFLASH else {}),
        **architecture.own_fields,
        **(rerankers.fields(reranker) if reranker else {}),
        **(rerankers.list_fields(architecture.name, projector) if projector else {}),
    }
    return Source(folder.path, fields, converted, tuple(dict.fromkeys((*folder.files, *tokenizer_folder.files))))
