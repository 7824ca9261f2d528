"""The vocabulary of a checkpoint, from its tokenizer files, and GGUF's keys for it.

tokenizer.model or spiece.model is SentencePiece's format (sentencepiece_file.py), tokenizer.json that of the
`tokenizers` library (json_tokenizer.py), tiktoken.model that of tiktoken (tiktoken_file.py), and RWKV's and PLaMo's are
text files (rwkv_world.py, plamo_file.py).
Tokens that were added later are listed in two more files. special_tokens.py finds the ids of special tokens.
"""

from collections.abc import Iterator

import numpy as np

from localinfer.conversion.checkpoint_folder import CheckpointFolder, JsonObject
from localinfer.conversion.vocabulary import json_tokenizer, plamo_file, rwkv_world, sentencepiece_file, tiktoken_file
from localinfer.conversion.vocabulary.token_list import TokenList
from localinfer.errors import UnsupportedError
from localinfer.escaping import printable
from localinfer.gguf.source import Field

KEY_PREFIX = "tokenizer.ggml."


def read_vocabulary(folder: CheckpointFolder, n_vocab: int, characters: str = "") -> TokenList:
    """Read the vocabulary. `n_vocab` is the number of embedding rows, which limits the ids.

    A vocabulary with merges of characters becomes SentencePiece's model, or the model named by `characters`. Added
    tokens beyond n_vocab are dropped: text-only Gemma models list the image token too. Raises LocalInferError naming
    the file and the problem, UnsupportedError for another kind of tokenizer.
    """
    tokens = read_files(folder, characters)
    for id, text, special in added_tokens(folder):
        if id < n_vocab:
            tokens.add(id, text, special=special)
        else:
            tokens.by_id.pop(id, None)
    if max(tokens.by_id, default=0) >= n_vocab:
        raise folder.error(f"the tokenizer has a token {max(tokens.by_id)}, but the embedding has {n_vocab} rows")
    reject_duplicates(folder, tokens)
    if tokens.adds_space is not None:
        config = folder.optional_json("tokenizer_config.json")
        tokens.adds_space = config.get("add_prefix_space", bool, tokens.adds_space)
    return tokens


def read_files(folder: CheckpointFolder, characters: str) -> TokenList:
    """Read the tokens; SentencePiece's file is preferred because it contains the scores."""
    for name in sentencepiece_file.NAMES:
        content = folder.read_bytes(name)
        if content and not characters and sentencepiece_file.is_sentencepiece(content):
            return sentencepiece_file.read(folder.path / name, content)
    if not folder.has(json_tokenizer.NAME):
        lines = folder.read_text(rwkv_world.NAME)
        if lines is not None:
            return rwkv_world.read(folder.path / rwkv_world.NAME, lines)
        lines = folder.read_text(plamo_file.NAME)
        if lines is not None:
            return plamo_file.read(folder.path / plamo_file.NAME, lines)
        ranks = folder.read_text(tiktoken_file.NAME)
        if ranks is not None:
            return tiktoken_file.read(folder, ranks)
        what = f"there is neither {json_tokenizer.NAME} nor {sentencepiece_file.NAMES[0]}"
        raise folder.error(f"{what}: other kinds of tokenizers are not supported", UnsupportedError)
    return json_tokenizer.read(folder.json(json_tokenizer.NAME), characters)


def added_tokens(folder: CheckpointFolder) -> Iterator[tuple[int, str, bool]]:
    """Yield the added tokens: id, text, and whether it is special."""
    plain = folder.optional_json("added_tokens.json")
    for text in plain.values:
        yield token_id(plain, text), text, False
    for each in folder.optional_json(json_tokenizer.NAME).children("added_tokens"):
        yield token_id(each, "id"), each.get("content", str), each.get("special", bool, False)
    decoder = folder.optional_json("tokenizer_config.json").child("added_tokens_decoder")
    for id in decoder.values:
        each = decoder.child(id)
        if not id.isdecimal():
            raise decoder.error(id, "is not the id of a token")
        yield int(id), each.get("content", str), each.get("special", bool, False)


def token_id(table: JsonObject, key: str) -> int:
    """Return a token's id. Raises LocalInferError if it is negative."""
    id = table.get(key, int)
    if id < 0:
        raise table.error(key, f"{id} is not the id of a token")
    return id


def reject_duplicates(folder: CheckpointFolder, tokens: TokenList) -> None:
    """Raise LocalInferError if two tokens have the same text: a reader could not distinguish them."""
    if len(tokens.ids_by_text()) < len(tokens.by_id):
        seen: dict[str, int] = {}
        for id, token in sorted(tokens.by_id.items()):
            if seen.setdefault(token.text, id) != id:
                text = printable(repr(token.text), 80)
                raise folder.error(f"tokens {seen[token.text]} and {id} are the same, {text}")


def fields(tokens: TokenList, n_vocab: int) -> dict[str, Field]:
    """Return the keys of the vocabulary, padded to the number of embedding rows."""
    padded = tokens.padded(n_vocab)
    metadata = {
        "model": Field.text(tokens.model),
        **({"pre": Field.text(tokens.pre)} if tokens.pre else {}),
        "tokens": Field.texts([token.text for token in padded]),
        "token_type": Field.numbers(np.array([token.type for token in padded], np.int32)),
    }
    if tokens.model in ("llama", "t5", "plamo2"):
        metadata["scores"] = Field.numbers(np.array([token.score for token in padded], np.float32))
    elif tokens.model not in ("bert", "rwkv"):
        metadata["merges"] = Field.texts(tokens.merges)
    if tokens.adds_space is not None:
        metadata["add_space_prefix"] = Field.flag(tokens.adds_space)
    return {KEY_PREFIX + key: field for key, field in (metadata | dict(tokens.extra_fields)).items()}
