"""The tokens of a checkpoint, from the files that its tokenizer comes in, and GGUF's keys for them.

tokenizer.model is SentencePiece's own file (sentencepiece_file.py), tokenizer.json that of the library `tokenizers`
(json_tokenizer.py), RWKV's is a text (world.py); tokens that were added later stand in two more places. Knows no ids of
special tokens, but for those that a vocabulary has by itself.
"""

from collections.abc import Iterator

import numpy as np

from localinfer.checkpoint.folder import Folder, Table
from localinfer.checkpoint.vocabulary import json_tokenizer, sentencepiece_file, world
from localinfer.checkpoint.vocabulary.tokens import Tokens
from localinfer.errors import Unsupported
from localinfer.files.source import Field
from localinfer.text import printable

KEY = "tokenizer.ggml."


def read(folder: Folder, n_vocab: int, characters: str = "") -> Tokens:
    """The vocabulary; `n_vocab`: the rows of the embedding, which no id may go beyond.

    One whose merges are of characters is of SentencePiece's kind, or of the kind with the name `characters`.

    Tokens that were added beyond it are left out: models of Gemma that see no pictures list the token for them, too.
    Raises LocalInferError naming the file and what is wrong in it, Unsupported for another kind of tokenizer.
    """
    tokens = read_files(folder, characters)
    for id, text, special in added(folder):
        if id < n_vocab:
            tokens.add(id, text, special=special)
        else:
            tokens.by_id.pop(id, None)
    if max(tokens.by_id, default=0) >= n_vocab:
        raise folder.error(f"the tokenizer has a token {max(tokens.by_id)}, but the embedding has {n_vocab} rows")
    refuse_twins(folder, tokens)
    if tokens.adds_space is not None:
        config = folder.optional("tokenizer_config.json")
        tokens.adds_space = config.get("add_prefix_space", bool, tokens.adds_space)
    return tokens


def read_files(folder: Folder, characters: str) -> Tokens:
    """SentencePiece's file, if there is one, knows more: the scores."""
    content = folder.bytes(sentencepiece_file.NAME)
    if content and not characters and sentencepiece_file.is_one(content):
        return sentencepiece_file.read(folder.path / sentencepiece_file.NAME, content)
    if not folder.has(json_tokenizer.NAME):
        lines = folder.text(world.NAME)
        if lines is not None:
            return world.read(folder.path / world.NAME, lines)
        what = f"there is neither {json_tokenizer.NAME} nor {sentencepiece_file.NAME}"
        raise folder.error(f"{what}: other kinds of tokenizers are not supported", Unsupported)
    return json_tokenizer.read(folder.table(json_tokenizer.NAME), characters)


def added(folder: Folder) -> Iterator[tuple[int, str, bool]]:
    """The tokens that were added: id, text, and whether it is special."""
    plain = folder.optional("added_tokens.json")
    for text in plain.values:
        yield id_of(plain, text), text, False
    for each in folder.optional(json_tokenizer.NAME).tables("added_tokens"):
        yield id_of(each, "id"), each.get("content", str), each.get("special", bool, False)
    decoder = folder.optional("tokenizer_config.json").table("added_tokens_decoder")
    for id in decoder.values:
        each = decoder.table(id)
        if not id.isdecimal():
            raise decoder.error(id, "is not the id of a token")
        yield int(id), each.get("content", str), each.get("special", bool, False)


def id_of(table: Table, key: str) -> int:
    id = table.get(key, int)
    if id < 0:
        raise table.error(key, f"{id} is not the id of a token")
    return id


def refuse_twins(folder: Folder, tokens: Tokens) -> None:
    """No two tokens may have the same text: a reader could not tell them apart."""
    if len(tokens.ids()) < len(tokens.by_id):
        seen: dict[str, int] = {}
        for id, token in sorted(tokens.by_id.items()):
            if seen.setdefault(token.text, id) != id:
                text = printable(repr(token.text), 80)
                raise folder.error(f"tokens {seen[token.text]} and {id} are the same, {text}")


def fields(tokens: Tokens, n_vocab: int) -> dict[str, Field]:
    """The keys of the vocabulary, with as many tokens as the embedding has rows."""
    padded = tokens.padded(n_vocab)
    found = {
        "model": Field.text(tokens.model),
        **({"pre": Field.text(tokens.pre)} if tokens.pre else {}),
        "tokens": Field.texts([token.text for token in padded]),
        "token_type": Field.numbers(np.array([token.type for token in padded], np.int32)),
    }
    if tokens.model in ("llama", "t5"):
        found["scores"] = Field.numbers(np.array([token.score for token in padded], np.float32))
    elif tokens.model not in ("bert", "rwkv"):
        found["merges"] = Field.texts(tokens.merges)
    if tokens.adds_space is not None:
        found["add_space_prefix"] = Field.flag(tokens.adds_space)
    return {KEY + key: field for key, field in (found | dict(tokens.more)).items()}
