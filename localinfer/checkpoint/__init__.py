"""A model's checkpoint directory, as Hugging Face's libraries save it -> a `Source`.

The way of the data, and where it happens:

    config.json                       ->  spelling.py, hyperparameters.py, rope.py  ->  fields
    generation_config.json, README    ->  about.py                                  ->  fields
    modules.json, 1_Pooling           ->  pooling.py                                ->  fields
    tokenizer.json, tokenizer.model   ->  vocabulary/                               ->  fields
    tokenizer_config.json, templates  ->  vocabulary/special.py                     ->  fields
    *.safetensors  ->  stored/        ->  tensors.py: other names, types and orders of rows  ->  tensors
                                      ->  ahead.py: blocks that predict further tokens

What makes an architecture is a table: architectures/. Files are hostile until proven otherwise: JSON has limits
(folder.py), no name leads out of the directory, every shape is proven against config.json, and nothing is ever
unpickled. The keys, names and conventions are llama.cpp's, so that it runs the result.
"""

from pathlib import Path

from localinfer.checkpoint import about, ahead, eagle3, hyperparameters, pooling, tensors, vocabulary
from localinfer.checkpoint.architectures import find
from localinfer.checkpoint.folder import CONFIG, Folder
from localinfer.checkpoint.stored import nvfp4, weights
from localinfer.checkpoint.vocabulary import special
from localinfer.files.source import Field, Source

__all__ = ["open_checkpoint"]


def open_checkpoint(path: str | Path, target: str | Path | None = None) -> Source:
    """Everything in the directory but the tensors' bytes, which are read when they are asked for. `target` is that of
    the model that a head beside it guesses for.

    Raises LocalInferError with `<file>: <key or tensor>: <what is wrong>`, Unsupported naming what is not supported,
    ModelNotFound where there is no such directory, UsageError for a head without its model.
    """
    folder = spoken = Folder(Path(path))
    architecture, config = find(folder.table(CONFIG))
    stored = nvfp4.joined(weights.open_weights(folder))
    if architecture.beside:
        spoken, config = eagle3.of_target(config, Path(target) if target else None)
    numbers = hyperparameters.read(architecture, config)
    if architecture.beside:
        own = eagle3.vocabulary(stored, config, numbers)
        converted = tensors.convert(folder, architecture, numbers, eagle3.named(stored)) | own
    else:
        stored = ahead.numbered_on(architecture, numbers.n_layer, stored)
        numbers = ahead.counted(architecture, numbers, stored)
        converted = tensors.convert(folder, architecture, numbers, stored)
    tokens = vocabulary.read(spoken, numbers.n_vocab, architecture.merges_characters)
    fields = {
        "general.architecture": Field.text(architecture.name),
        **about.fields(folder, converted.values()),
        **hyperparameters.fields(architecture, config, numbers),
        **pooling.fields(folder, architecture, numbers),
        **vocabulary.fields(tokens, numbers.n_vocab),
        **special.fields(spoken, tokens, numbers.n_vocab),
    }
    return Source(folder.path, fields, converted, tuple(dict.fromkeys((*folder.files, *spoken.files))))
