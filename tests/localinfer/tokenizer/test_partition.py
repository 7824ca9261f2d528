"""Special tokens that strip the adjacent whitespace."""

import time
from pathlib import Path

import pytest
from synthetic_vocabularies import characters, every_pair, keys_of, word_pieces, write
from tiny import byte_level_alphabet

from localinfer.gguf.reader import open_gguf
from localinfer.tokenizer import Tokenizer, from_gguf

SPECIAL = ["<unk>", "<s>", "<|end|>", "<|user|>"]


def phi3(path: Path, name: str = "Phi3") -> Tokenizer:
    keys = keys_of("gpt2", SPECIAL, byte_level_alphabet(), pre="gpt-2", merges=["a b"], bos_token_id=1)
    return from_gguf(open_gguf(write(path / "model.gguf", keys, name=name)))


class TestPhi3:
    def test_strips_whitespace_to_the_right(self, tmp_path: Path) -> None:
        tokenizer = phi3(tmp_path)
        end, user = SPECIAL.index("<|end|>"), SPECIAL.index("<|user|>")
        x = tokenizer.encode("x")
        assert tokenizer.encode("<|user|> \t\n\v\f\rx<|end|>\n<|end|>\n ", parse_special=True) == [user, *x, end, end]
        assert tokenizer.split("x <|end|>\u00a0x") == ["x ", end, "\u00a0x"]  # only whitespace of C's isspace

    def test_exceptions(self, tmp_path: Path) -> None:
        tokenizer = phi3(tmp_path, "my-Phi-3-mini")
        assert tokenizer.split("<s> x<unk> x") == [1, " x", 0, " x"]

    def test_only_in_phi3(self, tmp_path: Path) -> None:
        assert phi3(tmp_path, "Phi 4").split("<|end|>\nx") == [2, "\nx"]

    def test_unparsed_text_is_unchanged(self, tmp_path: Path) -> None:
        tokenizer = phi3(tmp_path)
        assert tokenizer.decode(tokenizer.encode("<|end|>\n x")) == "<|end|>\n x"

    def test_without_stripping(self, tmp_path: Path) -> None:
        chunks = phi3(tmp_path).split("a <|end|>\n\nb", strip=False)
        assert chunks == ["a ", 2, "\n\nb"]

    def test_linear_time(self, tmp_path: Path) -> None:
        tokenizer = phi3(tmp_path)
        begin = time.process_time()
        assert tokenizer.split("<|end|>" + " " * 100_000 + "<|user|> " * 100_000) == [2, *[3] * 100_000]
        assert time.process_time() - begin < 5


@pytest.mark.parametrize(
    ("keys", "general", "mask"),
    [
        (every_pair() | {"pre": "jina-v2-code"}, {}, "<mask>"),
        (characters("gemma4"), {"architecture": "nomic-bert-moe"}, "<mask>"),
        (word_pieces(), {"name": "Modern-BERT-base"}, "[MASK]"),
    ],
)
def test_mask_strips_whitespace_to_the_left(tmp_path: Path, keys: dict, general: dict[str, str], mask: str) -> None:
    tokens = keys["tokens"].value
    keys["tokens"] = keys["tokens"]._replace(value=[mask, *tokens[1:]] if mask not in tokens else tokens)
    tokenizer = from_gguf(open_gguf(write(tmp_path / "model.gguf", keys, **general)))
    id = keys["tokens"].value.index(mask)
    assert tokenizer.split(f" a \n{mask} b{mask}{mask} {mask}") == [" a", id, " b", id, id, id]
