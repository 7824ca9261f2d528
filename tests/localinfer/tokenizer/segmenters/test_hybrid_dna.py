"""DNA sequences between two tags: six letters per token."""

from pathlib import Path

from synthetic_vocabularies import genes, strings, write

from localinfer.gguf.reader import open_gguf
from localinfer.tokenizer import Tokenizer, from_gguf


def load(path: Path, keys: dict[str, object]) -> Tokenizer:
    return from_gguf(open_gguf(write(path / "model.gguf", keys)))


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.decode([id], special=True) for id in tokenizer.encode(text)]


def test_six_letters_per_token(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, genes())
    assert pieces(tokenizer, "<dna>ACGTACccccccGG</dna>") == ["<dna>", "ACGTAC", "CCCCCC", "GGAAAA", "</dna>"]
    assert pieces(tokenizer, "<dna>ACGNAC") == ["<dna>", "<oov>"]
    assert pieces(tokenizer, "<dna></dna>") == ["<dna>", "</dna>"]


def test_text_around_the_tags(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, genes())
    *before, first, gene, last, after = pieces(tokenizer, "Ba<dna>AAAAAA</dna>s")
    assert ["".join(before), first, gene, last, after] == ["Ba", "<dna>", "AAAAAA", "</dna>", "s"]


def test_without_tags(tmp_path: Path) -> None:
    keys = genes()
    keys["tokens"] = strings([token.replace("<oov>", "<none>") for token in keys["tokens"].value])
    assert "".join(pieces(load(tmp_path, keys), "<dna>AC")) == "<dna>AC"
