"""Makes the models that `llama_server_suite.py` serves in place of those that llama.cpp's suite downloads.

They are tiny and have random weights. Encoders and the mixture of experts have the vocabularies of the suite's models,
which llama.cpp's source has as files; the text model has as many tokens as the suite's. With the files of llama2.c's
stories260K in a folder, the text model is the suite's own.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import reference_models
from checkpoints import as_f32
from documented_files import split_model
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType
from llama2c_checkpoint import convert, write_llama
from locations import DATA
from safetensors.numpy import load_file, save_file
from tiny import BYTE, CHATML, CONTROL, NORMAL, UNKNOWN, Field, tiny_gemma3, tiny_llama, tiny_qwen3moe
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

MIN_POSITIONS = 516  # of encoders, whose tests have contexts of 512 tokens
SIZES: Mapping[str, Any] = {"n_ctx": 4096, "tokenizer.chat_template": Field("STRING", CHATML)}
INFILL_TOKENS = {"fim_pre": 4, "fim_suf": 5, "fim_mid": 6}  # any tokens: the model has not learned them
VOCABULARY_OF_ENCODERS = "ggml-vocab-bert-bge.gguf"
VOCABULARY_OF_EXPERTS = "ggml-vocab-llama-spm.gguf"
VOCABULARY = "tokenizer.ggml."  # the prefix of its keys
KEPT = {"tokenizer.ggml.token_type_count"}  # describes a tensor of the model


def make_models(folder: Path, vocabularies: Path, stories: Path | None) -> None:
    """Write the models. `vocabularies` is the folder `models` of llama.cpp's source, `stories` that of the files
    stories260K.bin and tok512.bin.
    """
    infill = {f"tokenizer.ggml.{name}_token_id": Field("UINT32", id) for name, id in INFILL_TOKENS.items()}
    make_text_model(folder / "llama.gguf", stories)
    make_text_model(folder / "infill.gguf", stories, **infill)
    tiny_gemma3(folder / "gemma3.gguf", **SIZES)
    split_model(folder / "split-00001-of-00003.gguf")
    experts = tiny_qwen3moe(folder / "experts-without-vocabulary.gguf", **SIZES)
    with_vocabulary(experts, vocabularies / VOCABULARY_OF_EXPERTS, folder / "experts.gguf")
    drafts = tiny_llama(folder / "draft-without-vocabulary.gguf", **SIZES)
    with_vocabulary(drafts, vocabularies / VOCABULARY_OF_EXPERTS, folder / "draft.gguf")
    for name, checkpoint in {
        "bert": reference_models.checkpoint("bert", folder),
        "reranker": Path(shutil.copytree(DATA / "reranker", folder / "reranker")),
    }.items():
        model = as_f32(with_more_positions(checkpoint), folder / f"{name}-without-vocabulary.gguf")
        with_vocabulary(model, vocabularies / VOCABULARY_OF_ENCODERS, folder / f"{name}.gguf")


def make_text_model(path: Path, stories: Path | None, **metadata: Any) -> None:
    """Write stories260K, or else a model with random weights."""
    if stories:
        convert(stories / "stories260K.bin", stories / "tok512.bin", path, **SIZES, **metadata)
    else:
        write_llama(path, sentencepiece_vocabulary(DATA / "varied.txt"), seed=3, **SIZES, **metadata)


def sentencepiece_vocabulary(text: Path) -> dict[str, Field]:
    """Return a vocabulary of the kind and size that stories260K has: SentencePiece with 512 tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    ascii_characters = ["▁", *map(chr, range(0x21, 0x7F))]
    trainer = trainers.BpeTrainer(vocab_size=250, initial_alphabet=ascii_characters, limit_alphabet=96)
    tokenizer.train_from_iterator([text.read_text(encoding="utf-8")], trainer)
    pieces = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(pieces)
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(pieces))]
    return {
        "tokenizer.ggml.model": Field("STRING", "llama"),
        "tokenizer.ggml.tokens": Field("ARRAY", tokens, "STRING"),
        "tokenizer.ggml.scores": Field("ARRAY", scores, "FLOAT32"),
        "tokenizer.ggml.token_type": Field("ARRAY", types, "INT32"),
        "tokenizer.ggml.bos_token_id": Field("UINT32", 1),
        "tokenizer.ggml.eos_token_id": Field("UINT32", 2),
        "tokenizer.ggml.unknown_token_id": Field("UINT32", 0),
    }


def with_vocabulary(model: Path, vocabulary: Path, output: Path) -> None:
    """Write a model with the tokens of another file, and random embeddings for them."""
    reader, words = GGUFReader(model), GGUFReader(vocabulary)
    writer = gguf.GGUFWriter(output, "")
    writer.kv_data[0].clear()
    own = {name: field for name, field in reader.fields.items() if name in KEPT or not name.startswith(VOCABULARY)}
    tokens = {name: field for name, field in words.fields.items() if name.startswith(VOCABULARY) and name not in KEPT}
    n_tokens = len(tokens["tokenizer.ggml.tokens"].contents())
    for name, field in (own | tokens).items():
        if not name.startswith("GGUF."):  # which GGUFReader adds
            value = n_tokens if name.endswith(".vocab_size") else field.contents()
            kinds = [GGUFValueType(kind) for kind in field.types]
            writer.add_key_value(name, value, kinds[0], kinds[-1] if len(kinds) > 1 else None)
    random = np.random.default_rng(0)
    for tensor in reader.tensors:
        if tensor.name == "token_embd.weight":
            values = random.standard_normal((n_tokens, int(tensor.shape[0])), np.float32) / 10
            writer.add_tensor(tensor.name, values, raw_dtype=GGMLQuantizationType.F32)
        else:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def with_more_positions(checkpoint: Path) -> Path:
    """Repeat the learned positions of an encoder until there are MIN_POSITIONS, and return the checkpoint."""
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    tensors = load_file(checkpoint / "model.safetensors")
    [name] = (name for name in tensors if name.endswith("position_embeddings.weight"))
    repeated = np.tile(tensors[name], (-(-MIN_POSITIONS // len(tensors[name])), 1))
    save_file(tensors | {name: repeated}, checkpoint / "model.safetensors")
    (checkpoint / "config.json").write_text(json.dumps(config | {"max_position_embeddings": len(repeated)}))
    return checkpoint
